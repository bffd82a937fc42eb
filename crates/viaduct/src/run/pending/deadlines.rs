//! Time limits that programs set for their connects (`SO_SNDTIMEO`).

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use viaduct_proto::wrap::Errno;

use super::Answer;

/// Answers that are scheduled for given times. Their thread starts with the first answer.
#[derive(Debug, Default)]
pub(super) struct Deadlines(Arc<Queue>);

#[derive(Debug, Default)]
struct Queue {
    due: Mutex<Due>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Due {
    /// Answers by time and then by the order of insertion.
    answers: BTreeMap<(Instant, u64), (Answer, Errno)>,
    next: u64,
    has_thread: bool,
}

impl Deadlines {
    /// Schedules `answer` with `errno` for the time `at`. It has no effect if the answer has been
    /// given by then.
    pub(super) fn add(&self, at: Instant, answer: Answer, errno: Errno) -> io::Result<()> {
        let mut due = self.0.due();
        if !due.has_thread {
            let queue = self.0.clone();
            thread::Builder::new().name("deadlines".to_owned()).spawn(move || queue.run())?;
            due.has_thread = true;
        }
        let number = due.next;
        due.next += 1;
        due.answers.insert((at, number), (answer, errno));
        drop(due);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl Queue {
    fn run(&self) {
        let mut due = self.due();
        loop {
            let now = Instant::now();
            due = match due.answers.first_key_value() {
                None => self.changed.wait(due).unwrap_or_else(PoisonError::into_inner),
                Some((&(at, _), _)) if at > now => {
                    let waited = self.changed.wait_timeout(due, at - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => {
                    let first = due.answers.pop_first();
                    drop(due);
                    if let Some((_, (answer, errno))) = first
                        && let Some(callback) = answer.take()
                    {
                        callback(Err(errno));
                    }
                    self.due()
                }
            };
        }
    }

    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

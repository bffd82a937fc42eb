//! Host name resolution in threads of its own: the system's resolver blocks, for ten seconds and
//! more if a name server does not answer.
//!
//! ```text
//!   loop ── ask ──▶ LookupQueue: waiting questions ──▶ threads, started on demand ──▶ answer
//!     └── forget: the client has gone
//! ```
//!
//! Look-ups for one source never delay the look-ups for others: a source may use only some of the
//! threads, and the next question always comes from the source with the fewest running look-ups.

use std::collections::{HashMap, VecDeque};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use mio::Waker;

use crate::source::Source;

/// Concurrent look-ups: in total, and for one source.
const MAX_THREADS: usize = 32;
const MAX_THREADS_PER_SOURCE: usize = 24;
/// Questions that wait for a thread: in total, and of one source.
const MAX_WAITING: usize = 1024;
const MAX_WAITING_PER_SOURCE: usize = 64;
/// Time after which an idle thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Key of a flow and its generation, which distinguishes the flow from a later one with the same
/// key.
pub type Requester = (usize, u64);

/// Requester, and the addresses of its name; none if the name cannot be resolved.
type Answer = (Requester, Vec<SocketAddr>);

/// The resolver.
#[derive(Debug)]
pub struct Resolver {
    shared: Arc<ResolverState>,
    answers: Receiver<Answer>,
}

#[derive(Debug)]
struct ResolverState {
    queue: Mutex<LookupQueue>,
    /// Signalled when there is a new question, and when the resolver is dropped.
    changed: Condvar,
    answers: Sender<Answer>,
    waker: Arc<Waker>,
}

/// Waiting questions, and counts of look-ups and threads.
#[derive(Debug, Default)]
struct LookupQueue {
    waiting: VecDeque<Question>,
    running: HashMap<Source, usize>,
    threads: usize,
    /// Threads that wait for a question.
    idle: usize,
    closed: bool,
}

#[derive(Debug)]
struct Question {
    requester: Requester,
    source: Source,
    name: String,
    port: u16,
}

impl Resolver {
    /// Returns a resolver that wakes the loop by `waker` for each answer.
    pub fn new(waker: &Arc<Waker>) -> Resolver {
        let (sender, answers) = channel();
        let shared = ResolverState {
            queue: Mutex::default(),
            changed: Condvar::new(),
            answers: sender,
            waker: waker.clone(),
        };
        Resolver { shared: Arc::new(shared), answers }
    }

    /// Asks for the addresses of `name`, for a client at `from`. Returns false if too many
    /// questions wait, or no thread runs and none can be started.
    pub fn ask(&self, requester: Requester, from: SocketAddr, name: String, port: u16) -> bool {
        let mut queue = self.shared.queue();
        if !queue.add(Question { requester, source: from.ip().into(), name, port }) {
            return false;
        }
        if queue.lacks_threads() {
            let shared = self.shared.clone();
            let started = thread::Builder::new().name("names".to_owned()).spawn(move || {
                shared.work();
            });
            queue.threads += usize::from(started.is_ok());
        }
        self.shared.changed.notify_one();
        queue.threads > 0
    }

    /// Drops the question of a client that has disconnected, if it is still waiting.
    pub fn forget(&self, requester: Requester) {
        self.shared.queue().waiting.retain(|question| question.requester != requester);
    }

    /// Next answer: all addresses, the preferred one first.
    pub fn answer(&self) -> Option<Answer> {
        self.answers.try_recv().ok()
    }
}

impl Drop for Resolver {
    fn drop(&mut self) {
        self.shared.queue().closed = true;
        self.shared.changed.notify_all();
    }
}

impl ResolverState {
    fn queue(&self) -> MutexGuard<'_, LookupQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Body of a resolver thread.
    fn work(&self) {
        let mut queue = self.queue();
        while !queue.closed {
            if let Some(Question { requester, source, name, port }) = queue.take() {
                drop(queue);
                let all = look_up(&name, port);
                // Fails if the resolver was dropped; the answer is then not needed.
                let _ = self.answers.send((requester, all)).map(|()| self.waker.wake());
                queue = self.queue();
                queue.done(source);
                continue;
            }
            queue.idle += 1;
            let waited = self.changed.wait_timeout(queue, IDLE_TIMEOUT);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            queue = woken;
            queue.idle -= 1;
            if timeout.timed_out() && queue.waiting.is_empty() {
                break;
            }
        }
        queue.threads -= 1;
    }
}

/// Addresses of `name`. In DNS, a trailing dot means that no search suffix is added. `/etc/hosts`
/// and the rules for `localhost` know names only without the dot.
fn look_up(name: &str, port: u16) -> Vec<SocketAddr> {
    let ask =
        |name: &str| (name, port).to_socket_addrs().map(Iterator::collect).unwrap_or_default();
    let bare = name.strip_suffix('.').unwrap_or(name);
    let is_local =
        bare.eq_ignore_ascii_case("localhost") || bare.to_ascii_lowercase().ends_with(".localhost");
    let found: Vec<_> = if is_local { Vec::new() } else { ask(name) };
    if found.is_empty() && (is_local || bare != name) { ask(bare) } else { found }
}

impl LookupQueue {
    /// Queues a question, unless there are too many.
    fn add(&mut self, question: Question) -> bool {
        let own = self.waiting.iter().filter(|other| other.source == question.source).count();
        let room = self.waiting.len() < MAX_WAITING && own < MAX_WAITING_PER_SOURCE;
        if room {
            self.waiting.push_back(question);
        }
        room
    }

    fn lacks_threads(&self) -> bool {
        self.waiting.len() > self.idle && self.threads < MAX_THREADS
    }

    /// Takes the next question: the oldest of the source with the fewest look-ups. `None` if
    /// all waiting sources have reached their limit.
    fn take(&mut self) -> Option<Question> {
        let running = |question: &Question| self.running.get(&question.source).copied();
        let (n, count) = self
            .waiting
            .iter()
            .map(|question| running(question).unwrap_or(0))
            .enumerate()
            .min_by_key(|&(_, count)| count)?;
        if count >= MAX_THREADS_PER_SOURCE {
            return None;
        }
        let question = self.waiting.remove(n)?;
        *self.running.entry(question.source).or_default() += 1;
        Some(question)
    }

    /// Records the end of a look-up of `source`.
    fn done(&mut self, source: Source) {
        if let Some(count) = self.running.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&source);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(client: u8, number: usize) -> Question {
        let source = Source::from(std::net::IpAddr::from([10, 0, 0, client]));
        Question { requester: (number, 0), source, name: "host".to_owned(), port: 80 }
    }

    #[test]
    fn questions_of_one_source_leave_threads_and_room_to_others() {
        let mut queue = LookupQueue::default();
        let added = (0..100).filter(|&n| queue.add(question(1, n))).count();
        assert_eq!(added, MAX_WAITING_PER_SOURCE);
        let taken = std::iter::from_fn(|| queue.take()).count();
        assert_eq!(taken, MAX_THREADS_PER_SOURCE, "no more until a look-up has ended");
        assert!(queue.add(question(2, 100)));
        assert_eq!(
            queue.take().unwrap().requester.0,
            100,
            "before older questions of the first source"
        );
        assert!(queue.take().is_none());
        queue.done(question(1, 0).source);
        assert_eq!(
            queue.take().unwrap().requester.0,
            MAX_THREADS_PER_SOURCE,
            "in the order of arrival"
        );
    }

    #[test]
    fn threads_are_started_for_waiting_questions_up_to_a_limit() {
        let mut queue = LookupQueue { threads: 2, idle: 1, ..LookupQueue::default() };
        assert!(!queue.lacks_threads());
        queue.add(question(1, 1));
        assert!(!queue.lacks_threads(), "the idle thread takes the question");
        queue.add(question(1, 2));
        assert!(queue.lacks_threads());
        queue.threads = MAX_THREADS;
        assert!(!queue.lacks_threads());
    }

    #[test]
    fn a_trailing_dot_is_not_part_of_a_name() {
        let plain = look_up("localhost", 80);
        assert!(!plain.is_empty());
        for name in ["localhost.", "LOCALHOST", "LocalHost."] {
            assert_eq!(look_up(name, 80), plain, "{name}");
        }
    }

    #[test]
    fn names_of_clients_that_are_gone_are_not_resolved() {
        let poll = mio::Poll::new().unwrap();
        let waker = Waker::new(poll.registry(), mio::Token(0)).unwrap();
        let resolver = Resolver::new(&Arc::new(waker));
        // No thread is running that could take the question before it is forgotten.
        assert!(resolver.shared.queue().add(question(1, 7)));
        resolver.forget((7, 1));
        assert_eq!(
            resolver.shared.queue().waiting.len(),
            1,
            "the other generation's question stays"
        );
        resolver.forget((7, 0));
        assert!(resolver.shared.queue().waiting.is_empty());
        let from = SocketAddr::from(([10, 0, 0, 1], 1));
        assert!(resolver.ask((8, 0), from, "127.0.0.9".to_owned(), 80));
        let (requester, found) = resolver.answers.recv().unwrap();
        assert_eq!((requester, found), ((8, 0), vec![SocketAddr::from(([127, 0, 0, 9], 80))]));
    }
}

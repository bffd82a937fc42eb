//! The answer to a call that waits for a connect.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use viaduct_proto::wrap::Errno;

/// Outcome of a connect for the program that waits for it, with the connected socket.
pub type Told = Result<OwnedFd, Errno>;

/// Answer to a blocked call. It is given once, by the thread that takes it first; a thread may
/// also take it because the call no longer waits.
#[derive(Clone)]
pub struct Answer {
    say: Arc<Mutex<Option<Say>>>,
    /// Time that the program allows for its connect (`SO_SNDTIMEO`).
    pub limit: Option<Duration>,
    /// Closed by the other end when the call no longer waits.
    asks: Option<Arc<OwnedFd>>,
}

pub(super) type Say = Box<dyn FnOnce(Told) + Send>;

impl Answer {
    /// An answer by `say` to a program that allows `limit` for its connect.
    pub fn new(limit: Option<Duration>, say: impl FnOnce(Told) + Send + 'static) -> Answer {
        Answer { say: Arc::new(Mutex::new(Some(Box::new(say)))), limit, asks: None }
    }

    /// Returns an answer that is valid only while the other end of `asks` is open.
    pub fn while_open(self, asks: Arc<OwnedFd>) -> Answer {
        Answer { asks: Some(asks), ..self }
    }

    /// Returns whether it has not been given yet.
    pub fn is_open(&self) -> bool {
        self.say.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Takes the function that answers; `None` if it was taken, or if the call no longer waits.
    pub fn take(&self) -> Option<Say> {
        let say = self.say.lock().unwrap_or_else(PoisonError::into_inner).take();
        say.filter(|_| !self.asks.as_ref().is_some_and(|asks| is_hung_up(asks)))
    }
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answer").field("limit", &self.limit).finish_non_exhaustive()
    }
}

fn is_hung_up(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    let polled = poll(&mut fds, Some(&Timespec::default()));
    polled.is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

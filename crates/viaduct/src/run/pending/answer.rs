//! Answer to a call that waits for a connect.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use viaduct_proto::wrap::Errno;

/// Outcome of a connect for a waiting call: the connected socket, or the error.
pub type ConnectResult = Result<OwnedFd, Errno>;

/// Answer to a blocked call, given at most once, by the first thread that takes the callback.
#[derive(Clone)]
pub struct Answer {
    callback: Arc<Mutex<Option<Callback>>>,
    /// Time limit of the program for its connect (`SO_SNDTIMEO`).
    pub limit: Option<Duration>,
    /// Connection from the caller, which the caller closes when it stops waiting.
    pub caller: Option<Arc<OwnedFd>>,
}

pub(super) type Callback = Box<dyn FnOnce(ConnectResult) + Send>;

impl Answer {
    /// Returns an answer that `callback` delivers; `limit` is the time limit of the program for its
    /// connect.
    pub fn new(
        limit: Option<Duration>,
        callback: impl FnOnce(ConnectResult) + Send + 'static,
    ) -> Answer {
        Answer { callback: Arc::new(Mutex::new(Some(Box::new(callback)))), limit, caller: None }
    }

    /// Returns whether the callback has not been taken yet.
    pub fn is_open(&self) -> bool {
        self.callback.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Takes the callback that answers; `None` if it has already been taken, or if the call no
    /// longer waits.
    pub fn take(&self) -> Option<Callback> {
        let callback = self.callback.lock().unwrap_or_else(PoisonError::into_inner).take();
        callback.filter(|_| !self.caller.as_ref().is_some_and(|caller| is_hung_up(caller)))
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

//! Blocking calls, which the supervisor makes for the program on a duplicate of its socket. If the
//! call continued in the kernel, the program could change its arguments after the check.
//!
//! A call ends as it would in the kernel: when it has succeeded or failed, at the time limit that
//! the program has set (`SO_SNDTIMEO`), or by a signal.

use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use viaduct_proto::wrap::Errno;
use viaduct_sys::seccomp::{Notification, Reply};
use viaduct_sys::socket::pending::connect_for;

use super::signals::is_signalled;
use super::{Outcome, Supervisor, errno_of, send_reply, send_timeout};

/// Interval between checks of a blocked call for signals and for the end of its caller.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

impl Supervisor {
    /// Starts a thread that calls `attempt` whenever `socket` is writable, until `attempt` returns
    /// the reply to `call`. At the time limit of the socket, the call fails with `expired`.
    pub(super) fn retry(
        &self,
        call: &Notification,
        socket: OwnedFd,
        expired: Errno,
        mut attempt: impl FnMut(&OwnedFd) -> Option<Reply> + Send + 'static,
    ) -> Outcome {
        let limit = send_timeout(&socket);
        let until = limit.map(|limit| Instant::now() + limit);
        let (listener, call) = (self.listener.clone(), *call);
        let wait = move || {
            let reply = loop {
                let now = Instant::now();
                let left = until.map_or(CHECK_INTERVAL, |until| {
                    until.saturating_duration_since(now).min(CHECK_INTERVAL)
                });
                if is_writable(&socket, left)
                    && let Some(reply) = attempt(&socket)
                {
                    break reply;
                }
                if until.is_some_and(|until| until <= Instant::now()) {
                    break Reply::Failed(expired.0);
                }
                if is_signalled(&call) {
                    break Reply::interrupted(limit.is_some());
                }
                if !listener.waits(&call) {
                    return;
                }
            };
            // The duplicate of the program's socket must be closed before the program gets the
            // reply.
            drop((attempt, socket));
            send_reply(&listener, &call, reply);
        };
        let spawned = thread::Builder::new().name("retries".to_owned()).spawn(wait);
        spawned.map(|_| None).map_err(errno_of)
    }

    /// Completes the connect of `socket` to `sockaddr`, which is in progress.
    pub(super) fn complete(
        &self,
        call: &Notification,
        socket: &OwnedFd,
        sockaddr: &[u8],
    ) -> Outcome {
        let (socket, sockaddr) = (socket.try_clone().map_err(errno_of)?, sockaddr.to_vec());
        self.retry(call, socket, Errno::INPROGRESS, move |socket| {
            match connect_for(socket, &sockaddr).map_err(errno_of) {
                Ok(()) | Err(Errno::ISCONN) => Some(Reply::Returned(0)),
                Err(Errno::ALREADY) => None,
                Err(errno) => Some(Reply::Failed(errno.0)),
            }
        })
    }
}

/// Waits for at most `within` until a socket is writable or has failed; returns whether it is so.
fn is_writable(socket: &OwnedFd, within: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
    let limit = Timespec { tv_sec: 0, tv_nsec: within.subsec_nanos().into() };
    poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0)
}

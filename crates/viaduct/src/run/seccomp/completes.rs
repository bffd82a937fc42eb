//! A connect that goes direct, and that its program waits for: it is completed here. The kernel would look at the
//! descriptor anew, and where nothing may go around the chain it lets the program connect nothing.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use viaduct_proto::wrap::Errno;
use viaduct_sys::pending::connect_for;
use viaduct_sys::seccomp::{Notification, Reply};

use super::signalled::is_signalled;
use super::{Outcome, Supervisor, number, say, send_timeout};

/// How often it is looked whether a signal has come.
const LOOK: Duration = Duration::from_millis(50);

impl Supervisor {
    /// Waits for the connect of `socket` to `sockaddr`, which has begun, beside.
    pub(super) fn complete(
        &self,
        call: &Notification,
        socket: &OwnedFd,
        sockaddr: &[u8],
    ) -> Outcome {
        let socket = socket.try_clone().map_err(number)?;
        let limit = send_timeout(&socket);
        let until = limit.map(|limit| Instant::now() + limit);
        let (listener, call, sockaddr) = (self.listener.clone(), *call, sockaddr.to_vec());
        let wait = move || {
            let reply = loop {
                let now = Instant::now();
                let left =
                    until.map_or(LOOK, |until| until.saturating_duration_since(now).min(LOOK));
                if await_room(&socket, left) {
                    match connect_for(&socket, &sockaddr) {
                        Ok(()) => break Reply::Returned(0),
                        Err(error) => match number(error) {
                            Errno::ISCONN => break Reply::Returned(0),
                            Errno::ALREADY => {}
                            errno => break Reply::Failed(errno.0),
                        },
                    }
                } else if until.is_some_and(|until| until <= Instant::now()) {
                    break Reply::Failed(Errno::INPROGRESS.0);
                }
                if is_signalled(&call) {
                    break Reply::interrupted(limit.is_some());
                }
                if !listener.waits(&call) {
                    return;
                }
            };
            drop(socket);
            say(&listener, &call, reply);
        };
        let begun: io::Result<_> = thread::Builder::new().name("connects".to_owned()).spawn(wait);
        begun.map(|_| None).map_err(number)
    }
}

/// Whether a socket is connected, or its connect has failed, within this time.
fn await_room(socket: &OwnedFd, within: Duration) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::OUT)];
    let limit = Timespec { tv_sec: 0, tv_nsec: within.subsec_nanos().into() };
    poll(&mut fds, Some(&limit)).is_ok_and(|ready| ready > 0)
}

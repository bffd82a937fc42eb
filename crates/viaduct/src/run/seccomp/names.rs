//! Calls that ask what a socket's names are, and what has become of it.

use rustix::net::sockopt;
use viaduct_sys::seccomp::{Notification, Reply};

use super::{Outcome, Supervisor, cookie, number};

impl Supervisor {
    /// `getpeername` (0) and `getsockname` (1).
    pub(super) fn name(&mut self, call: &Notification, which: usize) -> Outcome {
        let [fd, at, size, ..] = call.arguments;
        let (socket, is) = self.duplicate(call, fd)?;
        let Some(name) = self.common.names_of(cookie(&socket)?)[which] else {
            return Ok(Some(Reply::Continue));
        };
        if which == 0 && rustix::net::getpeername(&socket).is_err() {
            // In progress, or over.
            return Ok(Some(Reply::Continue));
        }
        let (bytes, length) = is.sockaddr(name);
        let task = self.task(call)?;
        let mut room = [0; 4];
        self.listener.read(call, &task, size, &mut room).map_err(number)?;
        let room = u32::from_ne_bytes(room) as usize;
        self.listener.write(call, &task, at, &bytes[..length.min(room)]).map_err(number)?;
        let length = (length as u32).to_ne_bytes();
        self.listener.write(call, &task, size, &length).map_err(number)?;
        Ok(Some(Reply::Returned(0)))
    }

    /// `getsockopt` of `SO_ERROR`.
    pub(super) fn error(&mut self, call: &Notification) -> Outcome {
        let [fd, _, _, at, size, _] = call.arguments;
        let (socket, _) = self.duplicate(call, fd)?;
        let Some(errno) = self.common.take_refusal(cookie(&socket)?) else {
            return Ok(Some(Reply::Continue));
        };
        let mut room = [0; 4];
        let task = self.task(call)?;
        self.listener.read(call, &task, size, &mut room).map_err(number)?;
        let length = (u32::from_ne_bytes(room) as usize).min(4);
        let told = errno.0.to_ne_bytes();
        self.listener.write(call, &task, at, &told[..length]).map_err(number)?;
        let length = (length as u32).to_ne_bytes();
        self.listener.write(call, &task, size, &length).map_err(number)?;
        // The kernel's own is over with it.
        let _ = sockopt::socket_error(&socket);
        Ok(Some(Reply::Returned(0)))
    }
}

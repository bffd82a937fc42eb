//! Calls that read a socket's addresses, its error, and its options for sharing an address.

use std::net::SocketAddr;

use rustix::net::sockopt;
use viaduct_sys::netns::capture_ns::is_in_this_netns;
use viaduct_sys::seccomp::Notification;

use super::options::write_option;
use super::{CONTINUE, DONE, Outcome, Supervisor, cookie, errno_of};

const SO_REUSEPORT: u64 = 15;

impl Supervisor {
    /// Handles `getpeername` (0) and `getsockname` (1).
    pub(super) fn socket_name(&mut self, call: &Notification, which: usize) -> Outcome {
        let [fd, at, size, ..] = call.arguments;
        let (socket, is) = self.duplicate(call, fd)?;
        let Some(name) = self.interposition.addresses_of(cookie(&socket)?)[which] else {
            return CONTINUE;
        };
        if which == 0 && rustix::net::getpeername(&socket).is_err() {
            // The connect is in progress, or has failed.
            return CONTINUE;
        }
        let (bytes, length) = is.sockaddr(name);
        let room = self.read_length(call, size)?;
        self.write(call, at, &bytes[..length.min(room)])?;
        self.write(call, size, &(length as u32).to_ne_bytes())?;
        DONE
    }

    /// Handles `getsockopt` of `SO_ERROR`.
    pub(super) fn socket_error(&mut self, call: &Notification) -> Outcome {
        let (socket, _) = self.duplicate(call, call.arguments[0])?;
        let Some(errno) = self.interposition.take_refusal(cookie(&socket)?) else {
            return CONTINUE;
        };
        // The socket has the kernel's own error for the refused connect, which this read clears. If
        // the socket has no error, another call has already returned it, and SO_ERROR is 0.
        let own = sockopt::socket_error(&socket).map_err(|errno| errno_of(errno.into()))?;
        let task = self.task(call)?;
        write_option(&self.listener, &task, call, own.map_or(errno.0, |()| 0))?;
        DONE
    }

    /// Handles `getsockopt` of `SO_REUSEADDR` and `SO_REUSEPORT`: returns the values that the
    /// program has set, not those that the capture namespace needs.
    pub(super) fn reuse_option(&mut self, call: &Notification) -> Outcome {
        let Some(public_listeners) = self.listeners_in_use() else { return CONTINUE };
        let [fd, _, name, ..] = call.arguments;
        let (socket, is) = self.duplicate(call, fd)?;
        if !is.is_of_ip() || is.is_of_datagrams() || is_in_this_netns(&socket) {
            return CONTINUE;
        }
        let own = rustix::net::getsockname(&socket).ok().and_then(|at| at.try_into().ok());
        let shares = own.and_then(|at: SocketAddr| {
            public_listeners.reuse_option(at.port(), name == SO_REUSEPORT)
        });
        let Some(shares) = shares else { return CONTINUE };
        let task = self.task(call)?;
        write_option(&self.listener, &task, call, i32::from(shares))?;
        DONE
    }
}

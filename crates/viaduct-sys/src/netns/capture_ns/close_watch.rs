//! Notification of closed UDP sockets of a capture namespace (`sock_diag(7)`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::route::netlink;

/// `SKNLGRP_INET_UDP_DESTROY` and `SKNLGRP_INET6_UDP_DESTROY`, one bit each.
const GROUPS: u32 = 1 << 1 | 1 << 3;
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// Watch of UDP sockets: reports when the last descriptor of a socket is closed.
#[derive(Debug)]
pub struct CloseWatch(OwnedFd);

impl CloseWatch {
    /// Listens in the calling thread's network namespace, from now on. Errors: the kernel does not
    /// support these notifications.
    pub(super) fn open() -> io::Result<CloseWatch> {
        netlink::open(libc::NETLINK_SOCK_DIAG, GROUPS).map(CloseWatch)
    }

    /// Wraps a socket that another process has opened.
    pub fn of(socket: OwnedFd) -> CloseWatch {
        CloseWatch(socket)
    }

    /// Returns whether any socket was closed since the last call.
    pub fn any(&self) -> bool {
        netlink::any_event(&self.0, |kind, _| kind == SOCK_DIAG_BY_FAMILY)
    }
}

impl AsFd for CloseWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::netns::Netns;

    #[test]
    fn sockets_are_reported_when_their_last_descriptor_is_closed() {
        let told = || {
            crate::route::interface::Interface::new("lo").unwrap().set_up().unwrap();
            let gone = CloseWatch::open().unwrap();
            let waits = |milliseconds: i64| {
                let mut fds = [PollFd::new(&gone, PollFlags::IN)];
                let limit = Timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
                poll(&mut fds, Some(&limit)).unwrap() > 0
            };
            // Discards notifications about the socket that set up the interface.
            while waits(50) {
                gone.any();
            }
            for at in ["127.0.0.1:0", "[::1]:0"] {
                let socket = UdpSocket::bind(at).unwrap();
                let other = socket.try_clone().unwrap();
                drop(socket);
                assert!(!waits(20) && !gone.any());
                drop(other);
                assert!(waits(999) && gone.any() && !gone.any());
            }
        };
        Netns::new().unwrap().enter(told).unwrap();
    }
}

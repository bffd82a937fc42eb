//! Listening TCP sockets of a capture namespace, and notification of closed sockets
//! (`sock_diag(7)`).

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::capture::filter::asm::{Asm, Test};
use crate::capture::filter::{self, BpfInsn};
use crate::route::netlink::{self, Message, NLM_F_DUMP};

/// `SKNLGRP_INET_TCP_DESTROY` and `SKNLGRP_INET6_TCP_DESTROY`, one bit each.
const GROUPS: u32 = 1 << 0 | 1 << 2;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
/// The state `TCP_LISTEN`, as a bit.
const LISTENING: u32 = 1 << 10;
/// Bytes of `struct inet_diag_req_v2` after the source port.
const REST: usize = 46;
// Fields of `struct inet_diag_msg`.
const PEER_PORT: usize = 6;
const COOKIE: usize = 44;
const WAITING: usize = 56;
const BACKLOG: usize = 60;
/// Bytes of the netlink header, which precedes the struct.
const HEAD: usize = 16;

/// A listening socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Socket cookie (`SO_COOKIE`), unique in this kernel.
    pub cookie: u64,
    /// Number of connections in the accept queue.
    pub waiting: u32,
    /// Backlog; the accept queue holds one connection more.
    pub backlog: u32,
}

/// Listening sockets of one network namespace.
#[derive(Debug)]
pub struct Listeners {
    closed: OwnedFd,
    ask: OwnedFd,
}

impl Listeners {
    /// Opens netlink sockets in the calling thread's network namespace. Errors: the kernel does not
    /// support these notifications.
    pub(super) fn open() -> io::Result<Listeners> {
        let closed = netlink::open(libc::NETLINK_SOCK_DIAG, GROUPS)?;
        // Notifications of ended connections, which are far more frequent, are filtered out. If the
        // filter cannot be attached, they are read and ignored.
        let _ = filter::attach(closed.as_fd(), &without_peer());
        Ok(Listeners { closed, ask: netlink::open(libc::NETLINK_SOCK_DIAG, 0)? })
    }

    /// Wraps the sockets that another process has opened, from [`Listeners::parts`].
    pub fn of([closed, ask]: [OwnedFd; 2]) -> Listeners {
        Listeners { closed, ask }
    }

    /// Returns the two netlink sockets, to be sent to another process.
    pub fn parts(&self) -> [BorrowedFd<'_>; 2] {
        [self.closed.as_fd(), self.ask.as_fd()]
    }

    /// Returns the cookies of sockets without a peer that have been closed since the last call;
    /// `None` if notifications were lost.
    pub fn closed(&self) -> Option<Vec<u64>> {
        let mut cookies = Vec::new();
        let lost = netlink::any_event(&self.closed, |kind, message| {
            if kind == SOCK_DIAG_BY_FAMILY && message.get(PEER_PORT..PEER_PORT + 2) == Some(&[0; 2])
            {
                cookies.extend(double(message, COOKIE));
            }
            false
        });
        (!lost).then_some(cookies)
    }

    /// Returns the IPv6 or IPv4 sockets that listen on `port`, or on any port if `port` is 0.
    /// Errors: the netlink request fails.
    pub fn at(&self, port: u16, v6: bool) -> io::Result<Vec<Listener>> {
        let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        let mut head = vec![family as u8, libc::IPPROTO_TCP as u8, 0, 0];
        head.extend(LISTENING.to_ne_bytes());
        head.extend(port.to_be_bytes());
        head.resize(head.len() + REST, 0);
        let question = Message::with_head(SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, &head);
        netlink::send(&self.ask, &question.bytes())?;
        let mut found = Vec::new();
        let lost = netlink::any_event(&self.ask, |kind, message| {
            if kind == SOCK_DIAG_BY_FAMILY
                && let Some(cookie) = double(message, COOKIE)
                && let (Some(waiting), Some(backlog)) =
                    (word(message, WAITING), word(message, BACKLOG))
            {
                found.push(Listener { cookie, waiting, backlog });
            }
            false
        });
        if lost { Err(rustix::io::Errno::NOBUFS.into()) } else { Ok(found) }
    }
}

impl AsFd for Listeners {
    /// Readable when a socket has been closed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.closed.as_fd()
    }
}

/// Builds a filter that passes only notifications about sockets without a peer.
fn without_peer() -> Vec<BpfInsn> {
    let mut asm = Asm::default();
    let other = asm.label();
    asm.load_half((HEAD + PEER_PORT) as u32);
    asm.jump_unless(Test::Equal(0), other);
    asm.keep(u32::MAX);
    asm.place(other);
    asm.keep(0);
    asm.finish()
}

fn word(message: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*message.get(at..)?.first_chunk()?))
}

fn double(message: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*message.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::sockopt;

    use super::*;
    use crate::netns::Netns;

    fn in_a_namespace(work: impl FnOnce(Listeners) + Send) {
        let told = || {
            crate::route::interface::Interface::new("lo").unwrap().set_up().unwrap();
            work(Listeners::open().unwrap());
        };
        Netns::new().unwrap().enter(told).unwrap();
    }

    #[test]
    fn listening_sockets_are_found_with_the_lengths_of_their_accept_queues() {
        in_a_namespace(|listeners| {
            for (at, v6) in [("127.0.0.1:0", false), ("[::1]:0", true)] {
                let listener = TcpListener::bind(at).unwrap();
                rustix::net::listen(&listener, 7).unwrap();
                let at = listener.local_addr().unwrap();
                let cookie = sockopt::socket_cookie(&listener).unwrap();
                let client = TcpStream::connect(at).unwrap();
                let expected = [Listener { cookie, waiting: 1, backlog: 7 }];
                assert_eq!(listeners.at(at.port(), v6).unwrap(), expected);
                assert_eq!(listeners.at(0, v6).unwrap(), expected);
                assert_eq!(listeners.at(0, !v6).unwrap(), []);
                assert_eq!(listeners.at(at.port() ^ 1, v6).unwrap(), []);
                drop((listener, client));
                assert_eq!(listeners.at(0, v6).unwrap(), []);
            }
        });
    }

    #[test]
    fn a_listener_is_reported_when_its_last_descriptor_is_closed_and_a_connection_is_not() {
        in_a_namespace(|listeners| {
            let waits = |milliseconds: i64| {
                let mut fds = [PollFd::new(&listeners, PollFlags::IN)];
                let limit = Timespec { tv_sec: 0, tv_nsec: milliseconds * 1_000_000 };
                poll(&mut fds, Some(&limit)).unwrap() > 0
            };
            while waits(50) {
                listeners.closed();
            }
            for at in ["127.0.0.1:0", "[::1]:0"] {
                let listener = TcpListener::bind(at).unwrap();
                let cookie = sockopt::socket_cookie(&listener).unwrap();
                let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                drop((listener.accept().unwrap(), client));
                let other = listener.try_clone().unwrap();
                drop(listener);
                assert!(!waits(50));
                drop(other);
                assert!(waits(999));
                assert_eq!(listeners.closed(), Some(vec![cookie]));
            }
        });
    }
}

//! Decisions about calls, from the socket, the address and the user's rules.

use std::net::SocketAddr;

use crate::rules::{Fate, Rules, Transport};
use crate::socket::{Carries, Errno, MSG_FASTOPEN, Sockaddr, Socket, parse_sockaddr};

const DNS: u16 = 53;

/// Decision about a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel handles the call.
    Pass,
    /// A connect or send becomes a flow to this address; the connections to a listener with this
    /// address become flows.
    Divert(SocketAddr),
    /// The call is for DNS queries to this address, which `viaduct run` answers itself.
    Resolve(SocketAddr),
    /// The program receives this error.
    Refuse(Errno),
}

/// Summary of the rules: which datagrams may go direct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagrams {
    /// All datagrams go direct; no call needs a check.
    Free,
    /// No datagram may go direct; opening a socket can be refused.
    Refused,
    /// Some datagrams may go direct; each call needs a check.
    Judged,
}

impl Rules {
    /// Returns the decision about `socket`. MPTCP and SMC are refused with the error that a kernel
    /// without them returns, so that programs fall back to TCP. Refused with `EPERM`: sockets whose
    /// datagrams may not go direct under any rule, and are not carried by the chain; in strict
    /// mode, also sockets of unknown families.
    pub fn socket(&self, socket: Socket) -> Verdict {
        match socket.carries() {
            Carries::OtherTcp => Verdict::Refuse(socket.unsupported()),
            Carries::Unknown if self.strict => Verdict::Refuse(Errno::PERM),
            // The decision is made for each datagram when it is sent.
            Carries::Datagrams if self.names && socket.is_udp() => Verdict::Pass,
            Carries::Datagrams if self.names && self.strict => Verdict::Refuse(Errno::PERM),
            // The chain carries the datagrams of this socket.
            Carries::Datagrams if self.carries_of(socket) => Verdict::Pass,
            Carries::Datagrams if self.datagrams() == Datagrams::Refused => {
                Verdict::Refuse(Errno::PERM)
            }
            _ => Verdict::Pass,
        }
    }

    /// Returns the decision about `connect` of `socket` to `sockaddr`.
    pub fn connect(&self, socket: Socket, sockaddr: &[u8]) -> Verdict {
        let to = match parse_sockaddr(sockaddr) {
            Sockaddr::Ip(to) => to,
            // The kernel returns the right error or result, and no traffic follows.
            Sockaddr::None | Sockaddr::Other => return Verdict::Pass,
        };
        match socket.carries() {
            Carries::Tcp if !socket.is_of_family(sockaddr) => Verdict::Pass,
            Carries::Tcp => match self.fate(Transport::Tcp, to) {
                Fate::Divert => Verdict::Divert(to),
                Fate::Leave => Verdict::Pass,
                Fate::Refuse => Verdict::Refuse(Errno::PERM),
            },
            Carries::OtherTcp => Verdict::Refuse(Errno::PERM),
            // The part of the master that carries datagrams also answers DNS queries.
            Carries::Datagrams if self.names && self.carries_of(socket) && to.port() == DNS => {
                Verdict::Pass
            }
            Carries::Datagrams if self.names && to.port() == DNS && socket.is_udp() => {
                Verdict::Resolve(to)
            }
            Carries::Datagrams if self.lets(socket, self.fate(Transport::Udp, to)) => Verdict::Pass,
            Carries::Datagrams => Verdict::Refuse(Errno::PERM),
            Carries::Unknown | Carries::Local => Verdict::Pass,
        }
    }

    /// Returns the decision about a send with an address. On a stream socket, such a send connects
    /// only if `MSG_FASTOPEN` is set.
    pub fn send(&self, socket: Socket, flags: i32, sockaddr: &[u8]) -> Verdict {
        match socket.carries() {
            // Without the flag the kernel ignores the address.
            Carries::Tcp if flags & MSG_FASTOPEN == 0 => Verdict::Pass,
            _ => {
                let (sockaddr, length) = socket.as_sent(sockaddr);
                self.connect(socket, &sockaddr[..length])
            }
        }
    }

    /// Returns the decision about `listen` at `at`. The rules select destinations only, so
    /// connections from any client to a listening stream socket pass through the chain.
    pub fn listen(&self, socket: Socket, at: SocketAddr) -> Verdict {
        match socket.carries() {
            Carries::Tcp => Verdict::Divert(at),
            Carries::OtherTcp => Verdict::Refuse(Errno::PERM),
            Carries::Datagrams | Carries::Unknown | Carries::Local => Verdict::Pass,
        }
    }

    /// Returns to which addresses datagrams may go direct: to all, to some, or to none.
    pub fn datagrams(&self) -> Datagrams {
        if self.names {
            return Datagrams::Judged;
        }
        let of_any = self.lines().iter().filter(|line| line.transport != Some(Transport::Tcp));
        let fates = of_any.map(|line| line.fate).chain([self.otherwise()]);
        let [mut some_go, mut some_stay] = [false; 2];
        for fate in fates {
            let goes = self.lets_datagrams(fate);
            some_go |= goes;
            some_stay |= !goes;
        }
        match (some_go, some_stay) {
            (_, false) => Datagrams::Free,
            (false, true) => Datagrams::Refused,
            (true, true) => Datagrams::Judged,
        }
    }

    /// Returns whether the chain carries a socket's datagrams. A chain carries only UDP, which can
    /// be sent and received without privilege.
    pub fn carries_of(&self, socket: Socket) -> bool {
        self.carries && socket.is_udp()
    }

    fn lets(&self, socket: Socket, fate: Fate) -> bool {
        self.lets_datagrams(fate) || fate == Fate::Divert && self.carries_of(socket)
    }

    /// Returns whether datagrams with this fate may go direct. They may unless a rule refuses them;
    /// in strict mode, only if a rule excepts them.
    fn lets_datagrams(&self, fate: Fate) -> bool {
        match fate {
            Fate::Refuse => false,
            Fate::Leave => true,
            Fate::Divert => !self.strict,
        }
    }
}

//! What a call means: its socket, its address and the user's rules, joined.

use std::net::SocketAddr;

use super::rules::{Fate, Rules, Transport};
use super::socket::{Carries, Errno, MSG_FASTOPEN, Sockaddr, Socket, parse_sockaddr};

/// Where questions of DNS go.
const DNS: u16 = 53;

/// What is to be done with a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the kernel's.
    Pass,
    /// It is a flow to there.
    Divert(SocketAddr),
    /// It is a question of DNS to there, which is answered here.
    Resolve(SocketAddr),
    /// The program is told this.
    Refuse(Errno),
}

/// What may become of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagrams {
    /// All go by themselves: nobody need look at them.
    Free,
    /// None goes: nobody need open a socket for them.
    Refused,
    /// Some go: each must be looked at.
    Judged,
}

impl Rules {
    /// Opening a socket. What a program can do without is refused as by a kernel that has none; where
    /// nothing may go around us, so is what could.
    pub fn socket(&self, socket: Socket) -> Verdict {
        match socket.carries() {
            Carries::OtherTcp => Verdict::Refuse(socket.unsupported()),
            Carries::Unknown if self.strict => Verdict::Refuse(Errno::PERM),
            // What of them goes is seen when it goes.
            Carries::Datagrams if self.names && socket.is_udp() => Verdict::Pass,
            Carries::Datagrams if self.names && self.strict => Verdict::Refuse(Errno::PERM),
            // Whoever opens it has it where datagrams are carried.
            Carries::Datagrams if self.carries_of(socket) => Verdict::Pass,
            Carries::Datagrams if self.datagrams() == Datagrams::Refused => {
                Verdict::Refuse(Errno::PERM)
            }
            _ => Verdict::Pass,
        }
    }

    /// Connecting `socket` to what the `sockaddr` says.
    pub fn connect(&self, socket: Socket, sockaddr: &[u8]) -> Verdict {
        let to = match parse_sockaddr(sockaddr) {
            Sockaddr::Ip(to) => to,
            // The kernel's own answer is right, and leads nowhere.
            Sockaddr::None | Sockaddr::Other => return Verdict::Pass,
        };
        match socket.carries() {
            Carries::Tcp if !socket.is_told(sockaddr) => Verdict::Pass,
            Carries::Tcp => match self.fate(Transport::Tcp, to) {
                Fate::Divert => Verdict::Divert(to),
                Fate::Leave => Verdict::Pass,
                Fate::Refuse => Verdict::Refuse(Errno::PERM),
            },
            Carries::OtherTcp => Verdict::Refuse(Errno::PERM),
            // Whoever carries datagrams answers questions too.
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

    /// Sending with an address, which connects a stream if it is asked to be opened fast.
    pub fn send(&self, socket: Socket, flags: i32, sockaddr: &[u8]) -> Verdict {
        match socket.carries() {
            // Without the flag the kernel ignores the address, or has one already.
            Carries::Tcp if flags & MSG_FASTOPEN == 0 => Verdict::Pass,
            _ => {
                let (sockaddr, length) = socket.as_sent(sockaddr);
                self.connect(socket, &sockaddr[..length])
            }
        }
    }

    /// Listening at `at`: whoever connects to a stream there passes the chain first, wherever they come
    /// from. Rules are about where a program goes.
    pub fn listen(&self, socket: Socket, at: SocketAddr) -> Verdict {
        match socket.carries() {
            Carries::Tcp => Verdict::Divert(at),
            Carries::OtherTcp => Verdict::Refuse(Errno::PERM),
            Carries::Datagrams | Carries::Unknown | Carries::Local => Verdict::Pass,
        }
    }

    /// What may become of datagrams that nobody carries, whichever their address.
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

    /// Whether the datagrams of a socket pass the chain: those of UDP can, without privilege.
    pub fn carries_of(&self, socket: Socket) -> bool {
        self.carries && socket.is_udp()
    }

    fn lets(&self, socket: Socket, fate: Fate) -> bool {
        self.lets_datagrams(fate) || fate == Fate::Divert && self.carries_of(socket)
    }

    /// Datagrams are no flow: they go by themselves, unless a rule forbids it; where nothing may go
    /// around us, only if a rule leaves them alone.
    fn lets_datagrams(&self, fate: Fate) -> bool {
        match fate {
            Fate::Refuse => false,
            Fate::Leave => true,
            Fate::Divert => !self.strict,
        }
    }
}

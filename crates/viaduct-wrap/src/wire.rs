//! Protocol between stubs (preloaded libraries) and masters: records of fixed length over a
//! `SOCK_SEQPACKET` socket. Numbers are in host byte order, because both ends run on the same
//! machine.
//!
//! ```text
//!   stub     opens a connection for each request: it keeps no descriptor between requests, which
//!     │      fork, vfork, threads or close_range could break
//!     ├── Hello ───────────────▶  ◀── Welcome     once per program: rules and rendezvous
//!     ├── Connect, a socket ───▶  ◀── Answer      in progress; if the program waits, the result
//!     ├── Names, a cookie ─────▶  ◀── Named       results of getpeername and getsockname
//!     ├── Error, a cookie ─────▶  ◀── Answer      value of SO_ERROR
//!     └── Refused ─────────────▶                  for the report
//!
//!   request   after the run's secret (`Secret`):
//!             magic 4 │ version 2 │ kind 1 │ call 1 │ errno 4 │ is 4 │ cookie 8 │ address 24
//!             is: in Connect, the program waits; in Refused, the socket carries datagrams
//!   answer    magic 4 │ version 2 │ kind 1 │ flags 1 │ errno 4 │ lines 4 │ address 24 │ address 24
//!             │ rate 8 …   flags: 1 strict, 2 offload, 4 names, 8 carries, 16 reports, 32 seccomp
//!             … and in a Welcome all its lines, 24 each
//!   address   IPv6 or mapped 16 │ port 2, network order │ present 1 │ 0 │ scope 4
//!   line      IPv6 or mapped 16 │ length 1 │ transport 1 │ fate 1 │ 0 │ first port 2 │ last port 2
//! ```

use std::net::{Ipv6Addr, SocketAddr};

use crate::record::{Reader, Writer};
use crate::rules::{Fate, Line, MAX_LINES, Rules, Transport};
use crate::socket::Errno;

/// Bytes of a request.
pub const REQUEST: usize = 48;
/// Bytes of an answer other than a Welcome.
pub const ANSWER: usize = 72;
/// Bytes of a Welcome with the maximum number of rules.
pub const WELCOME: usize = ANSWER + MAX_LINES * LINE;
const LINE: usize = 24;
const MAGIC: u32 = u32::from_be_bytes(*b"vdct");
/// Version of all records, both those of stubs and those between a run and a shared master.
pub const VERSION: u16 = 4;
const STRICT: u8 = 1;
const OFFLOAD: u8 = 2;
const NAMES: u8 = 4;
const CARRIES: u8 = 8;
const REPORTS: u8 = 16;
const SECCOMP: u8 = 32;

/// Request from a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// A program has started.
    Hello,
    /// Requests a flow for the attached socket.
    Connect {
        /// Destination.
        to: SocketAddr,
        /// True if the program waits for the result; otherwise the answer is `EINPROGRESS`.
        wait: bool,
    },
    /// Requests the addresses of a socket.
    Names {
        /// The socket's cookie.
        cookie: u64,
    },
    /// Requests the reason why the connect of a socket has failed.
    Error {
        /// The socket's cookie.
        cookie: u64,
    },
    /// Reports a refused call; there is no answer.
    Refused {
        /// The refused call.
        call: Call,
        /// True for datagrams, false for a stream.
        datagrams: bool,
        /// Destination, if the call has one.
        to: Option<SocketAddr>,
        /// Error that the program received.
        errno: Errno,
    },
}

/// Calls that are captured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the kernel's names")]
pub enum Call {
    Socket = 1,
    Connect = 2,
    Send = 3,
    Exec = 4,
    Listen = 5,
}

/// Answer from a master.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a stub must not allocate, and has one answer at a time"
)]
pub enum Answer {
    /// Answer to Hello.
    Welcome(Welcome),
    /// Answer to Connect: the result that the program receives. Answer to Error: the pending error.
    Done(Errno),
    /// Answer to Names: results of `getpeername` and `getsockname`, if not the kernel's.
    Named {
        /// Address of the far end.
        peer: Option<SocketAddr>,
        /// The program's own address.
        own: Option<SocketAddr>,
    },
}

/// Configuration that a master announces to a stub, or a shared master to a run.
#[derive(Clone, Copy, Debug)]
pub struct Welcome {
    /// Rules that select the master's flows.
    pub rules: Rules,
    /// IPv4 and IPv6 rendezvous addresses, to which flows' sockets are connected in the kernel.
    pub rendezvous: [Option<SocketAddr>; 2],
    /// Set if flows are offloaded to the kernel: they go direct, with this max pacing rate in bytes
    /// per second; 0 means no limit.
    pub offload: Option<u64>,
    /// True if flows that go direct are to be reported.
    pub reports: bool,
    /// True if a seccomp filter traps calls that lack the stub's word in an unused argument.
    pub has_seccomp: bool,
}

impl Request {
    /// Serializes the request.
    pub fn emit(&self) -> [u8; REQUEST] {
        let (kind, call, errno, is, cookie, address) = match *self {
            Request::Hello => (1, 0, 0, false, 0, None),
            Request::Connect { to, wait } => (2, 0, 0, wait, 0, Some(to)),
            Request::Names { cookie } => (3, 0, 0, false, cookie, None),
            Request::Refused { call, datagrams, to, errno } => {
                (4, call as u8, errno.0, datagrams, 0, to)
            }
            Request::Error { cookie } => (5, 0, 0, false, cookie, None),
        };
        let mut bytes = [0; REQUEST];
        let mut out = Writer { bytes: &mut bytes };
        out.head(kind);
        out.put(&[call]);
        out.put(&i32::to_ne_bytes(errno));
        out.put(&u32::from(is).to_ne_bytes());
        out.put(&u64::to_ne_bytes(cookie));
        out.address(address);
        bytes
    }

    /// Parses a request; `None` if `bytes` are not a request.
    pub fn parse(bytes: &[u8]) -> Option<Request> {
        if bytes.len() != REQUEST {
            return None;
        }
        let mut rest = Reader { bytes };
        let kind = rest.head()?;
        let call = rest.byte()?;
        let errno = Errno(rest.number()?.cast_signed());
        let is = rest.number()? != 0;
        let cookie = u64::from_ne_bytes(rest.take()?);
        let address = rest.address()?;
        Some(match kind {
            1 => Request::Hello,
            2 => Request::Connect { to: address?, wait: is },
            3 => Request::Names { cookie },
            4 => Request::Refused { call: Call::of(call)?, datagrams: is, to: address, errno },
            5 => Request::Error { cookie },
            _ => return None,
        })
    }
}

impl Call {
    fn of(number: u8) -> Option<Call> {
        [Call::Socket, Call::Connect, Call::Send, Call::Exec, Call::Listen]
            .into_iter()
            .find(|&call| call as u8 == number)
    }
}

impl Answer {
    /// Serializes the answer into `bytes` and returns its length.
    pub fn emit(&self, bytes: &mut [u8; WELCOME]) -> usize {
        bytes[..ANSWER].fill(0);
        let mut out = Writer { bytes };
        match self {
            Answer::Welcome(Welcome { rules, rendezvous, offload, reports, has_seccomp }) => {
                out.head(1);
                let flags = [
                    (rules.strict, STRICT),
                    (offload.is_some(), OFFLOAD),
                    (rules.names, NAMES),
                    (rules.carries, CARRIES),
                    (*reports, REPORTS),
                    (*has_seccomp, SECCOMP),
                ];
                out.put(&[flags.iter().map(|&(is, flag)| if is { flag } else { 0 }).sum()]);
                out.put(&[0; 4]);
                out.put(&(rules.lines().len() as u32).to_ne_bytes());
                rendezvous.iter().for_each(|&at| out.address(at));
                out.put(&offload.unwrap_or(0).to_ne_bytes());
                rules.lines().iter().for_each(|line| out.line(line));
                return ANSWER + rules.lines().len() * LINE;
            }
            Answer::Done(errno) => {
                out.head(2);
                out.put(&[0]);
                out.put(&errno.0.to_ne_bytes());
            }
            Answer::Named { peer, own } => {
                out.head(3);
                out.put(&[0; 9]);
                out.address(*peer);
                out.address(*own);
            }
        }
        ANSWER
    }

    /// Parses an answer; `None` if `bytes` are not an answer.
    pub fn parse(bytes: &[u8]) -> Option<Answer> {
        let mut rest = Reader { bytes };
        let kind = rest.head()?;
        let flags = rest.byte()?;
        let errno = Errno(rest.number()?.cast_signed());
        let count = rest.number()? as usize;
        let [first, second] = [rest.address()?, rest.address()?];
        let rate = u64::from_ne_bytes(rest.take()?);
        let expected = if kind == 1 { LINE.checked_mul(count)? } else { 0 };
        if rest.bytes.len() != expected {
            return None;
        }
        Some(match kind {
            1 => {
                let mut rules = Rules::EVERYTHING;
                rules.strict = flags & STRICT != 0;
                rules.names = flags & NAMES != 0;
                rules.carries = flags & CARRIES != 0;
                for _ in 0..count {
                    rules.append(rest.line()?).ok()?;
                }
                let offload = (flags & OFFLOAD != 0).then_some(rate);
                let (rendezvous, reports) = ([first, second], flags & REPORTS != 0);
                let has_seccomp = flags & SECCOMP != 0;
                Answer::Welcome(Welcome { rules, rendezvous, offload, reports, has_seccomp })
            }
            2 => Answer::Done(errno),
            3 => Answer::Named { peer: first, own: second },
            _ => return None,
        })
    }
}

impl Writer<'_> {
    fn head(&mut self, kind: u8) {
        self.put(&MAGIC.to_ne_bytes());
        self.put(&VERSION.to_ne_bytes());
        self.put(&[kind]);
    }

    fn line(&mut self, line: &Line) {
        self.put(&line.prefix.0.octets());
        let transport = line.transport.map_or(0, |transport| transport as u8);
        self.put(&[line.prefix.1, transport, line.fate as u8, 0]);
        self.put(&line.ports.0.to_ne_bytes());
        self.put(&line.ports.1.to_ne_bytes());
    }
}

impl Reader<'_> {
    /// Reads the header and returns the record's kind; `None` for another protocol or version.
    fn head(&mut self) -> Option<u8> {
        let ours = self.take()? == MAGIC.to_ne_bytes() && self.take()? == VERSION.to_ne_bytes();
        self.byte().filter(|_| ours)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn line(&mut self) -> Option<Line> {
        let ip = Ipv6Addr::from(self.take::<16>()?);
        let [length, transport, fate, _] = self.take()?;
        let ports = (u16::from_ne_bytes(self.take()?), u16::from_ne_bytes(self.take()?));
        let transport = match transport {
            0 => None,
            1 => Some(Transport::Tcp),
            2 => Some(Transport::Udp),
            _ => return None,
        };
        let fates = [Fate::Refuse, Fate::Leave, Fate::Divert];
        let fate = fates.into_iter().find(|&of| of as u8 == fate)?;
        (length <= 128).then_some(Line { transport, prefix: (ip, length), ports, fate })
    }
}

//! Sockets and their addresses by the kernel's numbers, which are the same on all machines of Linux
//! that Viaduct is built for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

const AF_UNSPEC: u16 = 0;
const AF_UNIX: i32 = 1;
const AF_INET: i32 = 2;
const AF_INET6: i32 = 10;
const AF_NETLINK: i32 = 16;
const AF_ALG: i32 = 38;
const AF_SMC: i32 = 43;
const SOCK_STREAM: i32 = 1;
const SOCK_DGRAM: i32 = 2;
const SOCK_RAW: i32 = 3;
/// The kind of a socket beside its flags, such as `SOCK_CLOEXEC`.
const SOCK_KIND: i32 = 0xf;
const IPPROTO_TCP: i32 = 6;
const IPPROTO_UDP: i32 = 17;
/// TCP over shared memory, where both ends have it.
const IPPROTO_SMC: i32 = 256;
const IPPROTO_MPTCP: i32 = 262;

/// The flag of a send that also connects (RFC 7413).
pub const MSG_FASTOPEN: i32 = 0x2000_0000;
/// The longest address of a socket that matters here.
pub const SOCKADDR: usize = 28;
/// Bytes of the longest that the kernel takes; it refuses longer ones (`EINVAL`).
pub const LONGEST: usize = 128;

/// What a program is told, by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// Nothing is wrong.
    pub const NONE: Errno = Errno(0);
    /// It may not.
    pub const PERM: Errno = Errno(1);
    /// There is no such thing.
    pub const NOENT: Errno = Errno(2);
    /// Forbidden.
    pub const ACCES: Errno = Errno(13);
    /// Its memory is not there.
    pub const FAULT: Errno = Errno(14);
    /// It is elsewhere.
    pub const XDEV: Errno = Errno(18);
    /// The machine, or what stands for it, may open no more files.
    pub const NFILE: Errno = Errno(23);
    /// This process may open no more files.
    pub const MFILE: Errno = Errno(24);
    /// A signal came.
    pub const INTR: Errno = Errno(4);
    /// No file has this number.
    pub const BADF: Errno = Errno(9);
    /// There is no room for it now.
    pub const AGAIN: Errno = Errno(11);
    /// It makes no sense.
    pub const INVAL: Errno = Errno(22);
    /// It speaks another language.
    pub const PROTO: Errno = Errno(71);
    /// It is longer than a datagram can be.
    pub const MSGSIZE: Errno = Errno(90);
    /// The kernel has no such protocol.
    pub const PROTONOSUPPORT: Errno = Errno(93);
    /// It cannot be asked for that.
    pub const OPNOTSUPP: Errno = Errno(95);
    /// The kernel has no such family.
    pub const AFNOSUPPORT: Errno = Errno(97);
    /// There is no way there.
    pub const NETUNREACH: Errno = Errno(101);
    /// Given up on this side.
    pub const CONNABORTED: Errno = Errno(103);
    /// The far end broke it off.
    pub const CONNRESET: Errno = Errno(104);
    /// Nothing was heard in time.
    pub const TIMEDOUT: Errno = Errno(110);
    /// Nobody listens there.
    pub const CONNREFUSED: Errno = Errno(111);
    /// It is connected already.
    pub const ISCONN: Errno = Errno(106);
    /// There is no way to the host.
    pub const HOSTUNREACH: Errno = Errno(113);
    /// It had begun before, and goes on.
    pub const ALREADY: Errno = Errno(114);
    /// It has begun.
    pub const INPROGRESS: Errno = Errno(115);
}

/// What a socket is, as `socket` was told, or as `SO_DOMAIN`, `SO_TYPE` and `SO_PROTOCOL` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its family.
    pub domain: i32,
    /// Its kind; flags may stand beside it.
    pub kind: i32,
    /// Its protocol, or 0 for the usual one.
    pub protocol: i32,
}

/// What it carries, as far as that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carries {
    /// A flow.
    Tcp,
    /// A flow in a way that cannot wait at a meeting; programs can do without.
    OtherTcp,
    /// Datagrams and all else that leaves this host.
    Datagrams,
    /// What leaves this host in ways of its own, such as raw frames.
    Unknown,
    /// Nothing that leaves this host.
    Local,
}

impl Socket {
    pub(super) fn carries(self) -> Carries {
        let Socket { domain, kind, protocol } = self;
        match domain {
            AF_INET | AF_INET6 => match (kind & SOCK_KIND, protocol) {
                (SOCK_STREAM, 0 | IPPROTO_TCP) => Carries::Tcp,
                (SOCK_STREAM, IPPROTO_MPTCP | IPPROTO_SMC) => Carries::OtherTcp,
                _ => Carries::Datagrams,
            },
            AF_SMC => Carries::OtherTcp,
            AF_UNIX | AF_NETLINK | AF_ALG => Carries::Local,
            _ => Carries::Unknown,
        }
    }

    /// Whether it carries datagrams over IP.
    pub fn is_of_datagrams(self) -> bool {
        self.carries() == Carries::Datagrams && self.kind & SOCK_KIND == SOCK_DGRAM
    }

    /// Whether its family is one of IP's.
    pub fn is_of_ip(self) -> bool {
        matches!(self.domain, AF_INET | AF_INET6)
    }

    /// Whether it carries a stream of TCP.
    pub fn is_tcp(self) -> bool {
        self.carries() == Carries::Tcp
    }

    /// Whether it carries datagrams of UDP.
    pub fn is_udp(self) -> bool {
        let kind = self.kind & SOCK_KIND;
        self.is_of_ip() && kind == SOCK_DGRAM && matches!(self.protocol, 0 | IPPROTO_UDP)
    }

    /// Whether its family is IPv6, so that IPv4 addresses stand mapped in what it is told.
    pub fn is_v6(self) -> bool {
        self.domain == AF_INET6
    }

    /// Whether `sockaddr` is of its family: the kernel refuses others.
    pub(super) fn is_told(self, sockaddr: &[u8]) -> bool {
        let family = sockaddr.first_chunk().copied().map(u16::from_ne_bytes);
        family.map(i32::from) == Some(self.domain)
    }

    /// What a program is told that has asked for a family or protocol that it can do without.
    pub(super) fn unsupported(self) -> Errno {
        if self.domain == AF_SMC { Errno::AFNOSUPPORT } else { Errno::PROTONOSUPPORT }
    }
}

/// What a `sockaddr` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockaddr {
    /// An address of IP; one of IPv4 is of IPv4, in whichever family it was said.
    Ip(SocketAddr),
    /// None: the socket is to forget its own.
    None,
    /// What no flow goes to, or what the kernel refuses.
    Other,
}

/// Reads a `sockaddr`. The unspecified address is this host's own, as for the kernel.
pub fn parse_sockaddr(bytes: &[u8]) -> Sockaddr {
    match parse_bound(bytes) {
        Sockaddr::Ip(at) if at.ip().is_unspecified() => {
            let here: IpAddr = match at {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            };
            Sockaddr::Ip(SocketAddr::new(here, at.port()))
        }
        other => other,
    }
}

/// The same of an address that a socket is bound to: to no address in particular means to all.
pub fn parse_bound(bytes: &[u8]) -> Sockaddr {
    let Some(family) = bytes.get(..2) else { return Sockaddr::Other };
    let family = u16::from_ne_bytes([family[0], family[1]]);
    let port = |bytes: &[u8]| u16::from_be_bytes([bytes[2], bytes[3]]);
    match i32::from(family) {
        _ if family == AF_UNSPEC => Sockaddr::None,
        AF_INET if bytes.len() >= 16 => {
            let ip = Ipv4Addr::new(bytes[4], bytes[5], bytes[6], bytes[7]);
            Sockaddr::Ip(SocketAddr::new(ip.into(), port(bytes)))
        }
        // Up to its address; the scope may be missing (RFC 2133).
        AF_INET6 if bytes.len() >= 24 => {
            let ip: [u8; 16] = bytes[8..24].try_into().expect("sixteen");
            let ip = Ipv6Addr::from(ip);
            let scope = bytes.get(24..28).map_or([0; 4], |at| at.try_into().expect("four"));
            Sockaddr::Ip(match ip.to_ipv4_mapped() {
                Some(v4) => (v4, port(bytes)).into(),
                None => SocketAddrV6::new(ip, port(bytes), 0, u32::from_ne_bytes(scope)).into(),
            })
        }
        _ => Sockaddr::Other,
    }
}

impl Socket {
    /// The `sockaddr` of a send by this socket, with the family by which the kernel reads it.
    ///
    /// Datagram sockets of IPv4 take `AF_UNSPEC` for `AF_INET`, and raw ones of IPv6 for `AF_INET6`. To
    /// others it is no address.
    pub fn as_sent(self, sockaddr: &[u8]) -> ([u8; SOCKADDR], usize) {
        let mut bytes = [0; SOCKADDR];
        let length = sockaddr.len().min(SOCKADDR);
        bytes[..length].copy_from_slice(&sockaddr[..length]);
        let unspecified = length >= 2 && bytes[..2] == AF_UNSPEC.to_ne_bytes();
        let reads = match self.domain {
            AF_INET => self.kind & SOCK_KIND != SOCK_STREAM,
            AF_INET6 => self.kind & SOCK_KIND == SOCK_RAW,
            _ => false,
        };
        if unspecified && reads {
            bytes[..2].copy_from_slice(&(self.domain as u16).to_ne_bytes());
        }
        (bytes, length)
    }

    /// `address` as this socket's program is told it, and how many bytes that takes.
    pub fn sockaddr(self, address: SocketAddr) -> ([u8; SOCKADDR], usize) {
        let mut bytes = [0; SOCKADDR];
        let family = self.domain as u16;
        bytes[..2].copy_from_slice(&family.to_ne_bytes());
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) if !self.is_v6() => {
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                (bytes, 16)
            }
            SocketAddr::V4(v4) => {
                bytes[8..24].copy_from_slice(&v4.ip().to_ipv6_mapped().octets());
                (bytes, SOCKADDR)
            }
            SocketAddr::V6(v6) => {
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
                (bytes, SOCKADDR)
            }
        }
    }
}

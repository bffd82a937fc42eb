//! Sockets and their addresses, with the kernel's numbers, which are the same on all Linux
//! architectures that Viaduct supports.

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
/// Mask of a socket's type, which excludes flags such as `SOCK_CLOEXEC`.
const SOCK_KIND: i32 = 0xf;
const IPPROTO_TCP: i32 = 6;
const IPPROTO_UDP: i32 = 17;
/// SMC: TCP over shared memory, if both ends support it.
const IPPROTO_SMC: i32 = 256;
const IPPROTO_MPTCP: i32 = 262;

/// Flag of a send that also connects the socket (TCP Fast Open, RFC 7413).
pub const MSG_FASTOPEN: i32 = 0x2000_0000;
/// Length of the longest `sockaddr` that is used here (`sockaddr_in6`).
pub const SOCKADDR: usize = 28;
/// Length of the longest `sockaddr` that the kernel accepts (`EINVAL` if longer).
pub const LONGEST: usize = 128;

/// Error code that a program receives, with the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

#[allow(missing_docs, reason = "the kernel's names without the E")]
impl Errno {
    /// Success.
    pub const NONE: Errno = Errno(0);
    pub const PERM: Errno = Errno(1);
    pub const ACCES: Errno = Errno(13);
    pub const FAULT: Errno = Errno(14);
    pub const XDEV: Errno = Errno(18);
    pub const NFILE: Errno = Errno(23);
    pub const MFILE: Errno = Errno(24);
    pub const AGAIN: Errno = Errno(11);
    pub const INVAL: Errno = Errno(22);
    pub const PROTO: Errno = Errno(71);
    pub const MSGSIZE: Errno = Errno(90);
    pub const PROTONOSUPPORT: Errno = Errno(93);
    pub const OPNOTSUPP: Errno = Errno(95);
    pub const AFNOSUPPORT: Errno = Errno(97);
    pub const NETUNREACH: Errno = Errno(101);
    pub const CONNABORTED: Errno = Errno(103);
    pub const CONNRESET: Errno = Errno(104);
    pub const TIMEDOUT: Errno = Errno(110);
    pub const CONNREFUSED: Errno = Errno(111);
    pub const ISCONN: Errno = Errno(106);
    pub const HOSTUNREACH: Errno = Errno(113);
    pub const ALREADY: Errno = Errno(114);
    pub const INPROGRESS: Errno = Errno(115);
}

/// Domain, type and protocol of a socket: the arguments of `socket`, or the values of
/// `SO_DOMAIN`, `SO_TYPE` and `SO_PROTOCOL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Address family.
    pub domain: i32,
    /// Type; may include flags.
    pub kind: i32,
    /// Protocol, or 0 for the family's default.
    pub protocol: i32,
}

/// Kind of a socket's traffic, as distinguished by interposers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carries {
    /// A TCP stream, which becomes a flow.
    Tcp,
    /// A stream that cannot wait at a rendezvous (MPTCP, SMC). Programs fall back to TCP.
    OtherTcp,
    /// Datagrams and all other IP traffic.
    Datagrams,
    /// Traffic of other families, such as raw frames.
    Unknown,
    /// Traffic that stays on this host.
    Local,
}

impl Socket {
    pub(crate) fn carries(self) -> Carries {
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

    /// Returns whether the socket carries datagrams over IP.
    pub fn is_of_datagrams(self) -> bool {
        self.carries() == Carries::Datagrams && self.kind & SOCK_KIND == SOCK_DGRAM
    }

    /// Returns whether the family is IPv4 or IPv6.
    pub fn is_of_ip(self) -> bool {
        matches!(self.domain, AF_INET | AF_INET6)
    }

    /// Returns whether the socket carries a TCP stream.
    pub fn is_tcp(self) -> bool {
        self.carries() == Carries::Tcp
    }

    /// Returns whether the socket carries UDP datagrams.
    pub fn is_udp(self) -> bool {
        let kind = self.kind & SOCK_KIND;
        self.is_of_ip() && kind == SOCK_DGRAM && matches!(self.protocol, 0 | IPPROTO_UDP)
    }

    /// Returns whether the family is IPv6, which sees IPv4 addresses as mapped ones.
    pub fn is_v6(self) -> bool {
        self.domain == AF_INET6
    }

    /// Returns whether `sockaddr` has the socket's address family. The kernel refuses others.
    pub(crate) fn is_of_family(self, sockaddr: &[u8]) -> bool {
        let family = sockaddr.first_chunk().copied().map(u16::from_ne_bytes);
        family.map(i32::from) == Some(self.domain)
    }

    /// Returns the error that a kernel without the socket's optional family or protocol returns.
    pub(crate) fn unsupported(self) -> Errno {
        if self.domain == AF_SMC { Errno::AFNOSUPPORT } else { Errno::PROTONOSUPPORT }
    }
}

/// Parsed `sockaddr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockaddr {
    /// An IP address. An IPv4-mapped IPv6 address is returned as IPv4.
    Ip(SocketAddr),
    /// `AF_UNSPEC`, which disconnects the socket.
    None,
    /// An address of another family, or one that the kernel refuses.
    Other,
}

/// Parses a `sockaddr`. The unspecified address becomes the loopback address, as in the kernel.
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

/// Parses the `sockaddr` of a bind. The unspecified address is kept, and means all addresses.
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
        // The scope ID may be missing (RFC 2133), so 24 bytes are enough.
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
    /// Returns the `sockaddr` of a send, with the family that the kernel assumes for it, and its
    /// length. On IPv4 sockets other than streams, the kernel reads `AF_UNSPEC` as `AF_INET`; on
    /// raw IPv6 sockets, as `AF_INET6`. On other sockets `AF_UNSPEC` is not an address.
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

    /// Returns `address` as a `sockaddr` of this socket's family, and its length.
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

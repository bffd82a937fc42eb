//! Capture namespace for datagrams: the process that created it reads all outbound packets from an
//! [`Uplink`], and writes inbound packets, from any source address, to the same uplink. The UDP
//! sockets of a program in the namespace are ordinary sockets; this process forwards their
//! datagrams.
//!
//! ```text
//!   program ── sendto 192.0.2.1:53 ─▶ default route ─────▶ uplink ─▶ handlers ─▶ a socket outside
//!           ◀── from 192.0.2.1:53 ── every address is local ◀┘  ◀── handlers ◀────────┘
//! ```
//!
//! The kernel accepts IPv6 datagrams from `::1`, and sends datagrams to `::1`, on the loopback
//! interface only. Inbound IPv6 datagrams are therefore written to that interface
//! ([`LoopbackSocket`]), with a mark that distinguishes them from outbound datagrams. Outbound
//! datagrams to `::1` are read from that interface, too.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::close_watch::CloseWatch;
use super::routes::Incoming;
use super::uplink::{INNER, Uplink};
use super::{CaptureNsError, LOOPBACK, enter_network, routes, set_up};
use crate::capture::offload::OffloadState;
use crate::os;
use crate::process::tool;
use crate::route::interface::Interface;
use crate::socket::lookup::SocketLookup;

/// Number of our routing table, different from those of the kernel's own tables.
const TABLE: u8 = 100;
/// Settings that route packets with loopback addresses to the uplink too, and accept them from it.
const SETTINGS: [(&str, &str); 4] = [
    ("conf/datagrams/route_localnet", "1"),
    ("conf/datagrams/accept_local", "1"),
    ("conf/datagrams/rp_filter", "0"),
    ("conf/all/rp_filter", "0"),
];

/// Setting that keeps the interface from generating an IPv6 link-local address.
const NO_LINK_LOCAL: &str = "/proc/sys/net/ipv6/conf/datagrams/addr_gen_mode";
const IPV6: &str = "/proc/sys/net/ipv6";
/// Mark of inbound IPv6 packets.
const MARK: libc::c_int = 7;
/// nftables table for packets whose destination is 0.0.0.0. The kernel sends them to 127.0.0.1
/// through the loopback interface, whatever the routes are; the mark makes the kernel route them
/// again, to the uplink.
const UNSPECIFIED: &str = "table ip viaduct {
    chain unspecified {
        type route hook output priority mangle;
        oifname lo ip daddr 127.0.0.0/8 meta mark set 1
    }
}
";

/// Uplinks of a capture namespace for datagrams, and netlink sockets that report on the UDP sockets
/// in it.
#[derive(Debug)]
pub struct Uplinks {
    /// IPv4 packets, and outbound IPv6 packets.
    pub out: Uplink,
    /// Inbound IPv6 packets, and outbound packets to `::1`; `None` without IPv6.
    pub v6: Option<LoopbackSocket>,
    /// Watch of closed sockets; `None` if the kernel does not support it.
    pub gone: Option<CloseWatch>,
    /// Socket look-up; `None` if the kernel does not support it.
    pub lookup: Option<SocketLookup>,
}

/// Moves this process, which must have one thread, into a new capture namespace for datagrams. At
/// first only loopback addresses have routes; the host's routes are copied by
/// [`super::SourceRoutes::apply`]. Errors: this user may not create a network namespace, or the
/// uplink in it.
pub fn enter_for_datagrams() -> Result<Uplinks, CaptureNsError> {
    enter_network()?;
    set_up_for(Uplink::make().map_err(|why| set_up("an uplink", why))?)
}

/// Routes all packets to the uplink `out`, and accepts all packets from it.
pub(super) fn set_up_for(out: Uplink) -> Result<Uplinks, CaptureNsError> {
    // Keeps the interface from sending packets of its own. Without IPv6 there is no such setting.
    let _ = std::fs::write(NO_LINK_LOCAL, "1");
    for (key, value) in SETTINGS {
        let path = format!("/proc/sys/net/ipv4/{key}");
        std::fs::write(&path, value).map_err(|error| set_up(&path, error))?;
    }
    route_v4().map_err(|error| set_up("routes", error))?;
    // Without nft, packets to 0.0.0.0 do not reach the uplink.
    let _ = tool::run("nft", &["-f", "-"], UNSPECIFIED);
    let (gone, lookup) = (CloseWatch::open().ok(), SocketLookup::open().ok());
    if !std::path::Path::new(IPV6).exists() {
        return Ok(Uplinks { out, v6: None, gone, lookup });
    }
    let lo = Interface::new(LOOPBACK).and_then(|lo| lo.set_up());
    lo.map_err(|error| set_up("the loopback interface", error))?;
    // With offloads, packets would be read before they are segmented.
    let _ = OffloadState::read(LOOPBACK).and_then(|state| state.switch_off());
    route_v6().map_err(|error| set_up("routes of IPv6", error))?;
    let v6 = LoopbackSocket::open().map_err(|error| set_up("a packet socket", error))?;
    Ok(Uplinks { out, v6: Some(v6), gone, lookup })
}

fn route_v4() -> io::Result<()> {
    let loopback = Ipv4Addr::LOCALHOST;
    routes::add_address(INNER, loopback.into())?;
    routes::make_all_local(Ipv4Addr::UNSPECIFIED.into(), INNER, TABLE)?;
    let local = (Ipv4Addr::new(127, 0, 0, 0).into(), 8);
    routes::add_route(INNER, local, Some(loopback.into()))?;
    routes::set_lookup_rules(&Incoming::By(INNER), TABLE)
}

fn route_v6() -> io::Result<()> {
    routes::add_route(LOOPBACK, (Ipv6Addr::LOCALHOST.into(), 128), None)?;
    routes::make_all_local(Ipv6Addr::UNSPECIFIED.into(), LOOPBACK, TABLE)?;
    routes::set_lookup_rules(&Incoming::Marked(MARK.cast_unsigned()), TABLE)
}

/// Packet socket on the loopback interface of a capture namespace.
#[derive(Debug)]
pub struct LoopbackSocket(OwnedFd);

impl LoopbackSocket {
    fn open() -> io::Result<LoopbackSocket> {
        // Protocol 0: receives nothing until it is bound to the interface.
        let socket = os::socket(libc::AF_PACKET, libc::SOCK_DGRAM, 0)?;
        os::bind_packet(socket.as_fd(), LOOPBACK_INDEX)?;
        os::setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &MARK)?;
        Ok(LoopbackSocket(socket))
    }

    /// Wraps a socket that another process has opened.
    pub fn of(socket: OwnedFd) -> LoopbackSocket {
        LoopbackSocket(socket)
    }

    /// Reads the next packet into `packet`. Returns its length, or 0 if it is not an outbound IPv6
    /// packet. Errors: no packet is queued ([`io::ErrorKind::WouldBlock`]).
    pub fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        let (mut from, mut length) = (address(0), ADDRESS);
        // SAFETY: the kernel writes at most as much as `packet` and `from` have room for.
        let got = unsafe {
            libc::recvfrom(
                self.0.as_raw_fd(),
                packet.as_mut_ptr().cast(),
                packet.len(),
                0,
                (&raw mut from).cast(),
                &raw mut length,
            )
        };
        let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
        // The socket receives each outbound packet a second time, as an inbound packet. This second
        // copy is ignored.
        let leaves = from.sll_pkttype == libc::PACKET_OUTGOING && from.sll_protocol == v6();
        Ok(if leaves { got } else { 0 })
    }

    /// Injects an inbound IPv6 packet. Errors: the kernel has no room for the packet.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        let to = address(v6());
        let (data, fd) = (packet.as_ptr().cast(), self.0.as_raw_fd());
        // SAFETY: the kernel reads the packet and the address, which live through the call.
        let sent =
            unsafe { libc::sendto(fd, data, packet.len(), 0, (&raw const to).cast(), ADDRESS) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for LoopbackSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Index of the loopback interface, the first of every network namespace.
const LOOPBACK_INDEX: u32 = 1;
const ADDRESS: libc::socklen_t = size_of::<libc::sockaddr_ll>() as libc::socklen_t;

fn v6() -> u16 {
    (libc::ETH_P_IPV6 as u16).to_be()
}

fn address(protocol: u16) -> libc::sockaddr_ll {
    // SAFETY: all zeros are a valid `sockaddr_ll`.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    (at.sll_family, at.sll_protocol) = (libc::AF_PACKET as u16, protocol);
    (at.sll_ifindex, at.sll_halen) = (LOOPBACK_INDEX.cast_signed(), 6);
    at
}

/// Opens an IPv6 or IPv4 UDP socket in this process's capture namespace. Errors: no descriptor is
/// left, or the machine lacks the address family.
pub fn datagram_socket(v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // The program may bind any address of the host; this namespace does not have these addresses.
    os::setsockopt(socket.as_fd(), libc::SOL_IP, libc::IP_FREEBIND, &1)?;
    if v6 {
        os::setsockopt(socket.as_fd(), libc::SOL_IPV6, libc::IPV6_FREEBIND, &1)?;
    }
    Ok(socket)
}

/// Returns the ports of UDP sockets in the capture namespace of process `pid`. Errors: the process
/// has ended.
pub fn udp_ports(pid: u32) -> io::Result<BTreeSet<u16>> {
    let mut text = std::fs::read_to_string(format!("/proc/{pid}/net/udp"))?;
    // Without IPv6 there is no such file.
    text.push_str(&std::fs::read_to_string(format!("/proc/{pid}/net/udp6")).unwrap_or_default());
    let port = |line: &str| {
        let (_, port) = line.split_whitespace().nth(1)?.split_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    Ok(text.lines().filter_map(port).collect())
}

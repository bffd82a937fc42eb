//! A hall for datagrams: all that leaves it is read by whoever opened it ([`Way`]), and what is written
//! there comes in, from whatever address it says. Sockets of UDP that programs have in there are their
//! own in all they do; where their datagrams go is ours to say.
//!
//! ```text
//!   program ── sendto 192.0.2.1:53 ──▶ route: everything leaves ──▶ way ──▶ handlers ──▶ a socket outside
//!           ◀── from 192.0.2.1:53 ─── rule: what comes in is ours ◀─┘ ◀── handlers ◀──────────┘
//! ```
//!
//! The kernel takes no datagram of IPv6 from `::1`, nor lets one leave to it, but by the loopback interface.
//! So those of IPv6 come in there ([`Loop`]), with a mark by which they are told from what leaves; and what goes
//! to `::1` is read there.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::gone::Gone;
use super::lookup::Lookup;
use super::routes::ComesIn;
use super::way::{INSIDE, Way};
use super::{HallError, LOOPBACK, enter_network, routes, set_up};
use crate::interface::Interface;
use crate::offload::OffloadState;
use crate::{os, tool};

/// Any table but the kernel's own.
const TABLE: u8 = 100;
/// Addresses of loopback leave too, and may come in by another interface.
const SETTINGS: [(&str, &str); 4] = [
    ("conf/datagrams/route_localnet", "1"),
    ("conf/datagrams/accept_local", "1"),
    ("conf/datagrams/rp_filter", "0"),
    ("conf/all/rp_filter", "0"),
];

/// The way out has no address of IPv6 but those that it is given.
const NO_LINK_LOCAL: &str = "/proc/sys/net/ipv6/conf/datagrams/addr_gen_mode";
const IPV6: &str = "/proc/sys/net/ipv6";
/// What comes in has this mark.
const MARK: libc::c_int = 7;
/// The kernel sends what goes to 0.0.0.0 to 127.0.0.1 by the loopback interface, whatever the routes are: the
/// mark has it look again, and find the way out.
const UNSPECIFIED: &str = "table ip viaduct {
    chain unspecified {
        type route hook output priority mangle;
        oifname lo ip daddr 127.0.0.0/8 meta mark set 1
    }
}
";

/// The ways out of a hall.
#[derive(Debug)]
pub struct Ways {
    /// What leaves, and what comes in of IPv4.
    pub out: Way,
    /// What comes in of IPv6, and what leaves to `::1`; `None` where there is no IPv6.
    pub v6: Option<Loop>,
    /// Which sockets are gone; `None` where the kernel does not tell.
    pub gone: Option<Gone>,
    /// Looks sockets up; `None` where it cannot be asked.
    pub lookup: Option<Lookup>,
}

/// Moves this process, which has one thread, into such a hall, which has routes to the loopback alone: others are
/// made after the host's ([`super::Own::apply`]).
///
/// # Errors
/// The kernel gives this user no network namespace, or no interface in there.
pub fn enter_for_datagrams() -> Result<Ways, HallError> {
    enter_network()?;
    set_up_for(Way::make().map_err(|why| set_up("a way out", why))?)
}

/// Has everything leave by `out`, and come in by it.
pub(super) fn set_up_for(out: Way) -> Result<Ways, HallError> {
    // It has nothing to say of its own; where there is no IPv6 it cannot.
    let _ = std::fs::write(NO_LINK_LOCAL, "1");
    for (key, value) in SETTINGS {
        let path = format!("/proc/sys/net/ipv4/{key}");
        std::fs::write(&path, value).map_err(|error| set_up(&path, error))?;
    }
    route_v4().map_err(|error| set_up("routes", error))?;
    // Without nft what goes to 0.0.0.0 does not leave.
    let _ = tool::run("nft", &["-f", "-"], UNSPECIFIED);
    let (gone, lookup) = (Gone::hear().ok(), Lookup::open().ok());
    if !std::path::Path::new(IPV6).exists() {
        return Ok(Ways { out, v6: None, gone, lookup });
    }
    let lo = Interface::new(LOOPBACK).and_then(|lo| lo.set_up());
    lo.map_err(|error| set_up("the loopback interface", error))?;
    // What it would cut later we would see whole.
    let _ = OffloadState::read(LOOPBACK).and_then(|state| state.switch_off());
    route_v6().map_err(|error| set_up("routes of IPv6", error))?;
    let v6 = Loop::open().map_err(|error| set_up("a packet socket", error))?;
    Ok(Ways { out, v6: Some(v6), gone, lookup })
}

fn route_v4() -> io::Result<()> {
    let loopback = Ipv4Addr::LOCALHOST;
    routes::add_address(INSIDE, loopback.into())?;
    routes::be_everywhere(libc::AF_INET, INSIDE, TABLE)?;
    let local = (Ipv4Addr::new(127, 0, 0, 0).into(), 8);
    routes::leave_by(INSIDE, local, Some(loopback.into()))?;
    routes::go_out_and_come_in(&ComesIn::By(INSIDE), TABLE)
}

fn route_v6() -> io::Result<()> {
    routes::leave_by(LOOPBACK, (Ipv6Addr::LOCALHOST.into(), 128), None)?;
    routes::be_everywhere(libc::AF_INET6, LOOPBACK, TABLE)?;
    routes::go_out_and_come_in(&ComesIn::Marked(MARK.cast_unsigned()), TABLE)
}

/// The loopback interface of a hall, as packets pass it.
#[derive(Debug)]
pub struct Loop(OwnedFd);

impl Loop {
    fn open() -> io::Result<Loop> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        let all = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: it takes numbers alone.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, all.into()) };
        os::check(fd)?;
        // SAFETY: the kernel has just opened it for us.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let at = address(all);
        // SAFETY: the kernel reads the address, which lives through the call.
        os::check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const at).cast(), ADDRESS) })?;
        os::setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &MARK)?;
        Ok(Loop(socket))
    }

    /// One that another process has opened.
    pub fn of(socket: OwnedFd) -> Loop {
        Loop(socket)
    }

    /// The next packet of IPv6 that leaves, to the start of `packet`: its length, 0 if it is another.
    ///
    /// # Errors
    /// There is none ([`io::ErrorKind::WouldBlock`]).
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
        // What leaves is seen a second time, as what comes in.
        let leaves = from.sll_pkttype == libc::PACKET_OUTGOING && from.sll_protocol == v6();
        Ok(if leaves { got } else { 0 })
    }

    /// Has a packet of IPv6 come in.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        let to = address(v6());
        let (data, fd) = (packet.as_ptr().cast(), self.0.as_raw_fd());
        // SAFETY: the kernel reads the packet and the address, which live through the call.
        let sent =
            unsafe { libc::sendto(fd, data, packet.len(), 0, (&raw const to).cast(), ADDRESS) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for Loop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const ADDRESS: libc::socklen_t = size_of::<libc::sockaddr_ll>() as libc::socklen_t;

fn v6() -> u16 {
    (libc::ETH_P_IPV6 as u16).to_be()
}

/// The loopback interface, which is the first of every network namespace.
fn address(protocol: u16) -> libc::sockaddr_ll {
    // SAFETY: all zeros is an address.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    (at.sll_family, at.sll_protocol) = (libc::AF_PACKET as u16, protocol);
    (at.sll_ifindex, at.sll_halen) = (1, 6);
    at
}

/// A socket of UDP in this process's hall, of IPv6 or of IPv4.
///
/// # Errors
/// No descriptor is left, or there is no such family.
pub fn datagram_socket(v6: bool) -> io::Result<OwnedFd> {
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // Whether an address is this host's is asked outside.
    os::setsockopt(socket.as_fd(), libc::SOL_IP, libc::IP_FREEBIND, &1)?;
    if v6 {
        os::setsockopt(socket.as_fd(), libc::SOL_IPV6, libc::IPV6_FREEBIND, &1)?;
    }
    Ok(socket)
}

/// The ports that sockets of UDP have in the hall that process `pid` is in.
///
/// # Errors
/// It has ended.
pub fn udp_ports(pid: u32) -> io::Result<BTreeSet<u16>> {
    let mut text = std::fs::read_to_string(format!("/proc/{pid}/net/udp"))?;
    // Missing where there is no IPv6.
    text.push_str(&std::fs::read_to_string(format!("/proc/{pid}/net/udp6")).unwrap_or_default());
    let port = |line: &str| {
        let (_, port) = line.split_whitespace().nth(1)?.split_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    Ok(text.lines().filter_map(port).collect())
}

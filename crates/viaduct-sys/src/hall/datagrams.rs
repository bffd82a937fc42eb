//! A hall for datagrams: all that leaves it is read from a TUN by whoever opened it, and what is written
//! there comes in, from whatever address it says. Sockets of UDP that programs have in there are their
//! own in all they do; where their datagrams go is ours to say.
//!
//! ```text
//!   program ── sendto 192.0.2.1:53 ──▶ route: everything leaves ──▶ TUN ──▶ handlers ──▶ a socket outside
//!           ◀── from 192.0.2.1:53 ─── rule: what comes in is ours ◀─┘ ◀── handlers ◀──────────┘
//! ```

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::{HallError, enter_network, routes, set_up};
use crate::os;
use crate::tun::Tun;

/// The TUN's name in there, and how many bytes a packet has at most: no datagram is too long.
const INTERFACE: &str = "datagrams";
const MTU: u32 = 65_535;
/// Packets that wait to be read.
const QUEUE: u32 = 8192;
/// Any table but the kernel's own.
const TABLE: u8 = 100;
/// Addresses of loopback leave too, and may come in by another interface.
const SETTINGS: [(&str, &str); 4] = [
    ("conf/datagrams/route_localnet", "1"),
    ("conf/datagrams/accept_local", "1"),
    ("conf/datagrams/rp_filter", "0"),
    ("conf/all/rp_filter", "0"),
];

const NO_IPV6: &str = "/proc/sys/net/ipv6/conf/datagrams/disable_ipv6";

/// The address that this host's datagrams come from; the loopback's where it has no other.
pub fn own_address() -> Ipv4Addr {
    let ask = || -> io::Result<SocketAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // Nothing is sent.
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    };
    match ask() {
        Ok(SocketAddr::V4(own)) => *own.ip(),
        _ => Ipv4Addr::LOCALHOST,
    }
}

/// Moves this process, which has one thread, into such a hall; `own` is what its sockets' datagrams come
/// from, or the loopback's address where they go to one of those.
///
/// # Errors
/// The kernel gives this user no network namespace, or has no TUN.
pub fn enter_for_datagrams(own: Ipv4Addr) -> Result<Tun, HallError> {
    enter_network()?;
    let tun = Tun::create(INTERFACE).map_err(|error| set_up("a TUN", error))?;
    // It has nothing to say of its own; where there is no IPv6 it cannot.
    let _ = std::fs::write(NO_IPV6, "1");
    // A longer queue takes a right of the host's.
    let _ = tun.interface().set_queue_len(QUEUE);
    let ready = tun.interface().set_mtu(MTU).and_then(|()| tun.interface().set_up());
    ready.map_err(|error| set_up("a TUN", error))?;
    for (key, value) in SETTINGS {
        let path = format!("/proc/sys/net/ipv4/{key}");
        std::fs::write(&path, value).map_err(|error| set_up(&path, error))?;
    }
    let loopback = Ipv4Addr::LOCALHOST;
    let routed = routes::add_address(INTERFACE, loopback)
        .and_then(|()| match own == loopback {
            true => Ok(()),
            false => routes::add_address(INTERFACE, own),
        })
        .and_then(|()| routes::be_everywhere(libc::AF_INET, INTERFACE, TABLE))
        .and_then(|()| routes::leave_by(INTERFACE, (Ipv4Addr::UNSPECIFIED, 0), own))
        .and_then(|()| routes::leave_by(INTERFACE, (Ipv4Addr::new(127, 0, 0, 0), 8), loopback))
        .and_then(|()| routes::go_out_and_come_in(INTERFACE, TABLE));
    routed.map_err(|error| set_up("routes", error))?;
    Ok(tun)
}

/// A socket of UDP in this process's hall.
///
/// # Errors
/// No descriptor is left.
pub fn datagram_socket() -> io::Result<OwnedFd> {
    let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    // Whether an address is this host's is asked outside.
    os::setsockopt(socket.as_fd(), libc::SOL_IP, libc::IP_FREEBIND, &1)?;
    Ok(socket)
}

/// The ports that sockets of UDP have in the hall that process `pid` is in.
///
/// # Errors
/// It has ended.
pub fn udp_ports(pid: u32) -> io::Result<BTreeSet<u16>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/net/udp"))?;
    let port = |line: &str| {
        let (_, port) = line.split_whitespace().nth(1)?.split_once(':')?;
        u16::from_str_radix(port, 16).ok()
    };
    Ok(text.lines().skip(1).filter_map(port).collect())
}

/// A datagram that did not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Undelivered {
    /// Where it was to go.
    pub to: SocketAddrV4,
    /// What was said of it: type and code of ICMP.
    pub why: [u8; 2],
}

/// Has a socket keep what is said of datagrams that did not arrive.
///
/// # Errors
/// It is no socket of IPv4.
pub fn hear_errors(socket: impl AsFd) -> io::Result<()> {
    os::setsockopt(socket.as_fd(), libc::SOL_IP, libc::IP_RECVERR, &1)
}

/// What such a socket was told, if it was.
pub fn take_error(socket: BorrowedFd<'_>) -> Option<Undelivered> {
    // SAFETY: all zeros is an address and a message.
    let (mut name, mut message): (libc::sockaddr_in, libc::msghdr) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut control = [0u64; 16];
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in>() as _;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes to the address and the control bytes, which live through the call and
    // are as long as the message says.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    if got < 0 {
        return None;
    }
    // SAFETY: the message is as the kernel has just written it.
    let head = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() }?;
    if (head.cmsg_level, head.cmsg_type) != (libc::SOL_IP, libc::IP_RECVERR) {
        return None;
    }
    // SAFETY: such a header is followed by this, which may stand anywhere.
    let error: libc::sock_extended_err =
        unsafe { libc::CMSG_DATA(head).cast::<libc::sock_extended_err>().read_unaligned() };
    let ip = Ipv4Addr::from(u32::from_be(name.sin_addr.s_addr));
    let to = SocketAddrV4::new(ip, u16::from_be(name.sin_port));
    let is_icmp = error.ee_origin == libc::SO_EE_ORIGIN_ICMP;
    is_icmp.then_some(Undelivered { to, why: [error.ee_type, error.ee_code] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_leaves_is_read_and_what_is_written_comes_in() {
        let own = Ipv4Addr::new(198, 51, 100, 7);
        let hall = move || {
            let tun = enter_for_datagrams(own).unwrap();
            (tun, [(); 2].map(|()| UdpSocket::from(datagram_socket().unwrap())))
        };
        let (tun, sockets) = std::thread::spawn(hall).join().unwrap();
        let ends = [("192.0.2.1", own), ("127.0.0.1", Ipv4Addr::LOCALHOST)];
        for ((to, from), socket) in ends.into_iter().zip(sockets) {
            socket.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
            socket.connect((to, 53)).unwrap();
            assert_eq!(socket.local_addr().unwrap().ip(), from);
            socket.send(b"question").unwrap();
            let mut packet = vec![0; 2000];
            let length = tun.read(&mut packet).unwrap();
            packet.truncate(length);
            assert_eq!((&packet[12..16], &packet[28..]), (&from.octets()[..], &b"question"[..]));
            // The same, from there, without a checksum.
            let addresses = [&packet[16..20], &packet[12..16]].concat();
            packet[12..20].copy_from_slice(&addresses);
            let ports = [&packet[22..24], &packet[20..22]].concat();
            packet[20..24].copy_from_slice(&ports);
            packet[26..28].fill(0);
            tun.write(&packet).unwrap();
            let mut answer = [0; 20];
            assert_eq!(
                socket.recv_from(&mut answer).unwrap(),
                (8, (to.parse::<Ipv4Addr>().unwrap(), 53).into())
            );
        }
    }

    #[test]
    fn a_socket_hears_that_nobody_is_there() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        hear_errors(&socket).unwrap();
        assert_eq!(take_error(socket.as_fd()), None);
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        socket.send_to(b"x", closed).unwrap();
        let SocketAddr::V4(to) = closed else { panic!() };
        assert_eq!(take_error(socket.as_fd()), Some(Undelivered { to, why: [3, 3] }));
    }
}

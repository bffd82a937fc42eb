//! Error queue of a UDP socket: ICMP errors for its datagrams.
#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use rustix::net::{AddressFamily, sockopt};

use crate::os;

/// A datagram that was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Destination.
    pub to: SocketAddr,
    /// Type and code of ICMP, or of ICMPv6 where `to` is IPv6.
    pub why: [u8; 2],
}

/// Enables a socket's error queue.
///
/// # Errors
/// The socket is not an IP socket.
pub fn enable_error_queue(socket: impl AsFd) -> io::Result<()> {
    let fd = socket.as_fd();
    os::setsockopt(fd, libc::SOL_IP, libc::IP_RECVERR, &1)?;
    match sockopt::socket_domain(fd)? == AddressFamily::INET6 {
        true => os::setsockopt(fd, libc::SOL_IPV6, libc::IPV6_RECVERR, &1),
        false => Ok(()),
    }
}

/// Returns the next ICMP error of the socket's error queue, if there is one.
pub fn take_error(socket: BorrowedFd<'_>) -> Option<IcmpError> {
    take_error_of(socket, &mut []).map(|(error, _)| error)
}

/// Returns the next error with the number of bytes of the datagram's payload in `carried`: as
/// many as were sent back and it has room for.
pub fn take_error_of(socket: BorrowedFd<'_>, carried: &mut [u8]) -> Option<(IcmpError, usize)> {
    // SAFETY: all zeros is an address and a message.
    let (mut name, mut message): (libc::sockaddr_in6, libc::msghdr) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    let mut control = [0u64; 32];
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_in6>() as _;
    let mut piece = libc::iovec { iov_base: carried.as_mut_ptr().cast(), iov_len: carried.len() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the kernel writes to the address, the control bytes and `carried`, which live
    // through the call and are as long as the message says.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let got = usize::try_from(got).ok()?;
    let errors = [(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)];
    // SAFETY: the message is as the kernel has just written it.
    let mut head = unsafe { libc::CMSG_FIRSTHDR(&raw const message).as_ref() }?;
    // Other control messages may precede it, such as the hop limit of the ICMP packet.
    while !errors.contains(&(head.cmsg_level, head.cmsg_type)) {
        // SAFETY: as above.
        head = unsafe { libc::CMSG_NXTHDR(&raw const message, head).as_ref() }?;
    }
    // SAFETY: such a header is followed by this, which may stand anywhere.
    let error: libc::sock_extended_err =
        unsafe { libc::CMSG_DATA(head).cast::<libc::sock_extended_err>().read_unaligned() };
    let port = u16::from_be(name.sin6_port);
    let ip = match i32::from(name.sin6_family) {
        // The IPv4 address is at the offset of IPv6's flow label.
        libc::AF_INET => Ipv4Addr::from(u32::from_be(name.sin6_flowinfo)).into(),
        _ => IpAddr::from(name.sin6_addr.s6_addr).to_canonical(),
    };
    let icmp = [libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6];
    let is_icmp = error.ee_origin == icmp[usize::from(ip.is_ipv6())];
    let why = [error.ee_type, error.ee_code];
    is_icmp.then_some((IcmpError { to: (ip, port).into(), why }, got))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_socket_gets_port_unreachable() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        enable_error_queue(&socket).unwrap();
        assert_eq!(take_error(socket.as_fd()), None);
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        socket.send_to(b"x", closed).unwrap();
        assert_eq!(take_error(socket.as_fd()), Some(IcmpError { to: closed, why: [3, 3] }));
        for (sent, length) in [(&b"payload"[..], 7), (&[1; 99], 9)] {
            // A pending error is reported by the next call.
            let _ = sockopt::socket_error(&socket);
            socket.send_to(sent, closed).unwrap();
            let mut carried = [0; 9];
            let told = take_error_of(socket.as_fd(), &mut carried);
            assert_eq!(told, Some((IcmpError { to: closed, why: [3, 3] }, length)));
            assert_eq!(carried[..length], sent[..length]);
        }
    }

    #[test]
    fn a_socket_of_ipv6_gets_errors_of_both_families() {
        let socket = UdpSocket::bind("[::]:0").unwrap();
        enable_error_queue(&socket).unwrap();
        crate::socket::hop_fields::enable_hop_fields(&socket).unwrap();
        for (from, why) in [("[::1]:0", [1, 4]), ("127.0.0.1:0", [3, 3])] {
            let closed = UdpSocket::bind(from).unwrap().local_addr().unwrap();
            let to = match closed.ip() {
                IpAddr::V4(ip) => SocketAddr::new(ip.to_ipv6_mapped().into(), closed.port()),
                IpAddr::V6(_) => closed,
            };
            socket.send_to(b"x", to).unwrap();
            assert_eq!(take_error(socket.as_fd()), Some(IcmpError { to: closed, why }));
        }
    }
}

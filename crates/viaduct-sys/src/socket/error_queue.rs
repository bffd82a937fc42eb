//! Error queue of a UDP socket: ICMP errors for its datagrams.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, sockopt};

use crate::os;
use crate::socket::control;
use crate::socket::udp::address;

/// ICMP error about a datagram that was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// Destination of the datagram.
    pub to: SocketAddr,
    /// ICMP type and code; ICMPv6 if `to` is IPv6.
    pub why: [u8; 2],
}

/// Enables a socket's error queue. Errors: the socket is not an IP socket.
pub fn enable_error_queue(socket: impl AsFd) -> io::Result<()> {
    let fd = socket.as_fd();
    os::setsockopt(fd, libc::SOL_IP, libc::IP_RECVERR, &1)?;
    match sockopt::socket_domain(fd)? == AddressFamily::INET6 {
        true => os::setsockopt(fd, libc::SOL_IPV6, libc::IPV6_RECVERR, &1),
        false => Ok(()),
    }
}

/// Removes the first entry of the socket's error queue, and returns its ICMP error. `None` if the
/// queue is empty, or if the entry is not an ICMP error.
pub fn take_error(socket: BorrowedFd<'_>) -> Option<IcmpError> {
    take_error_of(socket, &mut []).map(|(error, _)| error)
}

/// Does the same as [`take_error`], and also returns the number of bytes of the datagram's payload
/// that were copied to `carried`: as many as the ICMP message quotes and `carried` has room for.
pub fn take_error_of(socket: BorrowedFd<'_>, carried: &mut [u8]) -> Option<(IcmpError, usize)> {
    let errors = [(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)];
    let mut error: Option<libc::sock_extended_err> = None;
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    let received = control::receive(socket, carried, flags, |control| {
        // Other control messages may precede the error, such as the hop limit of the ICMP packet.
        if errors.contains(&control.kind) {
            error = error.or(control.value());
        }
    });
    let ((got, name), error) = (received.ok()?, error?);
    let to = address(&name)?;
    let ip = to.ip().to_canonical();
    let icmp = [libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6];
    let is_icmp = error.ee_origin == icmp[usize::from(ip.is_ipv6())];
    let why = [error.ee_type, error.ee_code];
    is_icmp.then_some((IcmpError { to: (ip, to.port()).into(), why }, got))
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, UdpSocket};

    use super::*;

    #[test]
    fn a_socket_receives_port_unreachable() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        enable_error_queue(&socket).unwrap();
        assert_eq!(take_error(socket.as_fd()), None);
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        socket.send_to(b"x", closed).unwrap();
        assert_eq!(take_error(socket.as_fd()), Some(IcmpError { to: closed, why: [3, 3] }));
        for (sent, length) in [(&b"payload"[..], 7), (&[1; 99], 9)] {
            // Clears the pending error, which the next call would report.
            let _ = sockopt::socket_error(&socket);
            socket.send_to(sent, closed).unwrap();
            let mut carried = [0; 9];
            let told = take_error_of(socket.as_fd(), &mut carried);
            assert_eq!(told, Some((IcmpError { to: closed, why: [3, 3] }, length)));
            assert_eq!(carried[..length], sent[..length]);
        }
    }

    #[test]
    fn an_ipv6_socket_receives_errors_of_both_families() {
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

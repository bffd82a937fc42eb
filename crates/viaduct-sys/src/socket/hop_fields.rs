//! Sends and receives UDP datagrams with their hop limit and traffic class (IPv4: time to live and
//! type of service), by control messages.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use libc::c_int;
use rustix::net::{AddressFamily, SocketAddrAny, sockopt};

use crate::os;
use crate::socket::control::{self, Controls};
use crate::socket::udp::address;

/// Hop limit and traffic class of a datagram; `None` means the socket's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopFields {
    /// Hop limit, or time to live: 1 to 255.
    pub limit: Option<u8>,
    /// Traffic class, or type of service.
    pub class: Option<u8>,
}

/// Makes `socket` report hop fields of received datagrams. Errors: it is not a UDP socket.
pub fn enable_hop_fields(socket: impl AsFd) -> io::Result<()> {
    let fd = socket.as_fd();
    for option in [libc::IP_RECVTTL, libc::IP_RECVTOS] {
        os::setsockopt(fd, libc::SOL_IP, option, &1)?;
    }
    if sockopt::socket_domain(fd)? == AddressFamily::INET6 {
        for option in [libc::IPV6_RECVHOPLIMIT, libc::IPV6_RECVTCLASS] {
            os::setsockopt(fd, libc::SOL_IPV6, option, &1)?;
        }
    }
    Ok(())
}

/// Sends a datagram with these hop fields. Errors: those of `sendmsg(2)`.
pub fn send_to(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    to: SocketAddr,
    fields: HopFields,
) -> io::Result<()> {
    let v4 = to.ip().to_canonical().is_ipv4();
    let (level, kinds) = match v4 {
        true => (libc::SOL_IP, [libc::IP_TTL, libc::IP_TOS]),
        false => (libc::SOL_IPV6, [libc::IPV6_HOPLIMIT, libc::IPV6_TCLASS]),
    };
    let (mut name, mut controls) = (SocketAddrAny::from(to), Controls::default());
    for (kind, value) in kinds.into_iter().zip([fields.limit, fields.class]) {
        if let Some(value) = value {
            controls.push(level, kind, c_int::from(value));
        }
    }
    let mut piece =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros are a `msghdr` with null pointers.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = name.addr_len();
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    controls.attach(&mut message);
    // SAFETY: the kernel reads the message and what it points to, all of which live through the
    // call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives the next datagram into `bytes`. Returns its length, its sender and its hop fields.
/// Errors: no datagram is queued ([`io::ErrorKind::WouldBlock`]), or an ICMP error about a datagram
/// that was sent earlier is pending.
pub fn receive_from(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, SocketAddr, HopFields)> {
    let mut fields = HopFields::default();
    let (got, name) = control::receive(socket, bytes, 0, |control| {
        let number = || control.value::<c_int>().and_then(|value| u8::try_from(value).ok());
        match control.kind {
            (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => {
                fields.limit = number();
            }
            (libc::SOL_IP, libc::IP_TOS) => fields.class = control.value(),
            (libc::SOL_IPV6, libc::IPV6_TCLASS) => fields.class = number(),
            _ => {}
        }
    })?;
    Ok((got, address(&name).ok_or(io::ErrorKind::InvalidData)?, fields))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    #[test]
    fn hop_fields_are_sent_and_received_in_both_families() {
        for (at, to) in [("127.0.0.1:0", None), ("[::1]:0", None), ("[::]:0", Some("127.0.0.1"))] {
            let far = UdpSocket::bind(at).unwrap();
            far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            enable_hop_fields(&far).unwrap();
            let near = UdpSocket::bind(to.map_or(at, |_| "127.0.0.1:0")).unwrap();
            let mut to_far = far.local_addr().unwrap();
            if let Some(ip) = to {
                to_far.set_ip(ip.parse().unwrap());
            }
            let fields = HopFields { limit: Some(7), class: Some(0x28) };
            let mut bytes = [0; 9];
            send_to(near.as_fd(), b"x", to_far, fields).unwrap();
            let (length, from, heard) = receive_from(far.as_fd(), &mut bytes).unwrap();
            assert_eq!((length, heard), (1, fields));
            assert_eq!(from.port(), near.local_addr().unwrap().port());
            let limit = HopFields { limit: None, class: Some(4) };
            send_to(near.as_fd(), b"y", to_far, limit).unwrap();
            let (_, _, heard) = receive_from(far.as_fd(), &mut bytes).unwrap();
            assert_eq!(heard.class, Some(4));
        }
    }
}

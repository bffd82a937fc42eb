//! UDP datagrams with their hop limit and traffic class (IPv4: time to live and type of
//! service), in control messages.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::ptr;

use libc::c_int;
use rustix::net::{AddressFamily, sockopt};

use crate::os;
use crate::socket::udp::{Name, address};

/// Room for control messages, in words that align them: four of 24 bytes.
const CONTROL_WORDS: usize = 12;

/// Hop limit and traffic class of a datagram; `None` means the socket's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopFields {
    /// Hop limit, or time to live: 1 to 255.
    pub limit: Option<u8>,
    /// Traffic class, or type of service.
    pub class: Option<u8>,
}

/// Makes `socket` report the hop fields of received datagrams.
///
/// # Errors
/// The socket is not a UDP socket.
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

/// Sends a datagram with these hop fields.
///
/// # Errors
/// The kernel's.
pub fn send_to(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    to: SocketAddr,
    fields: HopFields,
) -> io::Result<()> {
    let (mut name, mut control) = (Name::new(to), [0u64; CONTROL_WORDS]);
    let mut piece =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: all zeros is a message that points nowhere.
    let mut message: libc::msghdr = unsafe { mem::zeroed() };
    message.msg_name = ptr::from_mut(&mut name.storage).cast();
    message.msg_namelen = name.length;
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let v4 = to.ip().to_canonical().is_ipv4();
    let (level, kinds) = match v4 {
        true => (libc::SOL_IP, [libc::IP_TTL, libc::IP_TOS]),
        false => (libc::SOL_IPV6, [libc::IPV6_HOPLIMIT, libc::IPV6_TCLASS]),
    };
    let mut length = 0;
    // SAFETY: the first header lies within the control bytes.
    let mut head = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    for (kind, value) in kinds.into_iter().zip([fields.limit, fields.class]) {
        let Some(value) = value else { continue };
        let size = size_of::<c_int>() as u32;
        // SAFETY: there is room for two messages of a number each, and the header points to it.
        unsafe {
            (*head).cmsg_level = level;
            (*head).cmsg_type = kind;
            (*head).cmsg_len = libc::CMSG_LEN(size) as _;
            libc::CMSG_DATA(head).cast::<c_int>().write_unaligned(value.into());
            length += libc::CMSG_SPACE(size) as usize;
            head = libc::CMSG_NXTHDR(&raw const message, head);
        }
    }
    message.msg_controllen = length as _;
    // SAFETY: the kernel reads the message and what it points to, all of which live through the
    // call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives the next datagram into `bytes`. Returns its length, its sender and its hop fields.
///
/// # Errors
/// No datagram waits ([`io::ErrorKind::WouldBlock`]), or an earlier one was not delivered.
pub fn receive_from(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, SocketAddr, HopFields)> {
    // SAFETY: all zeros is an address, and a message that points nowhere.
    let (mut name, mut message): (libc::sockaddr_storage, libc::msghdr) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut control = [0u64; CONTROL_WORDS];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of::<libc::sockaddr_storage>() as _;
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the kernel writes at most as much as the message says that there is room for.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    let from = address(&name).ok_or(io::ErrorKind::InvalidData)?;
    let mut fields = HopFields::default();
    // SAFETY: the message is as the kernel has just written it, and so are its control bytes.
    unsafe {
        let mut head = libc::CMSG_FIRSTHDR(&raw const message);
        while let Some(of) = head.as_ref() {
            let data = libc::CMSG_DATA(of);
            match (of.cmsg_level, of.cmsg_type) {
                (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT) => {
                    fields.limit = u8::try_from(data.cast::<c_int>().read_unaligned()).ok();
                }
                (libc::SOL_IP, libc::IP_TOS) => fields.class = Some(data.read()),
                (libc::SOL_IPV6, libc::IPV6_TCLASS) => {
                    fields.class = u8::try_from(data.cast::<c_int>().read_unaligned()).ok();
                }
                _ => {}
            }
            head = libc::CMSG_NXTHDR(&raw const message, head);
        }
    }
    Ok((got, from, fields))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use super::*;

    #[test]
    fn hop_fields_travel_by_both_families() {
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

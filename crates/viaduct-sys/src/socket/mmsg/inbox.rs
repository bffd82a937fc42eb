//! Received messages, with data from their control messages.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::BATCH;
use crate::os;
use crate::socket::control::{Control, controls};
use crate::socket::udp::address;

/// Size of the control buffer in 8-byte words, which align the messages. The buffer has room for
/// one message of each kind that is read.
const CONTROL_WORDS: usize = 8;

/// A received message.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Payload, truncated to the inbox's `snap`.
    pub bytes: &'a [u8],
    /// Length of the whole message; greater than that of `bytes` if the payload is truncated.
    pub length: usize,
    /// Sender; `None` on a packet socket, whose packets have the sender in their header.
    pub from: Option<SocketAddr>,
    /// Local destination address, if [`report_destination`] was called.
    pub to: Option<IpAddr>,
    /// False if the checksum is not to be checked: it is not filled in yet, or a device has
    /// verified it. Known only on packet sockets with [`report_checksum`]; true on other sockets.
    pub check: bool,
}

#[derive(Clone, Copy, Debug)]
struct Meta {
    length: usize,
    from: Option<SocketAddr>,
    to: Option<IpAddr>,
    check: bool,
}

impl Meta {
    fn note(&mut self, control: Control<'_>) {
        match control.kind {
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                let spared = libc::TP_STATUS_CSUMNOTREADY | libc::TP_STATUS_CSUM_VALID;
                let aux = control.value::<libc::tpacket_auxdata>();
                self.check = aux.is_none_or(|aux| aux.tp_status & spared == 0);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let info = control.value::<libc::in_pktinfo>();
                let octets = info.map(|info| info.ipi_addr.s_addr.to_ne_bytes());
                self.to = octets.map(IpAddr::from);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let info = control.value::<libc::in6_pktinfo>();
                self.to = info.map(|info| IpAddr::from(info.ipi6_addr.s6_addr));
            }
            _ => {}
        }
    }
}

/// Messages of one receive call.
#[derive(Debug)]
pub struct Inbox {
    bytes: Vec<u8>,
    snap: usize,
    metas: Vec<Meta>,
}

impl Inbox {
    /// Creates an inbox for messages of at most `snap` bytes.
    pub fn new(snap: usize) -> Inbox {
        Inbox { bytes: vec![0; snap * BATCH], snap, metas: Vec::with_capacity(BATCH) }
    }

    /// Receives up to 64 queued messages, which replace those of the last call, and returns their
    /// number. Does not block. Errors: those of `recvmmsg(2)`, for example when the interface has
    /// gone down. `ECONNREFUSED`, which concerns a datagram that was sent earlier, is not reported:
    /// the call returns 0, although messages may be queued.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.metas.clear();
        // SAFETY: all zeros are a valid `sockaddr_storage`.
        let mut names: [libc::sockaddr_storage; BATCH] = unsafe { mem::zeroed() };
        let mut words = [[0_u64; CONTROL_WORDS]; BATCH];
        let mut slices: [libc::iovec; BATCH] = std::array::from_fn(|n| libc::iovec {
            iov_base: self.bytes[n * self.snap..].as_mut_ptr().cast::<c_void>(),
            iov_len: self.snap,
        });
        // SAFETY: all zeros are a `mmsghdr` with null pointers.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        for (n, message) in headers.iter_mut().enumerate() {
            let header = &mut message.msg_hdr;
            header.msg_name = ptr::from_mut(&mut names[n]).cast();
            header.msg_namelen = size_of_val(&names[n]) as libc::socklen_t;
            header.msg_iov = &raw mut slices[n];
            header.msg_iovlen = 1;
            header.msg_control = words[n].as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&words[n]) as _;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: each header points to a name, a slice of `snap` bytes of our buffer and a control
        // buffer, all of which live until the call returns and have no other writer.
        let got = unsafe {
            let (fd, count) = (socket.as_raw_fd(), BATCH as u32);
            libc::recvmmsg(fd, headers.as_mut_ptr(), count, flags as _, ptr::null_mut())
        };
        let Ok(got) = usize::try_from(got) else {
            let error = io::Error::last_os_error();
            let nothing = [io::ErrorKind::WouldBlock, io::ErrorKind::ConnectionRefused];
            return if nothing.contains(&error.kind()) { Ok(0) } else { Err(error) };
        };
        for (message, name) in headers[..got].iter().zip(&names) {
            let length = message.msg_len as usize;
            let mut meta = Meta { length, from: address(name), to: None, check: true };
            // SAFETY: the kernel has filled in the header, and its control buffer still lives.
            unsafe { controls(&message.msg_hdr) }.for_each(|control| meta.note(control));
            self.metas.push(meta);
        }
        Ok(got)
    }

    /// Iterates over the messages of the last call, in order.
    pub fn iter(&self) -> impl Iterator<Item = Received<'_>> {
        self.bytes.chunks(self.snap).zip(&self.metas).map(|(bytes, meta)| {
            let Meta { length, from, to, check } = *meta;
            Received { bytes: &bytes[..length.min(self.snap)], length, from, to, check }
        })
    }
}

/// Makes a UDP socket report the destination addresses of datagrams.
pub fn report_destination(socket: BorrowedFd<'_>, is_ipv4: bool) -> io::Result<()> {
    match is_ipv4 {
        true => os::setsockopt(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, &1),
        false => os::setsockopt(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1),
    }
}

/// Makes a packet socket report whether the checksums of packets are to be checked.
pub fn report_checksum(socket: BorrowedFd<'_>) -> io::Result<()> {
    os::setsockopt(socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1)
}

//! A UDP socket that sends many datagrams a call and never lets one be fragmented.
//!
//! ```text
//!   [(peer, bytes), ...]  --runs to one peer, of one length-->  one message each (UDP_SEGMENT)
//!                         --up to 64 messages-->                one sendmmsg
//! ```
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io::{self, IoSlice};
use std::mem;
use std::net::{SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;
use std::time::SystemTime;

use rustix::net::sockopt;

use crate::filter::{self, BpfInsn, Share};
use crate::os;
use crate::stamp;

/// Messages in one system call.
const BATCH: usize = 64;
/// Datagrams in one message, at most (the kernel's limit was 64 until 6.9).
const MAX_SEGMENTS: usize = 64;
/// Payload of one message, at most, bytes.
const MAX_MESSAGE: usize = 65_000;
/// Control space for one 16-bit number, in words that align it.
const CONTROL_WORDS: usize = 3;

/// What became of the datagrams of one or more [`UdpBatch::send`]. Each counts datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendReport {
    /// Handed to the kernel.
    pub sent: u64,
    /// Longer than the path to the peer takes (`EMSGSIZE`).
    pub too_long: u64,
    /// No room in a queue (`ENOBUFS`, `ENOMEM`, `EAGAIN`).
    pub no_buffer: u64,
    /// The peer said that nobody listens there (`ECONNREFUSED`).
    pub refused: u64,
    /// Any other error: no route, a firewall's refusal.
    pub other: u64,
}

impl SendReport {
    /// All datagrams that were not sent.
    pub fn failed(&self) -> u64 {
        self.too_long + self.no_buffer + self.refused + self.other
    }

    pub(crate) fn count(&mut self, error: Option<i32>, datagrams: u64) {
        *match error {
            Some(libc::EMSGSIZE) => &mut self.too_long,
            Some(libc::ENOBUFS | libc::ENOMEM | libc::EAGAIN) => &mut self.no_buffer,
            Some(libc::ECONNREFUSED) => &mut self.refused,
            _ => &mut self.other,
        } += datagrams;
    }
}

/// The socket.
#[derive(Debug)]
pub struct UdpBatch {
    socket: UdpSocket,
    /// Whether the device still accepts several datagrams as one message.
    segments: bool,
}

impl UdpBatch {
    /// Binds a non-blocking socket. Its datagrams carry DF: what does not fit the path's MTU, as
    /// far as it is known, is refused, not fragmented.
    ///
    /// # Errors
    /// The kernel's: the address is in use, or not this machine's.
    pub fn bind(address: SocketAddr) -> io::Result<UdpBatch> {
        UdpBatch::new(UdpSocket::bind(address)?, address)
    }

    /// As [`UdpBatch::bind`], but `[::]` is IPv6 alone, so that `0.0.0.0` may be bound beside it; and one of several
    /// that share the address, if there is a `share`: each hears the peers of its own. They are to be bound in
    /// the order of their numbers.
    ///
    /// # Errors
    /// As [`UdpBatch::bind`]'s.
    pub fn bind_one_family(address: SocketAddr, share: Option<Share>) -> io::Result<UdpBatch> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        if share.is_some() {
            sockopt::set_socket_reuseport(&socket, true)?;
        }
        bind(&socket, &address)?;
        if let Some(share) = share {
            filter::attach_to_group(socket.as_fd(), &filter::listener_of(share.of))?;
        }
        UdpBatch::new(socket.into(), address)
    }

    fn new(socket: UdpSocket, address: SocketAddr) -> io::Result<UdpBatch> {
        socket.set_nonblocking(true)?;
        let fd = socket.as_fd();
        if address.is_ipv6() {
            let option = libc::IPV6_MTU_DISCOVER;
            os::setsockopt(fd, libc::IPPROTO_IPV6, option, &libc::IPV6_PMTUDISC_DO)?;
        }
        // On an IPv6 socket this governs datagrams to mapped IPv4 addresses.
        os::setsockopt(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_DO)?;
        Ok(UdpBatch { socket, segments: true })
    }

    /// Has the kernel hold so many bytes in each direction, or as many as it allows.
    ///
    /// # Errors
    /// None are known.
    pub fn set_buffers(&self, bytes: usize) -> io::Result<()> {
        sockopt::set_socket_send_buffer_size_force(&self.socket, bytes)
            .or_else(|_| sockopt::set_socket_send_buffer_size(&self.socket, bytes))?;
        sockopt::set_socket_recv_buffer_size_force(&self.socket, bytes)
            .or_else(|_| sockopt::set_socket_recv_buffer_size(&self.socket, bytes))?;
        Ok(())
    }

    /// The address that it is bound to.
    ///
    /// # Errors
    /// None are known for a bound socket.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends the datagrams in order, as many as the kernel takes now; never waits. An error costs
    /// the datagrams that it concerns and is counted, the others go on.
    pub fn send(&mut self, datagrams: &[(SocketAddr, &[u8])]) -> SendReport {
        let mut report = SendReport::default();
        let mut rest = datagrams;
        let mut singly = 0;
        while !rest.is_empty() {
            let messages = self.messages(rest, singly);
            let (done, error) = self.send_messages(rest, &messages);
            let count: usize = messages[..done].iter().sum();
            report.sent += count as u64;
            rest = &rest[count..];
            singly = singly.saturating_sub(count);
            let Some(error) = error else { continue };
            let failed = messages[done];
            if failed > 1 && concerns_segments(error) {
                // EIO: the device on the way cannot do it at all (kernels before 6.11 without
                // checksum offload).
                self.segments &= error != Some(libc::EIO);
                singly = failed;
                continue;
            }
            report.count(error, failed as u64);
            rest = &rest[failed..];
            singly = singly.saturating_sub(failed);
        }
        report
    }

    /// Receives one datagram, if one waits: its length and sender. What does not fit is cut off.
    ///
    /// # Errors
    /// The kernel's; a peer's refusal of an earlier datagram is not one.
    pub fn recv(&self, buffer: &mut [u8]) -> io::Result<Option<(usize, SocketAddr)>> {
        match self.socket.recv_from(buffer) {
            Ok(received) => Ok(Some(received)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Has what is received stamped with its time of arrival, for [`recv_at`](UdpBatch::recv_at).
    ///
    /// # Errors
    /// None are known.
    pub fn stamp(&self) -> io::Result<()> {
        stamp::enable(self)
    }

    /// Receives one datagram, if one waits, as [`recv`](UdpBatch::recv) does, and when it arrived.
    /// Needs [`stamp`](UdpBatch::stamp) before.
    ///
    /// # Errors
    /// As those of [`recv`](UdpBatch::recv).
    pub fn recv_at(
        &self,
        buffer: &mut [u8],
    ) -> io::Result<Option<(usize, SocketAddr, SystemTime)>> {
        // SAFETY: all zeros is a `sockaddr_storage`.
        let mut from: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let (length, at) = match stamp::receive_from(self, buffer, Some(&mut from)) {
            Ok(received) => received,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(e) => return Err(e),
        };
        let unknown = || io::Error::new(io::ErrorKind::InvalidData, "a sender without an address");
        Ok(Some((length, address(&from).ok_or_else(unknown)?, at)))
    }

    /// Lets nothing in any more: the socket holds its port, so that no peer is refused, while a
    /// tap reads the datagrams.
    ///
    /// # Errors
    /// None are known.
    pub fn block_receive(&self) -> io::Result<()> {
        let keep_nothing =
            BpfInsn { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
        filter::attach(self.socket.as_fd(), &[keep_nothing])
    }

    /// How many datagrams each of the next messages carries, for one call; one each for the first
    /// `singly`.
    fn messages(&self, datagrams: &[(SocketAddr, &[u8])], singly: usize) -> Vec<usize> {
        let mut counts = Vec::with_capacity(BATCH);
        let mut rest = datagrams;
        while !rest.is_empty() && counts.len() < BATCH {
            let count = if self.segments && counts.len() >= singly { run(rest) } else { 1 };
            counts.push(count);
            rest = &rest[count..];
        }
        counts
    }

    /// Sends the messages: how many went out, and the error of the next one, if it had one.
    fn send_messages(
        &self,
        datagrams: &[(SocketAddr, &[u8])],
        counts: &[usize],
    ) -> (usize, Option<Option<i32>>) {
        let total: usize = counts.iter().sum();
        let slices: Vec<IoSlice<'_>> =
            datagrams[..total].iter().map(|(_, bytes)| IoSlice::new(bytes)).collect();
        let mut names = Vec::with_capacity(counts.len());
        let mut controls = Vec::with_capacity(counts.len());
        let mut first = 0;
        for &count in counts {
            let (peer, bytes) = datagrams[first];
            names.push(Name::new(peer));
            controls.push(segment_control(bytes.len() as u16));
            first += count;
        }
        let mut headers = Vec::with_capacity(counts.len());
        let mut first = 0;
        for ((&count, name), control) in counts.iter().zip(&mut names).zip(&mut controls) {
            headers.push(header(name, &slices[first..first + count], control));
            first += count;
        }
        // SAFETY: every header points to a name, slices and control words that live in the
        // vectors above, which are not touched until the call returns.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            let count = headers.len() as u32;
            libc::sendmmsg(self.socket.as_raw_fd(), headers.as_mut_ptr(), count, flags as _)
        };
        // The error of a message that is not the first is only told by the next call.
        match usize::try_from(sent) {
            Ok(sent) => (sent, None),
            Err(_) => (0, Some(io::Error::last_os_error().raw_os_error())),
        }
    }
}

impl AsFd for UdpBatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether the datagrams of a refused message may still go one by one.
fn concerns_segments(error: Option<i32>) -> bool {
    matches!(error, Some(libc::EIO | libc::EINVAL | libc::EOPNOTSUPP | libc::EMSGSIZE))
}

/// Datagrams at the front that can go as one message: to one peer, of one length, but that the
/// last may be shorter.
fn run(datagrams: &[(SocketAddr, &[u8])]) -> usize {
    let (peer, first) = datagrams[0];
    if first.is_empty() {
        return 1;
    }
    let most = (MAX_MESSAGE / first.len()).clamp(1, MAX_SEGMENTS);
    let equal = |(to, bytes): &&(SocketAddr, &[u8])| *to == peer && bytes.len() == first.len();
    let count = datagrams.iter().take(most).take_while(equal).count();
    let shorter = datagrams
        .get(count)
        .is_some_and(|(to, bytes)| *to == peer && (1..first.len()).contains(&bytes.len()));
    if shorter && count < most { count + 1 } else { count }
}

/// An address as the kernel reads it.
pub(crate) struct Name {
    pub(crate) storage: libc::sockaddr_storage,
    pub(crate) length: libc::socklen_t,
}

impl Name {
    pub(crate) fn new(address: SocketAddr) -> Name {
        // SAFETY: all zeros is a `sockaddr_storage`.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let length = match address {
            SocketAddr::V4(v4) => {
                // SAFETY: all zeros is a `sockaddr_in`.
                let mut name: libc::sockaddr_in = unsafe { mem::zeroed() };
                name.sin_family = libc::AF_INET as libc::sa_family_t;
                name.sin_port = v4.port().to_be();
                name.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                // SAFETY: the storage is large enough and aligned for every kind of address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(name) };
                size_of_val(&name)
            }
            SocketAddr::V6(v6) => {
                // SAFETY: all zeros is a `sockaddr_in6`.
                let mut name: libc::sockaddr_in6 = unsafe { mem::zeroed() };
                name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                name.sin6_port = v6.port().to_be();
                name.sin6_addr.s6_addr = v6.ip().octets();
                name.sin6_flowinfo = v6.flowinfo();
                name.sin6_scope_id = v6.scope_id();
                // SAFETY: the storage is large enough and aligned for every kind of address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(name) };
                size_of_val(&name)
            }
        };
        Name { storage, length: length as libc::socklen_t }
    }
}

/// The address that the kernel has written.
pub(crate) fn address(from: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(from.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is large enough and aligned for every kind of address, and the
            // family says that it is this one.
            let name = unsafe { ptr::from_ref(from).cast::<libc::sockaddr_in>().read() };
            let ip = name.sin_addr.s_addr.to_ne_bytes();
            Some((ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { ptr::from_ref(from).cast::<libc::sockaddr_in6>().read() };
            let (ip, port) = (name.sin6_addr.s6_addr.into(), u16::from_be(name.sin6_port));
            let scope = name.sin6_scope_id;
            Some(SocketAddrV6::new(ip, port, name.sin6_flowinfo, scope).into())
        }
        _ => None,
    }
}

/// The control message that says at which length to cut.
fn segment_control(length: u16) -> [u64; CONTROL_WORDS] {
    let mut words = [0; CONTROL_WORDS];
    // SAFETY: takes no pointers.
    let cmsg_len = unsafe { libc::CMSG_LEN(size_of::<u16>() as u32) } as _;
    let head = libc::cmsghdr { cmsg_len, cmsg_level: libc::SOL_UDP, cmsg_type: libc::UDP_SEGMENT };
    // SAFETY: `words` has room for the header and the number (asserted below) and is aligned.
    unsafe {
        let head_at = words.as_mut_ptr().cast::<libc::cmsghdr>();
        head_at.write(head);
        libc::CMSG_DATA(head_at).cast::<u16>().write_unaligned(length);
    }
    words
}

const _: () = assert!(size_of::<libc::cmsghdr>() + size_of::<u16>() <= CONTROL_WORDS * 8);

/// A message of the slices; the control words go along if there is more than one.
fn header(
    name: &mut Name,
    slices: &[IoSlice<'_>],
    control: &mut [u64; CONTROL_WORDS],
) -> libc::mmsghdr {
    // SAFETY: all zeros is a `mmsghdr` that points nowhere.
    let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
    let header = &mut message.msg_hdr;
    header.msg_name = ptr::from_mut(&mut name.storage).cast::<c_void>();
    header.msg_namelen = name.length;
    // The kernel only reads it; `IoSlice` is an `iovec`, as its documentation guarantees.
    header.msg_iov = slices.as_ptr().cast_mut().cast();
    header.msg_iovlen = slices.len() as _;
    if slices.len() > 1 {
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: takes no pointers.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<u16>() as c_int as u32) } as _;
    }
    message
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn peer(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn runs_end_with_the_peer_the_length_or_the_limit() {
        let long = [0_u8; 1400];
        let (a, b) = (peer(1), peer(2));
        assert_eq!(run(&[(a, &long[..]), (a, &long), (b, &long)]), 2);
        assert_eq!(run(&[(a, &long[..]), (a, &long[..9]), (a, &long[..9])]), 2);
        assert_eq!(run(&[(a, &long[..9]), (a, &long)]), 1);
        assert_eq!(run(&[(a, &[][..]), (a, &[])]), 1);
        assert_eq!(run(&[(a, &long[..]), (a, &[])]), 1);
        assert_eq!(run(&vec![(a, &long[..]); 100]), 46);
        assert_eq!(run(&vec![(a, &long[..10]); 100]), 64);
        assert_eq!(run(&[(a, &[0; 65_200][..])]), 1);
    }

    #[test]
    fn datagrams_arrive_one_by_one_and_in_order() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let receiver = UdpBatch::bind(host.parse().unwrap()).unwrap();
            let mut sender = UdpBatch::bind(host.parse().unwrap()).unwrap();
            let to = receiver.local_addr().unwrap();
            // Runs of 50, and then none at all: more messages than one call takes.
            let length =
                |i| if i < 50 { 200 - usize::from(i == 49) } else { 10 + usize::from(i % 2) };
            let payloads: Vec<Vec<u8>> = (0..150_u8).map(|i| vec![i; length(i)]).collect();
            let datagrams: Vec<_> = payloads.iter().map(|bytes| (to, &bytes[..])).collect();
            assert_eq!(sender.send(&datagrams), SendReport { sent: 150, ..Default::default() });
            let mut buffer = [0; 2000];
            for payload in &payloads {
                let (length, from) = receiver.recv(&mut buffer).unwrap().unwrap();
                assert_eq!(&buffer[..length], payload);
                assert_eq!(from, sender.local_addr().unwrap());
            }
            assert!(receiver.recv(&mut buffer).unwrap().is_none());
            receiver.stamp().unwrap();
            assert!(receiver.recv_at(&mut buffer).unwrap().is_none());
            assert_eq!(sender.send(&[(to, b"now")]).sent, 1);
            let (length, from, at) = receiver.recv_at(&mut buffer).unwrap().unwrap();
            assert_eq!((length, from), (3, sender.local_addr().unwrap()));
            assert!(at.elapsed().unwrap() < Duration::from_secs(1));
        }
    }

    #[test]
    fn an_error_costs_its_own_datagrams_only() {
        let receiver = UdpBatch::bind(peer(0)).unwrap();
        let mut sender = UdpBatch::bind(peer(0)).unwrap();
        let to = receiver.local_addr().unwrap();
        let (short, long) = ([7; 100], vec![0; 65_600]);
        let nowhere: SocketAddr = "[2001:db8::1]:9".parse().unwrap();
        let report = sender.send(&[(to, &short), (to, &long), (nowhere, &short), (to, &short)]);
        assert_eq!(report, SendReport { sent: 2, too_long: 1, other: 1, ..Default::default() });
        let mut buffer = [0; 200];
        assert_eq!(receiver.recv(&mut buffer).unwrap().unwrap().0, 100);
        assert_eq!(receiver.recv(&mut buffer).unwrap().unwrap().0, 100);
    }

    #[test]
    fn a_blocked_socket_holds_its_port_and_hears_nothing() {
        let holder = UdpBatch::bind(peer(0)).unwrap();
        holder.block_receive().unwrap();
        let to = holder.local_addr().unwrap();
        assert!(UdpBatch::bind(to).is_err());
        let sender = UdpSocket::bind(peer(0)).unwrap();
        sender.connect(to).unwrap();
        for _ in 0..3 {
            assert_eq!(sender.send(b"x").unwrap(), 1, "and nobody is refused");
        }
        assert!(holder.recv(&mut [0; 9]).unwrap().is_none());
    }
}

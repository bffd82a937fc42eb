//! Many packets or datagrams in one system call: received into one piece of memory, sent from one.
//!
//! ```text
//!   socket ── recvmmsg ──▶ Inbox   [ bytes | from | to | checksum? ] ...
//!   socket ◀─ sendmmsg ─── Outbox  [ bytes | to | from ] ...
//! ```
//!
//! Unlike [`crate::socket::udp::UdpBatch`], an inbox reports the local address that a datagram came
//! to, and an outbox sends from the address that it is given; both serve packet and raw sockets
//! too. An outbox for UDP lets the kernel cut one message into several datagrams
//! ([`Outbox::of_datagrams`]), which takes it a fraction of the time.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use crate::os;
use crate::socket::udp::{self, Name, SendReport, address};

/// Room for two control messages, in words that align them: headers (16 bytes), at most 20, and 2.
const CONTROL_WORDS: usize = 8;
/// Max messages in one call.
const BATCH: usize = 64;
/// Max datagrams in one message. A full queue loses a message whole: more datagrams would make
/// a burst of losses that takes long to repair, and save little.
const MAX_SEGMENTS: usize = 16;

/// A received message.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// Payload, as much as there was room for.
    pub bytes: &'a [u8],
    /// Length of the message: more than `bytes` has if it was cut.
    pub length: usize,
    /// Sender; `None` on a packet socket, where the header has it.
    pub from: Option<SocketAddr>,
    /// Local address that it came to, if [`report_destination`] is set.
    pub to: Option<IpAddr>,
    /// False if the checksum need not or cannot be checked: the sender has still to fill it in,
    /// or a device has verified it. Packet sockets with [`report_checksum`] only.
    pub check: bool,
}

#[derive(Clone, Copy, Debug)]
struct Meta {
    length: usize,
    from: Option<SocketAddr>,
    to: Option<IpAddr>,
    check: bool,
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

    /// Receives waiting messages, up to 64, in place of the last ones, and returns how many;
    /// does not block.
    ///
    /// # Errors
    /// The kernel's: the interface went down, say. The refusal of an earlier datagram is not
    /// reported.
    pub fn receive(&mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        self.metas.clear();
        // SAFETY: all zeros is a `sockaddr_storage`.
        let mut names: [libc::sockaddr_storage; BATCH] = unsafe { mem::zeroed() };
        let mut controls = [[0_u64; CONTROL_WORDS]; BATCH];
        let mut slices: [libc::iovec; BATCH] = std::array::from_fn(|n| libc::iovec {
            iov_base: self.bytes[n * self.snap..].as_mut_ptr().cast::<c_void>(),
            iov_len: self.snap,
        });
        // SAFETY: all zeros is a `mmsghdr` that points nowhere.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        for (n, message) in headers.iter_mut().enumerate() {
            let header = &mut message.msg_hdr;
            header.msg_name = ptr::from_mut(&mut names[n]).cast();
            header.msg_namelen = size_of_val(&names[n]) as libc::socklen_t;
            header.msg_iov = &raw mut slices[n];
            header.msg_iovlen = 1;
            header.msg_control = controls[n].as_mut_ptr().cast();
            header.msg_controllen = size_of_val(&controls[n]) as _;
        }
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: each header points to a name, a slice of `snap` bytes of ours and control
        // words, all of which live until the call returns and have no other writer.
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
            // SAFETY: the kernel has filled it in; what it points to is alive still.
            let control_data = unsafe { controls_of(&message.msg_hdr) };
            let (from, length) = (address(name), message.msg_len as usize);
            self.metas.push(Meta { length, from, to: control_data.to, check: control_data.check });
        }
        Ok(got)
    }

    /// Messages of the last call, in order.
    pub fn iter(&self) -> impl Iterator<Item = Received<'_>> {
        self.bytes.chunks(self.snap).zip(&self.metas).map(|(bytes, meta)| {
            let Meta { length, from, to, check } = *meta;
            Received { bytes: &bytes[..length.min(self.snap)], length, from, to, check }
        })
    }
}

struct ControlData {
    to: Option<IpAddr>,
    check: bool,
}

/// Parses the control messages of a header.
///
/// # Safety
/// The header is one that `recvmmsg` has filled in, and its control words are alive.
unsafe fn controls_of(header: &libc::msghdr) -> ControlData {
    let mut control_data = ControlData { to: None, check: true };
    // SAFETY: the caller's promise.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !at.is_null() {
        // SAFETY: the macros return whole headers within the control words, or null.
        let (control, data) = unsafe { (*at, libc::CMSG_DATA(at)) };
        // SAFETY: of each level and type the kernel writes this structure.
        unsafe {
            match (control.cmsg_level, control.cmsg_type) {
                (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                    let aux = data.cast::<libc::tpacket_auxdata>().read_unaligned();
                    let spared = libc::TP_STATUS_CSUMNOTREADY | libc::TP_STATUS_CSUM_VALID;
                    control_data.check = aux.tp_status & spared == 0;
                }
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let info = data.cast::<libc::in_pktinfo>().read_unaligned();
                    control_data.to =
                        Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let info = data.cast::<libc::in6_pktinfo>().read_unaligned();
                    control_data.to = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).into());
                }
                _ => {}
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    control_data
}

/// Messages for the next send call.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Destinations whose path MTU a message exceeded; see [`Outbox::too_long`].
    too_long: Vec<IpAddr>,
    /// True if the kernel may get several datagrams as one message.
    segments: bool,
}

#[derive(Debug)]
struct Entry {
    range: Range<usize>,
    to: SocketAddr,
    from: Option<IpAddr>,
}

impl Outbox {
    /// Creates an outbox for a UDP socket: consecutive datagrams of one length, to one peer
    /// from one address, are passed as one message, which the kernel cuts as late as possible
    /// (UDP_SEGMENT).
    pub fn of_datagrams() -> Outbox {
        Outbox { segments: true, ..Outbox::default() }
    }

    /// Adds a message to `to`. Datagrams are sent from the local address `from`, if it is
    /// given; packets carry their source in the header.
    pub fn push(&mut self, bytes: &[u8], to: SocketAddr, from: Option<IpAddr>) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        self.entries.push(Entry { range: start..self.bytes.len(), to, from });
    }

    /// Returns whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns whether as many messages wait as one call takes.
    pub fn is_full(&self) -> bool {
        self.entries.len() >= BATCH
    }

    /// Waiting messages, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], SocketAddr)> {
        self.entries.iter().map(|entry| (&self.bytes[entry.range.clone()], entry.to))
    }

    /// Drops waiting messages by their index. Not for datagrams, of which several leave as one
    /// message.
    pub fn forget(&mut self, gone: impl Fn(usize) -> bool) {
        let mut place = 0..;
        self.entries.retain(|_| !place.next().is_some_and(&gone));
        if self.entries.is_empty() {
            self.bytes.clear();
        }
    }

    /// Sends all messages, as far as the kernel takes them now, and drops them; does not block.
    /// A message that fails is counted.
    pub fn flush(&mut self, socket: BorrowedFd<'_>) -> SendReport {
        let mut report = SendReport::default();
        self.too_long.clear();
        let (mut done, mut singly) = (0, 0);
        while done < self.entries.len() {
            let counts = self.messages(done, singly);
            match self.send(socket, done, &counts) {
                Ok(messages) => {
                    let count: usize = counts[..messages].iter().sum();
                    report.sent += count as u64;
                    done += count;
                }
                Err(error) if counts[0] > 1 && udp::concerns_segments(error) => {
                    // As with `UdpBatch`: a device may lack segmentation altogether, or refuse
                    // these segments.
                    self.segments &= error != Some(libc::EIO);
                    singly = done + counts[0];
                }
                Err(error) => {
                    if error == Some(libc::EMSGSIZE) {
                        self.too_long.push(self.entries[done].to.ip());
                    }
                    report.count(error, counts[0] as u64);
                    done += counts[0];
                }
            }
        }
        self.entries.clear();
        self.bytes.clear();
        report
    }

    /// Destinations whose path MTU a message of the last [`Outbox::flush`] exceeded; see
    /// [`path_mtu`].
    pub fn too_long(&self) -> &[IpAddr] {
        &self.too_long
    }

    /// Returns the number of entries in each message of the next call, from the entry `first`
    /// on. Entries before `singly` are sent one by one.
    fn messages(&self, first: usize, singly: usize) -> Vec<usize> {
        let (mut counts, mut at) = (Vec::with_capacity(BATCH), first);
        while at < self.entries.len() && counts.len() < BATCH {
            let kinds = self.entries[at..].iter().map(|e| ((e.to, e.from), e.range.len()));
            let apart = !self.segments || at < singly;
            let count = if apart { 1 } else { udp::run(kinds, MAX_SEGMENTS) };
            counts.push(count);
            at += count;
        }
        counts
    }

    /// Makes one call, from the entry `first` on, with `counts` entries in each message.
    /// Returns how many messages were sent, or the error of the first.
    fn send(
        &self,
        socket: BorrowedFd<'_>,
        first: usize,
        counts: &[usize],
    ) -> Result<usize, Option<i32>> {
        let mut at = first;
        let messages: Vec<&[Entry]> = counts
            .iter()
            .map(|count| {
                at += count;
                &self.entries[at - count..at]
            })
            .collect();
        let mut names: Vec<Name> = messages.iter().map(|those| Name::new(those[0].to)).collect();
        let mut controls: Vec<_> = messages.iter().map(|those| control(those)).collect();
        let mut slices: Vec<libc::iovec> = messages.iter().map(|those| self.slice(those)).collect();
        let parts = names.iter_mut().zip(&mut slices).zip(&mut controls);
        let mut headers: Vec<libc::mmsghdr> = parts
            .map(|((name, slice), (control, length))| {
                // SAFETY: all zeros is a `mmsghdr` that points nowhere.
                let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
                let header = &mut message.msg_hdr;
                header.msg_name = ptr::from_mut(&mut name.storage).cast();
                header.msg_namelen = name.length;
                (header.msg_iov, header.msg_iovlen) = (ptr::from_mut(slice), 1);
                if *length > 0 {
                    header.msg_control = control.as_mut_ptr().cast();
                    header.msg_controllen = *length as _;
                }
                message
            })
            .collect();
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: every header points to a name, a slice and control words that live in the vectors
        // above, which are not touched until the call returns.
        let sent = unsafe {
            let (fd, count) = (socket.as_raw_fd(), headers.len() as u32);
            libc::sendmmsg(fd, headers.as_mut_ptr(), count, flags as _)
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error().raw_os_error())
    }

    /// Bytes of consecutive entries, which are contiguous.
    fn slice(&self, entries: &[Entry]) -> libc::iovec {
        let end = entries.last().map_or(0, |last| last.range.end);
        let bytes = &self.bytes[entries[0].range.start..end];
        // The kernel only reads the bytes: the cast away from const is due to the C interface.
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
    }
}

/// Builds the control messages for datagrams: the source address, and the segment length if
/// there are several. Returns them with their length, 0 for none.
fn control(entries: &[Entry]) -> ([u64; CONTROL_WORDS], usize) {
    let mut words = [0; CONTROL_WORDS];
    let at = words.as_mut_ptr().cast::<libc::cmsghdr>();
    // SAFETY: `words` has room for a header and either structure, and behind that for another
    // with a number (asserted below), and is aligned for headers, whose lengths are multiples
    // of its words; all zeros is a value of both structures.
    let mut length = unsafe {
        match entries[0].from {
            None => 0,
            Some(IpAddr::V4(ip)) => {
                let mut info: libc::in_pktinfo = mem::zeroed();
                info.ipi_spec_dst.s_addr = u32::from_ne_bytes(ip.octets());
                put(at, libc::IPPROTO_IP, libc::IP_PKTINFO, info)
            }
            Some(IpAddr::V6(ip)) => {
                let mut info: libc::in6_pktinfo = mem::zeroed();
                info.ipi6_addr.s6_addr = ip.octets();
                put(at, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info)
            }
        }
    };
    if entries.len() > 1 {
        let segment = entries[0].range.len() as u16;
        // SAFETY: as above.
        length += unsafe { put(at.byte_add(length), libc::SOL_UDP, libc::UDP_SEGMENT, segment) };
    }
    (words, length)
}

/// Writes a control message and returns its length, padding included.
///
/// # Safety
/// There is room for it at `at`, which is aligned for a header.
unsafe fn put<T>(at: *mut libc::cmsghdr, level: c_int, kind: c_int, value: T) -> usize {
    let size = size_of::<T>() as u32;
    // SAFETY: the caller's promise.
    unsafe {
        let cmsg_len = libc::CMSG_LEN(size) as _;
        at.write(libc::cmsghdr { cmsg_len, cmsg_level: level, cmsg_type: kind });
        libc::CMSG_DATA(at).cast::<T>().write_unaligned(value);
        libc::CMSG_SPACE(size) as usize
    }
}

const _: () = {
    // Room for two messages, each rounded up to words.
    let room = CONTROL_WORDS * 8 - 2 * size_of::<libc::cmsghdr>() - 8;
    assert!(size_of::<libc::in6_pktinfo>() <= room && size_of::<libc::in_pktinfo>() <= room);
    assert!(size_of::<libc::tpacket_auxdata>() <= room);
};

/// Makes a UDP socket report the address that a datagram came to.
///
/// # Errors
/// None are known.
pub fn report_destination(socket: BorrowedFd<'_>, is_ipv4: bool) -> io::Result<()> {
    match is_ipv4 {
        true => os::setsockopt(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, &1),
        false => os::setsockopt(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1),
    }
}

/// Makes a packet socket report whether a packet's checksum is ready.
///
/// # Errors
/// None are known.
pub fn report_checksum(socket: BorrowedFd<'_>) -> io::Result<()> {
    os::setsockopt(socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1)
}

/// Returns the bytes of the longest packet to `ip`, as far as the kernel knows: the device's
/// MTU, or less where a router has reported less to a socket of the kernel's own.
///
/// # Errors
/// There is no route to `ip`.
pub fn path_mtu(ip: IpAddr) -> io::Result<usize> {
    use std::os::fd::AsFd as _;
    let any: IpAddr =
        if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = std::net::UdpSocket::bind((any, 0))?;
    socket.connect((ip, 9))?;
    let (level, option) = match ip {
        IpAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        IpAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let mtu: c_int = os::getsockopt(socket.as_fd(), level, option)?;
    Ok(usize::try_from(mtu).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn datagrams_say_where_they_came_to_and_go_back_from_there() {
        for (any, ip) in [("0.0.0.0:0", "127.0.0.9"), ("[::]:0", "::1")] {
            let server = UdpSocket::bind(any).unwrap();
            let ip: IpAddr = ip.parse().unwrap();
            report_destination(server.as_fd(), ip.is_ipv4()).unwrap();
            let to = SocketAddr::new(ip, server.local_addr().unwrap().port());
            let client = UdpSocket::bind(any).unwrap();
            let mut outbox = Outbox::default();
            for n in 0..100_u8 {
                outbox.push(&[n; 30], to, None);
            }
            assert!(outbox.is_full());
            assert_eq!(outbox.flush(client.as_fd()).sent, 100);
            let (mut inbox, mut seen) = (Inbox::new(20), 0);
            while inbox.receive(server.as_fd()).unwrap() > 0 {
                for got in inbox.iter() {
                    assert_eq!((got.bytes, got.length, got.to), (&[seen; 20][..], 30, Some(ip)));
                    outbox.push(&[seen], got.from.unwrap(), got.to);
                    seen += 1;
                }
            }
            assert_eq!((seen, outbox.flush(server.as_fd()).sent), (100, 100));
            assert_eq!(client.recv_from(&mut [0; 9]).unwrap(), (1, to));
        }
    }

    #[test]
    fn neighbours_to_one_peer_go_as_one_message_and_arrive_one_by_one() {
        for (any, ip) in [("0.0.0.0:0", "127.0.0.9"), ("[::]:0", "::1")] {
            let (server, client) = (UdpSocket::bind(any).unwrap(), UdpSocket::bind(any).unwrap());
            let ip: IpAddr = ip.parse().unwrap();
            let to = SocketAddr::new(ip, client.local_addr().unwrap().port());
            let other =
                SocketAddr::new(ip, UdpSocket::bind((ip, 0)).unwrap().local_addr().unwrap().port());
            let mut outbox = Outbox::of_datagrams();
            let lengths = [700, 700, 700, 20, 700, 700, 0, 5];
            for (n, length) in lengths.into_iter().enumerate() {
                outbox.push(&vec![n as u8; length], to, Some(ip));
            }
            outbox.push(&[9; 5], other, Some(ip));
            assert_eq!(outbox.messages(0, 0), [4, 2, 1, 1, 1]);
            assert_eq!(outbox.messages(0, 2), [1, 1, 2, 2, 1, 1, 1]);
            assert_eq!(outbox.flush(server.as_fd()).sent, 9);
            let mut bytes = [0; 2_000];
            for (n, length) in lengths.into_iter().enumerate() {
                let (got, from) = client.recv_from(&mut bytes).unwrap();
                assert_eq!((got, from.ip()), (length, ip));
                assert!(bytes[..got].iter().all(|byte| *byte == n as u8));
            }
        }
    }

    #[test]
    fn what_is_too_long_is_named_and_the_rest_goes() {
        let (server, client) =
            (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let to = server.local_addr().unwrap();
        let mut outbox = Outbox::default();
        for length in [10, 65_600, 20] {
            outbox.push(&vec![1; length], to, None);
        }
        let report = outbox.flush(client.as_fd());
        assert_eq!((report.sent, report.too_long), (2, 1));
        assert_eq!(outbox.too_long(), [to.ip()]);
        assert_eq!(path_mtu(to.ip()).unwrap(), 65_535, "what an IP packet can say");
    }
}

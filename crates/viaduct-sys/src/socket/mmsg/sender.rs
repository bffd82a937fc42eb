//! Sends many messages in one call of `sendmmsg`. A message may hold a run of datagrams, if the
//! device supports segmentation.
#![allow(unsafe_code)]

use std::io::{self, IoSlice};
use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, BorrowedFd};

use rustix::net::SocketAddrAny;

use super::BATCH;
use super::run::{concerns_segments, run};
use crate::socket::control::Controls;
use crate::socket::udp::SendReport;

/// A datagram or packet to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Datagram<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) to: SocketAddr,
    /// Local source address; `None` for the socket's own.
    pub(crate) from: Option<IpAddr>,
}

#[derive(Debug)]
pub(crate) struct BatchSender {
    /// Max datagrams in one message.
    max_segments: usize,
}

impl Default for BatchSender {
    /// Creates a sender whose messages have one datagram each.
    fn default() -> BatchSender {
        BatchSender { max_segments: 1 }
    }
}

impl BatchSender {
    /// Creates a sender for a UDP socket. Up to `max_segments` consecutive datagrams of the same
    /// length, peer and local address are passed as one message, which the kernel segments as late
    /// as possible (UDP_SEGMENT).
    pub(crate) fn with_segments(max_segments: usize) -> BatchSender {
        BatchSender { max_segments }
    }

    /// Sends the datagrams in order, and does not block: those that the kernel does not accept now
    /// are dropped. An error is counted for all datagrams of its message, the first of which is
    /// passed to `failed`; other messages are still sent.
    pub(crate) fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        datagrams: &[Datagram<'_>],
        mut failed: impl FnMut(&Datagram<'_>, Option<i32>),
    ) -> SendReport {
        let mut report = SendReport::default();
        let (mut rest, mut singly) = (datagrams, 0);
        while let Some(first) = rest.first() {
            let counts = self.counts(rest, singly);
            let done = match send_messages(socket, rest, &counts) {
                Ok(messages) => {
                    let done: usize = counts[..messages].iter().sum();
                    report.sent += done as u64;
                    done
                }
                Err(error) if counts[0] > 1 && concerns_segments(error) => {
                    // EIO: the device supports no segmentation (before Linux 6.11, without checksum
                    // offload).
                    if error == Some(libc::EIO) {
                        self.max_segments = 1;
                    }
                    singly = counts[0];
                    continue;
                }
                Err(error) => {
                    failed(first, error);
                    report.count(error, counts[0] as u64);
                    counts[0]
                }
            };
            rest = &rest[done..];
            singly = singly.saturating_sub(done);
        }
        report
    }

    /// Returns the number of datagrams in each message of the next call. Each of the first `singly`
    /// datagrams is a message of its own.
    fn counts(&self, datagrams: &[Datagram<'_>], singly: usize) -> Vec<usize> {
        let (mut counts, mut at) = (Vec::with_capacity(BATCH), 0);
        while at < datagrams.len() && counts.len() < BATCH {
            let kinds = datagrams[at..].iter().map(|one| ((one.to, one.from), one.bytes.len()));
            let count = run(kinds, if at < singly { 1 } else { self.max_segments });
            counts.push(count);
            at += count;
        }
        counts
    }
}

/// Calls `sendmmsg` once; `counts` has the number of datagrams in each message. Returns the number
/// of messages sent, or the error of the first message. The error of a later message is reported by
/// the next call.
fn send_messages(
    socket: BorrowedFd<'_>,
    datagrams: &[Datagram<'_>],
    counts: &[usize],
) -> Result<usize, Option<i32>> {
    let mut rest = datagrams;
    let messages: Vec<&[Datagram<'_>]> = counts
        .iter()
        .map(|&count| {
            let (message, others) = rest.split_at(count);
            rest = others;
            message
        })
        .collect();
    let all = messages.iter().copied().flatten();
    let slices: Vec<IoSlice<'_>> = all.map(|one| IoSlice::new(one.bytes)).collect();
    let mut names: Vec<SocketAddrAny> =
        messages.iter().map(|message| message[0].to.into()).collect();
    let mut controls: Vec<_> = messages.iter().map(|message| controls(message)).collect();
    let mut first = 0;
    let parts = messages.iter().zip(&mut names).zip(&mut controls);
    let mut headers: Vec<libc::mmsghdr> = parts
        .map(|((message, name), controls)| {
            // SAFETY: all zeros are a `mmsghdr` with null pointers.
            let mut whole: libc::mmsghdr = unsafe { mem::zeroed() };
            let header = &mut whole.msg_hdr;
            header.msg_name = name.as_mut_ptr().cast();
            header.msg_namelen = name.addr_len();
            // The kernel only reads the slices; `IoSlice` is an `iovec`, as its documentation
            // guarantees.
            header.msg_iov = slices[first..].as_ptr().cast_mut().cast();
            header.msg_iovlen = message.len() as _;
            first += message.len();
            controls.attach(header);
            whole
        })
        .collect();
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: every header points to a name, slices and a control buffer in the vectors above,
    // which are not changed until the call returns.
    let sent = unsafe {
        let (fd, count) = (socket.as_raw_fd(), headers.len() as u32);
        libc::sendmmsg(fd, headers.as_mut_ptr(), count, flags as _)
    };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error().raw_os_error())
}

/// Builds the control messages for the datagrams of one message: the source address, and the
/// segment length if there is more than one datagram.
fn controls(message: &[Datagram<'_>]) -> Controls {
    let mut controls = Controls::default();
    match message[0].from {
        None => {}
        Some(IpAddr::V4(ip)) => {
            let [own, any] =
                [u32::from_ne_bytes(ip.octets()), 0].map(|s_addr| libc::in_addr { s_addr });
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst: own, ipi_addr: any };
            controls.push(libc::IPPROTO_IP, libc::IP_PKTINFO, info);
        }
        Some(IpAddr::V6(ip)) => {
            let ipi6_addr = libc::in6_addr { s6_addr: ip.octets() };
            let info = libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 };
            controls.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, info);
        }
    }
    if message.len() > 1 {
        controls.push(libc::SOL_UDP, libc::UDP_SEGMENT, message[0].bytes.len() as u16);
    }
    controls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_one_message_each_unless_they_were_refused() {
        let (one, other): (SocketAddr, SocketAddr) =
            (([127, 0, 0, 1], 1).into(), ([127, 0, 0, 1], 2).into());
        let bytes = [0; 700];
        let datagram = |to, length: usize| Datagram { bytes: &bytes[..length], to, from: None };
        let mut datagrams =
            [700, 700, 700, 20, 700, 700, 0, 5].map(|length| datagram(one, length)).to_vec();
        datagrams.push(datagram(other, 5));
        let sender = BatchSender::with_segments(16);
        assert_eq!(sender.counts(&datagrams, 0), [4, 2, 1, 1, 1]);
        assert_eq!(sender.counts(&datagrams, 2), [1, 1, 2, 2, 1, 1, 1]);
        assert_eq!(BatchSender::default().counts(&datagrams, 0), [1; 9]);
    }
}

//! Packets in TCP's format that carry one message: emitting and parsing.

use std::net::{IpAddr, SocketAddr};

use super::mark::{self, Mark};
use super::stats::Refusal;
use super::{Role, TooLong, run};
use crate::wire::checksum::transport;
use crate::wire::ip::{self, Header};

/// Window scale shift, which both ends state in their first packet.
pub const SCALE: u8 = 14;
/// Window that each packet advertises: TCP's maximum, 1 GB with the scale. The rate is limited by
/// Trickles' own congestion control instead.
pub const WINDOW: u16 = u16::MAX;

/// Protocol number of TCP in the IP header.
pub(super) const TCP: u8 = 6;
/// Length of the TCP header without options, in bytes.
const HEAD: usize = 20;
const V4: usize = 20;
const V6: usize = 40;
/// Flags that determine the kind of a segment: URG, ACK, PSH, RST, SYN, FIN.
const FLAGS: u8 = 0x3f;
const PSH: u8 = 0x08;
/// Options of a SYN after the mark: MSS (to be filled in), window scale, and one byte of padding.
pub(super) const SYN_OPTIONS: [u8; 8] = [2, 4, 0, 0, 3, 3, SCALE, 1];
const LARGEST: u8 = 2;
const WINDOW_SCALE: u8 = 3;

/// Kind of a segment as TCP middleboxes see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Segment that opens a connection.
    Syn,
    /// Segment that answers a SYN.
    SynAck,
    /// Any later segment.
    Data,
}

impl Kind {
    pub(super) fn flags(self) -> u8 {
        match self {
            Kind::Syn => 0x02,
            Kind::SynAck => 0x12,
            Kind::Data => 0x10 | PSH,
        }
    }

    fn of(flags: u8) -> Option<Kind> {
        let all = [Kind::Syn, Kind::SynAck, Kind::Data];
        all.into_iter().find(|kind| (flags & FLAGS) | PSH == kind.flags() | PSH)
    }

    /// Returns whether the segment is a SYN or SYN-ACK, which has a SYN's options, and whose SYN
    /// flag takes a sequence number.
    pub fn is_syn(self) -> bool {
        self != Kind::Data
    }
}

/// The variable header fields of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Sender.
    pub source: SocketAddr,
    /// Receiver; of the same address family.
    pub destination: SocketAddr,
    /// Kind of the segment.
    pub kind: Kind,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number; 0 in a SYN.
    pub ack: u32,
    /// True if windows are scaled. Only SYNs state this; it is assumed for other segments.
    pub scaled: bool,
    /// Value of the MSS option: maximum length, including options, of segments that may be sent to
    /// the sender of this segment. Routers may lower the value on a path with a smaller MTU.
    /// `u16::MAX` if the segment is not a SYN.
    pub largest: u16,
    /// Content of the mark option.
    pub mark: Mark,
}

impl Segment {
    /// Messages in a packet with these headers and the payload `bytes`: one, or those of a run.
    pub fn messages<'a>(&self, bytes: &'a [u8]) -> std::slice::Chunks<'a, u8> {
        bytes.chunks(usize::from(self.mark.length).max(1))
    }
}

/// Bytes of headers in each packet.
pub fn overhead(is_ipv4: bool, kind: Kind) -> usize {
    let syn = if kind.is_syn() { SYN_OPTIONS.len() } else { 0 };
    (if is_ipv4 { V4 } else { V6 }) + HEAD + mark::LEN + syn
}

/// Value of [`Segment::largest`] for a sender that accepts packets of `mtu` bytes.
pub fn largest(is_ipv4: bool, kind: Kind, mtu: usize) -> u16 {
    let headers = HEAD + if is_ipv4 { V4 } else { V6 };
    let segment = if kind.is_syn() { mtu.saturating_sub(headers) } else { usize::MAX };
    u16::try_from(segment).unwrap_or(u16::MAX)
}

/// Maximum length in bytes of packets to a host whose SYN has this [`Segment::largest`].
pub fn mtu(is_ipv4: bool, largest: u16) -> usize {
    usize::from(largest) + HEAD + if is_ipv4 { V4 } else { V6 }
}

/// Replaces the contents of `packet` by a packet with the headers of `segment` and `message`, of at
/// most `mtu` bytes. The mark's length and the MSS are computed from `message` and `mtu`; the
/// values in `segment` are ignored. Errors: the message does not fit.
pub fn emit(
    segment: &Segment,
    message: &[u8],
    mtu: usize,
    packet: &mut Vec<u8>,
) -> Result<(), TooLong> {
    let is_ipv4 = segment.destination.is_ipv4();
    let headers = overhead(is_ipv4, segment.kind);
    let room = mtu.min(usize::from(u16::MAX)).saturating_sub(headers);
    if message.len() > room {
        return Err(TooLong { have: message.len(), room });
    }
    packet.clear();
    packet.reserve(headers + message.len());
    let (from, to) = (segment.source.ip(), segment.destination.ip());
    ip::emit_header(from, to, TCP, headers + message.len(), packet);
    let at = packet.len();
    tcp_header(segment, message.len() as u16, mtu, packet);
    packet.extend_from_slice(message);
    let sum = transport(from, to, TCP, &packet[at..]);
    packet[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

fn tcp_header(segment: &Segment, length: u16, mtu: usize, packet: &mut Vec<u8>) {
    let syn = segment.kind.is_syn();
    let words = (HEAD + mark::LEN + if syn { SYN_OPTIONS.len() } else { 0 }) / 4;
    packet.extend(segment.source.port().to_be_bytes());
    packet.extend(segment.destination.port().to_be_bytes());
    packet.extend(segment.seq.to_be_bytes());
    packet.extend(segment.ack.to_be_bytes());
    packet.extend([(words as u8) << 4, segment.kind.flags()]);
    packet.extend(WINDOW.to_be_bytes());
    packet.extend([0; 4]);
    packet.extend(Mark { length, ..segment.mark }.emit());
    if syn {
        let largest = largest(segment.destination.is_ipv4(), segment.kind, mtu);
        let mut options = SYN_OPTIONS;
        options[2..4].copy_from_slice(&largest.to_be_bytes());
        packet.extend(options);
    }
}

/// Treatment of a packet's transport checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// Verify: the field contains the sender's checksum.
    Check,
    /// Skip: a device has verified the field already, or will fill it in.
    Trust,
}

/// A parsed packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// Message, or messages of a run ([`super::run`]), and headers; see [`Segment::messages`].
    Message(Segment, &'a [u8]),
    /// A packet without a mark, sent by a kernel's TCP: a reset, which refuses the connection, or a
    /// SYN-ACK of a plain TCP server.
    Plain {
        /// Sender.
        source: SocketAddr,
        /// Receiver.
        destination: SocketAddr,
        /// Acknowledgement number.
        ack: u32,
        /// True for a reset, false for a SYN-ACK.
        reset: bool,
    },
}

/// Parses a packet that begins with its IP header. `length` is the packet's length on the wire,
/// which exceeds the length of `bytes` if the packet was truncated. Errors: the reason why the
/// packet is refused.
pub fn parse(bytes: &[u8], length: usize, checksum: Checksum) -> Result<Packet<'_>, Refusal> {
    if length > bytes.len() {
        return Err(Refusal::Cut);
    }
    let header = Header::parse(bytes).map_err(|_| Refusal::Malformed)?;
    let fragment = header.source.is_ipv4() && (bytes[6] & 0x3f, bytes[7]) != (0, 0);
    if header.protocol != TCP || fragment {
        return Err(Refusal::Malformed);
    }
    let tcp = &bytes[header.header_len..header.total_len];
    let head = tcp.first_chunk::<HEAD>().ok_or(Refusal::Malformed)?;
    let data = usize::from(head[12] >> 4) * 4;
    let options = tcp.get(HEAD..data).ok_or(Refusal::Malformed)?;
    if checksum == Checksum::Check && transport(header.source, header.destination, TCP, tcp) != 0 {
        return Err(Refusal::Checksum);
    }
    let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|n| head[at + n]));
    let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let source = SocketAddr::new(header.source, port(0));
    let destination = SocketAddr::new(header.destination, port(2));
    let Some(mark) = Mark::parse(options) else {
        return plain(source, destination, head[13], number(8));
    };
    let kind = Kind::of(head[13]).ok_or(Refusal::Flags)?;
    let expected = if mark.role == Role::Request { Kind::SynAck } else { Kind::Syn };
    if kind == expected {
        return Err(Refusal::Flags);
    }
    // The destination is checked as well, because an answer is sent from the destination of its
    // request.
    let is_no_end = |at: SocketAddr| at.port() == 0 || !is_one_host(at.ip());
    if [source, destination].into_iter().any(is_no_end) {
        return Err(Refusal::NotOurs);
    }
    let message = &tcp[data..];
    let one = usize::from(mark.length);
    let is_run = mark.role == Role::Answer && kind == Kind::Data && one >= run::MIN_MESSAGE;
    match message.len() {
        all if all == one || (is_run && all > 0 && all % one == 0) => {}
        all if all > one => return Err(Refusal::Merged),
        _ => return Err(Refusal::Cut),
    }
    let (mut scaled, mut largest) = (!kind.is_syn(), u16::MAX);
    if kind.is_syn() {
        (scaled, largest) = read_options(&options[mark::LEN..]);
    }
    let (seq, ack) = (number(4), number(8));
    let segment = Segment { source, destination, kind, seq, ack, scaled, largest, mark };
    Ok(Packet::Message(segment, message))
}

/// Returns whether an answer may be sent to this address: a tap also sees packets with source
/// addresses that the kernel's TCP would reject.
fn is_one_host(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_multicast() || ip.is_unspecified() || broadcast)
}

fn plain(
    source: SocketAddr,
    destination: SocketAddr,
    flags: u8,
    ack: u32,
) -> Result<Packet<'static>, Refusal> {
    let reset = flags & 0x04 != 0;
    match reset || Kind::of(flags) == Some(Kind::SynAck) {
        true => Ok(Packet::Plain { source, destination, ack, reset }),
        false => Err(Refusal::Unmarked),
    }
}

/// Parses the options of a SYN. Returns whether there is a window scale option (its shift is always
/// [`SCALE`] in Trickles' packets), and the MSS.
fn read_options(options: &[u8]) -> (bool, u16) {
    let (mut scaled, mut largest) = (false, u16::MAX);
    for option in crate::split::option::each(options) {
        match *option {
            [LARGEST, _, high, low] => largest = u16::from_be_bytes([high, low]),
            [WINDOW_SCALE, ..] => scaled = true,
            _ => {}
        }
    }
    (scaled, largest)
}

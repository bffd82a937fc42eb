//! A packet in TCP's format that carries one message: built, and read.

use std::net::{IpAddr, SocketAddr};

use super::checksum::transport;
use super::mark::{self, Mark};
use super::stats::Refusal;
use super::{Role, TooLong, run};
use crate::wire::ip::{Header, internet_checksum};

/// Bits that a window is shifted by; both ends say so in their first packet.
pub const SCALE: u8 = 14;
/// The window that each packet states: as wide as TCP's can be, 1 GB once it is scaled. Trickles'
/// own congestion control decides who may send how much, not this.
pub const WINDOW: u16 = u16::MAX;

/// Its protocol number in IP's header.
pub(super) const TCP: u8 = 6;
const HOPS: u8 = 64;
const DONT_FRAGMENT: u8 = 0x40;
/// TCP's header without options, bytes.
const HEAD: usize = 20;
const V4: usize = 20;
const V6: usize = 40;
/// Flags that decide what a segment is: URG, ACK, PSH, RST, SYN, FIN.
const FLAGS: u8 = 0x3f;
const PSH: u8 = 0x08;
/// Options of a SYN behind the mark: the largest segment (filled in), the window's scale, and one byte
/// to make it round.
const SYN_OPTIONS: [u8; 8] = [2, 4, 0, 0, 3, 3, SCALE, 1];
const NOP: u8 = 1;
const LARGEST: u8 = 2;
const WINDOW_SCALE: u8 = 3;

/// What a segment is to those on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It opens a connection.
    Syn,
    /// It answers one that opens.
    SynAck,
    /// Anything later.
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

    /// Whether it has a SYN's options, and its SYN takes a number.
    pub fn is_syn(self) -> bool {
        self != Kind::Data
    }
}

/// The headers of a packet, as far as they are a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Who sends it.
    pub source: SocketAddr,
    /// Who is to have it; of the same family.
    pub destination: SocketAddr,
    /// What it is.
    pub kind: Kind,
    /// Its first number.
    pub seq: u32,
    /// The number that it acknowledges; 0 in a SYN.
    pub ack: u32,
    /// Whether it shifts its windows: SYNs alone say so, others are taken to.
    pub scaled: bool,
    /// Bytes of the largest segment, options included, that may go to who sends it, as far as it says: routers
    /// on the way make less of it where the way takes less. SYNs alone say so, in others it is `u16::MAX`.
    pub largest: u16,
    /// What its option says.
    pub mark: Mark,
}

impl Segment {
    /// The messages of a packet that has these headers, and `bytes` behind them: one, or those of a run.
    pub fn messages<'a>(&self, bytes: &'a [u8]) -> std::slice::Chunks<'a, u8> {
        bytes.chunks(usize::from(self.mark.length).max(1))
    }
}

/// Bytes that headers take from each packet.
pub fn overhead(is_ipv4: bool, kind: Kind) -> usize {
    let syn = if kind.is_syn() { SYN_OPTIONS.len() } else { 0 };
    (if is_ipv4 { V4 } else { V6 }) + HEAD + mark::LEN + syn
}

/// What a packet says of the largest segment, if packets of `mtu` bytes are taken: [`Segment::largest`].
pub fn largest(is_ipv4: bool, kind: Kind, mtu: usize) -> u16 {
    let headers = HEAD + if is_ipv4 { V4 } else { V6 };
    let segment = if kind.is_syn() { mtu.saturating_sub(headers) } else { usize::MAX };
    u16::try_from(segment).unwrap_or(u16::MAX)
}

/// Bytes of the longest packet to who says this of the largest segment.
pub fn mtu(is_ipv4: bool, largest: u16) -> usize {
    usize::from(largest) + HEAD + if is_ipv4 { V4 } else { V6 }
}

/// Writes the packet of `segment` with `message` in place of what is in `packet`, of `mtu` bytes at
/// most. The mark's length is the message's, and the largest segment is that of `mtu`, whatever it says.
///
/// # Errors
/// The message does not fit.
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
    ip_header(from, to, TCP, headers + message.len(), packet);
    let at = packet.len();
    tcp_header(segment, message.len() as u16, mtu, packet);
    packet.extend_from_slice(message);
    let sum = transport(from, to, TCP, &packet[at..]);
    packet[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

/// Appends the header of a packet of `total` bytes, which is not to be fragmented.
pub(super) fn ip_header(
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    total: usize,
    packet: &mut Vec<u8>,
) {
    match (from, to) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let [high, low] = (total as u16).to_be_bytes();
            packet.extend([0x45, 0, high, low, 0, 0, DONT_FRAGMENT, 0, HOPS, protocol, 0, 0]);
            packet.extend(source.octets());
            packet.extend(destination.octets());
            let sum = internet_checksum(packet);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (source, destination) => {
            let [high, low] = ((total - V6) as u16).to_be_bytes();
            packet.extend([0x60, 0, 0, 0, high, low, protocol, HOPS]);
            for ip in [source, destination] {
                packet.extend(match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
                    IpAddr::V6(ip) => ip.octets(),
                });
            }
        }
    }
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

/// Whether a packet's transport checksum says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// It is what the sender wrote: see that it is right.
    Check,
    /// A device is still to fill it in, or has checked it: it is no word against the packet.
    Trust,
}

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packet<'a> {
    /// A message and the headers it came with; or the messages of a run ([`super::run`]), see
    /// [`Segment::messages`].
    Message(Segment, &'a [u8]),
    /// No mark: what a kernel's TCP says. `reset`: that it will not have it; else it is a SYN-ACK, and
    /// the server is a plain TCP server.
    Plain {
        /// Who says so.
        source: SocketAddr,
        /// To whom.
        destination: SocketAddr,
        /// The number that it acknowledges.
        ack: u32,
        /// Whether it is a reset.
        reset: bool,
    },
}

/// Reads a packet that begins with its IP header. `length` is its length on the wire: more than there
/// is of it when it was cut.
///
/// # Errors
/// Why it is neither.
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
    // An answer leaves from where its request came to.
    let is_no_end = |at: SocketAddr| at.port() == 0 || !is_one_host(at.ip());
    if [source, destination].into_iter().any(is_no_end) {
        return Err(Refusal::NotOurs);
    }
    let message = &tcp[data..];
    let one = usize::from(mark.length);
    let is_run = mark.role == Role::Answer && kind == Kind::Data && one >= run::LEAST;
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

/// Whether an answer may go there: a tap sees packets whose source the kernel's own TCP would not believe.
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

/// Of a SYN's options, whether a window scale is among them (the shift itself is always [`SCALE`] here), and
/// the largest segment.
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

/// Takes the window scale out of a SYN, as some middleboxes do: for tests.
#[doc(hidden)]
pub fn strip_scale(packet: &mut [u8]) {
    if let Some(at) = packet.windows(4).position(|found| found == &SYN_OPTIONS[4..]) {
        packet[at..at + 4].fill(NOP);
    }
}

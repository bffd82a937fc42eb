//! Segments of fake TCP: emitting and parsing.
//!
//! ```text
//!   SYN, SYN-ACK   [ IPv4 20 | IPv6 40 ][ TCP 20 ][ MSS, window scale 8 ]
//!   data           [ IPv4 20 | IPv6 40 ][ TCP 20 ][ length 2 ][ datagram ]
//! ```
//!
//! Numbers in the drawing are lengths in bytes. A device that coalesces segments (GRO, LRO) leaves
//! several datagrams in one payload, each preceded by its length. All fields are big-endian.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use crate::split::option;
use crate::trickles::packet::tcp::{SCALE, WINDOW};
use crate::wire::checksum;
use crate::wire::ip::{self, Header};
use crate::wire::transport::TCP;

/// Length of the TCP header without options, in bytes.
const HEAD: usize = 20;
/// Length of the options of a SYN, in bytes.
const SYN_OPTIONS: usize = 8;
/// Length of the length field before each datagram, in bytes.
const PREFIX: usize = 2;
/// Number of bytes by which a segment with one datagram is longer than the same datagram over UDP.
pub const MORE_THAN_UDP: usize = HEAD + PREFIX - 8;

const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const PSH: u8 = 0x08;
const ACK: u8 = 0x10;
/// Kind of the TCP option with the window scale.
const WINDOW_SCALE: u8 = 3;

/// Kind of a segment, by its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Segment that opens a connection.
    Syn,
    /// Answer to a SYN.
    SynAck,
    /// Segment with an acknowledgement number, usually with datagrams.
    Data,
    /// Reset or FIN, which gateways never send.
    End,
}

impl Kind {
    fn of(flags: u8) -> Option<Kind> {
        match flags & (FIN | SYN | RST | ACK) {
            SYN => Some(Kind::Syn),
            of if of == SYN | ACK => Some(Kind::SynAck),
            ACK => Some(Kind::Data),
            of if of & (FIN | RST) != 0 && of & SYN == 0 => Some(Kind::End),
            _ => None,
        }
    }

    fn flags(self) -> u8 {
        match self {
            Kind::Syn => SYN,
            Kind::SynAck => SYN | ACK,
            // Linux does not coalesce segments that have PSH set.
            Kind::Data => ACK | PSH,
            Kind::End => RST | ACK,
        }
    }

    fn is_syn(self) -> bool {
        matches!(self, Kind::Syn | Kind::SynAck)
    }
}

/// Header fields of a segment.
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
    /// True if windows are scaled: in a SYN or SYN-ACK, if it has the option; in other segments,
    /// always.
    pub scaled: bool,
    /// Number of bytes after the TCP header.
    pub length: u32,
}

/// Appends the packet of a segment to `packets`, with `datagram` if there is one, and returns the
/// number of bytes after its TCP header. [`Segment::length`] is ignored. If the datagram is too
/// long for an IP packet, returns `None` and appends nothing.
pub(super) fn emit(
    segment: &Segment,
    mss: u16,
    datagram: Option<&[u8]>,
    packets: &mut Vec<u8>,
) -> Option<u32> {
    let length = datagram.map_or(0, |datagram| PREFIX + datagram.len());
    let options = if segment.kind.is_syn() { SYN_OPTIONS } else { 0 };
    let (from, to) = (segment.source.ip(), segment.destination.ip());
    let header = if to.is_ipv4() { 20 } else { 40 };
    let total = header + HEAD + options + length;
    u16::try_from(total).ok()?;
    ip::emit_header(from, to, TCP, total, packets);
    let start = packets.len();
    packets.extend(segment.source.port().to_be_bytes());
    packets.extend(segment.destination.port().to_be_bytes());
    packets.extend(segment.seq.to_be_bytes());
    packets.extend(segment.ack.to_be_bytes());
    packets.extend([((HEAD + options) as u8 / 4) << 4, segment.kind.flags()]);
    packets.extend(WINDOW.to_be_bytes());
    packets.extend([0; 4]);
    if segment.kind.is_syn() {
        let [high, low] = mss.to_be_bytes();
        let scale = if segment.scaled { [1, 3, 3, SCALE] } else { [1; 4] };
        packets.extend([2, 4, high, low]);
        packets.extend(scale);
    }
    if let Some(datagram) = datagram {
        packets.extend((datagram.len() as u16).to_be_bytes());
        packets.extend_from_slice(datagram);
    }
    let sum = checksum::transport(from, to, TCP, &packets[start..]);
    packets[start + 16..start + 18].copy_from_slice(&sum.to_be_bytes());
    Some(length as u32)
}

/// Parses the segment in an IP packet. Returns the segment and the range of its payload in the
/// packet; `None` if the packet is not a complete TCP segment, or has flags or addresses that no
/// gateway sends.
///
/// The checksum is not verified: it may be missing in captured packets, and every datagram is
/// authenticated by itself.
pub fn parse(packet: &[u8]) -> Option<(Segment, Range<usize>)> {
    let header = Header::parse(packet).ok()?;
    let is_fragment = header.source.is_ipv4() && (packet[6] & 0x3f, packet[7]) != (0, 0);
    if header.protocol != TCP || is_fragment {
        return None;
    }
    let tcp = packet.get(header.header_len..header.total_len)?;
    let head = tcp.first_chunk::<HEAD>()?;
    let data = usize::from(head[12] >> 4) * 4;
    let options = tcp.get(HEAD..data)?;
    let number = |at: usize| u32::from_be_bytes([0, 1, 2, 3].map(|n| head[at + n]));
    let port = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
    let source = SocketAddr::new(header.source, port(0));
    let destination = SocketAddr::new(header.destination, port(2));
    let kind = Kind::of(head[13])?;
    if port(0) == 0 || !is_unicast(header.source) || !is_unicast(header.destination) {
        return None;
    }
    let has_scale = || option::each(options).any(|option| option[0] == WINDOW_SCALE);
    let segment = Segment {
        source,
        destination,
        kind,
        seq: number(4),
        ack: number(8),
        scaled: !kind.is_syn() || has_scale(),
        length: (tcp.len() - data) as u32,
    };
    Some((segment, header.header_len + data..header.total_len))
}

/// Takes the next datagram from the front of a payload. Returns `None` at the end of the payload,
/// or if the payload is malformed; in the latter case `payload` is not empty.
pub(super) fn next_datagram<'a>(payload: &mut &'a mut [u8]) -> Option<&'a mut [u8]> {
    let length = usize::from(u16::from_be_bytes(*payload.first_chunk::<PREFIX>()?));
    if length == 0 || payload.len() < PREFIX + length {
        return None;
    }
    let (datagram, rest) = std::mem::take(payload).split_at_mut(PREFIX + length);
    *payload = rest;
    Some(&mut datagram[PREFIX..])
}

/// Returns whether an address is a unicast address. A tap also captures packets with source
/// addresses that the kernel's TCP would reject.
fn is_unicast(ip: IpAddr) -> bool {
    let broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    !(ip.is_multicast() || ip.is_unspecified() || broadcast)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn segment(v6: bool, kind: Kind) -> Segment {
        let (source, destination) = match v6 {
            true => ("[fd00::1]:50000", "[fd00::2]:7400"),
            false => ("192.0.2.1:50000", "192.0.2.2:7400"),
        };
        Segment {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            kind,
            seq: 0x0102_0304,
            ack: if kind == Kind::Syn { 0 } else { 0x0506_0708 },
            scaled: true,
            length: 0,
        }
    }

    #[test]
    fn emitted_bytes_match_the_documented_format() {
        let mut packet = Vec::new();
        emit(&segment(false, Kind::Syn), 1_460, None, &mut packet).unwrap();
        let syn = [
            0x45, 0, 0, 48, 0, 0, 0x40, 0, 64, 6, 0xb6, 0xc4, 192, 0, 2, 1, 192, 0, 2,
            2, // IPv4
            0xc3, 0x50, 0x1c, 0xe8, 1, 2, 3, 4, 0, 0, 0, 0, 0x70, 2, 0xff, 0xff, 0, 0, 0,
            0, // TCP
            2, 4, 5, 0xb4, 1, 3, 3, 14,
        ];
        // The TCP checksum is verified as a receiver does: the sum over the segment is 0.
        let sum = |packet: &[u8], at: usize| {
            let (segment, _) = parse(packet).unwrap();
            let (from, to) = (segment.source.ip(), segment.destination.ip());
            checksum::transport(from, to, TCP, &packet[at..])
        };
        assert_eq!(sum(&packet, 20), 0);
        packet[36..38].fill(0);
        assert_eq!(packet, syn);
        let mut packet = Vec::new();
        let length = emit(&segment(true, Kind::Data), 0, Some(b"seal"), &mut packet);
        let data = [
            0xc3, 0x50, 0x1c, 0xe8, 1, 2, 3, 4, 5, 6, 7, 8, 0x50, 0x18, 0xff, 0xff, 0, 0, 0,
            0, //
            0, 4, b's', b'e', b'a', b'l',
        ];
        assert_eq!((length, sum(&packet, 40)), (Some(6), 0));
        packet[56..58].fill(0);
        assert_eq!(packet[40..], data);
        assert_eq!(packet[..8], [0x60, 0, 0, 0, 0, 26, 6, 64]);
    }

    #[test]
    fn coalesced_datagrams_are_separated_and_a_wrong_length_ends_the_payload() {
        let mut joined = [&[0, 3][..], b"one", &[0, 1], b"2", &[0, 9], b"short"].concat();
        let mut payload = &mut joined[..];
        let mut found = Vec::new();
        while let Some(datagram) = next_datagram(&mut payload) {
            found.push(datagram.to_vec());
        }
        assert_eq!(found, [b"one".to_vec(), b"2".to_vec()]);
        assert_eq!(payload.len(), 7);
        let mut zero = [0; 5];
        assert!(next_datagram(&mut &mut zero[..]).is_none());
    }

    proptest! {
        #[test]
        fn segments_round_trip(
            v6: bool, kind in 0..3usize, seq: u32, ack: u32, scaled: bool,
            datagram in prop::collection::vec(any::<u8>(), 1..1_400),
        ) {
            let kind = [Kind::Syn, Kind::SynAck, Kind::Data][kind];
            let mut one = segment(v6, kind);
            (one.seq, one.ack) = (seq, ack);
            one.scaled = scaled || kind == Kind::Data;
            let mut packets = vec![7; 3];
            let datagram = (kind == Kind::Data).then_some(&datagram[..]);
            one.length = emit(&one, 1_460, datagram, &mut packets).unwrap();
            let mut packet = packets[3..].to_vec();
            let (read, payload) = parse(&packet).unwrap();
            prop_assert_eq!(read, one);
            let mut payload = &mut packet[payload];
            let carried = next_datagram(&mut payload).map(|of| of.to_vec());
            prop_assert_eq!(carried, datagram.map(<[u8]>::to_vec));
        }

        #[test]
        fn parsing_never_panics(mut bytes: Vec<u8>) {
            if let Some((_, payload)) = parse(&bytes) {
                let mut payload = &mut bytes[payload];
                while next_datagram(&mut payload).is_some() {}
            }
        }
    }
}

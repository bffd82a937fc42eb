//! Runs (GSO): answers of one length to one client are sent as one packet, which the kernel or the
//! output device (TSO) splits.
//!
//! ```text
//!   answers        [ IP | TCP | mark, length n ][ message ]   [ … ][ message ]   [ … ][ message ]
//!   a run          [ IP | TCP | mark, length n ][ message ][ message ][ message ]
//!   on the wire    [ IP | TCP | mark, length n ][ message ]   each: the first mark, seq + n
//! ```
//!
//! If the receiver's kernel joins the packets again (GRO), the result is the run, whose mark states
//! the length of each message.

use super::{mark, tcp};
use crate::wire::checksum::pseudo;
use crate::wire::ip::internet_checksum;

/// Bytes of headers before each message: in IPv4, in IPv6.
const HEADERS: [usize; 2] = [20 + 20 + mark::LEN, 40 + 20 + mark::LEN];
/// Offset of the addresses; the ports follow the IP header.
const ADDRESSES: [usize; 2] = [12, 8];
/// Offset of the protocol number in the IP header.
const PROTOCOL: [usize; 2] = [9, 6];
/// Minimum length of a message in a run, in bytes. No response is shorter. With a lower limit a
/// forged packet could be parsed as many messages of one byte each.
pub(super) const MIN_MESSAGE: usize = 23;
/// Maximum gap in sequence numbers between two packets of a run, in bytes. A gap is the unused part
/// of the range that was reserved for an earlier request.
const NEAR: u32 = 1 << 16;

/// Lengths and offsets for cutting a run into packets, and for their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes of headers.
    pub headers: usize,
    /// Bytes of each message.
    pub message: usize,
    /// Offset of the transport header.
    pub transport: usize,
    /// Offset of the checksum in the transport header.
    pub checksum: usize,
}

/// Returns the lengths and offsets for a run of packets like `packet`, which
/// [`super::Return::answer`] has built. `None` if the packet must be sent by itself, because it is
/// not in TCP's format, or has the options of a SYN.
pub fn cut(packet: &[u8]) -> Option<Cut> {
    let family = family(packet);
    let (headers, transport) = (HEADERS[family], HEADERS[family] - 20 - mark::LEN);
    let is_data = *packet.get(transport + 13)? == tcp::Kind::Data.flags();
    let message = packet.len().checked_sub(headers).filter(|bytes| *bytes >= MIN_MESSAGE)?;
    let is_tcp = packet[PROTOCOL[family]] == tcp::TCP;
    (is_tcp && is_data).then_some(Cut { headers, message, transport, checksum: 16 })
}

/// Returns whether two packets have the same addresses and ports; [`cut`] must return a value
/// for both.
pub fn is_one_way(one: &[u8], other: &[u8]) -> bool {
    let family = family(one);
    let ends = ADDRESSES[family]..HEADERS[family] - 20 - mark::LEN + 4;
    family == self::family(other) && one.get(ends.clone()) == other.get(ends)
}

/// Returns whether `next` may be appended to a run of `count` packets with the same addresses
/// and ports, the first of which is `first`.
pub fn goes_on(first: &[u8], count: usize, next: &[u8]) -> bool {
    let Some(Cut { headers, message, transport, .. }) = cut(first) else { return false };
    let end = number(first, transport).wrapping_add((count * message) as u32);
    let alike = cut(next) == cut(first);
    let fits = headers + (count + 1) * message <= usize::from(u16::MAX);
    alike && fits && number(next, transport).wrapping_sub(end) < NEAR
}

/// Headers of a run of `count` packets, the first of which is `first`. The checksum field contains
/// the sum of the pseudo header; the kernel or device that splits the run adds the rest.
pub fn head(first: &[u8], cut: Cut, count: usize) -> Vec<u8> {
    let Cut { headers, message, transport, checksum } = cut;
    let mut head = first[..headers].to_vec();
    let total = headers + count * message;
    if transport == 20 {
        head[2..4].copy_from_slice(&(total as u16).to_be_bytes());
        head[10..12].fill(0);
        let sum = internet_checksum(&head[..20]);
        head[10..12].copy_from_slice(&sum.to_be_bytes());
    } else {
        head[4..6].copy_from_slice(&((total - transport) as u16).to_be_bytes());
    }
    let addresses = &first[ADDRESSES[usize::from(transport != 20)]..transport];
    let sum = pseudo(addresses, tcp::TCP, total - transport);
    head[transport + checksum..][..2].copy_from_slice(&sum.to_be_bytes());
    head
}

/// Index into the tables above: 0 for IPv4, 1 for IPv6.
fn family(packet: &[u8]) -> usize {
    usize::from(packet.first().is_some_and(|byte| byte >> 4 == 6))
}

fn number(packet: &[u8], transport: usize) -> u32 {
    u32::from_be_bytes([4, 5, 6, 7].map(|at| packet[transport + at]))
}

#[cfg(test)]
mod tests {
    use super::super::tcp::{Checksum, Kind, Packet, Segment, emit, parse};
    use super::super::{Mark, Role};
    use super::*;
    use crate::wire::checksum::transport;

    fn packet(v6: bool, kind: Kind, seq: u32, message: &[u8]) -> Vec<u8> {
        let [source, destination] = match v6 {
            true => ["[fd00::1]:80", "[fd00::2]:4000"].map(|at| at.parse().unwrap()),
            false => ["10.0.0.1:80", "10.0.0.2:4000"].map(|at| at.parse().unwrap()),
        };
        let mark = Mark { role: Role::Answer, count: 3, length: 0, ahead: 9 };
        let (ack, scaled, largest) = (77, true, u16::MAX);
        let segment = Segment { source, destination, kind, seq, ack, scaled, largest, mark };
        let mut packet = Vec::new();
        emit(&segment, message, 1500, &mut packet).unwrap();
        packet
    }

    /// Assembles a run, and completes its checksum as a kernel does: over all bytes, with the
    /// pseudo header's sum in the field.
    fn whole(packets: &[Vec<u8>]) -> Vec<u8> {
        let cut = cut(&packets[0]).unwrap();
        let mut run = head(&packets[0], cut, packets.len());
        packets.iter().for_each(|packet| run.extend(&packet[cut.headers..]));
        let sum = !(internet_checksum(&run[cut.transport..]));
        let at = cut.transport + cut.checksum;
        run[at..at + 2].copy_from_slice(&(!sum).to_be_bytes());
        run
    }

    #[test]
    fn the_mark_of_a_run_delimits_its_messages() {
        for v6 in [false, true] {
            let packets: Vec<_> =
                (0..5).map(|n| packet(v6, Kind::Data, n * 100, &[n as u8; 100])).collect();
            for n in 1..5 {
                assert!(is_one_way(&packets[0], &packets[n]));
                assert!(goes_on(&packets[0], n, &packets[n]));
            }
            let run = whole(&packets);
            let Ok(Packet::Message(segment, messages)) = parse(&run, run.len(), Checksum::Check)
            else {
                panic!("the run does not parse")
            };
            assert_eq!((segment.seq, segment.mark.length), (0, 100));
            let each: Vec<_> = segment.messages(messages).map(<[u8]>::to_vec).collect();
            assert_eq!(each, (0..5).map(|n| vec![n as u8; 100]).collect::<Vec<_>>());
            let (from, to) = (segment.source.ip(), segment.destination.ip());
            let at = cut(&packets[0]).unwrap().transport;
            assert_eq!(transport(from, to, tcp::TCP, &run[at..]), 0);
        }
    }

    #[test]
    fn packets_that_differ_cannot_join_a_run() {
        let first = packet(false, Kind::Data, 100, &[1; 100]);
        let goes = |next: &[u8]| goes_on(&first, 1, next);
        assert!(goes(&packet(false, Kind::Data, 200, &[2; 100])));
        assert!(
            goes(&packet(false, Kind::Data, 1_200, &[2; 100])),
            "part of the reserved range is unused"
        );
        for (seq, length) in [(199, 100), (200, 99), (200, 101), (200 + NEAR, 100)] {
            assert!(!goes(&packet(false, Kind::Data, seq, &vec![2; length])), "{seq} {length}");
        }
        assert_eq!(cut(&packet(false, Kind::SynAck, 200, &[2; 100])), None);
        assert_eq!(cut(&packet(false, Kind::Data, 200, &[])), None);
        assert!(!is_one_way(&first, &packet(true, Kind::Data, 200, &[2; 100])));
        let mut other = packet(false, Kind::Data, 200, &[2; 100]);
        other[23] += 1;
        assert!(!is_one_way(&first, &other), "another port");
        let long = packet(false, Kind::Data, 0, &[1; 1448]);
        let nth = |n: u32| packet(false, Kind::Data, n * 1448, &[1; 1448]);
        assert!(goes_on(&long, 44, &nth(44)) && !goes_on(&long, 45, &nth(45)));
    }
}

//! Transport header of a packet, as far as a gateway needs it.

/// Protocol number of TCP.
pub const TCP: u8 = 6;
/// Protocol number of UDP.
pub const UDP: u8 = 17;

/// Bytes of a TCP header without options.
pub(super) const TCP_MIN: usize = 20;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 0x10;

/// Protocol of a complete IP packet, and its payload; `None` for fragments.
pub fn payload(packet: &[u8]) -> Option<(u8, &[u8])> {
    let (start, protocol) = match packet.first()? >> 4 {
        4 => {
            let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x3fff;
            (usize::from(packet[0] & 15) * 4, (fragment == 0).then_some(*packet.get(9)?)?)
        }
        6 => (40, *packet.get(6)?),
        _ => return None,
    };
    Some((protocol, packet.get(start..)?))
}

/// TCP header of a complete IP packet, with options, and its offset; `None` if not TCP.
pub(super) fn tcp_header(packet: &[u8]) -> Option<(usize, &[u8])> {
    let (protocol, segment) = payload(packet)?;
    let header = segment.get(..usize::from(*segment.get(12)? >> 4) * 4)?;
    let at = packet.len() - segment.len();
    (protocol == TCP && header.len() >= TCP_MIN).then_some((at, header))
}

/// Big-endian number in the first four bytes.
pub(super) fn number(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|of| u32::from_be_bytes(*of))
}

/// Source and destination port of a complete IP packet of TCP or UDP.
pub fn ports(packet: &[u8]) -> Option<[u16; 2]> {
    let (protocol, payload) = payload(packet)?;
    let &[s0, s1, d0, d1] = payload.first_chunk()?;
    matches!(protocol, TCP | UDP)
        .then_some([u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])])
}

/// Fields of a TCP segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Sequence number of the first byte.
    pub sequence: u32,
    /// Acknowledgement number: the next byte expected.
    pub acknowledgement: u32,
    /// Bytes of data.
    pub data: u32,
    flags: u8,
}

impl Segment {
    /// Parses a complete IP packet; `None` if it is not a TCP segment.
    pub fn parse(packet: &[u8]) -> Option<Segment> {
        let (protocol, segment) = payload(packet)?;
        if protocol != TCP {
            return None;
        }
        let head = segment.first_chunk::<TCP_MIN>()?;
        let header = usize::from(head[12] >> 4) * 4;
        let data = segment.len().checked_sub(header.max(TCP_MIN))? as u32;
        let (sequence, acknowledgement) = (number(&head[4..])?, number(&head[8..])?);
        Some(Segment { sequence, acknowledgement, data, flags: head[13] })
    }

    /// Returns whether the segment is an acknowledgement without data, and without FIN, SYN or RST.
    pub fn is_bare_ack(&self) -> bool {
        self.data == 0 && self.flags & (FIN | SYN | RST | ACK) == ACK
    }

    /// Returns whether the segment has SYN set.
    pub fn is_syn(&self) -> bool {
        self.flags & SYN != 0
    }
}

#[cfg(test)]
impl Segment {
    /// Segment with these numbers and ACK set.
    pub(crate) fn test(sequence: u32, acknowledgement: u32, data: u32) -> Segment {
        Segment { sequence, acknowledgement, data, flags: ACK }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Segment with these flags and `data` bytes of data.
    fn segment(flags: u8, data: usize) -> Vec<u8> {
        let mut packet = vec![0; 40 + data];
        (packet[0], packet[9], packet[32], packet[33]) = (0x45, TCP, 0x50, flags);
        packet[20..24].copy_from_slice(&[0x30, 0x39, 0, 80]);
        packet[24..28].copy_from_slice(&7u32.to_be_bytes());
        packet
    }

    #[test]
    fn acknowledgements_without_data_are_recognised() {
        let is = |flags, data| Segment::parse(&segment(flags, data)).unwrap().is_bare_ack();
        assert!(is(ACK, 0) && is(ACK | 0x48, 0));
        assert!(!is(ACK, 1) && !is(ACK | SYN, 0) && !is(ACK | FIN, 0) && !is(RST | ACK, 0));
        assert!(!is(0, 0));
    }

    #[test]
    fn ports_and_numbers_are_read_from_complete_packets_only() {
        let mut packet = segment(ACK, 9);
        assert_eq!(ports(&packet), Some([12_345, 80]));
        let of = Segment::parse(&packet).unwrap();
        assert_eq!((of.sequence, of.data), (7, 9));
        packet[6] = 0x20;
        assert_eq!((ports(&packet), Segment::parse(&packet)), (None, None), "a first fragment");
        let mut udp = segment(0, 0);
        udp[9] = UDP;
        assert_eq!((ports(&udp), Segment::parse(&udp)), (Some([12_345, 80]), None));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(mut bytes: Vec<u8>, version in 4..8u8) {
            if let Some(first) = bytes.first_mut() {
                *first = version << 4 | *first & 15;
            }
            let _ = (ports(&bytes), Segment::parse(&bytes));
        }
    }
}

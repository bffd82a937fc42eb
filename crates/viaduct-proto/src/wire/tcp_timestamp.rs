//! TCP timestamps (RFC 7323). The echo in a host's segments is the latest timestamp that the host
//! has seen. Timestamps that the host would refuse are renewed.
//!
//! A host refuses a segment whose timestamp is older than the latest one that it has seen (PAWS,
//! section 5), so that it does not accept old segments after the sequence numbers have wrapped. A
//! segment that arrives a few milliseconds late, after the retransmission of another segment, looks
//! like such an old one.

use super::tcp_option;
use super::transport::{self, TCP_MIN, number};

const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 0x10;
/// Option kind: timestamps.
const TIMESTAMPS: u8 = 8;
/// Option kinds: signatures of the segment (RFC 2385, RFC 5925).
const SIGNATURES: [u8; 2] = [19, 29];
/// Maximum age, in ticks, of a timestamp that is renewed: 4 s of the usual clock. A forged echo
/// must not make a host refuse genuine segments for longer.
const MAX_AGE: u32 = 4_096;
/// Length of a timestamp in bytes.
const STAMP: usize = 4;
/// Length of the option's value in bytes: two timestamps.
const VALUE: usize = 2 * STAMP;

/// Timestamp that a complete IP packet echoes: the latest one that the packet's sender has seen.
pub fn echo(packet: &[u8]) -> Option<u32> {
    let (_, at) = stamps(packet)?;
    number(packet.get(at + STAMP..)?)
}

/// Sets the timestamp of a complete IP packet to `last`, the latest one that the receiving host has
/// seen, if the timestamp is slightly older. The host would otherwise refuse the packet. Updates
/// the checksum. Signed segments are left unchanged. Returns whether the packet was changed.
pub fn renew(packet: &mut [u8], last: u32) -> bool {
    let Some((tcp, at)) = stamps(packet) else { return false };
    let age = number(&packet[at..]).map(|of| last.wrapping_sub(of));
    let is_older = age.is_some_and(|age| (1..=MAX_AGE).contains(&age));
    if is_older {
        tcp_option::set(packet, tcp, at, &last.to_be_bytes());
    }
    is_older
}

/// Offsets of the TCP header and timestamps of an open connection's unsigned segment.
fn stamps(packet: &[u8]) -> Option<(usize, usize)> {
    let (tcp, header) = transport::tcp_header(packet)?;
    if header[13] & (SYN | RST | ACK) != ACK {
        return None;
    }
    let options = &header[TCP_MIN..];
    if SIGNATURES.iter().any(|kind| tcp_option::find(options, *kind).is_some()) {
        return None;
    }
    let value = tcp_option::find(options, TIMESTAMPS).filter(|value| value.len() == VALUE)?;
    Some((tcp, tcp + TCP_MIN + value.start))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::wire::ip::internet_checksum;
    use proptest::prelude::*;

    /// IPv4 segment with these flags and options, and a correct checksum over its TCP header.
    fn segment(flags: u8, options: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 40 + options.len()];
        (packet[0], packet[9]) = (0x45, transport::TCP);
        packet[32] = (((TCP_MIN + options.len()) / 4) as u8) << 4;
        packet[33] = flags;
        packet[40..].copy_from_slice(options);
        let sum = internet_checksum(&packet[20..]);
        packet[36..38].copy_from_slice(&sum.to_be_bytes());
        packet
    }

    /// A segment of an open connection with these timestamps.
    pub(crate) fn stamped(stamp: u32, echo: u32) -> Vec<u8> {
        let stamps = [stamp.to_be_bytes(), echo.to_be_bytes()].concat();
        segment(ACK, &[&[1, 1, TIMESTAMPS, 10][..], &stamps].concat())
    }

    #[test]
    fn an_older_timestamp_becomes_the_last_and_no_other_does() {
        for (stamp, last) in [(7, 9), (u32::MAX, 3), (0x7fff_ffff, 0x8000_0fff)] {
            let mut packet = stamped(stamp, 5);
            assert_eq!((echo(&packet), renew(&mut packet, last)), (Some(5), true));
            assert_eq!(packet, stamped(last, 5), "its checksum, too");
        }
        for (stamp, last) in [(9, 9), (9, 7), (3, u32::MAX), (7, 8 + MAX_AGE)] {
            let mut packet = stamped(stamp, 5);
            assert!(!renew(&mut packet, last) && packet == stamped(stamp, 5));
        }
    }

    #[test]
    fn segments_that_open_or_end_or_are_signed_stay_unchanged() {
        let stamps = [1, 1, TIMESTAMPS, 10, 0, 0, 0, 7, 0, 0, 0, 5];
        let signature = [&[1, 1, 19, 18][..], &[0; 16]].concat();
        let signed = [&stamps[..], &signature].concat();
        let cut = [1, 1, TIMESTAMPS, 6, 0, 0, 0, 7];
        for mut packet in [
            segment(ACK | SYN, &stamps),
            segment(ACK | RST, &stamps),
            segment(ACK, &signed),
            segment(ACK, &cut),
            segment(ACK, &[]),
        ] {
            assert!(echo(&packet).is_none() && !renew(&mut packet, 9));
        }
    }

    proptest! {
        #[test]
        fn reading_and_changing_never_panic(bytes: Vec<u8>, at in 0..60usize, last: u32) {
            let mut packet = stamped(7, 5);
            packet.truncate(at);
            packet.extend(bytes);
            let len = packet.len();
            echo(&packet);
            renew(&mut packet, last);
            prop_assert_eq!(packet.len(), len);
        }
    }
}

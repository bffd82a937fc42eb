//! Completion of captured packets to the form that they have on the wire. A packet may be
//! captured before a device has segmented it and completed its checksum, or after the kernel has
//! coalesced arrivals.
//!
//! A long packet stands for TCP segments, or UDP datagrams, with equal headers (GSO, GRO):
//!
//! ```text
//!   IP | TCP 1000 | ------------------------- data -------------------------
//!   IP | TCP 1000 | ---- data ----    IP | TCP 2400 | ---- data ----    ...
//! ```
//!
//! Segments are cut as by Linux: IPv4 identifications increase by one, FIN and PSH are set in the
//! last segment, and CWR in the first.

use std::num::NonZeroU16;

use super::ip::{self, Header, internet_checksum};
use super::transport::{TCP, UDP};

/// Offloaded work that a device has yet to do on a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Data bytes of each segment except the last; `None` if the packet is not to be segmented.
    pub segment: Option<NonZeroU16>,
    /// Start of the bytes whose checksum is missing, and offset of the checksum field from there.
    /// The field holds the sum of the pseudo header.
    pub checksum: Option<(usize, usize)>,
}

const V4_IDENTIFICATION: usize = 4;
const V4_FRAGMENT: usize = 6;
const V4_DONT_FRAGMENT: u8 = 0x40;
const TCP_MIN: usize = 20;
const TCP_SEQUENCE: usize = 4;
const TCP_FLAGS: usize = 13;
const TCP_CHECKSUM: usize = 16;
const UDP_LEN: usize = 8;
const UDP_LENGTH: usize = 4;
const UDP_CHECKSUM: usize = 6;
const FIN_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// Calls `each` with the packets that `packet` becomes, in order; `each` may change them. `buffer`
/// is working space. Returns false without a call if `packet` cannot be segmented, because it is
/// neither TCP nor UDP, is a fragment, or is malformed, or if its checksum field is outside the
/// packet.
pub fn complete(
    packet: &mut [u8],
    offload: Offload,
    buffer: &mut Vec<u8>,
    mut each: impl FnMut(&mut [u8]),
) -> bool {
    if let Some(segment) = offload.segment {
        return cut(packet, segment, buffer, each).is_some();
    }
    if let Some((start, at)) = offload.checksum {
        let Some(place) = start.checked_add(at) else { return false };
        let Some(sum) = packet.get(start..).map(internet_checksum) else { return false };
        let is_udp = at == UDP_CHECKSUM;
        let Some(field) = packet.get_mut(place..).and_then(<[u8]>::first_chunk_mut) else {
            return false;
        };
        // In UDP, a checksum of zero stands for no checksum.
        *field = if is_udp && sum == 0 { u16::MAX } else { sum }.to_be_bytes();
    }
    each(packet);
    true
}

fn cut(
    packet: &[u8],
    segment: NonZeroU16,
    buffer: &mut Vec<u8>,
    mut each: impl FnMut(&mut [u8]),
) -> Option<()> {
    let header = Header::parse(packet).ok()?;
    let packet = &packet[..header.total_len];
    let (start, is_ipv4) = (header.header_len, packet[0] >> 4 == 4);
    if is_ipv4 && u16::from_be_bytes([packet[V4_FRAGMENT], packet[V4_FRAGMENT + 1]]) & 0x3fff != 0 {
        return None;
    }
    let length = match header.protocol {
        TCP => (usize::from(*packet.get(start + TCP_MIN - 8)? >> 4) * 4).max(TCP_MIN),
        UDP => UDP_LEN,
        _ => return None,
    };
    let (head, data) = packet.split_at_checked(start + length)?;
    let size = usize::from(segment.get());
    let count = data.len().div_ceil(size).max(1);
    for n in 0..count {
        let data = &data[(n * size).min(data.len())..((n + 1) * size).min(data.len())];
        buffer.clear();
        buffer.extend_from_slice(head);
        buffer.extend_from_slice(data);
        let (ip, transport) = buffer.split_at_mut(start);
        set_ip(ip, transport.len(), n);
        let at = match header.protocol {
            TCP => set_tcp(transport, (n * size) as u32, (n == 0, n + 1 == count)),
            _ => set_udp(transport),
        };
        transport[at..at + 2].fill(0);
        let sum = checksum(ip, header.protocol, transport);
        let sum = if header.protocol == UDP && sum == 0 { u16::MAX } else { sum };
        transport[at..at + 2].copy_from_slice(&sum.to_be_bytes());
        each(buffer);
    }
    Some(())
}

/// Sets the fields of the `n`th packet's IP header, which is followed by `payload` bytes.
fn set_ip(ip: &mut [u8], payload: usize, n: usize) {
    let length = |length: usize| u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes();
    if ip[0] >> 4 == 6 {
        ip[4..6].copy_from_slice(&length(payload));
        return;
    }
    let total = ip.len() + payload;
    ip[2..4].copy_from_slice(&length(total));
    let identification = u16::from_be_bytes([ip[V4_IDENTIFICATION], ip[V4_IDENTIFICATION + 1]]);
    // Hosts that never fragment may leave the identification at zero.
    if identification != 0 || ip[V4_FRAGMENT] & V4_DONT_FRAGMENT == 0 {
        let identification = identification.wrapping_add(n as u16).to_be_bytes();
        ip[V4_IDENTIFICATION..V4_IDENTIFICATION + 2].copy_from_slice(&identification);
    }
    if let Some(fields) = ip::mutable_fields(ip) {
        ip::restore(ip, fields);
    }
}

/// Sets the TCP header of a segment whose data begins at `offset` in the original data. Returns the
/// offset of the checksum.
fn set_tcp(segment: &mut [u8], offset: u32, (is_first, is_last): (bool, bool)) -> usize {
    if let Some(sequence) = segment.get_mut(TCP_SEQUENCE..).and_then(<[u8]>::first_chunk_mut) {
        *sequence = u32::from_be_bytes(*sequence).wrapping_add(offset).to_be_bytes();
    }
    segment[TCP_FLAGS] &= !(if is_last { 0 } else { FIN_PSH } | if is_first { 0 } else { CWR });
    TCP_CHECKSUM
}

/// Sets a datagram's length; returns the offset of its checksum.
fn set_udp(datagram: &mut [u8]) -> usize {
    let length = u16::try_from(datagram.len()).unwrap_or(u16::MAX).to_be_bytes();
    datagram[UDP_LENGTH..UDP_LENGTH + 2].copy_from_slice(&length);
    UDP_CHECKSUM
}

/// Checksum, with pseudo header, of the data that follows an IP header, in which the checksum field
/// is
/// 0. If the field is filled in, the result is 0 for a correct checksum.
fn checksum(ip: &[u8], protocol: u8, transport: &[u8]) -> u16 {
    let addresses = if ip[0] >> 4 == 4 { &ip[12..20] } else { &ip[8..40] };
    let parts = [!internet_checksum(addresses), !internet_checksum(transport)];
    let length = u16::try_from(transport.len()).unwrap_or(u16::MAX);
    let sum: u32 = parts.iter().map(|&part| u32::from(part)).sum();
    let sum = sum + u32::from(protocol) + u32::from(length);
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    !(folded as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::transport::Segment;
    use proptest::prelude::*;

    /// TCP or UDP packet with `data` bytes of data, and wrong checksums.
    fn packet(ipv6: bool, protocol: u8, identification: u16, data: usize) -> Vec<u8> {
        let mut packet = vec![0; if ipv6 { 40 } else { 20 }];
        let length = if protocol == TCP { TCP_MIN + 12 } else { UDP_LEN };
        if ipv6 {
            (packet[0], packet[6], packet[7]) = (0x60, protocol, 64);
            packet[4..6].copy_from_slice(&((length + data) as u16).to_be_bytes());
            packet[8..40].copy_from_slice(&std::array::from_fn::<u8, 32, _>(|n| 7 * n as u8));
        } else {
            (packet[0], packet[8], packet[9]) = (0x45, 64, protocol);
            packet[2..4].copy_from_slice(&((20 + length + data) as u16).to_be_bytes());
            packet[4..6].copy_from_slice(&identification.to_be_bytes());
            packet[6] = V4_DONT_FRAGMENT;
            packet[12..20].copy_from_slice(&[10, 1, 0, 1, 10, 2, 0, 1]);
        }
        let mut head = vec![0; length];
        head[..4].copy_from_slice(&[0x30, 0x39, 0, 80]);
        if protocol == TCP {
            head[4..8].copy_from_slice(&1_000u32.to_be_bytes());
            (head[12], head[13]) = (0x80, 0x10 | FIN_PSH | CWR);
        }
        packet.extend(head);
        packet.extend((0..data).map(|n| (n % 251) as u8));
        packet
    }

    fn cut_all(packet: &[u8], segment: u16) -> Option<Vec<Vec<u8>>> {
        let (mut packets, mut packet) = (Vec::new(), packet.to_vec());
        let offload = Offload { segment: NonZeroU16::new(segment), checksum: None };
        let is = complete(&mut packet, offload, &mut Vec::new(), |one| packets.push(one.to_vec()));
        is.then_some(packets)
    }

    /// Verifies the checksums of the IP header and of the transport data.
    fn is_sound(packet: &[u8]) -> bool {
        let header = Header::parse(packet).unwrap();
        let (ip, behind) = packet.split_at(header.header_len);
        let is_ip = ip[0] >> 4 == 6 || internet_checksum(ip) == 0;
        is_ip && header.total_len == packet.len() && checksum(ip, header.protocol, behind) == 0
    }

    #[test]
    fn segments_have_what_linux_gives_them() {
        for ipv6 in [false, true] {
            let whole = packet(ipv6, TCP, 77, 3_000);
            let packets = cut_all(&whole, 1_400).unwrap();
            assert_eq!(packets.len(), 3);
            assert!(packets.iter().all(|packet| is_sound(packet)));
            let of: Vec<_> = packets.iter().map(|one| Segment::parse(one).unwrap()).collect();
            let numbers: Vec<_> = of.iter().map(|of| (of.sequence, of.data)).collect();
            assert_eq!(numbers, [(1_000, 1_400), (2_400, 1_400), (3_800, 200)]);
            let start = if ipv6 { 40 } else { 20 };
            let flags: Vec<_> = packets.iter().map(|one| one[start + TCP_FLAGS]).collect();
            assert_eq!(flags, [0x10 | CWR, 0x10, 0x10 | FIN_PSH]);
            let data = packets.iter().flat_map(|one| &one[start + 32..]).copied();
            assert!(data.eq(whole[start + 32..].iter().copied()));
        }
        let identifications = |first| {
            let packets = cut_all(&packet(false, TCP, first, 3_000), 1_400).unwrap();
            packets.iter().map(|one| u16::from_be_bytes([one[4], one[5]])).collect::<Vec<_>>()
        };
        assert_eq!(identifications(u16::MAX), [u16::MAX, 0, 1]);
        assert_eq!(identifications(0), [0, 0, 0], "not used");
    }

    #[test]
    fn datagrams_are_cut_and_other_packets_are_not() {
        let packets = cut_all(&packet(true, UDP, 0, 2_500), 1_000).unwrap();
        assert!(packets.iter().all(|packet| is_sound(packet)));
        let lengths: Vec<_> = packets.iter().map(|packet| packet[45]).collect();
        assert_eq!(lengths, [1_008 % 256, 1_008 % 256, 508 % 256].map(|of: u16| of as u8));
        assert_eq!(cut_all(&packet(false, 1, 0, 2_500), 1_000), None);
        let mut fragment = packet(false, UDP, 1, 2_500);
        fragment[6] = 0x20;
        assert_eq!(cut_all(&fragment, 1_000), None);
    }

    #[test]
    fn a_checksum_is_completed() {
        for (protocol, at) in [(TCP, TCP_CHECKSUM), (UDP, UDP_CHECKSUM)] {
            let mut one = packet(false, protocol, 1, 999);
            let fields = ip::mutable_fields(&one).unwrap();
            ip::restore(&mut one[..20], fields);
            if protocol == UDP {
                set_udp(&mut one[20..]);
            }
            // The sum of the pseudo header, as the kernel leaves it.
            let length = one.len() - 20;
            let pseudo = !checksum(&one[..20], protocol, &[]);
            let pseudo = u32::from(pseudo) + length as u32;
            let pseudo = ((pseudo & 0xffff) + (pseudo >> 16)) as u16;
            one[20 + at..22 + at].copy_from_slice(&pseudo.to_be_bytes());
            let offload = Offload { segment: None, checksum: Some((20, at)) };
            let mut seen = 0;
            assert!(complete(&mut one, offload, &mut Vec::new(), |one| {
                assert!(is_sound(one));
                seen += 1;
            }));
            assert_eq!(seen, 1);
        }
    }

    proptest! {
        #[test]
        fn nothing_panics_and_no_segment_is_longer_than_its_limit(
            mut bytes: Vec<u8>, ipv6: bool, segment: u16, start in 0..80usize, at in 0..80usize,
            cut in 0..200usize,
        ) {
            let mut whole = packet(ipv6, TCP, 5, 100);
            whole.truncate(cut);
            let checksum = Some((start, at));
            for packet in [&mut whole, &mut bytes] {
                let mut longest = 0;
                let offload = Offload { segment: NonZeroU16::new(segment), checksum };
                complete(packet, offload, &mut Vec::new(), |one| longest = longest.max(one.len()));
                if segment > 0 {
                    prop_assert!(longest <= 40 + 60 + usize::from(segment));
                }
            }
        }
    }
}

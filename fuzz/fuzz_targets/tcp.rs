//! TCP segments of hosts. Any bytes can be parsed. Where the gateway changes an option, the
//! checksum of a correct segment stays correct, and no other byte changes. Segments that are cut
//! from a long packet hold its data in order, each with a correct checksum.
#![no_main]

use std::num::NonZeroU16;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_proto::wire::ip::{Header, internet_checksum};
use viaduct_proto::wire::offload::{Offload, complete};
use viaduct_proto::wire::tcp_syn::TcpSyn;
use viaduct_proto::wire::transport::{Segment, payload, ports};
use viaduct_proto::wire::{tcp_sack, tcp_timestamp};

const TCP: u8 = 6;
const TCP_MIN: usize = 20;
const FLAGS: usize = 13;
const CHECKSUM: usize = 16;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    v6: bool,
    ports: [u16; 2],
    numbers: [u32; 2],
    flags: u8,
    /// Number of 32-bit words of options.
    words: u8,
    last: u32,
    mss: u16,
    segment: u16,
    checksum: Option<(u16, u16)>,
    /// Options, and data.
    rest: &'a [u8],
}

impl Input<'_> {
    /// Segment with these fields and a correct checksum.
    fn packet(&self) -> Vec<u8> {
        let head = if self.v6 { 40 } else { 20 };
        let rest = &self.rest[..self.rest.len().min(4_000)];
        let words = usize::from(self.words % 11).min(rest.len() / 4);
        let mut packet = vec![0; head];
        packet.extend(self.ports.iter().flat_map(|port| port.to_be_bytes()));
        packet.extend(self.numbers.iter().flat_map(|number| number.to_be_bytes()));
        packet.extend([(5 + words as u8) << 4, self.flags, 255, 255, 0, 0, 0, 0]);
        packet.extend(rest);
        let length = packet.len() as u16;
        if self.v6 {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&(length - 40).to_be_bytes());
            (packet[6], packet[7]) = (TCP, 64);
        } else {
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&length.to_be_bytes());
            (packet[8], packet[9]) = (64, TCP);
            let sum = internet_checksum(&packet[..20]);
            packet[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        let sum = sum(&packet);
        packet[head + CHECKSUM..head + CHECKSUM + 2].copy_from_slice(&sum.to_be_bytes());
        packet
    }
}

/// Checksum of the segment in `packet`, with the pseudo header; 0 if the field is correct.
fn sum(packet: &[u8]) -> u16 {
    let (head, addresses) = if packet[0] >> 4 == 6 { (40, 8..40) } else { (20, 12..20) };
    let length = (packet.len() - head) as u32;
    let pseudo = [&packet[addresses], &length.to_be_bytes(), &[0, 0, 0, TCP]].concat();
    internet_checksum(&[&pseudo, &packet[head..]].concat())
}

/// Checks that `after` equals `before` except for the checksum, which must be correct, and at most
/// `count` bytes of the options.
fn is_changed(before: &[u8], after: &[u8], count: usize) {
    let tcp = if before[0] >> 4 == 6 { 40 } else { 20 };
    let options = tcp + TCP_MIN..tcp + usize::from(before[tcp + 12] >> 4) * 4;
    let changed = |at: &usize| before[*at] != after[*at];
    let changed: Vec<usize> = (0..before.len()).filter(changed).collect();
    let (sums, others): (Vec<usize>, Vec<usize>) =
        changed.iter().partition(|at| (tcp + CHECKSUM..tcp + CHECKSUM + 2).contains(*at));
    assert!(sums.len() <= 2 && others.len() <= count, "{changed:?}");
    assert!(others.iter().all(|at| options.contains(at)), "{changed:?}");
    assert_eq!(sum(after), 0, "the checksum is correct");
}

fuzz_target!(|input: Input| {
    parse(input.rest);
    let packet = input.packet();
    parse(&packet);
    let tcp = if input.v6 { 40 } else { 20 };
    assert_eq!(sum(&packet), 0);
    assert_eq!(ports(&packet), Some(input.ports));
    let segment = Segment::parse(&packet).expect("a segment");
    assert_eq!([segment.sequence, segment.acknowledgement], input.numbers);
    if let Some(acknowledged) = tcp_sack::acknowledged(&packet) {
        assert!(packet[tcp + FLAGS] & 0x10 != 0);
        let ahead = acknowledged.highest.wrapping_sub(segment.acknowledgement);
        assert!(ahead.cast_signed() >= 0, "{acknowledged:?} of {}", segment.acknowledgement);
    }

    let mut renewed = packet.clone();
    if tcp_timestamp::renew(&mut renewed, input.last) {
        is_changed(&packet, &renewed, 4);
        assert!(
            !tcp_timestamp::renew(&mut renewed.clone(), input.last),
            "a renewed timestamp is renewed again"
        );
        assert_eq!(tcp_timestamp::echo(&renewed), tcp_timestamp::echo(&packet));
    } else {
        assert_eq!(renewed, packet);
    }
    if let Some(syn) = TcpSyn::parse(&packet) {
        let mut lowered = packet.clone();
        syn.lower(&mut lowered, input.mss);
        is_changed(&packet, &lowered, 2);
        assert!(syn.mss(&lowered).is_none_or(|mss| mss <= input.mss));
        assert_eq!(syn.coarse(&lowered), syn.coarse(&packet));
    }
    segments(&input, &packet);
});

/// Parses any bytes as a packet, complete or truncated.
fn parse(bytes: &[u8]) {
    payload(bytes);
    ports(bytes);
    Segment::parse(bytes);
    tcp_sack::acknowledged(bytes);
    tcp_sack::is_plain_ack(bytes);
    tcp_timestamp::echo(bytes);
    tcp_timestamp::renew(&mut bytes.to_vec(), 7);
    if let Some(syn) = TcpSyn::parse(bytes) {
        syn.coarse(bytes);
        syn.mss(bytes);
        syn.set_mss(&mut bytes.to_vec(), 500);
    }
}

/// Checks the segments that `packet` is cut into.
fn segments(input: &Input, packet: &[u8]) {
    let offload = Offload {
        // Very small segments would make a run slow.
        segment: NonZeroU16::new(input.segment).filter(|size| size.get() >= 16),
        checksum: input.checksum.map(|(start, at)| (start.into(), at.into())),
    };
    let mut any = input.rest.to_vec();
    let expected = any.len() + 2 * 65_535;
    complete(&mut any, offload, &mut Vec::new(), |packet| assert!(packet.len() <= expected));
    let Some(size) = offload.segment else { return };

    let head = Header::parse(packet).expect("a packet");
    let data = head.header_len + usize::from(packet[head.header_len + 12] >> 4) * 4;
    let (mut all, mut next) = (Vec::<u8>::new(), input.numbers[0]);
    let is_cut = complete(&mut packet.to_vec(), offload, &mut Vec::new(), |packet| {
        let of = Header::parse(packet).expect("a packet");
        assert_eq!((of.total_len, of.protocol), (packet.len(), TCP));
        assert_eq!(sum(packet), 0, "the checksum is correct");
        let segment = Segment::parse(packet).expect("a segment");
        assert!(segment.sequence == next && segment.data <= size.get().into());
        next = next.wrapping_add(segment.data);
        all.extend(&packet[data..]);
    });
    assert!(is_cut && all == packet[data..], "all data is in the segments");
}

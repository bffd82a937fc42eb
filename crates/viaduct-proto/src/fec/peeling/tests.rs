use super::*;
use crate::fec::testing::{Owned, Receiver};
use crate::fec::{Cover, Draw};

/// Exclusive or of `packets`, whose numbers begin with `first` and are `stride` apart.
fn repair(first: Seq, stride: u16, packets: &[&[u8]]) -> Owned {
    let mut sum = Sum::default();
    packets.iter().for_each(|packet| sum.add_packet(packet, 1));
    Owned {
        cover: Cover { first, stride, count: packets.len() as u16 },
        row: Row::Xor { layer: 0 },
        len_code: sum.len_code,
        body: sum.bytes().to_vec(),
    }
}

#[test]
fn a_recovery_unlocks_repairs_of_other_layers() {
    let (a, b, c, d): (&[u8], &[u8], &[u8], &[u8]) = (b"one", b"second", b"", b"4");
    let mut receiver = Receiver::new(Peeling::new(10_000));
    receiver.packet(4, d);
    assert_eq!(receiver.repair(&repair(1, 1, &[a, b])), Verdict::Stored);
    assert_eq!(receiver.repair(&repair(2, 1, &[b, c])), Verdict::Stored);
    assert_eq!(receiver.repair(&repair(3, 1, &[c, d])), Verdict::Used);
    assert_eq!(receiver.recovered, [3, 2, 1]);
    assert_eq!(receiver.decoder.memory(), 0);
    receiver.check(&[a.to_vec(), b.to_vec(), c.to_vec(), d.to_vec()]);
}

#[test]
fn a_late_packet_unlocks_a_stored_repair() {
    let mut receiver = Receiver::new(Peeling::new(10_000));
    assert_eq!(receiver.repair(&repair(1, 20, &[b"a", b"bb", b"ccc"])), Verdict::Stored);
    receiver.packet(21, b"bb");
    assert!(receiver.recovered.is_empty());
    receiver.packet(1, b"a");
    assert_eq!(receiver.recovered, [41]);
    assert_eq!(receiver.store.0[&41], b"ccc");
}

#[test]
fn a_long_chain_of_recoveries_does_not_recurse() {
    let packets: Vec<_> = (0..20_000u32).map(|n| n.to_be_bytes()).collect();
    let mut receiver = Receiver::new(Peeling::new(100 << 20));
    for (first, pair) in (1..).zip(packets.windows(2)) {
        receiver.repair(&repair(first, 1, &[&pair[0], &pair[1]]));
    }
    receiver.packet(1, &packets[0]);
    assert_eq!(receiver.recovered.len(), 19_999);
}

#[test]
fn two_repairs_of_the_same_pair_are_stored_and_both_are_removed() {
    let mut receiver = Receiver::new(Peeling::new(10_000));
    receiver.repair(&repair(1, 1, &[b"a", b"b"]));
    receiver.repair(&repair(1, 1, &[b"a", b"b"]));
    receiver.packet(2, b"b");
    assert_eq!(receiver.recovered, [1], "recovered once, though two repairs cover it");
    assert_eq!(receiver.decoder.memory(), 0);
}

#[test]
fn memory_is_bounded_and_the_oldest_goes_first() {
    let mut receiver = Receiver::new(Peeling::new(20_000));
    for first in (1..1001).step_by(2) {
        receiver.repair(&repair(first, 1, &[&[1; 1000], &[2; 900]]));
        assert!(receiver.decoder.memory() <= 20_000);
    }
    assert!(receiver.decoder.stored.len() < 100, "{}", receiver.decoder.stored.len());
    receiver.packet(1, &[1; 1000]);
    receiver.packet(999, &[1; 1000]);
    assert_eq!(receiver.recovered, [1000], "the newest is recovered, the oldest is not");
}

#[test]
fn old_repairs_are_forgotten() {
    let mut receiver = Receiver::new(Peeling::new(20_000));
    receiver.repair(&repair(1, 1, &[b"a", b"b"]));
    receiver.repair(&repair(9, 1, &[b"a", b"b"]));
    receiver.decoder.forget_below(10);
    receiver.packet(1, b"a");
    receiver.packet(9, b"a");
    assert_eq!(receiver.recovered, [10]);
}

#[test]
fn impossible_repairs_are_refused() {
    let fine = repair(5, 1, &[b"a", b"b"]);
    let with = |change: fn(&mut Owned)| {
        let mut repair = fine.clone();
        change(&mut repair);
        Receiver::new(Peeling::new(10_000)).repair(&repair)
    };
    assert_eq!(with(|_| ()), Verdict::Stored);
    assert_eq!(with(|r| r.cover.count = 0), Verdict::Refused);
    assert_eq!(with(|r| r.cover.stride = 0), Verdict::Refused);
    assert_eq!(with(|r| r.cover.first = 0), Verdict::Refused);
    assert_eq!(with(|r| r.cover.first = Seq::MAX), Verdict::Refused);
    assert_eq!(with(|r| r.body = vec![0; 70_000]), Verdict::Refused, "no packet is that long");
    assert_eq!(with(|r| r.body = vec![0; 20_000]), Verdict::Refused, "beyond the bound");
    assert_eq!(
        with(|r| r.row = Row::Window(Draw { seed: 1, dense: 1, density: 0 })),
        Verdict::Refused
    );
}

#[test]
fn a_repair_that_contradicts_known_packets_is_refused() {
    let mut receiver = Receiver::new(Peeling::new(10_000));
    receiver.packet(1, &[7; 500]);
    let short = repair(1, 1, &[&[1; 100], &[2; 100]]);
    assert_eq!(receiver.repair(&short), Verdict::Refused, "shorter than a packet in it");
    let mut lying = repair(3, 1, &[b"abc"]);
    lying.len_code = [0xff, 0xff];
    assert_eq!(receiver.repair(&lying), Verdict::Refused, "longer than its own bytes");
    assert!(receiver.recovered.is_empty());
}

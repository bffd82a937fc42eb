use proptest::prelude::*;

use super::*;
use crate::fec::testing::{Owned, Receiver, flush, packet, push};
use crate::fec::{Encoder as _, Row, peeling::Peeling};
use crate::rng::Rng;

/// Repairs of a layer: for each, the number of the packet whose push fired it, and the packets
/// covered.
fn fired(encoder: &mut Encoder, layer: u8, count: u64) -> Vec<(u64, Vec<Seq>)> {
    let mut all = Vec::new();
    for seq in 1..=count {
        let repairs = push(encoder, &[seq as u8]);
        let ours = repairs.iter().filter(|r| r.row == Row::Xor { layer });
        all.extend(ours.map(|r| (seq, r.seqs())));
    }
    all
}

#[test]
fn the_first_layer_covers_neighbours() {
    let mut encoder = Encoder::new(Parameters::new(3, &[1, 10, 100]), 1).unwrap();
    let expected = [(3, vec![1, 2, 3]), (6, vec![4, 5, 6]), (9, vec![7, 8, 9])];
    assert_eq!(fired(&mut encoder, 0, 11), expected);
}

/// Maelstrom 4.3.1: "the arrival of packets 36, 37, 38 and 39 will successively fill the four
/// repair bins in layer 2" of (5,3) I=(1,4,8). The figure counts packets from 0, we from 1.
#[test]
fn without_a_staggered_start_bins_fill_in_quick_succession() {
    let parameters = Parameters::new(5, &[1, 4, 8]);
    let mut naive = Encoder::with_start(parameters, 1, |_, _, r| r).unwrap();
    let at: Vec<_> = fired(&mut naive, 1, 40).iter().map(|(seq, _)| seq - 1).collect();
    assert_eq!(at, [16, 17, 18, 19, 36, 37, 38, 39]);
}

#[test]
fn staggered_sizes_are_the_papers() {
    let sizes = |r, i| (1..=i).map(|x| first_size(x, i, r)).collect::<Vec<_>>();
    assert_eq!(sizes(4, 2), [2, 4], "Maelstrom 4.3.1: r=4, i=2");
    assert_eq!(sizes(5, 4)[..2], [1, 2], "Maelstrom 4.3.1: Figure 6, second layer");
    assert_eq!(sizes(5, 8), [1, 2, 3, 4, 5, 1, 2, 3]);
    assert_eq!(sizes(8, 1), [8]);
    assert_eq!(sizes(1, 3), [1, 1, 1]);
    assert_eq!(sizes(255, 1), [255]);
}

#[test]
fn a_staggered_layer_fires_one_bin_in_r_for_every_i_packets() {
    let mut encoder = Encoder::new(Parameters::new(8, &[1, 40]), 1).unwrap();
    let at: Vec<_> = fired(&mut encoder, 1, 2000).iter().map(|(seq, _)| *seq).collect();
    for from in (0..2000).step_by(40) {
        let fired = at.iter().filter(|&&seq| (from + 1..=from + 40).contains(&seq)).count();
        assert_eq!(fired, 5, "i/r bins fire for any i packets, here from {from}");
    }
    let first: Vec<_> = at.iter().filter(|&&seq| seq <= 40).collect();
    assert_eq!(first, [&1, &9, &17, &25, &33], "i/r bins fire with just one packet");
}

#[test]
fn a_delayed_repair_leaves_when_the_next_packet_enters_its_bin() {
    let parameters = Parameters::new(2, &[3]).delayed();
    let mut delayed = Encoder::new(parameters.clone(), 1).unwrap();
    let mut at_once = Encoder::new(Parameters { delay_xors: false, ..parameters }, 1).unwrap();
    let (late, soon) = (fired(&mut delayed, 0, 60), fired(&mut at_once, 0, 57));
    let shifted: Vec<_> = soon.into_iter().map(|(seq, cover)| (seq + 3, cover)).collect();
    assert_eq!(late, shifted, "the same repairs, i packets later");
}

#[test]
fn a_flush_fires_pending_and_partial_repairs_once() {
    let mut encoder = Encoder::new(Parameters::new(2, &[1, 3]).delayed(), 1).unwrap();
    for n in 0..3 {
        push(&mut encoder, &[n]);
    }
    let fired: Vec<_> = flush(&mut encoder).iter().map(Owned::seqs).collect();
    assert_eq!(fired, [vec![3], vec![1], vec![2], vec![3]]);
    assert_eq!(flush(&mut encoder), []);
    assert!(push(&mut encoder, &[9]).is_empty(), "flushed packets are not sent again");
}

#[test]
fn memory_grows_to_the_longest_packet_and_stays() {
    let mut encoder = Encoder::new(Parameters::new(8, &[1, 20]), 1).unwrap();
    assert_eq!(encoder.memory(), 0);
    for _ in 0..200 {
        push(&mut encoder, &[1; 100]);
    }
    assert!((21 * 100..21 * 220).contains(&encoder.memory()), "{}", encoder.memory());
}

/// Reference implementation of the layers: stores everything, computes at the end.
struct Twin {
    parameters: Parameters,
    packets: Vec<Vec<u8>>,
    bins: Vec<Vec<(usize, Vec<Seq>)>>,
}

impl Twin {
    fn new(parameters: Parameters) -> Self {
        let bins = parameters.interleaves.iter().map(|&i| {
            let size =
                |x| if i < u16::from(parameters.r) { rounded(x, i, parameters.r) } else { x };
            let of_r = |n: usize| match n % usize::from(parameters.r) {
                0 => usize::from(parameters.r),
                rest => rest,
            };
            (1..=usize::from(i)).map(|x| (of_r(size(x)), Vec::new())).collect()
        });
        Twin { bins: bins.collect(), parameters, packets: Vec::new() }
    }

    fn push(&mut self, packet: &[u8]) -> Vec<Owned> {
        self.packets.push(packet.to_vec());
        let seq = self.packets.len() as Seq;
        let r = usize::from(self.parameters.r);
        let delay = self.parameters.delay_xors;
        let mut fired = Vec::new();
        for (layer, bins) in self.bins.iter_mut().enumerate() {
            let number = (seq - 1) as usize % bins.len();
            let (target, members) = &mut bins[number];
            if delay && members.len() == *target {
                fired.push((layer, std::mem::take(members)));
                *target = r;
            }
            members.push(seq);
            if !delay && members.len() == *target {
                fired.push((layer, std::mem::take(members)));
                *target = r;
            }
        }
        fired.into_iter().map(|(layer, members)| self.repair(layer, &members)).collect()
    }

    fn repair(&self, layer: usize, members: &[Seq]) -> Owned {
        let packets = || members.iter().map(|&seq| &self.packets[seq as usize - 1]);
        let longest = packets().map(Vec::len).max().unwrap();
        let byte = |at| packets().fold(0, |sum, p| sum ^ p.get(at).copied().unwrap_or(0));
        Owned {
            cover: crate::fec::Cover {
                first: members[0],
                stride: self.parameters.interleaves[layer],
                count: members.len() as u16,
            },
            row: Row::Xor { layer: layer as u8 },
            len_code: packets().fold(0, |sum, p| sum ^ p.len() as u16).to_be_bytes(),
            body: (0..longest).map(byte).collect(),
        }
    }
}

fn rounded(x: usize, i: u16, r: u8) -> usize {
    (x as f64 * f64::from(r) / f64::from(i) - 0.5).ceil() as usize
}

fn parameters() -> impl Strategy<Value = Parameters> {
    (1u8..12, prop::collection::vec(1u16..30, 1..7), any::<bool>())
        .prop_map(|(r, interleaves, delay_xors)| Parameters { r, interleaves, delay_xors })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn encodes_as_the_twin(parameters in parameters(), seed: u64, count in 1usize..400) {
        let mut rng = Rng::from_seed(seed);
        let mut encoder = Encoder::new(parameters.clone(), 1).unwrap();
        let mut twin = Twin::new(parameters);
        for _ in 0..count {
            let packet = packet(&mut rng, 60);
            let (mut found, mut expected) = (push(&mut encoder, &packet), twin.push(&packet));
            // The order among layers is not specified.
            found.sort_by_key(|r| (r.cover.stride, r.cover.first, r.len_code));
            expected.sort_by_key(|r| (r.cover.stride, r.cover.first, r.len_code));
            let unlayered = |mut r: Owned| { r.row = Row::Xor { layer: 0 }; r };
            prop_assert_eq!(
                found.into_iter().map(unlayered).collect::<Vec<_>>(),
                expected.into_iter().map(unlayered).collect::<Vec<_>>()
            );
        }
    }

    #[test]
    fn every_packet_is_in_one_repair_of_each_layer(parameters in parameters(), count in 1u64..300) {
        let mut encoder = Encoder::new(parameters.clone(), 1).unwrap();
        let mut repairs: Vec<_> = (0..count).flat_map(|n| push(&mut encoder, &[n as u8])).collect();
        repairs.extend(flush(&mut encoder));
        for layer in 0..parameters.interleaves.len() as u8 {
            let ours = repairs.iter().filter(|r| r.row == Row::Xor { layer });
            let mut covered: Vec<_> = ours.flat_map(Owned::seqs).collect();
            covered.sort_unstable();
            prop_assert_eq!(covered, (1..=count).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_single_lost_packet_is_recovered_unaltered(
        parameters in parameters(), seed: u64, count in 1u64..200, which: prop::sample::Index,
    ) {
        let mut rng = Rng::from_seed(seed);
        let mut encoder = Encoder::new(parameters, 1).unwrap();
        let sent: Vec<_> = (0..count).map(|_| packet(&mut rng, 1500)).collect();
        let lost = which.index(sent.len()) as Seq + 1;
        let mut receiver = Receiver::new(Peeling::new(1 << 20));
        for (seq, packet) in (1..).zip(&sent) {
            if seq != lost {
                receiver.packet(seq, packet);
            }
            for repair in push(&mut encoder, packet) {
                receiver.repair(&repair);
            }
        }
        for repair in flush(&mut encoder) {
            receiver.repair(&repair);
        }
        prop_assert_eq!(&receiver.recovered[..], &[lost]);
        receiver.check(&sent);
    }
}

use proptest::prelude::*;

use super::*;
use crate::fec::testing::{Owned, Receiver, flush, packet, push};
use crate::fec::{Cover, Draw};
use crate::rng::Rng;

fn codes() -> [Code; 4] {
    [
        Code::Layered(layered::Parameters::new(8, &[1, 20, 40])),
        Code::ReedSolomon(reed_solomon::Parameters { r: 10, c: 3, interleave: 4 }),
        Code::Window(window::Parameters { window: 100, repairs: 1, packets: 5 }),
        Code::Layered(layered::Parameters::new(4, &[1, 7]).delayed()),
    ]
}

#[test]
fn codes_report_their_parameters_and_cost() {
    let said = codes().map(|code| code.to_string());
    assert_eq!(said[0], "(8,3) I=(1,20,40)");
    assert_eq!(said[1], "Reed-Solomon (10,3) interleave 4");
    assert_eq!(said[2], "window 100 with 1 repairs in 5");
    assert_eq!(codes().map(|code| code.overhead()), [0.375, 0.3, 0.2, 0.5]);
}

#[test]
fn the_overhead_is_what_is_sent() {
    for code in codes() {
        let mut encoder = code.build_encoder(1).unwrap();
        let mut repairs =
            |count| (0..count).map(|_| push(&mut *encoder, &[1]).len()).sum::<usize>();
        repairs(1000);
        let sent = repairs(4000) as f64 / 4000.0;
        assert!((sent - code.overhead()).abs() < 0.01, "{code}: {sent}");
    }
}

#[test]
fn the_code_may_change_at_any_packet() {
    let mut rng = Rng::from_seed(5);
    let mut receiver = Receiver::new(AnyDecoder::new(4 << 20));
    let (mut sent, mut lost) = (Vec::new(), 0);
    for (round, code) in codes().iter().cycle().take(40).enumerate() {
        let mut encoder = code.build_encoder(sent.len() as Seq + 1).unwrap();
        for _ in 0..50 + round {
            let (seq, packet) = (encoder.next_seq(), packet(&mut rng, 100));
            if rng.chance(0.01) {
                lost += 1;
            } else {
                receiver.packet(seq, &packet);
            }
            for repair in push(&mut *encoder, &packet) {
                receiver.repair(&repair);
            }
            sent.push(packet);
        }
        for repair in flush(&mut *encoder) {
            receiver.repair(&repair);
        }
    }
    receiver.check(&sent);
    assert!(lost > 20);
    assert_eq!(receiver.recovered.len(), lost);
}

#[test]
fn what_one_decoder_recovers_unlocks_the_other() {
    use crate::fec::{coefficient, sum::Sum};
    let packets = [b"a".to_vec(), b"bb".to_vec(), b"ccc".to_vec(), b"d".to_vec()];
    let repair = |row, first: Seq, count: u16| {
        let (mut sum, cover) = (Sum::default(), Cover { first, stride: 1, count });
        for n in 0..count {
            let packet = &packets[first as usize - 1 + usize::from(n)];
            sum.add_packet(packet, coefficient(row, cover, n));
        }
        Owned { cover, row, len_code: sum.len_code, body: sum.bytes().to_vec() }
    };
    let (xor, window) =
        (Row::Xor { layer: 0 }, Row::Window(Draw { seed: 3, dense: 9, density: 0 }));
    let mut receiver = Receiver::new(AnyDecoder::new(10_000));
    receiver.repair(&repair(xor, 1, 2));
    receiver.repair(&repair(window, 2, 2));
    receiver.repair(&repair(xor, 3, 2));
    receiver.packet(4, b"d");
    assert_eq!(receiver.recovered, [3, 2, 1], "through both decoders, and back");
    receiver.check(&packets);
}

fn garbage() -> impl Strategy<Value = Owned> {
    let cover = (
        prop_oneof![0u64..60, any::<u64>(), Just(u64::MAX - 300)],
        prop_oneof![0u16..4, any::<u16>()],
        prop_oneof![0u16..300, any::<u16>()],
    );
    let row = prop_oneof![
        any::<u8>().prop_map(|layer| Row::Xor { layer }),
        any::<u8>().prop_map(|row| Row::ReedSolomon { row }),
        any::<(u16, u16, u8)>().prop_map(|(seed, dense, density)| Row::Window(Draw {
            seed,
            dense,
            density
        })),
    ];
    let code = prop_oneof![any::<[u8; 2]>(), any::<u8>().prop_map(|low| [0, low & 63])];
    (cover, row, code, prop::collection::vec(any::<u8>(), 0..80)).prop_map(
        |((first, stride, count), row, len_code, body)| Owned {
            cover: Cover { first, stride, count },
            row,
            len_code,
            body,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn garbage_never_panics_nor_outgrows_its_bound(
        repairs in prop::collection::vec((garbage(), 1u64..60), 1..60),
    ) {
        let mut receiver = Receiver::new(AnyDecoder::new(20_000));
        for (repair, seq) in repairs {
            receiver.repair(&repair);
            if !receiver.store.0.contains_key(&seq) {
                receiver.packet(seq, &vec![seq as u8; seq as usize]);
            }
            receiver.decoder.forget_below(seq / 2);
            prop_assert!(receiver.decoder.memory() <= 20_000);
        }
    }
}

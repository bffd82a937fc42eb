//! Tests of the closed forms, and of the codes against them.

use super::*;
use crate::fec::layered::Parameters;
use crate::fec::testing::run;
use crate::fec::{AnyDecoder, Code, reed_solomon as rs};
use crate::rng::Rng;

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-9
}

#[test]
fn closed_forms_at_their_limits() {
    assert!(close(layered_independent(8, 3, 0.0), 1.0));
    assert!(close(layered_independent(8, 3, 1.0), 0.0));
    assert!(close(layered_independent(1, 1, 0.25), 0.75));
    assert!(close(reed_solomon(8, 3, 0.0), 1.0));
    assert!(close(reed_solomon(8, 3, 1.0), 0.0));
    assert!(close(reed_solomon(1, 1, 0.25), 0.75));
}

#[test]
fn with_one_repair_both_codes_are_the_same() {
    for p in [0.001, 0.01, 0.1, 0.5] {
        assert!(close(layered_independent(7, 1, p), reed_solomon(7, 1, p)));
    }
}

/// Maelstrom Figure 8: for (7,2) the curves are very close between 0 % and 10 %.
#[test]
fn the_curves_of_figure_8_are_close() {
    for percent in 0..=10 {
        let p = f64::from(percent) / 100.0;
        let apart = reed_solomon(7, 2, p) - layered_independent(7, 2, p);
        assert!((0.0..0.13).contains(&apart), "{apart} at {percent} %");
    }
}

#[test]
fn only_interleaves_above_the_burst_count() {
    let p = 0.01;
    let of = |burst| layered_burst(8, &[1, 20, 40], burst, p);
    assert!(close(of(0), layered_independent(8, 3, p)));
    assert!(close(of(19), layered_independent(8, 2, p)));
    assert!(close(of(20), layered_independent(8, 1, p)));
    assert!(close(of(40), 0.0));
}

/// Tolerated deviation from probability `q` of a share measured in `n` trials: 4 standard
/// deviations.
fn tolerance(q: f64, n: u64) -> f64 {
    4.0 * (q * (1.0 - q) / n as f64).sqrt() + 2.0 / n as f64
}

/// Share of the lost packets that `code` recovers, and number of lost packets; `lose` selects the
/// packets and repairs that are lost.
fn share(code: &Code, packets: u64, lose: &mut dyn FnMut(Option<u64>) -> bool) -> (f64, u64) {
    let mut encoder = code.build_encoder(1).unwrap();
    let (lost, back) = run(&mut *encoder, AnyDecoder::new(8 << 20), packets, 8, lose);
    (back as f64 / lost as f64, lost)
}

#[test]
fn layers_recover_at_least_the_share_of_the_closed_form() {
    let grid = [(8, vec![1, 20, 41]), (7, vec![1, 10]), (4, vec![1, 7]), (10, vec![1, 61, 127])];
    for (r, interleaves) in grid {
        for p in [0.005, 0.02, 0.05, 0.1] {
            let code = Code::Layered(Parameters::new(r, &interleaves));
            let mut rng = Rng::from_seed(u64::from(r));
            let (share, lost) = share(&code, 40_000, &mut |_| rng.chance(p));
            let bound = layered_independent(r, interleaves.len(), p);
            assert!(share >= bound - tolerance(bound, lost), "{code} at {p}: {share} < {bound}");
            assert!(share < 1.0 || p < 0.1, "{code} at {p}: all lost packets were recovered");
        }
    }
}

#[test]
fn layers_recover_bursts_by_the_burst_form() {
    for burst in [1, 5, 11, 15, 19, 30, 41, 60] {
        let interleaves = [1, 19, 41];
        let code = Code::Layered(Parameters::new(8, &interleaves).delayed());
        let mut rng = Rng::from_seed(burst);
        let mut left = 0;
        let (share, lost) = share(&code, 100_000, &mut |packet| match packet {
            // Repairs within a burst are lost as well.
            None => left > 0,
            Some(_) => {
                left = if left > 0 { left - 1 } else { u64::from(rng.chance(0.0005)) * burst };
                left > 0
            }
        });
        // A burst begins at a packet with probability 0.0005, so a packet is lost with probability
        // p.
        let p = 0.0005 * burst as f64;
        let bound = layered_burst(8, &interleaves, burst, p);
        // Packets of a burst are lost or recovered together, so the trials are the bursts.
        let chance = tolerance(bound, lost / burst);
        assert!(share >= bound - chance, "burst of {burst}: {share} < {bound} - {chance}");
        if burst > 41 + 8 {
            assert!(share < 0.75, "burst of {burst}, longer than every interleave: {share}");
        }
    }
}

#[test]
fn reed_solomon_agrees_with_its_binomial_form() {
    for (r, c, interleave) in [(8, 3, 1), (7, 2, 1), (10, 3, 5), (20, 10, 1), (8, 2, 20)] {
        for p in [0.02, 0.1, 0.2, 0.3] {
            let code = Code::ReedSolomon(rs::Parameters { r, c, interleave });
            let mut rng = Rng::from_seed(u64::from(r) + 1);
            // Complete blocks only: a short block is a stronger code.
            let packets = 40_000 / (u64::from(r) * u64::from(interleave));
            let packets = packets * u64::from(r) * u64::from(interleave);
            let (share, lost) = share(&code, packets, &mut |_| rng.chance(p));
            let form = reed_solomon(r, c, p);
            // Packets of a block are lost or recovered together, so the trials are the blocks.
            let chance = tolerance(form, lost / (1 + u64::from(c)));
            assert!((share - form).abs() < chance, "{code} at {p}: {share}, not {form}");
        }
    }
}

//! Codes over the simulated link, and statistics of the lost packets.
//!
//! ```text
//!   Stream of N packets ─▶ slices, on all cores ─▶ one Outcome ─▶ share ± error, latencies
//! ```

use std::num::NonZero;
use std::sync::atomic::AtomicU64;

use viaduct_proto::fec::{AnyDecoder, Code, layered, reed_solomon};
use viaduct_proto::sim::stream::{Lost, Outcome, Stream};

use crate::experiments::prelude::*;

/// Packets per second of the paper's 10 Mb/s UDP flow at its MTU of 1200 bytes (section 5.3).
pub(super) const PAPER_RATE: f64 = 1e7 / (8.0 * 1200.0);

/// Packets per slice: many thousand times the span of a code, so that edge effects are negligible.
const SLICE: u64 = 250_000;

/// Packets per batch in which losses are counted: far more than the span of a code, so that batches
/// are independent of each other.
const BATCH: u64 = 5_000;

/// Returns layered interleaving (r, I.len()) with immediate repairs.
pub(super) fn layers(r: u8, interleaves: &[u16]) -> Code {
    Code::Layered(layered::Parameters::new(r, interleaves))
}

/// Returns layered interleaving with delayed XORs.
pub(super) fn delayed(r: u8, interleaves: &[u16]) -> Code {
    Code::Layered(layered::Parameters::new(r, interleaves).delayed())
}

/// Returns a Reed-Solomon code.
pub(super) fn blocks(r: u8, c: u8, interleave: u16) -> Code {
    Code::ReedSolomon(reed_solomon::Parameters { r, c, interleave })
}

/// Returns the paper's flow over 50 ms with this loss. Its packets are short, because their
/// content affects only the simulation's run time.
pub(super) fn paper_flow(loss: &str, packets: u64, seed: u64) -> Stream {
    let link = link(&format!("delay=50ms,loss={loss}"));
    Stream { packets, rate: PAPER_RATE, sizes: (16, 16), link, seed, ..Stream::default() }
}

/// Simulates `stream` with `code`, in slices on all cores. Errors: on Ctrl-C, or if a recovered
/// packet differs from the one sent.
pub(super) fn simulate(stream: &Stream, code: &Code) -> Result<Outcome> {
    let slices = stream.packets.div_ceil(SLICE).max(1);
    let next = AtomicU64::new(0);
    let work = |_| -> Result<Vec<(u64, Outcome)>> {
        let mut done = Vec::new();
        loop {
            stop::check()?;
            match next.fetch_add(1, Ordering::Relaxed) {
                n if n < slices => done.push((n, slice(stream, code, n)?)),
                _ => return Ok(done),
            }
        }
    };
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let mut outcomes: Vec<_> = parallel(0..cores, work)?.into_iter().flatten().collect();
    outcomes.sort_by_key(|(n, _)| *n);
    let all = outcomes.into_iter().map(|(_, outcome)| outcome).reduce(join).unwrap_or_default();
    ensure!(all.garbled == 0, "{code}: {} packets were recovered wrongly", all.garbled);
    Ok(all)
}

/// Simulates slice `n` of a stream, with its own seed.
fn slice(stream: &Stream, code: &Code, n: u64) -> Result<Outcome> {
    let packets = (stream.packets - n * SLICE).min(SLICE);
    let seed = stream.seed.wrapping_mul(1_000_003).wrapping_add(n);
    let part = Stream { packets, seed, ..stream.clone() };
    let mut encoder = code.build_encoder(1)?;
    Ok(part.run(&mut *encoder, &mut AnyDecoder::new(64 << 20)))
}

/// Concatenates two slices; the packet numbers of the second continue those of the first.
fn join(mut all: Outcome, mut next: Outcome) -> Outcome {
    next.lost.iter_mut().for_each(|lost| lost.seq += all.packets);
    all.lost.append(&mut next.lost);
    all.packets += next.packets;
    all.packet_bytes += next.packet_bytes;
    all.repairs += next.repairs;
    all.repair_bytes += next.repair_bytes;
    all.garbled += next.garbled;
    all.repeated += next.repeated;
    all.decoder_memory = all.decoder_memory.max(next.decoder_memory);
    all
}

/// Share of the lost packets that was recovered, with its uncertainty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Share {
    /// Value from 0 to 1.
    pub(super) value: f64,
    /// Standard error of the value.
    pub(super) error: f64,
    /// Number of loss events on which the value is based.
    pub(super) events: usize,
}

impl Share {
    /// Returns the half-width of the confidence interval: three standard errors, plus the
    /// uncertainty of a share of 0 or 1 over this number of events.
    pub(super) fn margin(&self) -> f64 {
        3.0 * self.error + 3.0 / self.events.max(1) as f64
    }

    /// Returns the uncertainty for another number of events of the same process.
    pub(super) fn over(&self, events: usize) -> Share {
        let error = self.error * (self.events as f64 / events.max(1) as f64).sqrt();
        Share { events, error, ..*self }
    }
}

/// Returns a bound within `margin` of `middle`, rounded outwards to four digits.
pub(super) fn around(middle: f64, margin: f64) -> Bound {
    let least = ((middle - margin).max(0.0) * 1e4).floor() / 1e4;
    Bound::Within(least, ((middle + margin).min(1.0) * 1e4).ceil() / 1e4)
}

/// Returns the share of lost packets that was recovered. Its error is computed from batches,
/// since packets of one burst or block are recovered or lost together.
pub(super) fn recovered(outcome: &Outcome) -> Share {
    let value = outcome.recovered_share();
    let batches = outcome.lost.chunk_by(|a, b| a.seq / BATCH == b.seq / BATCH);
    let strays = batches.map(|batch| {
        let back = batch.iter().filter(|lost| lost.recovery.is_some()).count();
        (back as f64 - value * batch.len() as f64).powi(2)
    });
    let error = strays.sum::<f64>().sqrt() / outcome.lost.len().max(1) as f64;
    Share { value, error, events: events(outcome).count() }
}

/// Returns the loss events: maximal runs of adjacent lost packets.
pub(super) fn events(outcome: &Outcome) -> impl Iterator<Item = &[Lost]> {
    outcome.lost.chunk_by(|a, b| a.seq + 1 == b.seq)
}

/// Returns recovery latencies in milliseconds.
pub(super) fn latencies_ms(outcome: &Outcome) -> Vec<f64> {
    let recovered = outcome.lost.iter().filter_map(|lost| lost.recovery);
    recovered.map(|after| after.as_secs_f64() * 1e3).collect()
}

/// Returns bars of `width`: the centre of each, and the percentage of `values` in it.
pub(super) fn histogram(values: &[f64], width: f64) -> Vec<(f64, f64)> {
    let bin = |value: &f64| (value / width) as usize;
    let bins = values.iter().map(bin).max().map_or(0, |last| last + 1);
    let mut counts = vec![0usize; bins];
    values.iter().for_each(|value| counts[bin(value)] += 1);
    let percent = |count: usize| 100.0 * count as f64 / values.len() as f64;
    counts.into_iter().enumerate().map(|(n, c)| ((n as f64 + 0.5) * width, percent(c))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_continue_one_stream() {
        let stream = paper_flow("1%x5", 2 * SLICE + 1000, 1);
        let outcome = simulate(&stream, &layers(8, &[1, 11, 19])).unwrap();
        assert_eq!(outcome.packets, 2 * SLICE + 1000);
        assert!(outcome.lost.is_sorted_by_key(|lost| lost.seq), "numbers must continue");
        assert!(outcome.lost.last().unwrap().seq > 2 * SLICE);
        let lost = outcome.lost.len() as f64 / outcome.packets as f64;
        assert!((lost - 0.01).abs() < 0.001, "{lost}");
        assert_eq!(outcome, simulate(&stream, &layers(8, &[1, 11, 19])).unwrap());
    }

    #[test]
    fn the_error_matches_the_spread_over_seeds() {
        let of = |seed| {
            let stream = paper_flow("1%x20", 100_000, seed);
            recovered(&simulate(&stream, &layers(8, &[1, 11, 19])).unwrap())
        };
        let shares: Vec<Share> = (0..20).map(of).collect();
        let values: Vec<f64> = shares.iter().map(|share| share.value).collect();
        let middle = mean(&values);
        let stray = (values.iter().map(|v| (v - middle).powi(2)).sum::<f64>() / 19.0).sqrt();
        let said = mean(&shares.iter().map(|share| share.error).collect::<Vec<_>>());
        assert!((0.5..2.0).contains(&(said / stray)), "reported {said}, observed {stray}");
    }

    #[test]
    fn a_histogram_has_a_bar_for_each_width() {
        let bars = [(0.5, 50.0), (1.5, 25.0), (2.5, 0.0), (3.5, 25.0)];
        assert_eq!(histogram(&[0.2, 0.4, 1.1, 3.9], 1.0), bars);
    }
}

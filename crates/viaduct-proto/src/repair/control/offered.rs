//! Offered load: rate at which packets leave the peer, by their send times.
//!
//! A policer, or a very short queue, drops packets above its rate without a rise in delay. Losses
//! then occur when the load is high: for some time, or at the end of a burst of some milliseconds.

use super::histogram::{Histogram, Verdict};
use crate::time::{Duration, Instant};

/// Time constant of the packet rate, in microseconds.
const SPAN: f64 = 100_000.0;
/// Half-life of the counted loads. The half-life is short, because losses that begin while the load
/// is steady occur only at this load, and would seem to be caused by it.
const HALF_LIFE: Duration = Duration::from_secs(2);
/// Time constant of the packet rate within bursts.
const BURST_SPAN: f64 = 4_000.0;
/// Half-life of the counted loads within bursts: one flow causes few bursts a second.
const BURST_HALF_LIFE: Duration = Duration::from_secs(8);
/// Ratio of the loss rates at high and at low loads that may arise by chance: the load may stay
/// almost constant for a long time, and all losses of that time then occur at about the same load.
const OFTEN: f64 = 2.0;
/// Number of load units for one packet a second. Loads below 16 packets a second are not
/// distinguished.
const UNITS: f64 = 64.0;

/// Offered load of the packets from one peer.
#[derive(Debug)]
pub struct Offered {
    /// Send time of the last packet, in microseconds of the peer's clock.
    last: Option<u32>,
    steady: Load,
    burst: Load,
}

/// Load on one scale of time.
#[derive(Debug)]
struct Load {
    /// Time constant of the packet rate, in microseconds.
    span: f64,
    /// Decaying count of recent packets.
    packets: f64,
    histogram: Histogram,
}

impl Default for Offered {
    fn default() -> Self {
        let load = |span, half_life| {
            let histogram = Histogram::new(half_life, 0.0, OFTEN);
            Load { span, packets: 0.0, histogram }
        };
        Offered {
            last: None,
            steady: load(SPAN, HALF_LIFE),
            burst: load(BURST_SPAN, BURST_HALF_LIFE),
        }
    }
}

impl Offered {
    /// Records the send time of the next packet.
    pub fn send(&mut self, sent: u32) {
        let last = self.last.replace(sent).unwrap_or(sent);
        // Reordered packets have left at about the same time.
        let apart = sent.wrapping_sub(last).cast_signed().max(0);
        for load in [&mut self.steady, &mut self.burst] {
            load.packets = 1.0 + load.packets * (-f64::from(apart) / load.span).exp();
        }
    }

    /// Counts the packet of the last [`Offered::send`] as arrived.
    pub fn arrive(&mut self, now: Instant) {
        for load in [&mut self.steady, &mut self.burst] {
            load.histogram.arrive(now, load.value());
        }
    }

    /// Counts the packet of the last [`Offered::send`] as lost, or a run of lost packets that
    /// begins with it. Returns whether the load is the cause.
    pub fn lose(&mut self) -> bool {
        let is_steady = self.steady.lose();
        self.burst.lose() || is_steady
    }
}

impl Load {
    fn lose(&mut self) -> bool {
        let (value, peak) = (self.value(), self.histogram.peak());
        self.histogram.lose(value, peak) == Verdict::Congestion
    }

    /// Load in packets a second, times [`UNITS`].
    fn value(&self) -> i64 {
        (UNITS * self.packets * 1e6 / self.span) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends packets for a minute at a load that follows a sawtooth from 3,000 to 10,000 packets a
    /// second; `lost` selects the lost packets by their number and the load. Returns the number of
    /// losses attributed to the load, and the number of all losses.
    fn judge(mut lost: impl FnMut(u64, f64) -> bool) -> (usize, usize) {
        let (mut offered, mut at) = (Offered::default(), 0.0_f64);
        let (mut attributed, mut all, mut n) = (0, 0, 0);
        while at < 60e6 {
            let pace = 3_000.0 + 7_000.0 * (at / 5e6).fract();
            at += 1e6 / pace;
            n += 1;
            offered.send(4_000_000_000u32.wrapping_add(at as u32));
            if lost(n, pace) {
                all += 1;
                attributed += usize::from(offered.lose());
            } else {
                offered.arrive(Instant::ZERO + Duration::from_micros(at as u64));
            }
        }
        (attributed, all)
    }

    #[test]
    fn only_drops_by_a_policer_are_attributed_to_the_load() {
        let (attributed, all) = judge(|n, pace| pace > 9_000.0 && n % 10 == 0);
        assert!(attributed * 10 > all * 9, "{attributed} of {all}");
        for every in [10, 101, 997] {
            let (attributed, all) = judge(|n, _| n % every == 0);
            assert!(attributed * 1_000 < all.max(1_000), "{attributed} of {all}");
        }
    }

    /// Sends bursts of 4 to 32 packets for a minute, ten a second, through a queue of 16 packets
    /// that drains at a tenth of the rate of a burst; `lost` selects other lost packets by their
    /// number. Counts only runs of losses after the first ten seconds: returns the number of runs
    /// attributed to the load, and the number of all runs.
    fn judge_bursts(queue: f64, lost: impl Fn(u64) -> bool) -> (usize, usize) {
        const APART: f64 = 12.0;
        let (mut offered, mut rng) = (Offered::default(), crate::rng::Rng::from_seed(3));
        let (mut attributed, mut all, mut n) = (0, 0, 0);
        for burst in 0..600 {
            let mut waiting = 0.0_f64;
            let mut was_lost = false;
            for of_burst in 0..4 + rng.below(29) {
                let at = f64::from(burst) * 1e5 + of_burst as f64 * APART;
                offered.send(at as u32);
                n += 1;
                waiting = (waiting - 0.1).max(0.0);
                let is_lost = waiting + 1.0 > queue || lost(n);
                if !is_lost {
                    waiting += 1.0;
                    offered.arrive(Instant::ZERO + Duration::from_micros(at as u64));
                } else if !was_lost {
                    let is_load = offered.lose();
                    all += usize::from(burst >= 100);
                    attributed += usize::from(is_load && burst >= 100);
                }
                was_lost = is_lost;
            }
        }
        (attributed, all)
    }

    #[test]
    fn only_drops_at_the_end_of_bursts_are_attributed_to_the_load() {
        let (attributed, all) = judge_bursts(16.0, |_| false);
        assert!(all > 300 && attributed * 10 > all * 9, "{attributed} of {all}");
        for every in [10, 101] {
            let (attributed, all) = judge_bursts(f64::INFINITY, |n| n % every == 0);
            assert!(attributed * 1_000 < all.max(1_000), "{attributed} of {all}");
        }
    }
}

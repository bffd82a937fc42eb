//! Token bucket for the bytes of repairs.

use crate::time::{Duration, Instant};

/// Time over which unused tokens accumulate.
const BURST: Duration = Duration::from_millis(20);
/// Minimum size of the bucket, in bytes: enough for a few repairs of the longest packets.
const MIN_BURST: f64 = 6_000.0;
/// Share of the bucket that is reserved for copies.
const RESERVE: f64 = 0.5;

/// Token bucket for repairs.
#[derive(Debug)]
pub(super) struct Allowance {
    /// Bytes a second; `None` for no limit.
    pub(super) rate: Option<f64>,
    tokens: f64,
    filled: Instant,
}

impl Allowance {
    pub(super) fn new(now: Instant, rate: Option<f64>) -> Self {
        Allowance { rate, tokens: 0.0, filled: now }
    }

    /// Takes tokens for `bytes` bytes of copies; returns whether the copies may be sent now.
    pub(super) fn take(&mut self, now: Instant, bytes: usize) -> bool {
        self.take_above(now, bytes, 0.0)
    }

    /// Takes tokens for `bytes` bytes of other repairs, but leaves a reserve for copies; returns
    /// whether the repairs may be sent now.
    pub(super) fn take_spare(&mut self, now: Instant, bytes: usize) -> bool {
        self.take_above(now, bytes, RESERVE)
    }

    /// Takes tokens if at least the share `reserve` of the bucket remains afterwards.
    fn take_above(&mut self, now: Instant, bytes: usize, reserve: f64) -> bool {
        let Some(rate) = self.rate else { return true };
        let passed = now.since(std::mem::replace(&mut self.filled, now));
        let most = (rate * BURST.as_secs_f64()).max(MIN_BURST);
        self.tokens = (self.tokens + rate * passed.as_secs_f64()).min(most);
        let fits = self.tokens >= bytes as f64 + reserve * most;
        if fits {
            self.tokens -= bytes as f64;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_limited_to_the_rate_and_a_burst() {
        let mut of = Allowance::new(Instant::ZERO, Some(125_000.0));
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let second = (0..1_000).filter(|&n| of.take(at(n), 1_250)).count();
        assert!((90..=100).contains(&second), "{second}");
        let burst = (0..100).filter(|_| of.take(at(60_000), 1_000)).count();
        assert_eq!(burst, 6);
        let others = (0..100).filter(|_| of.take_spare(at(120_000), 1_000)).count();
        let copies = (0..100).filter(|_| of.take(at(120_000), 1_000)).count();
        assert_eq!((others, copies), (3, 3), "half is reserved for copies");
        let mut unbounded = Allowance::new(Instant::ZERO, None);
        assert!((0..100).all(|_| unbounded.take(at(0), 1 << 20)));
    }
}

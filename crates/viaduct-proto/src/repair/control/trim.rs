//! Correction of the overhead according to its outcome: the losses that flows have seen.

use crate::time::{Duration, Instant};

/// Bounds of the correction.
const TRIM: [f64; 2] = [0.75, 1.5];
/// Factors by which the correction is raised and lowered. The correction is raised if the rate of
/// visible loss events over at least [`LOOK`] exceeds [`TOO_MANY`] times the target, and lowered
/// after [`CALM`] without such events.
const TRIM_STEPS: [f64; 2] = [1.1, 0.97];
const LOOK: Duration = Duration::from_secs(5);
const TOO_MANY: f64 = 3.0;
/// Time without a visible loss event after which the correction may be lowered.
const CALM: Duration = Duration::from_secs(30);
/// Time after the start of repairs in which reported visible losses may date from before the
/// repairs.
const SETTLES: Duration = Duration::from_secs(2);

/// Factor of the computed overhead.
#[derive(Debug)]
pub(super) struct Trim {
    pub(super) factor: f64,
    /// Time at which the outcomes were last evaluated.
    looked: Instant,
    /// Number of visible losses at that time.
    visible: u64,
    /// Time of the last visible loss.
    seen: Option<Instant>,
}

impl Trim {
    /// Creates a correction with the factor 1.
    pub(super) fn new(now: Instant) -> Self {
        Trim { factor: 1.0, looked: now, visible: 0, seen: None }
    }

    /// Takes over the factor of the previous process.
    pub(super) fn resume(&mut self, now: Instant, factor: f64, visible: u64) {
        let factor = factor.clamp(TRIM[0], TRIM[1]);
        *self = Trim { factor, looked: now, visible, seen: Some(now) };
    }

    /// Raises the correction if flows see losses much more often than `target` times a second, and
    /// slowly lowers it if they see none. `visible` is the number of these losses, `old` the number
    /// in the previous report, and `begun` the start of the repairs. Returns the factor.
    pub(super) fn correct(
        &mut self,
        now: Instant,
        (old, visible): (u64, u64),
        begun: Option<Instant>,
        target: f64,
    ) -> f64 {
        if visible > old {
            self.seen = Some(now);
        }
        // Losses from before repairs began are no reason for more repairs.
        if begun.is_none_or(|at| now.since(at) < SETTLES) {
            (self.visible, self.looked) = (visible, now);
            return self.factor;
        }
        let since = now.since(self.looked);
        if since < LOOK {
            return self.factor;
        }
        let seen = visible.saturating_sub(self.visible) as f64 / since.as_secs_f64();
        let calm = self.seen.is_none_or(|at| now.since(at) >= CALM);
        let step = match () {
            () if seen > TOO_MANY * target => TRIM_STEPS[0],
            () if seen > 0.0 || !calm => 1.0,
            () if since >= CALM => TRIM_STEPS[1],
            () => return self.factor,
        };
        self.factor = (self.factor * step).clamp(TRIM[0], TRIM[1]);
        (self.visible, self.looked) = (visible, now);
        self.factor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_losses_raise_the_factor_and_calm_lowers_it() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut trim = Trim::new(at(0));
        assert_eq!(trim.correct(at(1), (0, 9), None, 0.03), 1.0, "before the repairs");
        assert_eq!(trim.correct(at(2), (9, 9), Some(at(1)), 0.03), 1.0, "just begun");
        let mut correct = |seconds, visible| trim.correct(at(seconds), visible, Some(at(1)), 0.03);
        assert_eq!(correct(7, (9, 12)), 1.1);
        assert_eq!(correct(12, (12, 12)), 1.1, "seen a moment ago");
        assert_eq!(correct(40, (12, 12)), 1.1, "too early after the last visible loss");
        let trimmed = correct(80, (12, 12));
        assert!((trimmed - 1.1 * 0.97).abs() < 1e-9, "{trimmed}");
    }
}

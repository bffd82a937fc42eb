//! Recurrence of random losses: whether they continue, or begin after a quiet time.

use super::{FIRST, MIN_OVERHEAD, PRIOR, RECURS};
use crate::time::{Duration, Instant};

/// Time without losses before an onset.
const QUIET: Duration = Duration::from_secs(10);
/// Time from the start of an onset in which bursts are counted.
const ONSET: Duration = Duration::from_secs(1);
/// Maximum number of bursts within [`ONSET`] that may all be due to an undetected full queue.
const FEW: u64 = 12;
/// Time in which a clean link has fewer than [`RECURS`] loss bursts.
const CLEAN: Duration = Duration::from_secs(60);

/// Onset of losses after a quiet time.
#[derive(Clone, Copy, Debug)]
struct Onset {
    since: Instant,
    bursts: u64,
}

/// Latest random losses.
#[derive(Debug, Default)]
pub(super) struct Recurrence {
    /// Times at which the latest bursts were reported, newest first.
    lost: [Option<Instant>; RECURS],
    onset: Option<Onset>,
}

impl Recurrence {
    /// Handles a report of `new` bursts. If `is_unknown` is set, too little is known of the link to
    /// call bursts an onset. Returns whether an onset has ended.
    pub(super) fn handle_bursts(&mut self, now: Instant, new: u64, is_unknown: bool) -> bool {
        if new > 0 && !is_unknown && self.lost[0].is_none_or(|at| now.since(at) >= QUIET) {
            self.onset = Some(Onset { since: now, bursts: 0 });
        }
        let was_onset = self.onset.is_some();
        self.onset = self.onset.filter(|onset| now.since(onset.since) < ONSET);
        let onset = self.onset.iter_mut();
        onset.for_each(|onset| onset.bursts = onset.bursts.saturating_add(new));
        let new = new.min(RECURS as u64) as usize;
        self.lost.rotate_right(new);
        self.lost[..new].fill(Some(now));
        was_onset && self.onset.is_none()
    }

    /// Times at which the latest bursts were reported, newest first.
    pub(super) fn lost(&self) -> impl Iterator<Item = Instant> {
        self.lost.iter().flatten().copied()
    }

    /// Takes over the times of losses from the previous process.
    pub(super) fn resume(&mut self, lost: impl Iterator<Item = Instant>) {
        self.lost = Default::default();
        self.lost.iter_mut().zip(lost).for_each(|(place, at)| *place = Some(at));
    }

    pub(super) fn has_losses(&self) -> bool {
        self.lost[0].is_some()
    }

    /// Returns the lower bound of the overhead: high during an onset with many bursts, lower during
    /// an onset with few bursts, low after recurring losses until the link is clean, and otherwise
    /// 0.
    pub(super) fn floor(&self, now: Instant) -> f64 {
        let is_lossy = self.lost[RECURS - 1].is_some_and(|at| now.since(at) < CLEAN);
        match self.onset.map_or(0, |onset| onset.bursts) {
            bursts if bursts > FEW => FIRST,
            bursts if bursts >= RECURS as u64 => PRIOR,
            _ if is_lossy => MIN_OVERHEAD,
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_onset_raises_the_floor_until_it_ends() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let mut recurrence = Recurrence::default();
        recurrence.handle_bursts(at(0), 2, false);
        assert_eq!(recurrence.floor(at(0)), 0.0);
        recurrence.handle_bursts(at(100), 1, false);
        assert_eq!(recurrence.floor(at(100)), PRIOR);
        recurrence.handle_bursts(at(200), FEW, false);
        assert_eq!(recurrence.floor(at(200)), FIRST);
        assert!(!recurrence.handle_bursts(at(999), 0, false));
        assert!(recurrence.handle_bursts(at(1_000), 0, false));
        assert_eq!(recurrence.floor(at(1_000)), MIN_OVERHEAD);
        assert_eq!(recurrence.floor(at(60_200)), 0.0);
    }
}

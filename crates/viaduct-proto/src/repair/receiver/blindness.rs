//! Packets that the tap may have missed, which are not counted as lost.

use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// Time after the arrival of a packet within which its name arrives: a busy peer does not name
/// packets that have waited longer in its tap.
const NAMED_WITHIN: Duration = Duration::from_millis(60);

/// Packets that the tap may have missed: such a packet may be missing without being lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Blindness {
    /// The peer has not sent a report yet. The first report gives the highest number from before
    /// this receiver started.
    #[default]
    Untold,
    /// All packets were seen.
    No,
    /// Some packets were missed recently; packets named until this time may be among them.
    Until(Instant),
    /// Packets up to this number may have been missed.
    UpTo(Seq),
}

impl Blindness {
    /// Records that the tap has missed packets.
    pub(super) fn miss(&mut self, now: Instant) {
        if *self != Blindness::Untold {
            *self = Blindness::Until(now + NAMED_WITHIN);
        }
    }

    /// Records that the peer's next packet has number `next`.
    pub(super) fn told(&mut self, next: Seq) {
        match (*self, next.checked_sub(1)) {
            (Blindness::Untold, None) => *self = Blindness::No,
            (Blindness::Untold, Some(last)) => *self = Blindness::UpTo(last),
            // The peer has restarted with a clock that was set back.
            (Blindness::UpTo(seq), Some(last)) if last < seq => *self = Blindness::UpTo(last),
            _ => {}
        }
    }

    /// Returns whether packets from `first` to `last`, named just now, may have been missed.
    /// Packets below `floor` have settled.
    pub(super) fn covers(&mut self, now: Instant, (first, last): (Seq, Seq), floor: Seq) -> bool {
        match *self {
            Blindness::Until(end) => {
                if now >= end {
                    *self = Blindness::UpTo(last);
                }
                true
            }
            Blindness::UpTo(seq) if seq < floor => {
                *self = Blindness::No;
                false
            }
            Blindness::UpTo(seq) => first <= seq,
            Blindness::Untold => true,
            Blindness::No => false,
        }
    }

    /// Returns the first number, `next` or higher, whose packet the tap cannot have missed.
    pub(super) fn first_seen(&self, next: Seq) -> Seq {
        match self {
            Blindness::UpTo(seq) => next.max(seq.saturating_add(1)),
            _ => next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_missed_by_the_tap_are_covered_until_they_settle() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let mut blindness = Blindness::default();
        blindness.miss(at(0));
        assert!(blindness.covers(at(100), (50, 60), 0), "the peer has sent no report yet");
        blindness.told(11);
        assert!(blindness.covers(at(100), (10, 20), 0));
        assert!(!blindness.covers(at(100), (11, 20), 0));
        assert_eq!((blindness.first_seen(5), blindness.first_seen(20)), (11, 20));
        assert!(!blindness.covers(at(100), (11, 20), 11));
        assert_eq!(blindness, Blindness::No);
        blindness.miss(at(200));
        assert!(blindness.covers(at(259), (30, 40), 0));
        assert!(blindness.covers(at(260), (41, 50), 0));
        assert_eq!(blindness, Blindness::UpTo(50));
        blindness.told(31);
        assert_eq!(blindness, Blindness::UpTo(30), "the peer has restarted");
    }
}

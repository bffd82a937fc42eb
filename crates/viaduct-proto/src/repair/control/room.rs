//! Share of the repairs that is still sent while a queue drops packets.

use crate::time::{Duration, Instant};

/// Time for which a queue must drop packets before the overhead is halved. If the flows that fill
/// the queue slow down, the drops end earlier. Repairs must not be reduced in that case: random
/// losses would no longer be repaired, and would slow these flows down again.
const FIRST_HALVING: Duration = Duration::from_millis(1_200);
/// Time from each halving to the next.
const HALVING_INTERVAL: Duration = Duration::from_millis(50);
/// Time without drops after which a queue is no longer full.
const DRAINED: Duration = Duration::from_millis(500);

/// State while a full queue drops packets.
#[derive(Clone, Copy, Debug)]
struct Drops {
    /// Factor of the overhead.
    share: f64,
    /// Earliest time of the next halving.
    due: Instant,
    /// Time of the last drop.
    last: Instant,
}

/// Share of the repair rate that remains while a queue drops packets.
#[derive(Debug, Default)]
pub(in crate::repair) struct Room {
    drops: Option<Drops>,
}

impl Room {
    /// Share that remains; 1 without drops.
    pub(in crate::repair) fn share(&self) -> f64 {
        self.drops.map_or(1.0, |drops| drops.share)
    }

    /// Handles drops by a queue. Repairs may have caused them, so the rate of repairs is reduced
    /// while the drops last.
    pub(in crate::repair) fn handle_drops(&mut self, now: Instant) {
        self.settle(now);
        let begun = Drops { share: 1.0, due: now + FIRST_HALVING, last: now };
        let mut drops = Drops { last: now, ..self.drops.unwrap_or(begun) };
        if now >= drops.due {
            (drops.share, drops.due) = (drops.share / 2.0, now + HALVING_INTERVAL);
        }
        self.drops = Some(drops);
    }

    /// Ends the reduction if the queue is no longer full.
    pub(super) fn settle(&mut self, now: Instant) {
        self.drops = self.drops.filter(|drops| now.since(drops.last) < DRAINED);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuing_drops_halve_the_rate_until_they_end() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let mut room = Room::default();
        let shares = [0, 400, 800, 1_199, 1_200, 1_249, 1_250].map(|millis| {
            room.handle_drops(at(millis));
            room.share()
        });
        assert_eq!(shares, [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.25]);
        room.settle(at(1_749));
        assert_eq!(room.share(), 0.25);
        room.settle(at(1_750));
        assert_eq!(room.share(), 1.0);
    }
}

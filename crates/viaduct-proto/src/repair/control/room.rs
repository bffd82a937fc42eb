//! Room for repairs while a queue drops packets.

use crate::time::{Duration, Instant};

/// Time for which a queue has to drop packets before the overhead is halved. Drops that flows
/// cause which slow down end sooner; losses by chance then need full repairs, or the flows
/// would slow down again. [`YIELDS`]: time until the next halving. [`RECOVERS`]: time without
/// drops after which a queue is no longer full.
const PERSISTS: Duration = Duration::from_millis(1_200);
const YIELDS: Duration = Duration::from_millis(50);
const RECOVERS: Duration = Duration::from_millis(500);

/// Present drops of a full queue.
#[derive(Clone, Copy, Debug)]
struct Drops {
    /// Factor of the overhead.
    share: f64,
    /// Time of the next halving, and time of the last drop.
    due: Instant,
    last: Instant,
}

/// Share of the repair rate that remains while a queue drops packets.
#[derive(Debug, Default)]
pub(super) struct Room {
    drops: Option<Drops>,
}

impl Room {
    /// Share that remains; 1 without drops.
    pub(super) fn share(&self) -> f64 {
        self.drops.map_or(1.0, |drops| drops.share)
    }

    /// Notes that a queue has dropped packets.
    pub(super) fn handle_drops(&mut self, now: Instant) {
        self.settle(now);
        let begun = Drops { share: 1.0, due: now + PERSISTS, last: now };
        let mut drops = Drops { last: now, ..self.drops.unwrap_or(begun) };
        if now >= drops.due {
            (drops.share, drops.due) = (drops.share / 2.0, now + YIELDS);
        }
        self.drops = Some(drops);
    }

    /// Ends the reduction if the queue is no longer full.
    pub(super) fn settle(&mut self, now: Instant) {
        self.drops = self.drops.filter(|drops| now.since(drops.last) < RECOVERS);
    }
}

//! Packets or datagrams sent to this side, and losses among them, by their numbers.

/// Packets or datagrams sent, and the number of them that were lost. A late arrival reduces the
/// number of losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::repair) struct Tally {
    pub(in crate::repair) sent: u64,
    pub(in crate::repair) lost: u64,
}

impl Tally {
    /// Share that was lost since `before`; 0 if nothing was sent.
    pub(in crate::repair) fn loss_since(self, before: Tally) -> f64 {
        let lost = self.lost.saturating_sub(before.lost);
        lost as f64 / self.sent.saturating_sub(before.sent).max(1) as f64
    }

    /// Counts the arrival of the packet or datagram with this number; `next` is the number after
    /// the highest one that has arrived.
    pub(super) fn count(&mut self, next: &mut u64, number: u64) {
        let skipped = number.checked_sub(*next);
        match skipped {
            Some(skipped) => {
                self.sent = self.sent.saturating_add(skipped).saturating_add(1);
                self.lost = self.lost.saturating_add(skipped);
            }
            None => self.lost = self.lost.saturating_sub(1),
        }
        *next = (*next).max(number.saturating_add(1));
    }
}

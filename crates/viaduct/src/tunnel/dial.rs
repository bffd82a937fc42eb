//! Timing of a link's dials: at the start, and after a failure.

use std::time::Duration;

use viaduct_proto::time::Instant;

/// Delay of the next dial after the loss of a link that was up. Each failed dial doubles the delay.
const MIN_DELAY: Duration = Duration::from_millis(100);
/// Maximum delay of the next dial.
const MAX_DELAY: Duration = Duration::from_secs(10);

/// Slot of a link: whenever the link is lost, a new link is dialled for the slot.
#[derive(Debug)]
pub(super) struct Slot {
    /// Key of the current link, if there is one.
    pub(super) link: Option<usize>,
    next: Option<Instant>,
    wait: Duration,
    /// True if the link is no longer wanted.
    retired: bool,
}

impl Slot {
    /// Returns a slot whose link is to be dialled immediately.
    pub(super) fn new(now: Instant) -> Slot {
        Slot { link: None, next: Some(now), wait: MIN_DELAY, retired: false }
    }

    /// Time of the next dial.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.next
    }

    /// Records that a dial has begun; `link` is the key of the new link.
    pub(super) fn dialled(&mut self, link: usize) {
        (self.link, self.next) = (Some(link), None);
    }

    /// Records the loss of the link, or a failed dial; `up` is true if the link had come up.
    pub(super) fn failed(&mut self, up: bool, now: Instant) {
        self.wait = if up { MIN_DELAY } else { (self.wait * 2).min(MAX_DELAY) };
        self.link = None;
        self.next = (!self.retired).then_some(now + self.wait);
    }

    /// Stops dialling.
    pub(super) fn retire(&mut self) {
        (self.retired, self.next) = (true, None);
    }

    /// Returns whether the link is no longer wanted.
    pub(super) fn is_retired(&self) -> bool {
        self.retired
    }

    /// Resumes dialling if it was stopped.
    pub(super) fn revive(&mut self, now: Instant) {
        if std::mem::replace(&mut self.retired, false) && self.link.is_none() {
            self.next = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit_and_restart_after_the_link_was_up() {
        let mut slot = Slot::new(Instant::ZERO);
        let mut waits = Vec::new();
        for up in [false, false, false, false, false, false, false, false, true] {
            slot.dialled(1);
            assert_eq!(slot.poll_timeout(), None);
            slot.failed(up, Instant::ZERO);
            waits.push(slot.poll_timeout().unwrap().since(Instant::ZERO).as_millis());
        }
        assert_eq!(waits, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000, 100]);
        slot.retire();
        slot.failed(true, Instant::ZERO);
        assert_eq!(slot.poll_timeout(), None);
        slot.revive(Instant::ZERO);
        assert!(slot.poll_timeout().is_some());
    }
}

//! The last request, said once more where nothing comes: it may be what was lost, or whoever had it.
//!
//! A server that has answered it refuses it, which costs nothing but its bytes. One that has not brings what it and those
//! before it were to bring, as for any lost request. So the last requests before a silence need no timeout, and a server that takes
//! over from another goes on where that was (tail loss probes: RFC 8985, 7).

use crate::time::{Duration, Instant};

/// So often in a silence at most, each time after half as long again; mostly the timeout ends it sooner.
const MOST: u32 = 6;

/// What there is to repeat.
#[derive(Debug, Default)]
pub(super) struct Repeat {
    message: Vec<u8>,
    /// When it was sent first, and when it was said again the last time.
    sent: Option<Instant>,
    again: Option<Instant>,
    count: u32,
}

impl Repeat {
    /// A request was sent.
    pub(super) fn sent(&mut self, now: Instant, message: &[u8]) {
        self.message.clear();
        self.message.extend_from_slice(message);
        self.sent = Some(now);
    }

    /// A round trip was measured: until then waits stay as long as they have become (RFC 6298, 5), for
    /// it may be the way that has.
    pub(super) fn measured(&mut self) {
        self.count = 0;
    }

    /// What was sent is of no use any more.
    pub(super) fn forget(&mut self) {
        self.sent = None;
    }

    /// When to say it again, if nothing has come since `heard`; `wait`: for its answer.
    pub(super) fn due(&self, heard: Instant, wait: Duration) -> Option<Instant> {
        let since = heard.max(self.sent?);
        let since = if self.count > 0 { since.max(self.again?) } else { since };
        let longer = |wait: Duration| wait * 3_u32.pow(self.count) / 2_u32.pow(self.count);
        (self.count < MOST).then(|| since + longer(wait))
    }

    /// It is said again.
    pub(super) fn take(&mut self, now: Instant) -> Vec<u8> {
        (self.again, self.count) = (Some(now), self.count + 1);
        self.message.clone()
    }

    /// Whether the answer to what was sent then says how long the way is: it is the answer to nothing else.
    pub(super) fn is_plain(&self, sent: Instant) -> bool {
        self.again.is_none_or(|again| sent > again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_due_a_few_times_in_a_silence_and_each_time_later() {
        let at = |millis: u64| Instant::from_nanos(millis * 1_000_000);
        let (mut repeat, wait) = (Repeat::default(), Duration::from_millis(20));
        assert_eq!(repeat.due(at(0), wait), None, "nothing was sent");
        repeat.sent(at(5), b"request");
        let mut before = at(5);
        for micros in [20_000, 30_000, 45_000, 67_500, 101_250, 151_875] {
            before += Duration::from_micros(micros);
            assert_eq!(repeat.due(at(3), wait), Some(before));
            assert_eq!(repeat.take(before), b"request");
        }
        assert_eq!(repeat.due(at(3), wait), None);
        assert!(!repeat.is_plain(before) && repeat.is_plain(before + wait));
        repeat.measured();
        assert_eq!(repeat.due(at(500), wait), Some(at(520)));
        repeat.forget();
        assert_eq!(repeat.due(at(500), wait), None);
    }
}

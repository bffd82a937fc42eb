//! Repetition of the last request during a silence: the request or its answer may be lost, or the
//! server may have been replaced.
//!
//! A server that has answered the request refuses the copy as replayed, which costs only the copy's
//! bytes. A server that has not answered it sends the packets for this request and for the lost
//! requests before it, as after any lost request. So the loss of the last requests before a silence
//! causes no timeout, and a server that takes over from another server continues where that server
//! stopped (tail loss probes: RFC 8985, 7).

use crate::time::{Duration, Instant};

/// Maximum number of repetitions in a silence. The interval grows by half each time; usually
/// the timeout ends the silence earlier.
const MAX_REPEATS: u32 = 6;

#[derive(Debug, Default)]
pub(super) struct Repeat {
    message: Vec<u8>,
    /// Time of the first transmission of `message`; `None` if there is nothing to repeat.
    sent: Option<Instant>,
    /// Time of the last repetition of any request.
    again: Option<Instant>,
    /// Number of repetitions since the last round-trip sample. The interval is shortened only after
    /// a new sample (RFC 6298, 5), because the path's delay may have grown.
    pub(super) count: u32,
}

impl Repeat {
    /// Records a request that was sent.
    pub(super) fn sent(&mut self, now: Instant, message: &[u8]) {
        self.message.clear();
        self.message.extend_from_slice(message);
        self.sent = Some(now);
    }

    pub(super) fn forget(&mut self) {
        self.sent = None;
    }

    /// Time of the next repetition if nothing has arrived since `heard`; `wait` is the first
    /// interval. `None` if there is nothing to repeat, or after [`MAX_REPEATS`] repetitions.
    pub(super) fn due(&self, heard: Instant, wait: Duration) -> Option<Instant> {
        let since = heard.max(self.sent?);
        let since = if self.count > 0 { since.max(self.again?) } else { since };
        let longer = |wait: Duration| wait * 3_u32.pow(self.count) / 2_u32.pow(self.count);
        (self.count < MAX_REPEATS).then(|| since + longer(wait))
    }

    /// Returns the request, to be sent again.
    pub(super) fn take(&mut self, now: Instant) -> Vec<u8> {
        (self.again, self.count) = (Some(now), self.count + 1);
        self.message.clone()
    }

    /// Returns whether the answer to a request sent at `sent` is a valid RTT sample (Karn).
    pub(super) fn is_plain(&self, sent: Instant) -> bool {
        self.again.is_none_or(|again| sent > again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repetitions_in_a_silence_are_limited_and_back_off() {
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
        repeat.count = 0;
        assert_eq!(repeat.due(at(500), wait), Some(at(520)));
        repeat.forget();
        assert_eq!(repeat.due(at(500), wait), None);
    }
}

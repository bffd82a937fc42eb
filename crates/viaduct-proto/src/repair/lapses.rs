//! Detection of a network that drops nearly all UDP, but lets handshakes pass now and then: each
//! session falls silent soon after its start, before the losses have been measured.

use crate::time::{Duration, Instant};

/// Time after the start of a session within which a silence is a lapse.
const BRIEF: Duration = Duration::from_secs(30);
/// Number of lapses in a row that show the throttle.
const MAX_LAPSES: u32 = 2;

/// Sessions over UDP that fell silent soon after their start.
#[derive(Debug, Default)]
pub(super) struct Lapses {
    /// Start of the current session.
    begun: Option<Instant>,
    /// True if handshakes were sent because the peer was silent.
    was_silent: bool,
    /// Number of lapses in a row.
    count: u32,
}

impl Lapses {
    /// Records that a handshake is sent because of a silence.
    pub(super) fn handle_silence(&mut self) {
        self.was_silent = true;
    }

    /// Records that a session over UDP starts. Returns true if UDP is throttled; the count then
    /// starts again.
    pub(super) fn handle_session(&mut self, now: Instant) -> bool {
        let is_brief = self.begun.replace(now).is_some_and(|begun| now.since(begun) < BRIEF);
        if std::mem::take(&mut self.was_silent) {
            self.count = if is_brief { self.count + 1 } else { 0 };
        }
        let is_throttled = self.count >= MAX_LAPSES;
        if is_throttled {
            self.count = 0;
        }
        is_throttled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    /// Starts sessions at these times, all but the first after a silence. Returns the times at
    /// which UDP counted as throttled.
    fn throttled_at(starts: &[u64]) -> Vec<u64> {
        let mut lapses = Lapses::default();
        let is_throttled = |&start: &u64| {
            let is_throttled = lapses.handle_session(after(start));
            lapses.handle_silence();
            is_throttled
        };
        starts.iter().copied().filter(is_throttled).collect()
    }

    #[test]
    fn two_short_sessions_in_a_row_show_a_throttle() {
        assert_eq!(throttled_at(&[0, 4, 8, 12, 16]), [8, 16]);
        assert_eq!(throttled_at(&[0, 40, 44, 48]), [48]);
        assert!(throttled_at(&[0, 20, 60, 80, 120]).is_empty(), "with long sessions between them");
    }

    #[test]
    fn sessions_without_a_silence_show_nothing() {
        let mut lapses = Lapses::default();
        assert!((0..9).all(|second| !lapses.handle_session(after(second))));
    }
}

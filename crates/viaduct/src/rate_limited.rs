//! Rate limit for log lines that remote hosts can cause. The same line is logged only a few times
//! per interval. Its first repetition in a later interval also shows how many lines were
//! suppressed.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

/// Interval in which lines of the same key are logged at most `max_lines` times.
const INTERVAL: Duration = Duration::from_secs(60);
/// Maximum number of keys; further keys share one allowance.
const MAX_KEYS: usize = 256;

/// Log whose lines are rate-limited. Lines with the same key count as the same line.
#[derive(Debug)]
pub struct RateLimitedLog<K> {
    /// Maximum number of lines of a key in one interval.
    max_lines: u64,
    counts: Mutex<Counts<K>>,
}

#[derive(Debug)]
struct Counts<K> {
    keys: Option<HashMap<K, LineCount>>,
    /// Common count of all keys beyond [`MAX_KEYS`].
    others: Option<LineCount>,
}

#[derive(Debug)]
struct LineCount {
    since: Instant,
    lines: u64,
    /// Number of lines suppressed in this interval.
    suppressed: u64,
}

impl<K: Eq + Hash> RateLimitedLog<K> {
    /// Creates a log with a limit of `max_lines` lines of a key in one interval.
    pub const fn new(max_lines: u64) -> RateLimitedLog<K> {
        RateLimitedLog { max_lines, counts: Mutex::new(Counts { keys: None, others: None }) }
    }

    /// Logs `line` of `key`, unless it is suppressed.
    pub fn warn(&self, key: K, line: impl std::fmt::Display) {
        match self.count(key, Instant::now()) {
            Some(0) => warn!("{line}"),
            Some(suppressed) => warn!("{line} ({suppressed} suppressed since)"),
            None => {}
        }
    }

    /// Counts a line of `key`. Returns whether the limit allows it to be logged.
    pub fn allows(&self, key: K) -> bool {
        self.count(key, Instant::now()).is_some()
    }

    /// Counts a line of `key`. Returns the number of lines suppressed since the last logged line;
    /// `None` if this line must be suppressed too.
    fn count(&self, key: K, now: Instant) -> Option<u64> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let Counts { keys, others } = &mut *counts;
        let keys = keys.get_or_insert_default();
        if keys.len() >= MAX_KEYS {
            keys.retain(|_, count| now.duration_since(count.since) < INTERVAL);
        }
        let new = LineCount { since: now, lines: 0, suppressed: 0 };
        let count = match keys.len() >= MAX_KEYS && !keys.contains_key(&key) {
            true => others.get_or_insert(new),
            false => keys.entry(key).or_insert(new),
        };
        count.count(self.max_lines, now)
    }
}

impl LineCount {
    fn count(&mut self, max_lines: u64, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= INTERVAL {
            let suppressed = self.suppressed;
            *self = LineCount { since: now, lines: 1, suppressed: 0 };
            return Some(suppressed);
        }
        if self.lines < max_lines {
            self.lines += 1;
            return Some(0);
        }
        self.suppressed += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_messages_are_logged_at_intervals() {
        let log = RateLimitedLog::new(2);
        let now = Instant::now();
        let logged: Vec<_> = (0..5).map(|_| log.count(1, now)).collect();
        assert_eq!(logged, [Some(0), Some(0), None, None, None]);
        assert_eq!(log.count(2, now), Some(0));
        assert_eq!(log.count(1, now + INTERVAL), Some(3));
        assert_eq!(log.count(1, now + INTERVAL), Some(0));
        let logged = (0..2 * MAX_KEYS).filter(|n| log.count(*n, now + INTERVAL).is_some()).count();
        assert!(log.counts.lock().unwrap().keys.as_ref().unwrap().len() <= MAX_KEYS);
        assert_eq!(logged, MAX_KEYS + 1, "keys beyond the limit share one allowance");
    }

    #[test]
    fn a_flood_of_keys_suppresses_another_key_only_for_an_interval() {
        let log = RateLimitedLog::new(1);
        let now = Instant::now();
        (0..MAX_KEYS + 5).for_each(|n| _ = log.count(n, now));
        assert_eq!(log.count(usize::MAX, now), None);
        (0..MAX_KEYS).for_each(|n| _ = log.count(n, now + INTERVAL));
        assert_eq!(log.count(usize::MAX, now + INTERVAL), Some(5));
    }
}

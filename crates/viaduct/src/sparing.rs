//! Rate limit for log lines that remote hosts can cause. Each is logged a few times, and then
//! once in a while with the number of those suppressed.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

/// Interval in which the same line is logged at most `most` times.
const QUIET: Duration = Duration::from_secs(60);
/// Maximum number of keys; further ones share one allowance.
const KEYS: usize = 256;

/// Log lines with a rate limit. Lines of the same key count as the same.
#[derive(Debug)]
pub struct Sparing<K> {
    /// Number of lines of a key in one interval.
    most: u64,
    told: Mutex<Log<K>>,
}

#[derive(Debug)]
struct Log<K> {
    keys: Option<HashMap<K, Told>>,
    /// Count of all keys beyond [`KEYS`].
    others: Option<Told>,
}

#[derive(Debug)]
struct Told {
    since: Instant,
    lines: u64,
    /// Number of lines that were suppressed.
    more: u64,
}

impl<K: Eq + Hash> Sparing<K> {
    /// Creates a limit of `most` lines of a key in one interval.
    pub const fn new(most: u64) -> Sparing<K> {
        Sparing { most, told: Mutex::new(Log { keys: None, others: None }) }
    }

    /// Logs `line` of `key`, unless it is suppressed.
    pub fn warn(&self, key: K, line: impl std::fmt::Display) {
        match self.count(key, Instant::now()) {
            Some(0) => warn!("{line}"),
            Some(more) => warn!("{line} ({more} more since)"),
            None => {}
        }
    }

    /// Counts a line of `key`. Returns whether it is to be logged.
    pub fn admit(&self, key: K) -> bool {
        self.count(key, Instant::now()).is_some()
    }

    /// Number of lines suppressed since the last logged one; `None` if this one is suppressed
    /// too.
    fn count(&self, key: K, now: Instant) -> Option<u64> {
        let mut log = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Log { keys, others } = &mut *log;
        let keys = keys.get_or_insert_default();
        if keys.len() >= KEYS {
            keys.retain(|_, told| now.duration_since(told.since) < QUIET);
        }
        let new = Told { since: now, lines: 0, more: 0 };
        let told = match keys.len() >= KEYS && !keys.contains_key(&key) {
            true => others.get_or_insert(new),
            false => keys.entry(key).or_insert(new),
        };
        told.count(self.most, now)
    }
}

impl Told {
    fn count(&mut self, most: u64, now: Instant) -> Option<u64> {
        if now.duration_since(self.since) >= QUIET {
            let more = self.more;
            *self = Told { since: now, lines: 1, more: 0 };
            return Some(more);
        }
        if self.lines < most {
            self.lines += 1;
            return Some(0);
        }
        self.more += 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_hears_of_the_same_once_in_a_while() {
        let sparing = Sparing::new(2);
        let now = Instant::now();
        let heard: Vec<_> = (0..5).map(|_| sparing.count(1, now)).collect();
        assert_eq!(heard, [Some(0), Some(0), None, None, None]);
        assert_eq!(sparing.count(2, now), Some(0));
        assert_eq!(sparing.count(1, now + QUIET), Some(3));
        assert_eq!(sparing.count(1, now + QUIET), Some(0));
        let heard = (0..2 * KEYS).filter(|n| sparing.count(*n, now + QUIET).is_some()).count();
        assert!(sparing.told.lock().unwrap().keys.as_ref().unwrap().len() <= KEYS);
        assert_eq!(heard, KEYS + 1, "keys beyond those that are remembered share an allowance");
    }

    #[test]
    fn one_that_has_very_many_keys_hides_nothing_of_others_for_ever() {
        let sparing = Sparing::new(1);
        let now = Instant::now();
        (0..KEYS + 5).for_each(|n| _ = sparing.count(n, now));
        assert_eq!(sparing.count(usize::MAX, now), None);
        (0..KEYS).for_each(|n| _ = sparing.count(n, now + QUIET));
        assert_eq!(sparing.count(usize::MAX, now + QUIET), Some(5));
    }
}

//! Lines of the log that others can cause: each is told a few times, and then once in a while with how many there
//! were.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::warn;

/// For so long the log has heard enough of one and the same.
const QUIET: Duration = Duration::from_secs(60);
/// Keys that are remembered; whatever comes when there are more is not told of.
const KEYS: usize = 256;

/// What the log was told, by what makes two lines the same.
#[derive(Debug)]
pub struct Sparing<K> {
    /// So many times at once.
    most: u64,
    told: Mutex<Option<HashMap<K, Told>>>,
}

#[derive(Debug)]
struct Told {
    since: Instant,
    lines: u64,
    /// How many there were that were not told.
    more: u64,
}

impl<K: Eq + Hash> Sparing<K> {
    /// The log hears of the same `most` times at once.
    pub const fn new(most: u64) -> Sparing<K> {
        Sparing { most, told: Mutex::new(None) }
    }

    /// Has the log hear `line` of `key`, unless it has heard enough.
    pub fn warn(&self, key: K, line: impl std::fmt::Display) {
        match self.count(key, Instant::now()) {
            Some(0) => warn!("{line}"),
            Some(more) => warn!("{line} ({more} more since)"),
            None => {}
        }
    }

    /// Whether the log is to hear of `key` once more; counts it.
    pub fn is_due(&self, key: K) -> bool {
        self.count(key, Instant::now()).is_some()
    }

    /// How many there have been since the log was told; `None` if it is not to be told yet.
    fn count(&self, key: K, now: Instant) -> Option<u64> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let told = told.get_or_insert_default();
        if told.len() >= KEYS {
            told.retain(|_, told| now.duration_since(told.since) < QUIET);
        }
        let full = told.len() >= KEYS;
        match told.get_mut(&key) {
            Some(told) if now.duration_since(told.since) >= QUIET => {
                let more = told.more;
                *told = Told { since: now, lines: 1, more: 0 };
                Some(more)
            }
            Some(told) if told.lines < self.most => {
                told.lines += 1;
                Some(0)
            }
            Some(told) => {
                told.more += 1;
                None
            }
            None if full => None,
            None => {
                told.insert(key, Told { since: now, lines: 1, more: 0 });
                Some(0)
            }
        }
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
        for n in 0..2 * KEYS {
            sparing.count(n, now + QUIET);
        }
        assert!(sparing.told.lock().unwrap().as_ref().unwrap().len() <= KEYS);
    }
}

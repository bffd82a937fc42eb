//! Short-lived cache of kernel lookups by address.

use std::collections::HashMap;
use std::hash::Hash;

use viaduct_proto::time::{Duration, Instant};

/// Lifetime of an entry; short, because addresses, routes and neighbours change.
const TTL: Duration = Duration::from_millis(100);
/// Maximum number of entries. At this limit, the expired entries are removed, or an arbitrary entry
/// if none has expired.
const MAX_ENTRIES: usize = 1024;

#[derive(Debug)]
pub(crate) struct LookupCache<K, T> {
    entries: HashMap<K, (T, Instant)>,
    /// Time before which no entry has expired.
    expires: Instant,
}

impl<K: Eq + Hash + Copy, T: Copy> LookupCache<K, T> {
    pub(crate) fn new() -> LookupCache<K, T> {
        LookupCache { entries: HashMap::new(), expires: Instant::ZERO }
    }

    /// The result for `key`. Calls `look_up` if there is no result, or if the result has expired.
    pub(crate) fn get(&mut self, now: Instant, key: K, look_up: impl FnOnce() -> T) -> T {
        if let Some(&(value, until)) = self.entries.get(&key)
            && now < until
        {
            return value;
        }
        if self.entries.len() >= MAX_ENTRIES && self.expires <= now {
            self.entries.retain(|_, (_, until)| now < *until);
            self.expires = self.entries.values().map(|(_, until)| *until).min().unwrap_or(now);
        }
        if self.entries.len() >= MAX_ENTRIES
            && let Some(any) = self.entries.keys().next().copied()
        {
            self.entries.remove(&any);
        }
        let value = look_up();
        self.entries.insert(key, (value, now + TTL));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_valid_until_its_ttl_ends() {
        let (mut cache, ip) = (LookupCache::new(), 7);
        assert_eq!(cache.get(Instant::ZERO, ip, || 1), 1);
        assert_eq!(cache.get(Instant::ZERO + TTL / 2, ip, || 2), 1);
        assert_eq!(cache.get(Instant::ZERO + TTL, ip, || 3), 3);
    }

    #[test]
    fn a_full_cache_drops_expired_entries_or_a_single_one() {
        let mut cache = LookupCache::new();
        for key in 0..MAX_ENTRIES {
            cache.get(Instant::ZERO, key, || 1);
        }
        cache.get(Instant::ZERO + TTL / 2, MAX_ENTRIES, || 1);
        assert_eq!(cache.entries.len(), MAX_ENTRIES);
        assert!(cache.entries.contains_key(&MAX_ENTRIES));
        cache.get(Instant::ZERO + TTL, MAX_ENTRIES + 1, || 1);
        assert_eq!(cache.entries.len(), 2, "the others have expired");
    }
}

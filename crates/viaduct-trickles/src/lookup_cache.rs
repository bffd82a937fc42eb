//! Short-lived cache of kernel lookups by address.

use std::collections::HashMap;
use std::hash::Hash;

use viaduct_proto::time::{Duration, Instant};

/// Lifetime of an entry; short, because addresses, routes and neighbours change.
const TTL: Duration = Duration::from_millis(100);
/// Maximum number of entries.
const MAX_ENTRIES: usize = 1024;

#[derive(Debug)]
pub(crate) struct LookupCache<K, T>(HashMap<K, (T, Instant)>);

impl<K: Eq + Hash, T: Copy> LookupCache<K, T> {
    pub(crate) fn new() -> LookupCache<K, T> {
        LookupCache(HashMap::new())
    }

    /// The result for `key`. Calls `look_up` if there is none, or if it has expired.
    pub(crate) fn get(&mut self, now: Instant, key: K, look_up: impl FnOnce() -> T) -> T {
        if let Some(&(value, until)) = self.0.get(&key)
            && now < until
        {
            return value;
        }
        if self.0.len() >= MAX_ENTRIES {
            self.0.clear();
        }
        let value = look_up();
        self.0.insert(key, (value, now + TTL));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_valid_for_a_moment() {
        let (mut cache, ip) = (LookupCache::new(), 7);
        assert_eq!(cache.get(Instant::ZERO, ip, || 1), 1);
        assert_eq!(cache.get(Instant::ZERO + TTL / 2, ip, || 2), 1);
        assert_eq!(cache.get(Instant::ZERO + TTL, ip, || 3), 3);
    }
}

//! Short-lived cache of kernel lookups by address.

use std::collections::HashMap;
use std::hash::Hash;

use viaduct_proto::time::{Duration, Instant};

/// Lifetime of an entry: addresses, routes and neighbours change.
const HOLDS: Duration = Duration::from_millis(100);
/// Maximum number of entries.
const MAX_ANSWERS: usize = 1024;

/// Results of lookups, by key.
#[derive(Debug)]
pub(super) struct Recent<K, T>(HashMap<K, (T, Instant)>);

impl<K: Eq + Hash, T: Copy> Recent<K, T> {
    /// Creates an empty cache.
    pub(super) fn new() -> Recent<K, T> {
        Recent(HashMap::new())
    }

    /// The result for `what`. Calls `ask` if there is none, or if it has expired.
    pub(super) fn get(&mut self, now: Instant, what: K, ask: impl FnOnce() -> T) -> T {
        if let Some(&(said, until)) = self.0.get(&what)
            && now < until
        {
            return said;
        }
        if self.0.len() >= MAX_ANSWERS {
            self.0.clear();
        }
        let said = ask();
        self.0.insert(what, (said, now + HOLDS));
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_holds_for_a_moment() {
        let (mut recent, ip) = (Recent::new(), 7);
        assert_eq!(recent.get(Instant::ZERO, ip, || 1), 1);
        assert_eq!(recent.get(Instant::ZERO + HOLDS / 2, ip, || 2), 1);
        assert_eq!(recent.get(Instant::ZERO + HOLDS, ip, || 3), 3);
    }
}

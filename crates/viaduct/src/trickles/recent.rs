//! What the kernel has said of addresses, for a moment.

use std::collections::HashMap;
use std::hash::Hash;

use viaduct_proto::time::{Duration, Instant};

/// How long an answer holds: addresses, routes and neighbours come and go.
const HOLDS: Duration = Duration::from_millis(100);
/// Answers that are kept, at most.
const MOST: usize = 1024;

/// Answers, by address.
#[derive(Debug)]
pub(super) struct Recent<K, T>(HashMap<K, (T, Instant)>);

impl<K: Eq + Hash, T: Copy> Recent<K, T> {
    /// None yet.
    pub(super) fn new() -> Recent<K, T> {
        Recent(HashMap::new())
    }

    /// What was said of `what`; asks where that is not known, or was too long ago.
    pub(super) fn get(&mut self, now: Instant, what: K, ask: impl FnOnce() -> T) -> T {
        if let Some(&(said, until)) = self.0.get(&what)
            && now < until
        {
            return said;
        }
        if self.0.len() >= MOST {
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

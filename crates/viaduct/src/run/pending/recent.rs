//! State of the sockets that were added or used most recently.

use std::collections::{HashMap, VecDeque};

/// Maximum number of entries in `order`, and therefore of sockets whose state is kept. The oldest
/// entries are dropped first. A use renews only old entries, so the order is roughly that of the
/// last use.
const MAX_SOCKETS: usize = 65_536;

/// State of sockets, by cookie.
#[derive(Debug)]
pub(super) struct Recent<T> {
    /// Number of the last insertion, and state, by cookie.
    known: HashMap<u64, (u64, T)>,
    /// Numbers and cookies in order of insertion. When a cookie is removed, or entered again
    /// because it was used, its former entry remains here until that entry is the oldest.
    order: VecDeque<(u64, u64)>,
    /// Number of the next insertion.
    next: u64,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent { known: HashMap::new(), order: VecDeque::new(), next: 0 }
    }
}

impl<T> Recent<T> {
    pub(super) fn set(&mut self, cookie: u64, state: T) {
        if let Some((_, known)) = self.known.get_mut(&cookie) {
            *known = state;
            return;
        }
        self.known.insert(cookie, (self.next, state));
        self.enter(cookie);
    }

    /// Enters a cookie as the newest entry of `order`.
    fn enter(&mut self, cookie: u64) {
        self.order.push_back((self.next, cookie));
        self.next += 1;
        while self.order.len() > MAX_SOCKETS {
            let Some((number, oldest)) = self.order.pop_front() else { return };
            // The cookie may have been removed and inserted again.
            if self.known.get(&oldest).is_some_and(|(newest, _)| *newest == number) {
                self.known.remove(&oldest);
            }
        }
    }

    pub(super) fn get(&mut self, cookie: u64) -> Option<&mut T> {
        let number = &mut self.known.get_mut(&cookie)?.0;
        // A former entry keeps its place in `order`. So a cookie is entered again only if its entry
        // is old: otherwise each use would occupy a place, and evict other sockets.
        if self.next - *number > MAX_SOCKETS as u64 / 2 {
            *number = self.next;
            self.enter(cookie);
        }
        self.known.get_mut(&cookie).map(|(_, state)| state)
    }

    pub(super) fn remove(&mut self, cookie: u64) {
        self.known.remove(&cookie);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_used_is_kept() {
        let mut recent = Recent::default();
        recent.set(1, "used");
        for cookie in 2..5 * MAX_SOCKETS as u64 {
            recent.set(cookie, "other");
            if cookie.is_multiple_of(1_000) {
                assert_eq!(recent.get(1), Some(&mut "used"), "{cookie}");
            }
        }
        assert!(recent.order.len() <= MAX_SOCKETS && recent.known.len() <= MAX_SOCKETS);
    }

    #[test]
    fn state_that_is_set_again_after_a_removal_counts_as_new() {
        let mut recent = Recent::default();
        recent.set(1, "old");
        recent.remove(1);
        (2..MAX_SOCKETS as u64).for_each(|cookie| recent.set(cookie, "other"));
        recent.set(1, "new");
        // Two more sockets evict the two oldest insertions, of which the first was removed.
        (0..2).for_each(|n| recent.set(MAX_SOCKETS as u64 + n, "other"));
        assert_eq!(recent.get(1), Some(&mut "new"));
        assert!(recent.get(2).is_none() && recent.get(3).is_some());
    }
}

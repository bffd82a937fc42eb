//! State of the sockets that were added most recently.

use std::collections::{HashMap, VecDeque};

/// Maximum number of sockets whose state is kept; the oldest is dropped first.
const MAX_SOCKETS: usize = 65_536;

/// State of sockets, by cookie.
#[derive(Debug)]
pub(super) struct Recent<T> {
    known: HashMap<u64, T>,
    /// Cookies in order of insertion. A removed cookie stays here until it is the oldest.
    order: VecDeque<u64>,
}

impl<T> Default for Recent<T> {
    fn default() -> Self {
        Recent { known: HashMap::new(), order: VecDeque::new() }
    }
}

impl<T> Recent<T> {
    pub(super) fn set(&mut self, cookie: u64, state: T) {
        if self.known.insert(cookie, state).is_some() {
            return;
        }
        self.order.push_back(cookie);
        while self.order.len() > MAX_SOCKETS {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.known.remove(&oldest));
        }
    }

    pub(super) fn get(&mut self, cookie: u64) -> Option<&mut T> {
        self.known.get_mut(&cookie)
    }

    pub(super) fn remove(&mut self, cookie: u64) {
        self.known.remove(&cookie);
    }
}

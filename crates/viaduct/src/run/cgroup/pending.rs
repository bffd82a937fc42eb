//! Pending connects: their SYN was dropped at the rendezvous, and their result is outstanding.
//!
//! A program may give up a connect and begin another from the same local address, with the same
//! socket or another one. The earlier connect is then superseded: its result must not reach the
//! later one.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use viaduct_sys::bpf::WaitingConnect;

/// Minimum number of entries for a cleanup, which removes connects that are no longer pending.
const MIN_CLEANUP: usize = 1024;

/// Table of pending connects.
#[derive(Debug)]
pub(super) struct PendingConnects {
    by_cookie: HashMap<u64, Entry>,
    /// Cookie of the latest socket with each local address.
    by_program: HashMap<SocketAddr, u64>,
    cleanup_at: usize,
}

/// Handle of a connect, which is pending until the handle is dropped.
#[derive(Debug)]
pub(super) struct PendingHandle {
    is_superseded: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Entry {
    waiting: WaitingConnect,
    is_superseded: Weak<AtomicBool>,
}

impl PendingHandle {
    /// Returns whether the program has begun another connect instead.
    pub(super) fn is_superseded(&self) -> bool {
        self.is_superseded.load(Ordering::Acquire)
    }
}

impl Default for PendingConnects {
    fn default() -> Self {
        PendingConnects {
            by_cookie: HashMap::new(),
            by_program: HashMap::new(),
            cleanup_at: MIN_CLEANUP,
        }
    }
}

impl PendingConnects {
    /// Adds the connect of a SYN; returns `None` if the SYN is a retransmission of a pending
    /// connect. Earlier connects of the same socket, or from the same local address, are
    /// superseded.
    pub(super) fn add(&mut self, waiting: WaitingConnect) -> Option<PendingHandle> {
        let WaitingConnect { cookie, program, .. } = waiting;
        let earlier = self.by_cookie.get(&cookie);
        if earlier.is_some_and(|entry| entry.is_pending() && entry.is_same(&waiting)) {
            return None;
        }
        let other = self.by_program.insert(program, cookie);
        let other = other.and_then(|other| self.by_cookie.get(&other));
        let other = other.filter(|entry| entry.waiting.program == program);
        earlier.into_iter().chain(other).for_each(Entry::supersede);
        let is_superseded = Arc::new(AtomicBool::new(false));
        let entry = Entry { waiting, is_superseded: Arc::downgrade(&is_superseded) };
        self.by_cookie.insert(cookie, entry);
        if self.by_cookie.len() > self.cleanup_at {
            self.clean_up();
        }
        Some(PendingHandle { is_superseded })
    }

    fn clean_up(&mut self) {
        self.by_cookie.retain(|_, entry| entry.is_pending());
        self.by_program.retain(|_, cookie| self.by_cookie.contains_key(cookie));
        self.cleanup_at = MIN_CLEANUP.max(2 * self.by_cookie.len());
    }
}

impl Entry {
    fn is_pending(&self) -> bool {
        self.is_superseded.strong_count() > 0
    }

    fn is_same(&self, waiting: &WaitingConnect) -> bool {
        let of = |waiting: &WaitingConnect| (waiting.program, waiting.to, waiting.syn);
        of(&self.waiting) == of(waiting)
    }

    fn supersede(&self) {
        if let Some(is_superseded) = self.is_superseded.upgrade() {
            is_superseded.store(true, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use viaduct_sys::socket::tcp::Mirrored;

    use super::*;

    fn syn(cookie: u64, from: u16, to: u16, syn: u32) -> WaitingConnect {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let (program, to) = (at(from), at(to));
        WaitingConnect { cookie, to, program, is_bound: true, syn, mirrored: Mirrored::default() }
    }

    #[test]
    fn retransmissions_of_a_pending_connect_are_ignored() {
        let mut pending = PendingConnects::default();
        let first = pending.add(syn(1, 1000, 80, 5)).unwrap();
        assert!(pending.add(syn(1, 1000, 80, 5)).is_none());
        drop(first);
        assert!(pending.add(syn(1, 1000, 80, 5)).is_some(), "the result was lost");
    }

    #[test]
    fn a_later_connect_of_the_same_socket_or_from_the_same_address_supersedes() {
        // Another destination, the same destination again, another port, another socket.
        let later =
            [syn(1, 1000, 81, 6), syn(1, 1000, 80, 7), syn(1, 1001, 80, 8), syn(2, 1000, 80, 9)];
        for later in later {
            let mut pending = PendingConnects::default();
            let first = pending.add(syn(1, 1000, 80, 5)).unwrap();
            let beside = pending.add(syn(3, 1003, 80, 5)).unwrap();
            let second = pending.add(later).unwrap();
            let superseded = [&first, &beside, &second].map(PendingHandle::is_superseded);
            assert_eq!(superseded, [true, false, false], "{later:?}");
        }
    }

    #[test]
    fn connects_that_are_no_longer_pending_are_removed() {
        let mut pending = PendingConnects::default();
        let kept: Vec<_> =
            (0..100).map(|n| pending.add(syn(n, n as u16, 80, 1)).unwrap()).collect();
        for n in 100..20_000 {
            pending.add(syn(n, n as u16, 80, 1)).unwrap();
        }
        assert!(pending.by_cookie.len() <= MIN_CLEANUP + 1);
        assert!(pending.by_program.len() <= MIN_CLEANUP + 1);
        assert!(!kept.iter().any(PendingHandle::is_superseded));
    }
}

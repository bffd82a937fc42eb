//! Early SYN forwarding: outbound connections that are started when a client's SYN arrives, before
//! the client's handshake is complete (Miniproxy, section 3).
//!
//! ```text
//!   client's SYN ─┬─▶ pending ─┬─▶ matched   handshake complete: the flow takes it over
//!                 │            ├─▶ expired   no handshake: the source was probably spoofed
//!                 │            └─▶ refused   by the server: the client is refused, too
//!                 └─▶ bounded                table full: the flow connects when it is accepted
//! ```
//!
//! A flood of SYNs from spoofed addresses can only fill the table, which bounds memory and outbound
//! connections; genuine clients then connect without early forwarding. Each expired entry reduces
//! the table's size by one, and each matched entry increases it by one. A flood therefore soon
//! causes very few connections to servers, and genuine clients regain the table.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::time::{Duration, Instant};

/// Minimum size of the table, so that genuine clients can make it grow again.
const MIN_TABLE: usize = 16;

/// Addresses of a client's SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tuple {
    /// The client.
    pub client: SocketAddr,
    /// Destination of the SYN.
    pub to: SocketAddr,
}

/// Counters of early connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyStats {
    /// SYNs that started a connection.
    pub started: u64,
    /// Started connections that were taken over by a client's flow.
    pub matched: u64,
    /// Started connections that were given up because no client completed its handshake.
    pub expired: u64,
    /// Started connections that the server refused before a client completed its handshake.
    pub refused: u64,
    /// SYNs that arrived while the table was full.
    pub bounded: u64,
}

impl EarlyStats {
    /// Adds the counters of another table.
    pub fn add(&mut self, other: EarlyStats) {
        let EarlyStats { started, matched, expired, refused, bounded } = other;
        self.started += started;
        self.matched += matched;
        self.expired += expired;
        self.refused += refused;
        self.bounded += bounded;
    }
}

/// Table of connections that no client has taken over yet, each with the driver's data.
#[derive(Debug)]
pub struct Early<T> {
    pending: HashMap<Tuple, (Instant, T)>,
    /// Entries by expiry.
    order: BTreeSet<(Instant, Tuple)>,
    most: usize,
    /// Entries allowed now: `most`, less one per expired entry, plus one per match; from
    /// [`MIN_TABLE`] to `most`.
    room: usize,
    ttl: Duration,
    stats: EarlyStats,
}

impl<T> Early<T> {
    /// Creates an empty table of at most `most` entries, each kept for `ttl`, which should exceed
    /// the duration of a client's handshake.
    pub fn new(most: usize, ttl: Duration) -> Self {
        Early {
            pending: HashMap::new(),
            order: BTreeSet::new(),
            most,
            room: most,
            ttl,
            stats: EarlyStats::default(),
        }
    }

    /// Counters of the table.
    pub fn stats(&self) -> EarlyStats {
        self.stats
    }

    /// Number of pending entries.
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Pending connection of the SYN `tuple`.
    pub fn get(&self, tuple: &Tuple) -> Option<&T> {
        self.pending.get(tuple).map(|(_, started)| started)
    }

    /// Returns whether no entry is pending.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Handles a SYN: `start` begins the outbound connection, unless the SYN is a retransmission or
    /// the table is full. `start` may decline by returning `None`.
    pub fn handle_syn(&mut self, now: Instant, tuple: Tuple, start: impl FnOnce() -> Option<T>) {
        if self.pending.contains_key(&tuple) {
            return;
        }
        if self.pending.len() >= self.room {
            self.stats.bounded += 1;
            return;
        }
        let Some(started) = start() else { return };
        let until = now + self.ttl;
        self.stats.started += 1;
        self.pending.insert(tuple, (until, started));
        self.order.insert((until, tuple));
    }

    /// Handles a completed handshake: returns the connection that its SYN started, if any.
    pub fn handle_accept(&mut self, tuple: &Tuple) -> Option<T> {
        let started = self.take(tuple)?;
        self.stats.matched += 1;
        self.room = (self.room + 1).min(self.most);
        Some(started)
    }

    /// Sets a new expiry for `tuple`, whose client's handshake was held back until now.
    pub fn postpone(&mut self, tuple: &Tuple, until: Instant) {
        if let Some((at, _)) = self.pending.get_mut(tuple) {
            self.order.remove(&(*at, *tuple));
            *at = until;
            self.order.insert((until, *tuple));
        }
    }

    /// Changes the time for which later entries, and those of `tuples`, are kept.
    pub fn set_ttl(&mut self, ttl: Duration, tuples: impl Iterator<Item = Tuple>) {
        let before = std::mem::replace(&mut self.ttl, ttl);
        for tuple in tuples {
            let until = self.pending.get(&tuple).map(|(until, _)| *until);
            until.into_iter().for_each(|until| self.postpone(&tuple, until - before + ttl));
        }
    }

    /// Handles a refusal by the server: removes the connection of `tuple` and returns it, so that
    /// its client can be refused.
    pub fn handle_refusal(&mut self, tuple: &Tuple) -> Option<T> {
        let started = self.take(tuple)?;
        self.stats.refused += 1;
        Some(started)
    }

    /// Expiry of the next entry.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.order.first().map(|&(until, _)| until)
    }

    /// Removes an expired entry.
    pub fn poll_expired(&mut self, now: Instant) -> Option<(Tuple, T)> {
        let &(_, tuple) = self.order.first().filter(|(until, _)| *until <= now)?;
        let started = self.take(&tuple)?;
        self.stats.expired += 1;
        self.room = self.room.saturating_sub(1).max(MIN_TABLE.min(self.most));
        Some((tuple, started))
    }

    /// Removes the connection of `tuple`, whose client will connect without it.
    pub fn forget(&mut self, tuple: &Tuple) -> Option<T> {
        self.take(tuple)
    }

    /// All entries: the SYN, the expiry, and the connection of each.
    pub fn iter(&self) -> impl Iterator<Item = (&Tuple, Instant, &T)> {
        self.pending.iter().map(|(tuple, (until, started))| (tuple, *until, started))
    }

    /// Adds the connection that another table has started for `tuple`, and that expires at `until`.
    /// The limit does not apply, because the other table has counted the connection.
    pub fn adopt(&mut self, tuple: Tuple, until: Instant, started: T) {
        self.forget(&tuple);
        self.pending.insert(tuple, (until, started));
        self.order.insert((until, tuple));
    }

    /// Removes an entry whose client can no longer connect because the listeners are closed.
    pub fn release(&mut self) -> Option<T> {
        let &(_, tuple) = self.order.first()?;
        self.take(&tuple)
    }

    fn take(&mut self, tuple: &Tuple) -> Option<T> {
        let (until, started) = self.pending.remove(tuple)?;
        self.order.remove(&(until, *tuple));
        Some(started)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(port: u16) -> Tuple {
        let at = |port| SocketAddr::from(([10, 0, 0, 1], port));
        Tuple { client: at(port), to: at(80) }
    }

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    #[test]
    fn a_syn_starts_once_and_its_client_takes_over() {
        let mut early = Early::new(10, Duration::from_secs(1));
        early.handle_syn(at(0), tuple(1), || Some("first"));
        early.handle_syn(at(1), tuple(1), || Some("again"));
        assert_eq!(early.handle_accept(&tuple(1)), Some("first"));
        assert_eq!(early.handle_accept(&tuple(1)), None);
        assert_eq!(early.poll_expired(at(5_000)), None, "it is the client's now");
        let stats = EarlyStats { started: 1, matched: 1, ..EarlyStats::default() };
        assert_eq!(early.stats(), stats);
    }

    #[test]
    fn connections_without_a_client_expire() {
        let mut early = Early::new(10, Duration::from_secs(1));
        early.handle_syn(at(0), tuple(1), || Some(1));
        assert!(early.handle_accept(&tuple(1)).is_some());
        early.handle_syn(at(400), tuple(1), || Some(2));
        early.handle_syn(at(500), tuple(2), || Some(3));
        assert_eq!(early.poll_expired(at(1_399)), None);
        assert_eq!(early.poll_expired(at(1_400)), Some((tuple(1), 2)));
        assert_eq!(early.poll_timeout(), Some(at(1_500)));
        assert_eq!(early.poll_expired(at(2_000)), Some((tuple(2), 3)));
        assert!(early.is_empty() && early.poll_timeout().is_none());
    }

    #[test]
    fn a_flood_fills_the_table_and_no_more() {
        let mut early = Early::new(100, Duration::from_secs(1));
        for n in 0..60_000u16 {
            early.handle_syn(at(u64::from(n) / 20), tuple(n), || Some(()));
            while early.poll_expired(at(u64::from(n) / 20)).is_some() {}
            assert!(early.len() <= 100 && early.order.len() == early.len());
        }
        let stats = early.stats();
        assert_eq!(stats.started + stats.bounded, 60_000);
        assert!(stats.started <= 100 + 3 * MIN_TABLE as u64, "and then hardly any: {stats:?}");
    }

    #[test]
    fn genuine_clients_regain_the_table() {
        let mut early = Early::new(100, Duration::from_secs(1));
        for n in 0..100 {
            early.handle_syn(at(0), tuple(n), || Some(()));
        }
        while early.poll_expired(at(1_000)).is_some() {}
        assert_eq!(early.room, MIN_TABLE);
        for n in 0..200 {
            early.handle_syn(at(2_000), tuple(n), || Some(()));
            assert!(early.handle_accept(&tuple(n)).is_some(), "each finds room");
        }
        assert_eq!(early.room, 100);
    }

    #[test]
    fn a_client_accepted_late_has_its_full_time() {
        let mut early = Early::new(10, Duration::from_secs(9));
        early.handle_syn(at(0), tuple(1), || Some(1));
        early.handle_syn(at(0), tuple(2), || Some(2));
        early.postpone(&tuple(2), at(3_000));
        early.postpone(&tuple(7), at(3_000));
        assert_eq!(early.poll_expired(at(2_999)), None);
        assert_eq!(early.poll_expired(at(3_000)), Some((tuple(2), 2)));
        assert_eq!(early.poll_timeout(), Some(at(9_000)));
    }

    #[test]
    fn a_new_time_applies_to_later_entries_and_to_those_that_are_named() {
        let mut early = Early::new(10, Duration::from_secs(9));
        early.handle_syn(at(0), tuple(1), || Some(1));
        early.handle_syn(at(100), tuple(2), || Some(2));
        early.set_ttl(Duration::from_secs(2), [tuple(2), tuple(7)].into_iter());
        early.handle_syn(at(500), tuple(3), || Some(3));
        assert_eq!(early.poll_expired(at(2_099)), None);
        assert_eq!(early.poll_expired(at(2_100)), Some((tuple(2), 2)));
        assert_eq!(early.poll_expired(at(2_500)), Some((tuple(3), 3)));
        assert_eq!(early.poll_timeout(), Some(at(9_000)));
    }

    #[test]
    fn a_connection_moves_to_another_table_with_its_expiry() {
        let (mut old, mut new) =
            (Early::new(9, Duration::from_secs(1)), Early::new(0, Duration::ZERO));
        old.handle_syn(at(0), tuple(1), || Some(7));
        let (&from, until, &started) = old.iter().next().unwrap();
        old.forget(&from);
        new.adopt(from, until, started);
        new.adopt(from, until, started);
        assert!(old.is_empty() && old.poll_timeout().is_none() && new.len() == 1);
        assert_eq!(new.poll_expired(at(999)), None);
        assert_eq!(new.handle_accept(&tuple(1)), Some(7));
        assert_eq!(new.poll_timeout(), None);
    }

    #[test]
    fn a_refusal_removes_the_entry_and_keeps_the_tables_size() {
        let mut early = Early::new(100, Duration::from_secs(1));
        early.handle_syn(at(0), tuple(1), || Some(7));
        assert_eq!(early.get(&tuple(1)), Some(&7));
        assert_eq!(early.handle_refusal(&tuple(1)), Some(7));
        assert_eq!(early.get(&tuple(1)), None);
        assert_eq!(early.poll_expired(at(9_000)), None);
        assert_eq!((early.stats().refused, early.room), (1, 100));
    }
}

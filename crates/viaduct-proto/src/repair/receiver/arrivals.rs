//! Latest arrivals, and the packet numbers to which they are matched.

use std::collections::VecDeque;

use crate::fec::Seq;
use crate::repair::align::{Aligner, Arrival};
use crate::repair::identity::Identity;
use crate::time::{Duration, Instant};
use crate::wire::ip::MutableFields;

/// Maximum number of remembered arrivals.
const MAX_ARRIVALS: usize = 8_192;
/// Age at which an arrival is forgotten: its packet was named long before, or never will be.
const MAX_AGE: Duration = Duration::from_secs(2);
/// Age up to which an arrival may be a packet that another member of the peer's rack carries: that
/// member claims the packet's slice while the packet is in transit.
const RECENT: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug)]
pub(super) struct ArrivedPacket {
    pub(super) at: Instant,
    pub(super) identity: Identity,
    pub(super) fields: MutableFields,
}

#[derive(Default)]
pub(super) struct Arrivals {
    last: VecDeque<ArrivedPacket>,
    /// Number of the oldest arrival in `last`.
    first: Arrival,
    pub(super) aligner: Aligner,
    /// Number of routers on the path, for both IPv4 and IPv6.
    crossed: u8,
    /// Fields, as sent, of the last matched packet: used for packets whose own fields are unknown.
    pub(super) usual_fields: MutableFields,
}

impl Arrivals {
    /// Adds a packet. If it was counted as missing, returns the packet's number and the number of
    /// its arrival.
    pub(super) fn push(&mut self, came: ArrivedPacket) -> Option<(Seq, Arrival)> {
        let arrival = self.aligner.next_arrival();
        if self.last.len() == MAX_ARRIVALS {
            self.last.pop_front();
            self.first += 1;
        }
        self.last.push_back(came);
        Some((self.aligner.arrive(came.identity.tag())?, arrival))
    }

    /// Returns an arrival, unless it is forgotten.
    pub(super) fn get(&self, arrival: Arrival) -> Option<ArrivedPacket> {
        get(&self.last, self.first, arrival)
    }

    /// Recent arrivals that were not matched to a number, newest first.
    pub(super) fn unmatched(&self, now: Instant) -> impl Iterator<Item = ArrivedPacket> {
        let recent = move |arrival: &ArrivedPacket| now.since(arrival.at) <= RECENT;
        self.aligner.unmatched().filter_map(|arrival| self.get(arrival)).filter(recent)
    }

    /// Searches for the arrival of packet `seq`, which was not matched by its name. Returns whether
    /// there is such an arrival.
    pub(super) fn find(&mut self, seq: Seq, identity: Identity) -> bool {
        let Arrivals { last, first, aligner, .. } = self;
        let is = |arrival| get(last, *first, arrival).is_some_and(|of| of.identity == identity);
        aligner.find(seq, identity.tag(), is)
    }

    /// Computes the number of routers on the path from an arrival whose packet left with the fields
    /// `sent`.
    pub(super) fn learn(&mut self, arrival: Arrival, sent: MutableFields) {
        if let Some(ArrivedPacket { fields, .. }) = self.get(arrival) {
            self.crossed = sent.ttl.wrapping_sub(fields.ttl);
        }
    }

    /// Returns the fields with which a packet left, if it was received with `fields`.
    pub(super) fn as_sent(&mut self, fields: MutableFields) -> MutableFields {
        self.usual_fields = MutableFields { ttl: fields.ttl.wrapping_add(self.crossed), ..fields };
        self.usual_fields
    }

    /// Forgets old arrivals, and the numbers below `floor`.
    pub(super) fn forget(&mut self, now: Instant, floor: Seq) {
        let old = self.last.partition_point(|arrival| now.since(arrival.at) > MAX_AGE);
        self.last.drain(..old);
        self.first += old as u64;
        if self.last.capacity() > 4 * self.last.len() {
            self.last.shrink_to(2 * self.last.len());
        }
        self.aligner.forget_below(floor);
    }

    /// Returns whether no arrival is remembered.
    pub(super) fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    pub(super) fn memory(&self) -> usize {
        self.last.capacity() * size_of::<ArrivedPacket>()
    }
}

fn get(last: &VecDeque<ArrivedPacket>, first: Arrival, arrival: Arrival) -> Option<ArrivedPacket> {
    last.get(usize::try_from(arrival.checked_sub(first)?).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(identity: u64, ttl: u8) -> ArrivedPacket {
        let fields = MutableFields { ttl, tos: 7 };
        ArrivedPacket { at: Instant::ZERO, identity: Identity(identity), fields }
    }

    #[test]
    fn the_oldest_arrivals_are_forgotten() {
        let mut arrivals = Arrivals::default();
        for identity in 0..MAX_ARRIVALS as u64 + 2 {
            arrivals.push(packet(identity, 60));
        }
        assert!(arrivals.get(1).is_none());
        assert_eq!(arrivals.get(2).unwrap().identity, Identity(2));
    }

    #[test]
    fn ttls_are_restored_by_the_number_of_routers_on_the_path() {
        let mut arrivals = Arrivals::default();
        arrivals.push(packet(1, 60));
        arrivals.learn(0, MutableFields { ttl: 64, tos: 7 });
        let sent = arrivals.as_sent(MutableFields { ttl: 124, tos: 1 });
        assert_eq!(sent, MutableFields { ttl: 128, tos: 1 });
        assert_eq!(arrivals.usual_fields, sent);
    }
}

//! Names of the peer's packets: matching of names to arrivals, and detection of missing packets.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::ops::Range;

use super::Receiver;
use super::known::Known;
use super::measurement::Matched;
use crate::fec::Seq;
use crate::repair::align::{Named, Tag};
use crate::repair::ledger::State;
use crate::repair::section::Names;
use crate::time::Instant;
use crate::wire::ip::MutableFields;

/// Runs of consecutive numbers whose names have just become known.
struct Runs {
    tags: Vec<Tag>,
    /// First number of each run, and the index of its tag.
    begins: Vec<(Seq, usize)>,
}

impl Runs {
    fn with_capacity(names: usize) -> Self {
        Runs { tags: Vec::with_capacity(names), begins: Vec::new() }
    }

    fn push(&mut self, seq: Seq, tag: Tag) {
        match self.begins.last() {
            Some((begin, from)) if begin + (self.tags.len() - from) as u64 == seq => {}
            _ => self.begins.push((seq, self.tags.len())),
        }
        self.tags.push(tag);
    }

    /// First number and tags of each run.
    fn iter(&self) -> impl Iterator<Item = (Seq, &[Tag])> {
        self.begins.iter().enumerate().map(|(n, &(begin, from))| {
            let to = self.begins.get(n + 1).map_or(self.tags.len(), |&(_, from)| from);
            (begin, &self.tags[from..to])
        })
    }

    /// Range from the first to the last number; `None` if there are no names.
    fn range(&self) -> Option<Range<Seq>> {
        let (&(first, _), &(begin, from)) = (self.begins.first()?, self.begins.last()?);
        Some(first..begin + (self.tags.len() - from) as u64)
    }
}

impl Receiver {
    /// Handles names of the peer's packets.
    pub(in crate::repair) fn handle_names(&mut self, now: Instant, names: &Names<'_>) {
        self.acks = names.manner.acks;
        self.measurement.observe(names.manner.is_observed, self.needs.times.rtt);
        let first = self.number(names.first);
        let Some(last) = first.checked_add(names.tags().len() as u64 - 1) else { return };
        let next = self.known.ledger.next();
        if first == 0 || self.in_the_dark(now, first, last) || !self.reach(first, last) {
            return;
        }
        if next > 0 && (1..self.known.ledger.capacity()).contains(&first.saturating_sub(next)) {
            // The names of the numbers in between are requested, except for packets that the tap
            // may have missed: no arrival would match their names.
            self.needs.unnamed.passed(now, self.blindness.first_seen(next), first - 1);
        }
        let runs = self.enter(match NonZeroU16::new(names.apart) {
            None => unnamed(&self.known, first, names),
            Some(apart) => separate(&self.known, (first, last), apart, names),
        });
        let Some(new) = runs.range() else { return };
        let mut named = std::mem::take(&mut self.named);
        runs.iter().for_each(|(begin, tags)| self.arrivals.aligner.name(begin, tags, &mut named));
        let Receiver { measurement, known, arrivals, needs, .. } = self;
        let matched = Matched { first, names, new, named: &named };
        measurement.named(now, &matched, known, arrivals, needs);
        for (seq, of) in named.drain(..) {
            self.handle_matched(now, (first, names), seq, of);
        }
        self.deliver(now);
        self.named = named;
        self.decode_waiting(now);
    }

    /// Enters new names into the ledger.
    fn enter(&mut self, new: Vec<(Seq, (Tag, bool))>) -> Runs {
        let mut runs = Runs::with_capacity(new.len());
        for (seq, (tag, is_bare)) in new {
            let Some(row) = self.known.ledger.row_mut(seq) else { continue };
            (row.tag, row.is_bare) = (tag, is_bare);
            runs.push(seq, tag);
            if is_bare {
                // The packet is in no repair, but a repair that arrived before this name may be
                // waiting for it.
                self.repairs.known(seq, &self.known);
            }
        }
        runs
    }

    fn handle_matched(
        &mut self,
        now: Instant,
        (first, names): (Seq, &Names<'_>),
        seq: Seq,
        of: Named,
    ) {
        let Named::Arrived(arrival) = of else {
            return self.known.settle(seq, State::Missing);
        };
        if let Some(times) = names.times.filter(|_| seq == first) {
            self.arrivals.learn(arrival, MutableFields { ttl: times.ttl, tos: times.tos });
        }
        let row = self.known.ledger.row(seq);
        let is_late = row.is_some_and(|row| row.state == State::Missing);
        self.arrived(now, seq, arrival);
        if is_late {
            self.stats.late += 1;
            self.repairs.known(seq, &self.known);
        }
    }
}

/// Returns the names that are new. Other names are already known: names are repeated, and a packet
/// that the peer has sent as a copy is known before its name arrives.
fn unnamed(known: &Known, first: Seq, names: &Names<'_>) -> Vec<(Seq, (Tag, bool))> {
    let all = (first..).zip(names.tags().zip(names.bare()));
    all.filter(|(seq, _)| known.name(*seq) == Some(None)).collect()
}

/// Returns the names that follow from combined names. Each combined name is the exclusive or of the
/// names of two packets whose numbers differ by `apart`: if one of the two names is known, the
/// other follows.
fn separate(
    known: &Known,
    (first, last): (Seq, Seq),
    apart: NonZeroU16,
    names: &Names<'_>,
) -> Vec<(Seq, (Tag, bool))> {
    let mut new = BTreeMap::new();
    let combined: Vec<_> = names.tags().zip(names.bare()).collect();
    // A name may follow from a name that has just been found: the names are tried in ascending
    // order, and then in descending order.
    for seq in (first..=last).chain((first..=last).rev()) {
        let Some(before) = seq.checked_sub(apart.get().into()) else { continue };
        let of = |seq| known.name(seq).map(|name| name.or(new.get(&seq).copied()));
        let (Some(one), Some(other)) = (of(seq), of(before)) else { continue };
        let (tag, is_bare) = combined[(seq - first) as usize];
        let follows = |(of, was_bare): (Tag, bool)| (tag ^ of, is_bare ^ was_bare);
        match (one, other) {
            (None, Some(other)) => new.insert(seq, follows(other)),
            (Some(one), None) => new.insert(before, follows(one)),
            _ => None,
        };
    }
    new.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repair::identity::IdentityKey;
    use crate::repair::section::{Form, Manner, Name, Section, emit_names, sections};
    use crate::rng::Rng;

    /// Number of packets that a datagram names.
    const EACH: usize = 36;

    /// Returns the number of packets without a name after 20 datagrams of names, of which those in
    /// `lost` are lost.
    fn unnamed(lost: &[usize]) -> usize {
        let mut rng = Rng::from_seed(7);
        let name = |rng: &mut Rng| Name { tag: rng.below(1 << 16) as u16, ..Name::default() };
        let names: Vec<_> = (0..20 * EACH).map(|_| name(&mut rng)).collect();
        let mut receiver = Receiver::new(IdentityKey::new(&[3; 32]).into(), 1 << 20);
        receiver.told(1);
        let apart = 2 * EACH;
        for n in (0..20).filter(|n| !lost.contains(n)) {
            let mut datagram = Vec::new();
            let (first, manner) = (n * EACH, Manner::default());
            if first >= EACH + apart {
                let again = first - EACH..first;
                let combined: Vec<_> =
                    again.clone().map(|at| names[at].combine(names[at - apart])).collect();
                let form = Form::Combined(NonZeroU16::new(apart as u16).unwrap());
                emit_names(again.start as u64 + 1, &combined, form, manner, &mut datagram);
            }
            let fresh = &names[first..first + EACH];
            emit_names(first as u64 + 1, fresh, Form::Timed, manner, &mut datagram);
            for section in sections(&datagram) {
                let Some(Section::Names(names)) = section else { panic!("names alone") };
                receiver.handle_names(Instant::ZERO, &names);
            }
        }
        let tag = |seq: usize| receiver.known.name(seq as u64).flatten().map(|(tag, _)| tag);
        let told = (1..=names.len()).map(|seq| (names[seq - 1].tag, tag(seq)));
        assert!(told.clone().all(|(name, told)| told.is_none_or(|told| told == name)));
        told.filter(|(_, told)| told.is_none()).count()
    }

    #[test]
    fn names_of_any_two_lost_datagrams_follow_from_others() {
        assert_eq!(unnamed(&[]), 0);
        for (one, other) in (6..14).flat_map(|one| (one..14).map(move |other| (one, other))) {
            assert_eq!(unnamed(&[one, other]), 0, "{one} and {other}");
        }
        // A datagram and both datagrams that repeat its names are lost.
        assert_eq!(unnamed(&[8, 9, 11]), EACH);
    }
}

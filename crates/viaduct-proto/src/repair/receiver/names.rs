//! Names of the peer's packets: matching to arrivals, detection of missing packets, and
//! measurement of the path.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::ops::Range;

use super::super::align::{Named, Tag};
use super::super::ledger::State;
use super::super::observed::Observed;
use super::super::section::{Names, expand};
use super::super::shadow::{Fate as Tried, Outcome, TRIED};
use super::{Blind, Receiver};
use crate::fec::{Decoder, Seq};
use crate::time::Instant;
use crate::wire::ip::MutableFields;

/// Distance around lost names within which missing packets count as dropped by the same full
/// queue.
const NEAR: u64 = 1_024;

impl Receiver {
    /// Handles names of the peer's packets.
    pub(in crate::repair) fn handle_names(&mut self, now: Instant, names: &Names<'_>) {
        self.acks = names.manner.acks;
        self.observe(names.manner.is_observed);
        let first = expand(names.first as u32, self.near());
        let Some(last) = first.checked_add(names.tags().len() as u64 - 1) else { return };
        let next = self.known.ledger.next();
        if first == 0 || self.in_the_dark(now, first, last) || !self.known.ledger.reach(first, last)
        {
            return;
        }
        if next > 0 && (1..self.known.ledger.capacity()).contains(&first.saturating_sub(next)) {
            // Packets missed by the tap have lost their names as well; these are of no use.
            let seen = if let Blind::UpTo(seq) = self.blind { seq.saturating_add(1) } else { next };
            self.unnamed.passed(now, next.max(seen), first - 1);
        }
        let new = match NonZeroU16::new(names.apart) {
            None => self.unnamed(first, names),
            Some(apart) => self.separate((first, last), apart, names),
        };
        let (mut tags, mut runs) = (Vec::with_capacity(new.len()), Vec::new());
        for (seq, (tag, is_bare)) in new {
            let Some(row) = self.known.ledger.row_mut(seq) else { continue };
            (row.tag, row.is_bare) = (tag, is_bare);
            match runs.last_mut() {
                Some((begin, from)) if *begin + (tags.len() - *from) as u64 == seq => {}
                _ => runs.push((seq, tags.len())),
            }
            tags.push(tag);
            if is_bare {
                // A repair that came before the name of its packet may wait for it.
                self.decoder.known(seq, &self.known, &mut self.recovered);
            }
        }
        if tags.is_empty() {
            return;
        }
        let mut named = std::mem::take(&mut self.named);
        for (n, (begin, from)) in runs.iter().enumerate() {
            let to = runs.get(n + 1).map_or(tags.len(), |(_, from)| *from);
            self.aligner.name(*begin, &tags[*from..to], &mut named);
        }
        let lowest = runs.first().map_or(first, |(begin, _)| *begin);
        let end = runs.last().map_or(last, |(begin, from)| begin + (tags.len() - from) as u64);
        self.measure(now, (first, names), lowest..end, &named);
        for seq in self.path.condemned() {
            if let Some(row) = self.known.ledger.row_mut(seq) {
                row.congested = true;
            }
        }
        for (seq, of) in named.drain(..) {
            match of {
                Named::Missing => self.settle(seq, State::Missing),
                Named::Arrived(arrival) => {
                    if let Some(times) = names.times().filter(|_| seq == first) {
                        self.hops.learn(
                            self.arrivals.get(arrival),
                            MutableFields { ttl: times.ttl, tos: times.tos },
                        );
                    }
                    let row = self.known.ledger.row(seq);
                    let is_late = row.is_some_and(|row| row.state == State::Missing);
                    self.arrived(now, seq, arrival);
                    if is_late {
                        self.stats.late += 1;
                        self.decoder.known(seq, &self.known, &mut self.recovered);
                    }
                }
            }
        }
        self.deliver(now);
        self.named = named;
        self.release_pending(now);
    }

    /// Returns the names that are new: repeated ones overlap with known ones at either end, and
    /// copies are known before their names.
    fn unnamed(&self, first: Seq, names: &Names<'_>) -> Vec<(Seq, (Tag, bool))> {
        let all = (first..).zip(names.tags().zip(names.bare()));
        all.filter(|(seq, _)| self.name(*seq) == Some(None)).collect()
    }

    /// Returns the names that follow from combined ones and known ones.
    fn separate(
        &self,
        (first, last): (Seq, Seq),
        apart: NonZeroU16,
        names: &Names<'_>,
    ) -> Vec<(Seq, (Tag, bool))> {
        let mut new = BTreeMap::new();
        let combined: Vec<_> = names.tags().zip(names.bare()).collect();
        // A name may follow from one that has just been found: later packets are tried first,
        // then earlier ones.
        for seq in (first..=last).chain((first..=last).rev()) {
            let Some(before) = seq.checked_sub(apart.get().into()) else { continue };
            let of = |seq| self.name(seq).map(|name| name.or(new.get(&seq).copied()));
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

    /// Tag and bit of a packet, as far as they are known; `None` if its number is outside the
    /// ledger.
    fn name(&self, seq: Seq) -> Option<Option<(Tag, bool)>> {
        let row = self.known.ledger.row(seq)?;
        Some((row.state != State::Unnamed).then_some((row.tag, row.is_bare)))
    }

    /// Starts or stops the trial of codes on the losses.
    fn observe(&mut self, is_observed: bool) {
        if !is_observed {
            self.observed = None;
        } else if self.observed.is_none() {
            self.observed = Some(Box::new(Observed::new(self.times.rtt)));
        }
    }

    /// Outcomes of the trial codes for a peer that observes.
    pub(in crate::repair) fn trials(&self) -> Option<[Outcome; TRIED.len()]> {
        self.observed.as_ref().map(|observed| observed.outcomes())
    }

    /// Measures the path by names; those within `new` were not known before.
    fn measure(
        &mut self,
        now: Instant,
        (first, names): (Seq, &Names<'_>),
        new: Range<Seq>,
        named: &[(Seq, Named)],
    ) {
        self.sent.clear();
        if let Some(times) = names.times() {
            self.sent.extend(times.sent());
        }
        for (seq, sent) in (first..).zip(&self.sent) {
            if let Some(row) = self.known.ledger.row_mut(seq) {
                row.sent = Some(*sent);
            }
        }
        let Receiver { path, sent, arrivals, requests, known, observed, .. } = self;
        if sent.is_empty() && new.end < known.ledger.next() {
            // Late names: requested ones, or those that come long after the packets.
            let mut near = new.start.saturating_sub(NEAR)..new.end.saturating_add(NEAR);
            let congested = near.any(|seq| known.ledger.row(seq).is_some_and(|row| row.congested));
            path.named_late(now, named, congested);
            let missing = named.iter().filter(|(_, of)| *of == Named::Missing);
            for &(seq, _) in missing {
                let Some(row) = known.ledger.row_mut(seq) else { continue };
                row.congested = congested;
                if !congested && !row.is_bare && observed.is_none() {
                    requests.missing(now, seq);
                }
            }
            return;
        }
        let came = |arrival| arrivals.get(arrival).map(|came| came.at);
        path.named(now, (first, sent), named, came, |seq, congested| {
            let Some(row) = known.ledger.row_mut(seq) else { return };
            row.congested = congested;
            if !congested && !row.is_bare && observed.is_none() {
                requests.missing(now, seq);
            }
        });
        let Some(observed) = observed else { return };
        for &(seq, of) in named {
            let sent = seq.checked_sub(first).and_then(|at| sent.get(at as usize));
            let is_congested = || known.ledger.row(seq).is_some_and(|row| row.congested);
            match (of, sent) {
                (Named::Arrived(_), Some(&sent)) => observed.named(now, seq, sent, Tried::Arrived),
                (Named::Arrived(_), None) => observed.arrived(seq),
                (Named::Missing, Some(&sent)) => {
                    let fate = if is_congested() { Tried::Congested } else { Tried::Lost };
                    observed.named(now, seq, sent, fate);
                }
                (Named::Missing, None) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::identity::IdentityKey;
    use super::super::super::section::{Form, Manner, Name, Section, emit_names, sections};
    use super::*;
    use crate::rng::Rng;

    /// Number of packets that a datagram names.
    const EACH: usize = 36;

    /// Number of packets without a name after 20 datagrams of names, of which those in `lost`
    /// are lost.
    fn unnamed(lost: &[usize]) -> usize {
        let mut rng = Rng::from_seed(7);
        let name = |rng: &mut Rng| Name { tag: rng.below(1 << 16) as u16, ..Name::default() };
        let names: Vec<_> = (0..20 * EACH).map(|_| name(&mut rng)).collect();
        let mut receiver = Receiver::new(IdentityKey::new(&[3; 32]), 1 << 20);
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
        let tag = |seq: usize| receiver.name(seq as u64).flatten().map(|(tag, _)| tag);
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
        // A datagram and both that repeat its names are lost.
        assert_eq!(unnamed(&[8, 9, 11]), EACH);
    }
}

//! Matching of packet numbers to arrivals by short tags.
//!
//! A peer names its packets by tags of two bytes, in the order in which they left. By itself a tag
//! is ambiguous: one packet in 65,536 has the same tag. The order of the tags resolves the
//! ambiguity. Tags and arrivals are compared like two texts: equal tags in the same order are
//! matched, a tag without an arrival is missing, and an arrival without a tag is skipped. Only
//! missing tags and skipped arrivals, which are few, are then matched out of order. Arrivals that
//! were skipped because their names were lost are left out: there are many of them, and some would
//! match a missing tag by chance.
//!
//! ```text
//!   tags       41  07  c3  9e  55  12          c3 is missing
//!   arrivals   41  07  9e  55  [e0]  12        e0 is skipped: foreign, or named later
//! ```

use std::collections::VecDeque;

use crate::fec::Seq;

/// Low bits of a packet's identity.
pub type Tag = u16;
/// Number of an arrival, from 0.
pub type Arrival = u64;

/// Maximum number of unmatched arrivals that are kept in order.
const MAX_AHEAD: usize = 4_096;
/// Maximum number of skipped arrivals, and of missing numbers, kept for matching out of order.
const MAX_ASIDE: usize = 256;
/// Largest reordering, in arrivals: farther apart, tags are too likely to be equal by chance.
const MAX_REORDERING: u64 = 256;
/// Number of arrivals that are searched for the tag of a packet that was named alone.
const REACH: usize = 512;
/// Number of tags in a row that must match arrivals before items in front of them are passed over.
const AGREE: usize = 2;
/// Maximum number of missing tags between two matching tags that still count as two in a row: a
/// full queue may drop every other packet.
const GAPS: usize = 8;
/// Maximum number of arrivals that may be passed over if only a single tag agrees after them.
const FEW: usize = 2;

/// Arrivals without a number, and numbers without an arrival.
#[derive(Debug, Default)]
pub struct Aligner {
    /// Arrivals with numbers from `next` upwards, none of them matched to a packet number yet.
    ahead: VecDeque<Tag>,
    /// Number of the first arrival in `ahead`.
    next: Arrival,
    /// Earlier arrivals without a number, oldest first.
    skipped: VecDeque<(Tag, Arrival)>,
    /// Number of the newest entries of `skipped` that have not been compared with the missing
    /// numbers.
    fresh: usize,
    /// Arrivals that were skipped because they seem to belong to packet numbers never named.
    unnamed: VecDeque<(Tag, Arrival)>,
    /// Number of arrivals that may still be skipped for packet numbers that were never named.
    gap: u64,
    /// Packet number after the highest one that was named.
    expected: Option<Seq>,
    /// Numbers without an arrival, oldest first.
    missing: VecDeque<MissingNumber>,
    /// Number of the newest entries of `missing` that were named after the last matched number: the
    /// next arrival may belong to one of them.
    tail: usize,
    /// True if arrivals have been removed from `ahead` for lack of room since the last match. Names
    /// then arrive long after their packets, and a number that seems to have no arrival may belong
    /// to a removed arrival.
    is_adrift: bool,
}

/// Number without an arrival.
#[derive(Clone, Copy, Debug)]
struct MissingNumber {
    tag: Tag,
    seq: Seq,
    /// Number of the first arrival that was not matched yet when this number was named.
    at: Arrival,
}

impl MissingNumber {
    /// Returns whether this number may belong to the given arrival.
    fn is(&self, tag: Tag, arrival: Arrival) -> bool {
        self.tag == tag && self.at.abs_diff(arrival) <= MAX_REORDERING
    }
}

/// Result of naming a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// Matched to this arrival.
    Arrived(Arrival),
    /// Not arrived.
    Missing,
}

impl Aligner {
    /// Records the next arrival; returns its packet number if that number has already been named.
    pub fn arrive(&mut self, tag: Tag) -> Option<Seq> {
        let tail = self.missing.len() - self.tail;
        if self.ahead.is_empty()
            && let Some(at) = self.missing.range(tail..).position(|of| of.is(tag, self.next))
        {
            self.next += 1;
            self.tail -= at + 1;
            return self.missing.remove(tail + at).map(|of| of.seq);
        }
        if self.ahead.len() == MAX_AHEAD {
            self.skip(1);
            self.is_adrift = true;
        }
        self.ahead.push_back(tag);
        None
    }

    /// Number of the next arrival.
    pub fn next_arrival(&self) -> Arrival {
        self.next + self.ahead.len() as u64
    }

    /// Handles the tags of consecutive numbers, the first of which is `first`; these numbers were
    /// not named before. Appends the result for each number to `named`, unless the result is
    /// unknown. Also appends the results for numbers that were missing and are now found among
    /// skipped arrivals.
    pub fn name(&mut self, first: Seq, tags: &[Tag], named: &mut Vec<(Seq, Named)>) {
        if self.expected.is_some_and(|expected| first + tags.len() as u64 <= expected) {
            return self.name_late(first, tags, named);
        }
        let gap = self.expected.map_or(0, |expected| first.saturating_sub(expected));
        self.gap = if gap > 0 { gap } else { self.gap };
        self.expected = self.expected.max(Some(first + tags.len() as u64));
        let mut at = 0;
        while at < tags.len() {
            let seq = first + at as u64;
            match self.step(&tags[at..], tags.len() < AGREE) {
                Step::Match => {
                    self.ahead.pop_front();
                    (self.tail, self.gap, self.is_adrift) = (0, 0, false);
                    named.push((seq, Named::Arrived(self.next)));
                    self.next += 1;
                    at += 1;
                }
                Step::Skip(count) => self.skip(count),
                Step::Miss(count) => {
                    for (seq, &tag) in (seq..).zip(&tags[at..at + count]) {
                        let of = self.aside(tag, seq);
                        if of != Named::Missing || !self.is_adrift {
                            named.push((seq, of));
                        }
                    }
                    at += count;
                }
            }
        }
        self.settle(named);
    }

    /// Handles the tags of numbers whose names were lost at first: their packets are among the
    /// arrivals that were skipped for these numbers, in the same order.
    fn name_late(&mut self, first: Seq, tags: &[Tag], named: &mut Vec<(Seq, Named)>) {
        let ahead = self.unnamed.iter().map(|(tag, _)| *tag).collect();
        let mut late = Aligner { ahead, ..Aligner::default() };
        let (mut found, mut taken) = (Vec::new(), vec![false; self.unnamed.len()]);
        late.name(first, tags, &mut found);
        for (seq, of) in found {
            if let Named::Arrived(at) = of
                && let Some((_, arrival)) = self.unnamed.get(at as usize)
            {
                taken[at as usize] = true;
                named.push((seq, Named::Arrived(*arrival)));
                continue;
            }
            let tag = tags[(seq - first) as usize];
            if self.missing.len() == MAX_ASIDE {
                self.missing.pop_front();
                self.tail = self.tail.min(self.missing.len());
            }
            let at = self.missing.len() - self.tail;
            self.missing.insert(at, MissingNumber { tag, seq, at: self.next });
            named.push((seq, Named::Missing));
        }
        let mut taken = taken.into_iter();
        self.unnamed.retain(|_| taken.next() == Some(false));
        self.fresh = self.skipped.len();
    }

    /// Matches the recovered number `seq` to an unmatched arrival that has its tag and satisfies
    /// `is`. Returns whether there is such an arrival.
    pub fn find(&mut self, seq: Seq, tag: Tag, is: impl Fn(Arrival) -> bool) -> bool {
        self.missing.retain(|of| of.seq != seq);
        self.tail = self.tail.min(self.missing.len());
        for aside in [&mut self.skipped, &mut self.unnamed] {
            let found = aside.iter().position(|&(of, arrival)| of == tag && is(arrival));
            if found.is_some_and(|at| aside.remove(at).is_some()) {
                return true;
            }
        }
        let mut ahead = (self.next..).zip(&self.ahead);
        ahead.any(|(arrival, of)| *of == tag && is(arrival))
    }

    /// Arrivals that were not matched to a number, latest first: those in `ahead`, then those in
    /// `skipped`, but none of those in `unnamed`.
    pub fn unmatched(&self) -> impl Iterator<Item = Arrival> {
        let skipped = self.skipped.iter().rev().map(|(_, arrival)| *arrival);
        (self.next..self.next_arrival()).rev().chain(skipped)
    }

    /// Forgets missing numbers below `seq`.
    pub fn forget_below(&mut self, seq: Seq) {
        self.missing.retain(|of| of.seq >= seq);
        self.tail = self.tail.min(self.missing.len());
    }

    /// Forgets all numbers: the next numbers may be lower. Keeps the unmatched arrivals, which may
    /// belong to the next numbers.
    pub fn restart(&mut self) {
        self.missing.clear();
        (self.gap, self.expected, self.tail) = (0, None, 0);
    }

    /// Next step of the comparison at the first of `tags`; `is_lone`: fewer than [`AGREE`] tags
    /// were named.
    fn step(&self, tags: &[Tag], is_lone: bool) -> Step {
        if self.ahead.front() == Some(&tags[0]) {
            return Step::Match;
        }
        // Finds the fewest items to pass over until tags and arrivals agree again, and how many of
        // these items are missing tags.
        let (filter, mut least) = (TagFilter::of(tags), None);
        for (skipped, tag) in self.ahead.iter().enumerate() {
            if least.is_some_and(|(passed, _)| skipped > passed) {
                break;
            }
            if !filter.may_have(*tag) {
                continue;
            }
            for (missing, _) in tags.iter().enumerate().filter(|(_, of)| *of == tag) {
                let found = (skipped + missing, missing);
                if least.is_none_or(|least| found < least)
                    && self.agree(&tags[missing..], skipped, is_lone)
                {
                    least = Some(found);
                }
            }
        }
        match least {
            Some((passed, missing)) if passed > missing => Step::Skip(passed - missing),
            Some((_, missing)) => Step::Miss(missing),
            None => Step::Miss(tags.len()),
        }
    }

    /// Returns whether tags and arrivals agree from here on, except for some missing tags. Where
    /// the tags or the arrivals end, a single match is enough only if few arrivals were passed over
    /// or a lone tag was named: among many arrivals, one may match by chance.
    fn agree(&self, tags: &[Tag], from: usize, is_lone: bool) -> bool {
        let mut arrived = self.ahead.range(from..);
        let Some((tag, rest)) = tags.split_first() else { return false };
        if arrived.next() != Some(tag) {
            return false;
        }
        let next = arrived.next().filter(|_| !rest.is_empty());
        let is_near = from <= FEW || is_lone && from < REACH;
        let follows = |next: &Tag| rest.iter().take(GAPS + 1).any(|tag| tag == next);
        next.map_or(is_near, |next| follows(next) || is_near && rest.len() <= GAPS)
    }

    fn skip(&mut self, count: usize) {
        for tag in self.ahead.drain(..count) {
            let aside = if self.gap > 0 { &mut self.unnamed } else { &mut self.skipped };
            self.fresh += usize::from(self.gap == 0);
            self.gap = self.gap.saturating_sub(1);
            aside.push_back((tag, self.next));
            self.next += 1;
            if aside.len() > MAX_ASIDE {
                aside.pop_front();
            }
        }
    }

    /// Matches a number that has no arrival in sequence to a skipped arrival, or records the number
    /// as missing.
    fn aside(&mut self, tag: Tag, seq: Seq) -> Named {
        let missing = MissingNumber { tag, seq, at: self.next };
        let found = self.skipped.iter().position(|&(of, arrival)| missing.is(of, arrival));
        if let Some((_, arrival)) = found.and_then(|at| self.skipped.remove(at)) {
            return Named::Arrived(arrival);
        }
        if self.missing.len() == MAX_ASIDE {
            self.missing.pop_front();
        }
        self.missing.push_back(missing);
        self.tail = (self.tail + 1).min(self.missing.len());
        Named::Missing
    }

    /// Matches missing numbers to the arrivals skipped since the last call. Older arrivals have
    /// been compared already; comparing them again would be slow if there are many arrivals and
    /// numbers.
    fn settle(&mut self, named: &mut Vec<(Seq, Named)>) {
        let old = self.skipped.len().saturating_sub(self.fresh);
        for at in (old..self.skipped.len()).rev() {
            let (tag, arrival) = self.skipped[at];
            if let Some(of) = self.missing.iter().position(|missing| missing.is(tag, arrival)) {
                self.skipped.remove(at);
                let missing = self.missing.remove(of);
                named.extend(missing.map(|missing| (missing.seq, Named::Arrived(arrival))));
            }
        }
        self.fresh = 0;
        self.tail = self.tail.min(self.missing.len());
    }
}

/// Set of the low 12 bits of a few tags, which rules out most other tags quickly.
struct TagFilter([u64; 64]);

impl TagFilter {
    fn of(tags: &[Tag]) -> TagFilter {
        let mut bits = [0; 64];
        for tag in tags {
            bits[usize::from(tag / 64 % 64)] |= 1 << (tag % 64);
        }
        TagFilter(bits)
    }

    /// Returns true for the tags of the set, and false for nearly all other tags.
    fn may_have(&self, tag: Tag) -> bool {
        self.0[usize::from(tag / 64 % 64)] >> (tag % 64) & 1 == 1
    }
}

enum Step {
    /// The first tag and the first arrival agree.
    Match,
    /// Number of arrivals without a tag.
    Skip(usize),
    /// Number of tags without an arrival.
    Miss(usize),
}

#[cfg(test)]
mod tests;

//! What is read, and the continuations that yield it.

use std::ops::Range;

use bytes::Bytes;

use super::{Failure, State};
use crate::trickles::client::Reassembly;
use crate::trickles::standard::Valid;

/// Most continuations that are kept of a stream.
const MOST: usize = 64;
/// Most answers that bring something at a time.
const MOST_BROUGHT: usize = 64;
/// Bytes of the window for each piece that may wait for what is before it: who sends many that are shorter is no server
/// of ours, and each costs memory of its own.
const LEAST_PIECE: u64 = 64;

/// The output of one stream.
#[derive(Debug)]
pub(super) struct Output {
    region: Range<u64>,
    /// Where it ends, once that is known.
    end: Option<u64>,
    continuations: Vec<(Valid, Bytes)>,
    /// All below is wanted, is to come, or has come.
    next: u64,
    /// What comes in answer to which parcel.
    brought: Vec<(u64, Range<u64>)>,
    /// What was to come so, and may not have.
    doubtful: Vec<Range<u64>>,
    /// From the region's start on.
    data: Reassembly,
    failure: Option<Failure>,
}

impl Output {
    pub(super) fn new(region: Range<u64>) -> Self {
        let next = region.start;
        Output {
            region,
            end: None,
            continuations: Vec::new(),
            next,
            brought: Vec::new(),
            doubtful: Vec::new(),
            data: Reassembly::default(),
            failure: None,
        }
    }

    pub(super) fn region(&self) -> Range<u64> {
        self.region.clone()
    }

    /// Whether there may be something to ask for.
    pub(super) fn is_active(&self) -> bool {
        self.failure.is_none() && self.end.is_none_or(|end| self.position() < end)
    }

    pub(super) fn state(&self) -> State {
        match self.failure {
            _ if self.end == Some(self.position()) => State::Finished,
            Some(failure) => State::Failed(failure),
            None if self.position() == self.region.end => {
                State::Failed(Failure::TooLong(self.region.end - self.region.start))
            }
            None => State::Open,
        }
    }

    pub(super) fn read(&mut self) -> Option<Bytes> {
        self.data.read()
    }

    pub(super) fn fail(&mut self, failure: Failure) {
        self.failure = Some(failure);
    }

    /// A continuation came.
    pub(super) fn add(&mut self, valid: Valid, bytes: Bytes) {
        if valid.start < self.region.start || valid.end > self.region.end {
            return;
        }
        self.continuations
            .retain(|(known, _)| (known.start, known.end) != (valid.start, valid.end));
        self.continuations.push((valid, bytes));
        let position = self.position();
        // Of those that yield the next byte the nearest is enough, unless another reaches further.
        let near = self.continuations.iter().filter(|(known, _)| known.start <= position);
        let nearest = near.map(|(known, _)| (known.start, known.end)).max();
        self.continuations.retain(|(known, _)| {
            known.end > position
                && nearest.is_none_or(|(start, end)| known.start >= start || known.end > end)
        });
        if self.continuations.len() > MOST {
            let furthest =
                (0..self.continuations.len()).max_by_key(|&at| self.continuations[at].0.start);
            furthest.map(|at| self.continuations.swap_remove(at));
        }
    }

    /// The answer to `parcel` brings this. What of it has not come when that is settled is asked for.
    pub(super) fn brings(&mut self, range: Range<u64>, parcel: Option<u64>, share: u64) {
        let Some(parcel) = parcel else { return };
        let to = range.end.min(self.position().saturating_add(share)).min(self.region.end);
        let new = range.start <= self.next && to > self.next;
        if new && self.brought.len() < MOST_BROUGHT {
            self.brought.push((parcel, self.next..to));
            self.next = to;
        }
    }

    /// No answer to `parcel` will come any more.
    pub(super) fn settle(&mut self, parcel: u64) {
        let settled = self.brought.extract_if(.., |(of, _)| *of == parcel);
        self.doubtful.extend(settled.map(|(_, range)| range));
    }

    /// Nothing that was asked for will come any more.
    pub(super) fn forget_flight(&mut self) {
        self.brought.clear();
        self.doubtful.clear();
        self.next = self.position();
    }

    /// Data came; whether there is something new to read. What is beyond the window was not asked for.
    pub(super) fn insert(&mut self, position: u64, data: Bytes, window: u64) -> bool {
        let end = position + data.len() as u64;
        let within = position >= self.region.start
            && end <= self.region.end
            && end <= self.position().saturating_add(window);
        if data.is_empty() || !within || self.failure.is_some() {
            return false;
        }
        self.data.insert(position - self.region.start, data);
        self.data.is_readable()
    }

    /// Whether more pieces wait than any server of ours sends.
    pub(super) fn is_crowded(&self, window: u64) -> bool {
        self.data.pieces() as u64 > window / LEAST_PIECE
    }

    /// The output ends there; whether that is news, and can be.
    pub(super) fn end(&mut self, end: u64) -> bool {
        let sane = (self.position()..=self.region.end).contains(&end);
        if self.end.is_some() || !sane {
            return false;
        }
        self.end = Some(end);
        self.next = self.next.min(end);
        true
    }

    /// Has `want` called for what may be asked for: what lies within `share` of what was read.
    pub(super) fn wants(&mut self, share: u64, want: &mut dyn FnMut(Range<u64>, Bytes)) {
        let end = self.end.unwrap_or(self.region.end);
        for doubtful in std::mem::take(&mut self.doubtful) {
            let reached = self.want_of(doubtful.start..doubtful.end.min(end), want);
            if reached < doubtful.end.min(end) {
                self.doubtful.push(reached..doubtful.end);
            }
        }
        let limit = self.position().saturating_add(share).min(end);
        // Not for every few bytes that were read.
        let much = limit.saturating_sub(self.next) >= share / 8 || limit == end;
        if much || self.next <= self.position() {
            self.next = self.want_of(self.next..limit, want).max(self.next);
        }
    }

    /// Wants what of `range` has not come, as far as continuations yield it; how far that is.
    fn want_of(&self, range: Range<u64>, want: &mut dyn FnMut(Range<u64>, Bytes)) -> u64 {
        let mut at = range.start;
        while at < range.end {
            let Some((part, bytes)) = self.choose(at) else { break };
            let part = part.start..part.end.min(range.end);
            for hole in self.data.missing(self.relative(&part)) {
                let start = self.region.start;
                want(hole.start + start..hole.end + start, bytes.clone());
            }
            at = part.end;
        }
        at
    }

    /// The continuation that yields `position` at the least expense, and how far it is the one to use.
    fn choose(&self, position: u64) -> Option<(Range<u64>, Bytes)> {
        let holding = self.continuations.iter().filter(|(valid, _)| valid.holds(position));
        let (valid, bytes) = holding.max_by_key(|(valid, _)| valid.start)?;
        let nearer = self.continuations.iter().map(|(other, _)| other.start);
        let until = nearer.filter(|&start| start > position).min().unwrap_or(valid.end);
        Some((position..until.min(valid.end), bytes.clone()))
    }

    /// Where the next byte that is read stands.
    fn position(&self) -> u64 {
        self.region.start + self.data.position()
    }

    fn relative(&self, range: &Range<u64>) -> Range<u64> {
        range.start - self.region.start..range.end - self.region.start
    }
}

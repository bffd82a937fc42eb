//! Output of a stream, and the continuations that yield it.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use super::{Failure, State};
use crate::trickles::client::Reassembly;
use crate::trickles::standard::Valid;

/// Number of a stream's continuations at which no further input of the stream is sent: input
/// produces continuations, and the server does not send a dropped continuation again.
pub(super) const ENOUGH: usize = 64;
/// Maximum number of continuations that are kept for a stream. Far fewer are in flight when
/// [`ENOUGH`] is reached, so a server that exceeds this number is faulty.
const MAX_CONTINUATIONS: usize = 1_024;
/// Maximum number of answers in flight for which brought ranges are recorded.
const MAX_BROUGHT: usize = 64;
/// Bytes of the window for each chunk that waits for missing data: at most window / 64 chunks may
/// wait, because each chunk takes memory besides its bytes. A server that sends more, shorter
/// chunks is faulty.
const MIN_PIECE: u64 = 64;

#[derive(Debug)]
pub(super) struct Output {
    region: Range<u64>,
    /// End of the output, once it is known.
    end: Option<u64>,
    /// Continuations by the start of their range.
    continuations: BTreeMap<u64, (Valid, Bytes)>,
    /// Position below which all output is wanted, in flight, or has arrived.
    next: u64,
    /// Ranges that answers in flight contain without an ask, with their parcels.
    brought: Vec<(u64, Range<u64>)>,
    /// Brought ranges of settled parcels, which may have missing parts.
    doubtful: Vec<Range<u64>>,
    /// Data by position, relative to the region's start.
    data: Reassembly,
    pub(super) failure: Option<Failure>,
}

impl Output {
    pub(super) fn new(region: Range<u64>) -> Self {
        let next = region.start;
        Output {
            region,
            end: None,
            continuations: BTreeMap::new(),
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

    /// Returns whether there may be output to request, now or later.
    pub(super) fn is_active(&self) -> bool {
        self.failure.is_none() && self.end.is_none_or(|end| self.position() < end)
    }

    /// Returns whether there is a continuation with which output can be requested.
    pub(super) fn can_ask(&self) -> bool {
        self.is_active() && !self.continuations.is_empty()
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
        let data = self.data.read();
        if data.is_some() {
            self.forget_read();
        }
        data
    }

    /// Adds a continuation. Returns the continuation that it replaces, if they differ.
    pub(super) fn add(&mut self, valid: Valid, bytes: &Bytes) -> Option<Bytes> {
        let sane = self.region.start <= valid.start && valid.end <= self.region.end;
        let known = self.continuations.get(&valid.start);
        let further = known.is_none_or(|(known, _)| known.end <= valid.end);
        if !sane || !further || valid.start >= valid.end {
            return None;
        }
        let before = self.continuations.insert(valid.start, (valid, bytes.clone()));
        self.forget_read();
        if self.continuations.len() > ENOUGH {
            self.forget_needless();
        }
        before.map(|(_, before)| before).filter(|before| before != bytes)
    }

    /// Drops the continuations of output that was read.
    fn forget_read(&mut self) {
        let position = self.position();
        // Of the continuations that yield the next byte, the nearest is enough, unless another one
        // reaches further.
        let nearest = self.continuations.range(..=position).next_back();
        let nearest = nearest.map(|(&start, (known, _))| (start, known.end));
        self.continuations.retain(|&start, (known, _)| {
            known.end > position
                && nearest.is_none_or(|(near, end)| start >= near || known.end > end)
        });
    }

    /// Drops the last continuation whose entire range earlier continuations also yield, although at
    /// a higher cost ([`Output::choose`]).
    fn forget_needless(&mut self) {
        let mut reached = 0;
        let is_needless = |valid: &Valid| {
            let within = valid.end <= reached;
            reached = reached.max(valid.end);
            within
        };
        let all = self.continuations.values().map(|(valid, _)| *valid);
        if let Some(needless) = all.filter(is_needless).last() {
            self.continuations.remove(&needless.start);
        }
    }

    /// Number of continuations of unread output; 0 if the next bytes can be neither read
    /// nor requested.
    pub(super) fn kept(&self) -> usize {
        let next = self.continuations.first_key_value();
        let here = next.is_some_and(|(&start, _)| start <= self.position());
        if here || self.data.is_readable() { self.continuations.len() } else { 0 }
    }

    /// Returns whether bytes are missing and no continuation yields them. To be called only when
    /// nothing is in flight. `over` is true if no further input can produce them.
    pub(super) fn is_stuck(&self, over: bool) -> bool {
        let position = self.position();
        let here = self.choose(position).is_some() || self.data.is_readable();
        let told = self.next > position || self.end.is_some() || self.data.pieces() > 0;
        let beyond = told || !self.continuations.is_empty();
        self.state() == State::Open && !here && (over || beyond)
    }

    /// Records a range that the answer to `parcel` contains without an ask. When the parcel is
    /// settled, missing parts are requested.
    pub(super) fn brings(&mut self, range: Range<u64>, parcel: Option<u64>, share: u64) {
        let Some(parcel) = parcel else { return };
        let to = range.end.min(self.position().saturating_add(share)).min(self.region.end);
        let new = range.start <= self.next && to > self.next;
        if new && self.brought.len() < MAX_BROUGHT {
            self.brought.push((parcel, self.next..to));
            self.next = to;
        }
    }

    /// Marks the brought ranges of `parcel` as doubtful, because no further answer to it will
    /// arrive.
    pub(super) fn settle(&mut self, parcel: u64) {
        let settled = self.brought.extract_if(.., |(of, _)| *of == parcel);
        self.doubtful.extend(settled.map(|(_, range)| range));
    }

    /// Drops the state of requests in flight, because no answer to them will arrive.
    pub(super) fn forget_flight(&mut self) {
        self.brought.clear();
        self.doubtful.clear();
        self.next = self.position();
    }

    /// Inserts data. Returns whether there is something new to read. Discards data beyond the
    /// window, unless they were requested when the window was wider.
    pub(super) fn insert(&mut self, position: u64, data: Bytes, window: u64) -> bool {
        let end = position + data.len() as u64;
        let within = position >= self.region.start
            && end <= self.region.end
            && end <= self.position().saturating_add(window).max(self.next);
        if data.is_empty() || !within || self.failure.is_some() {
            return false;
        }
        self.data.insert(position - self.region.start, data);
        self.data.is_readable()
    }

    /// Returns whether there are more chunks or continuations than a correct server causes.
    pub(super) fn is_crowded(&self, window: u64) -> bool {
        self.data.pieces() as u64 > window / MIN_PIECE
            || self.continuations.len() > MAX_CONTINUATIONS
    }

    /// Sets the end of the output. Returns whether the end is new and valid.
    pub(super) fn end(&mut self, end: u64) -> bool {
        let sane = (self.position()..=self.region.end).contains(&end);
        if self.end.is_some() || !sane {
            return false;
        }
        self.end = Some(end);
        self.next = self.next.min(end);
        true
    }

    /// Calls `want` for the output to request: at most `share` bytes beyond the read position.
    pub(super) fn wants(&mut self, share: u64, want: &mut dyn FnMut(Range<u64>, Bytes)) {
        let end = self.end.unwrap_or(self.region.end);
        for doubtful in std::mem::take(&mut self.doubtful) {
            // No continuation is kept for output that was read.
            let doubtful = doubtful.start.max(self.position())..doubtful.end.min(end);
            let reached = self.want_of(doubtful.clone(), want);
            if reached < doubtful.end {
                self.doubtful.push(reached..doubtful.end);
            }
        }
        let limit = self.position().saturating_add(share).min(end);
        // Avoids many requests for a few bytes each.
        let much = limit.saturating_sub(self.next) >= share / 8 || limit == end;
        if much || self.next <= self.position() {
            self.next = self.want_of(self.next..limit, want).max(self.next);
        }
    }

    /// Requests the missing parts of `range`, as far as continuations yield them. Returns the
    /// position up to which they do.
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

    /// Returns the continuation that yields `position` at the lowest cost: the one that starts
    /// nearest to it. Also returns the range from `position` for which this continuation is the
    /// best.
    fn choose(&self, position: u64) -> Option<(Range<u64>, Bytes)> {
        let mut nearest = self.continuations.range(..=position).rev();
        let (_, (valid, bytes)) = nearest.find(|(_, (valid, _))| valid.holds(position))?;
        let nearer = self.continuations.range(position + 1..).next();
        let until = nearer.map_or(valid.end, |(&start, _)| start);
        Some((position..until.min(valid.end), bytes.clone()))
    }

    /// Number of bytes that were requested or have arrived, and were not read.
    pub(super) fn unread(&self) -> u64 {
        self.next.saturating_sub(self.position()).max(self.data.waiting() as u64)
    }

    /// Position of the next byte to be read.
    fn position(&self) -> u64 {
        self.region.start + self.data.position()
    }

    fn relative(&self, range: &Range<u64>) -> Range<u64> {
        range.start - self.region.start..range.end - self.region.start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrequested_data_is_kept_only_within_the_window_and_counted() {
        let mut output = Output::new(1_000..1 << 30);
        let data = Bytes::from(vec![7; 1_000]);
        assert!(!output.insert(101_000, data.clone(), 64 << 10));
        assert_eq!(output.unread(), 0);
        output.insert(3_000, data.clone(), 64 << 10);
        assert_eq!(output.unread(), 1_000);
        output.forget_flight();
        assert_eq!(output.unread(), 1_000, "the data is still held");
        assert!(output.insert(1_000, data.clone(), 64 << 10));
        assert_eq!((output.read(), output.unread()), (Some(data), 1_000));
    }
}

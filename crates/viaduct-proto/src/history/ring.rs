//! Series of one subject: the last values of each, aligned by tick.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use super::{MAX_SAMPLES, MAX_SERIES};

/// Last values of the series of a subject.
#[derive(Debug)]
pub(super) struct Rings {
    /// Tick of the first value of each series.
    start: u64,
    /// Tick after the last value.
    end: u64,
    series: BTreeMap<&'static str, VecDeque<f32>>,
}

impl Rings {
    /// Creates empty series, whose first values will be those of tick `start`.
    pub(super) fn new(start: u64) -> Rings {
        Rings { start, end: start, series: BTreeMap::new() }
    }

    /// Tick after the last value.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Sets the value of `name` at tick `now`, which must not be before the tick of any other
    /// value. Ignores a new series if there are [`MAX_SERIES`] already.
    pub(super) fn push(&mut self, name: &'static str, now: u64, value: f32) {
        if self.series.len() >= MAX_SERIES && !self.series.contains_key(name) {
            return;
        }
        self.make_room(now + 1);
        // A ring that grows by doubling would take nearly twice the memory.
        let new = || VecDeque::with_capacity(MAX_SAMPLES + 1);
        let ring = self.series.entry(name).or_insert_with(new);
        fill(ring, (now - self.start) as usize);
        match ring.len() as u64 + self.start > now {
            true => ring.iter_mut().last().into_iter().for_each(|last| *last = value),
            false => ring.push_back(value),
        }
    }

    /// Ends tick `now`: series without a value for it get NaN, and values beyond the last
    /// [`MAX_SAMPLES`] are dropped.
    pub(super) fn reach(&mut self, now: u64) {
        self.end = now + 1;
        self.make_room(self.end);
        for ring in self.series.values_mut() {
            fill(ring, (self.end - self.start) as usize);
        }
    }

    /// Drops the values that will be too old when the rings extend to tick `end`.
    fn make_room(&mut self, end: u64) {
        let surplus = (end - self.start).saturating_sub(MAX_SAMPLES as u64);
        for ring in self.series.values_mut() {
            ring.drain(..ring.len().min(surplus as usize));
        }
        self.start += surplus;
    }

    /// Value of `name` at `tick`; NaN if there is none.
    pub(super) fn value(&self, name: &str, tick: u64) -> f32 {
        self.series.get(name).map_or(f32::NAN, |ring| self.at(ring, tick))
    }

    /// Values of all series at `ticks`.
    pub(super) fn values(&self, ticks: RangeInclusive<u64>) -> BTreeMap<&'static str, Vec<f32>> {
        let each = |ring| ticks.clone().map(|tick| self.at(ring, tick)).collect();
        self.series.iter().map(|(name, ring)| (*name, each(ring))).collect()
    }

    fn at(&self, ring: &VecDeque<f32>, tick: u64) -> f32 {
        let index = tick.checked_sub(self.start).and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| ring.get(index)).copied().unwrap_or(f32::NAN)
    }
}

/// Appends NaN until `ring` has `length` values.
fn fill(ring: &mut VecDeque<f32>, length: usize) {
    if ring.len() < length {
        ring.resize(length, f32::NAN);
    }
}

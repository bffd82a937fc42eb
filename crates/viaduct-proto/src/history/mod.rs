//! Recent history of services: two samples a second for ten minutes, in bounded memory. The rate of
//! a counter is computed from the difference of two samples, one second apart.
//!
//! ```text
//!   tick(time) ─▶ record(service, clock, subjects) ─▶ rate of each counter ─▶ Ring of each series
//!                 for each service that answered                               │
//!                                              since(subject, tick) ◀──────────┘
//! ```
//!
//! A *subject* is one thing that has series of its own, such as a peer of a gateway. Each series
//! has one value per tick. The value is NaN if the service did not answer or has restarted, or if
//! it is a share of a count that did not grow.

mod reading;
mod ring;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

pub use reading::Reading;
use ring::Rings;

/// Samples that are kept: ten minutes, two a second.
pub const MAX_SAMPLES: usize = 1_200;
/// Distance, in samples, of the two readings from which a value is computed: one second. Over a
/// shorter time, shares of counts that are updated once a second would have gaps.
const WINDOW: usize = 2;
/// Maximum number of subjects of all services.
pub const MAX_SUBJECTS: usize = 512;
/// Maximum number of series of a subject.
pub const MAX_SERIES: usize = 32;

/// Key of a subject: the name of its service, its kind, and its own name.
pub type Key = (String, &'static str, String);

/// Counters and gauges of a subject at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Subject {
    /// Kind, such as `peer`.
    pub kind: &'static str,
    /// Name, unique among the subjects of this kind of the service.
    pub name: String,
    /// Name of each series, and its reading.
    pub readings: Vec<(&'static str, Reading)>,
}

/// Part of the history of a subject.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chunk {
    /// Number of the tick of the first values.
    pub first: u64,
    /// Unix time of each tick, in seconds.
    pub times: Vec<f64>,
    /// Values of each series, one per tick.
    pub series: BTreeMap<&'static str, Vec<f32>>,
}

/// History of all services.
#[derive(Debug, Default)]
pub struct History {
    /// Number of the current tick; the first is 1.
    now: u64,
    /// Unix times of the last ticks.
    times: VecDeque<f64>,
    subjects: BTreeMap<Key, Entry>,
    /// Keys by the subjects' numbers, which are not reused.
    ids: BTreeMap<u64, Key>,
    next_id: u64,
    /// Number of subjects not recorded at the current tick, because the history was full.
    left_out: usize,
}

/// Name of each series, and its reading.
type Readings = Vec<(&'static str, Reading)>;

#[derive(Debug)]
struct Entry {
    id: u64,
    /// Clock and readings of the last [`WINDOW`] records, oldest first.
    last: VecDeque<(f64, Readings)>,
    rings: Rings,
}

impl History {
    /// Begins the next sample, taken at `time` in seconds of Unix time. Subjects that were recorded
    /// in none of the kept samples are forgotten.
    pub fn tick(&mut self, time: f64) {
        self.now += 1;
        self.left_out = 0;
        self.times.push_back(time);
        if self.times.len() > MAX_SAMPLES {
            self.times.pop_front();
        }
        let oldest = self.oldest();
        self.subjects.retain(|_, entry| entry.rings.end() > oldest);
        let subjects = &self.subjects;
        self.ids.retain(|_, key| subjects.contains_key(key));
    }

    /// Records the readings of `service`. `clock` is the time in seconds since its counters were
    /// zero; a lower value than before means that the service has restarted.
    pub fn record(&mut self, service: &str, clock: f64, subjects: Vec<Subject>) {
        for subject in subjects {
            let key = (service.to_owned(), subject.kind, subject.name);
            if !self.make_room(&key) {
                self.left_out += 1;
                continue;
            }
            let (now, next_id) = (self.now, &mut self.next_id);
            let ids = &mut self.ids;
            let entry = self.subjects.entry(key).or_insert_with_key(|key| {
                *next_id += 1;
                ids.insert(*next_id, key.clone());
                Entry { id: *next_id, last: VecDeque::new(), rings: Rings::new(now) }
            });
            entry.record(now, clock, subject.readings);
        }
    }

    /// Makes room for the subject `key` by forgetting the subject that has been gone for the
    /// longest time. Returns false if all subjects have a value at the current tick.
    fn make_room(&mut self, key: &Key) -> bool {
        if self.subjects.len() < MAX_SUBJECTS || self.subjects.contains_key(key) {
            return true;
        }
        let gone = self.subjects.iter().filter(|(_, entry)| entry.rings.end() < self.now);
        let Some((key, entry)) = gone.min_by_key(|(_, entry)| entry.rings.end()) else {
            return false;
        };
        let (key, id) = (key.clone(), entry.id);
        self.subjects.remove(&key);
        self.ids.remove(&id);
        true
    }

    /// Number of the current tick.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Number of subjects not recorded at the current tick, because the history was full.
    pub fn left_out(&self) -> usize {
        self.left_out
    }

    /// Keys of all subjects, sorted.
    pub fn keys(&self) -> impl Iterator<Item = &Key> {
        self.subjects.keys()
    }

    /// Number of the subject `key`.
    pub fn id(&self, key: &Key) -> Option<u64> {
        self.subjects.get(key).map(|entry| entry.id)
    }

    /// Key of subject number `id`.
    pub fn key(&self, id: u64) -> Option<&Key> {
        self.ids.get(&id)
    }

    /// Value of `series` at the current tick; NaN if there is none.
    pub fn latest(&self, key: &Key, series: &str) -> f32 {
        self.subjects.get(key).map_or(f32::NAN, |entry| entry.rings.value(series, self.now))
    }

    /// Samples of a subject since tick `from`, as far as they are kept.
    pub fn since(&self, key: &Key, from: u64) -> Option<Chunk> {
        let entry = self.subjects.get(key)?;
        let first = from.max(self.oldest()).min(self.now + 1);
        let skipped = (first - self.oldest()) as usize;
        let times = self.times.iter().skip(skipped).copied().collect();
        Some(Chunk { first, times, series: entry.rings.values(first..=self.now) })
    }

    /// Number of the oldest tick that is kept.
    fn oldest(&self) -> u64 {
        self.now + 1 - self.times.len() as u64
    }
}

impl Entry {
    fn record(&mut self, now: u64, clock: f64, readings: Readings) {
        if self.last.back().is_some_and(|(then, _)| clock < *then) {
            self.last.clear();
        }
        // If the clock has not advanced, no rate can be computed.
        let base = self.last.front().filter(|(then, _)| *then < clock);
        let (then, old) = base.map_or((clock, &[][..]), |(then, old)| (*then, &old[..]));
        for &(name, ref reading) in readings.iter().take(MAX_SERIES) {
            let before = old.iter().find(|(of, _)| *of == name).map(|(_, before)| before);
            let value = reading.value(before, clock - then);
            self.rings.push(name, now, value.map_or(f32::NAN, |value| value as f32));
        }
        self.rings.reach(now);
        if self.last.len() == WINDOW {
            self.last.pop_front();
        }
        self.last.push_back((clock, readings));
    }
}

//! What an experiment is given: what it shall do, and the ear for what it finds.

use serde_json::{Map, Value};

use super::outcome::{Bound, Check, Plot, Series};
use super::progress::Progress;
use crate::stop::{self, Stopped};
use crate::topology::Journal;

/// One measurement in the making; through all its repeats.
#[derive(Debug)]
pub struct Run {
    quick: bool,
    pub(super) seed: u64,
    journal: Journal,
    pub(super) progress: Progress,
    pub(super) params: Map<String, Value>,
    pub(super) series: Vec<Series>,
    pub(super) checks: Vec<Check>,
    pub(super) congestion_control: Vec<String>,
    /// Names of checks that this repeat has made.
    pub(super) checked: Vec<String>,
}

/// A series of a run; points are added to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeriesId(usize);

impl Run {
    pub(super) fn new(quick: bool, seed: u64, journal: Journal, progress: Progress) -> Run {
        Run {
            quick,
            seed,
            journal,
            progress,
            params: Map::new(),
            series: vec![],
            checks: vec![],
            congestion_control: vec![],
            checked: vec![],
        }
    }

    /// Whether to be short: fewer points, shorter flows, the same checks.
    pub fn quick(&self) -> bool {
        self.quick
    }

    /// `full`, or `quick` if the run is to be short.
    pub fn choose<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// The seed for everything random; each repeat has another.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Where commands are noted; for the worlds that the experiment builds.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Says how many steps there are in all.
    pub fn steps(&mut self, total: usize) {
        self.progress.expect(total);
    }

    /// Begins a step, as in `loss 1 %, cubic`.
    ///
    /// # Errors
    /// If a stop was asked for; hand it on with `?`, what was found until now is kept.
    pub fn step(&mut self, what: &str) -> Result<(), Stopped> {
        stop::check()?;
        self.progress.step(what);
        Ok(())
    }

    /// Records what was set, as in `("rtt_ms", 100)`.
    pub fn param(&mut self, name: &str, value: impl Into<Value>) {
        self.params.insert(name.into(), value.into());
    }

    /// Records that flows use this congestion control.
    pub fn congestion_control(&mut self, name: &str) {
        if !self.congestion_control.iter().any(|known| known == name) {
            self.congestion_control.push(name.into());
        }
    }

    /// The series of that name in `plot`; a new one, or that of an earlier repeat.
    pub fn series(&mut self, plot: &Plot, name: &str) -> SeriesId {
        let known = |series: &Series| series.plot == plot.title && series.name == name;
        let index = self.series.iter().position(known).unwrap_or_else(|| {
            let Plot { title, kind, x, y, confidence } = plot.clone();
            let (name, points) = (name.into(), vec![]);
            self.series.push(Series { plot: title, name, kind, x, y, confidence, points });
            self.series.len() - 1
        });
        SeriesId(index)
    }

    /// Adds a point to a series.
    pub fn point(&mut self, series: SeriesId, x: f64, y: f64) {
        self.series[series.0].add(x, y, None);
    }

    /// Adds a point that has a word where others have a number, as in `offloads off`.
    pub fn labelled_point(&mut self, series: SeriesId, x: f64, y: f64, label: &str) {
        self.series[series.0].add(x, y, Some(label));
    }

    /// Records what must hold. Its name is one line for people and different from other checks';
    /// over repeats the mean must hold.
    pub fn check(&mut self, name: &str, value: f64, bound: Bound) {
        debug_assert!(!self.checked.iter().any(|n| n == name), "two checks named {name:?}");
        self.checked.push(name.into());
        match self.checks.iter_mut().find(|check| check.name == name) {
            Some(check) => check.add(value),
            None => self.checks.push(Check::new(name, value, bound)),
        }
    }
}

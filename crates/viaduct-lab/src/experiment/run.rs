//! Context of an experiment: its settings, and the recorder of its findings.

use serde_json::{Map, Value};

use super::outcome::{Bound, Check, Plot, Series};
use super::progress::Progress;
use crate::stop::{self, Stopped};
use crate::topology::Journal;

/// A measurement in progress, across all its repeats.
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
    /// Names of the checks recorded in this repeat.
    pub(super) checked: Vec<String>,
}

/// Handle of a series of a run, to which points are added.
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

    /// True if the run is to be short: fewer points, shorter flows, and in some experiments fewer
    /// checks.
    pub fn quick(&self) -> bool {
        self.quick
    }

    /// Returns `full`, or `quick` in a short run.
    pub fn choose<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Returns the seed of all random numbers, which differs between repeats.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the journal of commands, for the worlds that the experiment builds.
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Sets the total number of steps.
    pub fn steps(&mut self, total: usize) {
        self.progress.expect(total);
    }

    /// Begins a step, as in `loss 1 %, cubic`. Fails if a stop was requested; the experiment should
    /// return this error. Findings so far are kept.
    pub fn step(&mut self, what: &str) -> Result<(), Stopped> {
        stop::check()?;
        self.progress.step(what);
        Ok(())
    }

    /// Records a setting, as in `("rtt_ms", 100)`.
    pub fn param(&mut self, name: &str, value: impl Into<Value>) {
        self.params.insert(name.into(), value.into());
    }

    /// Records that flows use the congestion control `name`.
    pub fn congestion_control(&mut self, name: &str) {
        if !self.congestion_control.iter().any(|known| known == name) {
            self.congestion_control.push(name.into());
        }
    }

    /// Returns the series `name` of `plot`: a new one, or the one of an earlier repeat.
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

    /// Adds a point with a label instead of a number on the x axis, as in `offloads off`.
    pub fn labelled_point(&mut self, series: SeriesId, x: f64, y: f64, label: &str) {
        self.series[series.0].add(x, y, Some(label));
    }

    /// Adds a point to the series `name` of `plot`.
    pub fn plot_point(&mut self, plot: &Plot, name: &str, at: (f64, f64)) {
        self.plot_points(plot, name, [at]);
    }

    /// Adds points to the series `name` of `plot`.
    pub fn plot_points(
        &mut self,
        plot: &Plot,
        name: &str,
        points: impl IntoIterator<Item = (f64, f64)>,
    ) {
        let series = self.series(plot, name);
        points.into_iter().for_each(|(x, y)| self.point(series, x, y));
    }

    /// Adds a bar of height `y` to the series `name` of `plot`, at position `x` with a label.
    pub fn plot_bar(&mut self, plot: &Plot, name: &str, (x, label): (usize, &str), y: f64) {
        let series = self.series(plot, name);
        self.labelled_point(series, x as f64, y, label);
    }

    /// Adds `bars`, each a label and a height, to the series `name` of `plot`, starting at position
    /// 0.
    pub fn plot_bars<L: AsRef<str>>(
        &mut self,
        plot: &Plot,
        name: &str,
        bars: impl IntoIterator<Item = (L, f64)>,
    ) {
        for (x, (label, y)) in bars.into_iter().enumerate() {
            self.plot_bar(plot, name, (x, label.as_ref()), y);
        }
    }

    /// Records a condition that must hold. The name is one readable line and unique among the
    /// checks. With several repeats, the mean of the values must satisfy the bound.
    pub fn check(&mut self, name: &str, value: f64, bound: Bound) {
        debug_assert!(!self.checked.iter().any(|n| n == name), "two checks named {name:?}");
        self.checked.push(name.into());
        match self.checks.iter_mut().find(|check| check.name == name) {
            Some(check) => check.add(value),
            None => self.checks.push(Check::new(name, value, bound)),
        }
    }

    /// Records the condition that `value` is at least `least`; see [`Run::check`].
    pub fn at_least(&mut self, name: &str, value: f64, least: f64) {
        self.check(name, value, Bound::AtLeast(least));
    }

    /// Records the condition that `value` is at most `most`.
    pub fn at_most(&mut self, name: &str, value: f64, most: f64) {
        self.check(name, value, Bound::AtMost(most));
    }

    /// Records the condition that `value` is between `least` and `most`, both included.
    pub fn within(&mut self, name: &str, value: f64, least: f64, most: f64) {
        self.check(name, value, Bound::Within(least, most));
    }
}

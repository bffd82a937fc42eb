//! Axes: conversion from values to positions, linear or logarithmic, and the ticks.

use std::collections::BTreeMap;
use std::ops::Range;

use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};

use crate::experiment::{Kind, Series, number};

/// Axis of a plot. A position is the value, or its decimal logarithm.
#[derive(Clone, Debug)]
pub(super) struct Scale {
    log: bool,
    range: (f64, f64),
    ticks: Vec<f64>,
    /// Labels that replace numbers, by position in thousandths.
    words: BTreeMap<i64, String>,
}

impl Scale {
    /// Returns the x and y axes of `series`; `None` if there is no point to draw.
    pub(super) fn both(series: &[&Series]) -> Option<(Scale, Scale)> {
        let first = series.first()?;
        let bars = series.iter().any(|series| series.kind == Kind::Histogram);
        let points = || series.iter().flat_map(|series| &series.points);
        let mut x = Scale::new(first.x.log, points().map(|p| p.x).collect(), false)?;
        // An axis of percentages ends at 100 %, even if an error bar exceeds it.
        let is_share = first.y.unit == "%" && points().all(|p| p.y <= 100.0);
        let most = if is_share { 100.0 } else { f64::INFINITY };
        let ends = points().flat_map(|p| {
            let error = p.error.unwrap_or(0.0);
            [p.y - error, p.y, (p.y + error).min(most)]
        });
        // The y axis of a linear plot begins at zero; bars require that.
        let y = Scale::new(first.y.log, ends.collect(), true)?;
        for point in points() {
            if let (Some(place), Some(word)) = (x.place(point.x), &point.label) {
                x.words.insert(key(place), word.clone());
            }
        }
        if bars {
            x.make_room_for_bars(points().map(|p| p.x).collect());
        }
        Some((x, y))
    }

    fn new(log: bool, values: Vec<f64>, from_zero: bool) -> Option<Scale> {
        let mut scale = Scale { log, range: (0.0, 1.0), ticks: vec![], words: BTreeMap::new() };
        let places: Vec<f64> = values.into_iter().filter_map(|v| scale.place(v)).collect();
        let mut least = places.iter().copied().reduce(f64::min)?;
        let mut most = places.iter().copied().reduce(f64::max)?;
        if from_zero && !log {
            least = least.min(0.0);
        }
        if most - least < 1e-9 {
            most = least + least.abs().max(1.0) * 0.5;
        }
        (scale.range, scale.ticks) =
            if log { log_ticks(least, most) } else { linear_ticks(least, most) };
        Some(scale)
    }

    /// Adds room at both ends for the outermost bars. If there are at most 12 places of bars, puts
    /// the ticks at these places.
    fn make_room_for_bars(&mut self, values: Vec<f64>) {
        let mut places: Vec<f64> = values.into_iter().filter_map(|v| self.place(v)).collect();
        places.sort_by(f64::total_cmp);
        places.dedup();
        let gap = places.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
        let room = if gap.is_finite() { gap * 0.6 } else { 0.6 };
        if let (Some(first), Some(last)) = (places.first(), places.last()) {
            self.range = (first - room, last + room);
        }
        if places.len() <= 12 {
            self.ticks = places;
        }
    }

    /// Returns the position of `value`; `None` if the axis cannot show it.
    pub(super) fn place(&self, value: f64) -> Option<f64> {
        let place = if self.log { value.log10() } else { value };
        place.is_finite().then_some(place)
    }

    /// Returns the first position on the axis.
    pub(super) fn least(&self) -> f64 {
        self.range.0
    }

    /// Returns the last position on the axis.
    pub(super) fn most(&self) -> f64 {
        self.range.1
    }

    fn label(&self, place: f64) -> String {
        match self.words.get(&key(place)) {
            Some(word) => word.clone(),
            None if self.log => number(10f64.powf(place)),
            // A value this close to zero is a rounding error.
            None => number(if place.abs() < 1e-12 { 0.0 } else { place }),
        }
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, place: &f64, pixels: (i32, i32)) -> i32 {
        let share = (place - self.range.0) / (self.range.1 - self.range.0);
        pixels.0 + (f64::from(pixels.1 - pixels.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.0..self.range.1
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, place: &f64) -> String {
        self.label(*place)
    }
}

fn key(place: f64) -> i64 {
    (place * 1000.0).round() as i64
}

/// Returns about six ticks at 1, 2 or 5 times a power of ten; the range ends at ticks.
fn linear_ticks(least: f64, most: f64) -> ((f64, f64), Vec<f64>) {
    let rough = (most - least) / 6.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or(rough);
    let (first, last) = ((least / step).floor() as i64, (most / step).ceil() as i64);
    let ticks: Vec<f64> = (first..=last).map(|n| n as f64 * step).collect();
    ((first as f64 * step, last as f64 * step), ticks)
}

/// Returns ticks at powers of ten, and at 2 and 5 times these powers if the range is short.
fn log_ticks(least: f64, most: f64) -> ((f64, f64), Vec<f64>) {
    let steps: &[f64] = if most - least > 3.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let decades = least.floor() as i32..=most.ceil() as i32;
    let all = decades.flat_map(|decade| steps.iter().map(move |s| s.log10() + f64::from(decade)));
    let all: Vec<f64> = all.collect();
    let below = |at: &&f64| **at <= least + 1e-9;
    let first = all.iter().rfind(below).copied().unwrap_or(least);
    let last = all.iter().find(|at| **at >= most - 1e-9).copied().unwrap_or(most);
    ((first, last), all.into_iter().filter(|at| (first..=last).contains(at)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Axis, Point};

    #[test]
    fn linear_ticks_are_round_and_enclose_the_values() {
        let ((least, most), ticks) = linear_ticks(0.0, 93.0);
        assert_eq!((least, most), (0.0, 100.0));
        assert_eq!(ticks, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
    }

    #[test]
    fn an_axis_of_percentages_ends_at_100() {
        let axis = |label: &str| Axis { label: label.into(), unit: "%".into(), log: false };
        let point = |y, error| Point { x: 1.0, y, error, raw: vec![], label: None };
        let series = |y, error| Series {
            plot: String::new(),
            name: String::new(),
            kind: Kind::Line,
            x: axis("loss"),
            y: axis("recovered"),
            confidence: false,
            points: vec![point(y, error)],
        };
        let most = |y, error| Scale::both(&[&series(y, error)]).unwrap().1.most();
        assert_eq!(most(99.9, Some(3.0)), 100.0);
        assert!(most(130.0, None) >= 130.0, "only percentages end at 100");
    }

    #[test]
    fn logarithmic_ticks_are_labelled_with_values() {
        let values = vec![0.01, 0.1, 1.0, 10.0];
        let scale = Scale::new(true, values, false).unwrap();
        let labels: Vec<_> = scale.ticks.iter().map(|at| scale.label(*at)).collect();
        assert_eq!(labels.first().unwrap(), "0.01");
        assert_eq!(labels.last().unwrap(), "10");
        assert!(labels.contains(&"0.5".to_owned()), "{labels:?}");
        assert_eq!(scale.place(0.0), None, "a logarithmic axis has no zero");
    }
}

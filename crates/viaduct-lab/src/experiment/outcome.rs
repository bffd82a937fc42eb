//! Result of an experiment: one JSON object.
//!
//! ```text
//!   {"experiment", "seed", "params",
//!    "series": [{"plot", "name", "kind", "x", "y", "points": [{"x", "y", "error", "raw"}]}],
//!    "checks": [{"name", "value", "bound", "holds"}],
//!    "machine", "command", "congestion_control", …}
//! ```

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{Machine, number};

/// Complete result of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the experiment, as in `maelstrom/throughput-loss`.
    pub experiment: String,
    /// Seed of all random numbers; repeat n, counted from 0, used `seed + n`.
    pub seed: u64,
    /// Settings by name; names contain the unit, as in `rtt_ms`.
    pub params: Map<String, Value>,
    /// Measured series.
    pub series: Vec<Series>,
    /// Checked conditions.
    pub checks: Vec<Check>,
    /// Machine and time of the measurement.
    pub machine: Machine,
    /// Command that repeats the measurement.
    pub command: String,
    /// Congestion controls of the flows, as in `cubic`.
    pub congestion_control: Vec<String>,
    /// Number of repeats.
    pub repeats: u32,
    /// True if the run was shortened.
    pub quick: bool,
    /// Duration in seconds.
    pub seconds: f64,
    /// End of the measurement: complete, stopped or failed.
    pub ended: Ended,
}

impl Outcome {
    /// True if the experiment completed and every check holds.
    pub fn holds(&self) -> bool {
        self.ended == Ended::Complete && self.checks.iter().all(|check| check.holds)
    }

    /// Returns the titles of the plots, in the order of measurement, with the series of each.
    pub(crate) fn plots(&self) -> Vec<(&str, Vec<&Series>)> {
        let mut plots: Vec<(&str, Vec<&Series>)> = Vec::new();
        for series in &self.series {
            match plots.iter_mut().find(|(title, _)| *title == series.plot) {
                Some((_, known)) => known.push(series),
                None => plots.push((&series.plot, vec![series])),
            }
        }
        plots
    }
}

/// End of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The measurement completed.
    Complete,
    /// The user stopped it; the results are partial.
    Stopped,
    /// The measurement failed, for this reason; the results are partial.
    Failed(String),
}

/// Drawing style of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Points joined by lines; points at the same x are averaged.
    Line,
    /// Points without lines, never averaged.
    Scatter,
    /// A bar at each x; bars at the same x are averaged.
    Histogram,
}

/// Axis of a plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// Quantity, as in `loss`.
    pub label: String,
    /// Unit, as in `%`.
    pub unit: String,
    /// True if the axis is logarithmic.
    #[serde(default)]
    pub log: bool,
}

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit.as_str() {
            "" => f.write_str(&self.label),
            unit => write!(f, "{} ({unit})", self.label),
        }
    }
}

/// Plot to which series belong.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    pub(super) title: String,
    pub(super) kind: Kind,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) confidence: bool,
}

impl Plot {
    /// Creates a line plot; each axis is a label and a unit, as in `("loss", "%")`.
    pub fn line(title: &str, x: (&str, &str), y: (&str, &str)) -> Plot {
        let axis = |(label, unit): (&str, &str)| Axis {
            label: label.into(),
            unit: unit.into(),
            log: false,
        };
        Plot { title: title.into(), kind: Kind::Line, x: axis(x), y: axis(y), confidence: false }
    }

    /// Creates a scatter plot.
    pub fn scatter(title: &str, x: (&str, &str), y: (&str, &str)) -> Plot {
        Plot { kind: Kind::Scatter, ..Plot::line(title, x, y) }
    }

    /// Creates a histogram.
    pub fn histogram(title: &str, x: (&str, &str), y: (&str, &str)) -> Plot {
        Plot { kind: Kind::Histogram, ..Plot::line(title, x, y) }
    }

    /// Makes error bars 95 % confidence intervals instead of standard errors.
    pub fn confidence(mut self) -> Plot {
        self.confidence = true;
        self
    }

    /// Makes the x axis logarithmic.
    pub fn log_x(mut self) -> Plot {
        self.x.log = true;
        self
    }

    /// Makes the y axis logarithmic.
    pub fn log_y(mut self) -> Plot {
        self.y.log = true;
        self
    }
}

/// Named points of one plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Title of the plot.
    pub plot: String,
    /// Name in the legend, as in `plain cubic`.
    pub name: String,
    /// Drawing style.
    pub kind: Kind,
    /// The x axis.
    pub x: Axis,
    /// The y axis.
    pub y: Axis,
    /// True if the points' errors are half-widths of 95 % confidence intervals instead of
    /// standard errors.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confidence: bool,
    /// Points in the order of measurement.
    pub points: Vec<Point>,
}

/// Point: one measurement, or the mean of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Position on the x axis.
    pub x: f64,
    /// Measured value; the mean if there are several.
    #[serde(deserialize_with = "null_is_nan")]
    pub y: f64,
    /// Error of the mean if there are several values: a standard error, or a confidence interval if
    /// [`Series::confidence`] is set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// Individual measurements, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raw: Vec<f64>,
    /// Label that replaces the number on the x axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

impl Point {
    /// Formats the value, and its error if it has one.
    pub(crate) fn text(&self) -> String {
        match self.error {
            Some(error) => format!("{} ± {}", number(self.y), number(error)),
            None => number(self.y),
        }
    }
}

impl Series {
    /// Adds a measurement; except in scatter plots, points at the same x are averaged.
    pub(super) fn add(&mut self, x: f64, y: f64, label: Option<&str>) {
        let same = self.points.iter_mut().find(|point| point.x == x);
        match same.filter(|_| self.kind != Kind::Scatter) {
            Some(point) => {
                if point.raw.is_empty() {
                    point.raw.push(point.y);
                }
                point.raw.push(y);
                (point.y, point.error) = mean_and_error(&point.raw);
                if self.confidence {
                    point.error = Some(student_95(&point.raw));
                }
            }
            None => {
                let label = label.map(str::to_owned);
                self.points.push(Point { x, y, error: None, raw: vec![], label });
            }
        }
    }
}

/// Returns the mean and, for two or more values, its standard error.
fn mean_and_error(values: &[f64]) -> (f64, Option<f64>) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (values.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt());
    (mean, error)
}

/// Returns the half-width of the mean's 95 % confidence interval by Student's t-distribution;
/// NaN for fewer than two values.
pub fn student_95(values: &[f64]) -> f64 {
    /// Quantiles for 1 to 15 degrees of freedom; for more than 15, the last one is an upper bound.
    const QUANTILES: [f64; 15] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131,
    ];
    let degrees = values.len().saturating_sub(1).clamp(1, QUANTILES.len());
    mean_and_error(values).1.map_or(f64::NAN, |error| error * QUANTILES[degrees - 1])
}

/// Condition that must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Name of the condition, in one line.
    pub name: String,
    /// Measured value; the mean over repeats.
    #[serde(deserialize_with = "null_is_nan")]
    pub value: f64,
    /// Required bound.
    pub bound: Bound,
    /// True if the value satisfies the bound.
    pub holds: bool,
    /// Value of each repeat, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raw: Vec<f64>,
}

impl Check {
    pub(super) fn new(name: &str, value: f64, bound: Bound) -> Check {
        Check { name: name.into(), value, bound, holds: bound.holds(value), raw: vec![] }
    }

    /// Adds a repeat's value; the mean must satisfy the bound.
    pub(super) fn add(&mut self, value: f64) {
        if self.raw.is_empty() {
            self.raw.push(self.value);
        }
        self.raw.push(value);
        self.value = mean_and_error(&self.raw).0;
        self.holds = self.bound.holds(self.value);
    }
}

/// Bound on a value; written as in `>= 0.9`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Bound {
    /// At least this value.
    AtLeast(f64),
    /// At most this value.
    AtMost(f64),
    /// Between the two, both included.
    Within(f64, f64),
}

impl Bound {
    /// True if `value` satisfies the bound; false for NaN.
    pub fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(least) => value >= least,
            Bound::AtMost(most) => value <= most,
            Bound::Within(least, most) => (least..=most).contains(&value),
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtLeast(least) => write!(f, ">= {least}"),
            Bound::AtMost(most) => write!(f, "<= {most}"),
            Bound::Within(least, most) => write!(f, "{least} to {most}"),
        }
    }
}

impl From<Bound> for String {
    fn from(bound: Bound) -> String {
        bound.to_string()
    }
}

impl TryFrom<String> for Bound {
    type Error = String;
    fn try_from(text: String) -> Result<Bound, String> {
        let wrong = || format!("{text:?} is not a bound, such as \">= 1\", \"<= 1\" or \"1 to 2\"");
        let number = |text: &str| f64::from_str(text.trim()).map_err(|_| wrong());
        if let Some(least) = text.strip_prefix(">=") {
            number(least).map(Bound::AtLeast)
        } else if let Some(most) = text.strip_prefix("<=") {
            number(most).map(Bound::AtMost)
        } else {
            let (least, most) = text.split_once(" to ").ok_or_else(wrong)?;
            Ok(Bound::Within(number(least)?, number(most)?))
        }
    }
}

/// Reads null as NaN: JSON has no NaN, so a value that could not be measured is written as null.
fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_the_standard_error_of_the_mean() {
        assert_eq!(mean_and_error(&[4.0]), (4.0, None));
        let (mean, error) = mean_and_error(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(mean, 2.5);
        // Standard deviation sqrt(5/3), divided by sqrt(4).
        assert!((error.unwrap() - (5.0f64 / 3.0).sqrt() / 2.0).abs() < 1e-12);
    }

    #[test]
    fn the_interval_of_six_values_uses_five_degrees_of_freedom() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        // Standard deviation sqrt(3.5), divided by sqrt(6), times 2.571 for five degrees of
        // freedom.
        assert!((student_95(&values) - 2.571 * (3.5f64 / 6.0).sqrt()).abs() < 1e-9);
        assert!(student_95(&[1.0]).is_nan());
    }

    #[test]
    fn bounds_read_back_as_written() {
        for bound in [Bound::AtLeast(0.9), Bound::AtMost(-3.5), Bound::Within(1.0, 2.25)] {
            assert_eq!(Bound::try_from(bound.to_string()), Ok(bound));
        }
        assert!(Bound::try_from("about 3".to_owned()).unwrap_err().contains("about 3"));
    }

    #[test]
    fn nan_satisfies_no_bound() {
        assert!(!Bound::AtLeast(0.0).holds(f64::NAN));
        assert!(!Bound::AtMost(0.0).holds(f64::NAN));
        assert!(!Bound::Within(0.0, 1.0).holds(f64::NAN));
        let check = Check::new("never measured", f64::NAN, Bound::AtMost(1.0));
        let text = serde_json::to_string(&check).unwrap();
        assert!(text.contains("\"value\":null"), "{text}");
        assert!(serde_json::from_str::<Check>(&text).unwrap().value.is_nan());
    }

    #[test]
    fn a_repeated_check_compares_the_mean() {
        let mut check = Check::new("ratio", 0.8, Bound::AtLeast(0.9));
        assert!(!check.holds);
        check.add(1.2);
        assert!(check.holds);
        assert_eq!(check.raw, [0.8, 1.2]);
    }
}

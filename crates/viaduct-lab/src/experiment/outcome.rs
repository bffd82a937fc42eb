//! What an experiment leaves: one JSON object.
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

use super::Machine;

/// A whole result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// As in `maelstrom/throughput-loss`.
    pub experiment: String,
    /// The seed of everything random in it; repeat n used `seed + n`.
    pub seed: u64,
    /// What was set, by name; units are in the names, as in `rtt_ms`.
    pub params: Map<String, Value>,
    /// What came out.
    pub series: Vec<Series>,
    /// What must hold.
    pub checks: Vec<Check>,
    /// Where it was measured, and when.
    pub machine: Machine,
    /// What to type to measure it again.
    pub command: String,
    /// The congestion controls of the flows in it, as in `cubic`.
    pub congestion_control: Vec<String>,
    /// How often it was measured.
    pub repeats: u32,
    /// Whether it was shortened.
    pub quick: bool,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whether it came to its end.
    pub ended: Ended,
}

impl Outcome {
    /// Whether it came to its end and every check holds.
    pub fn holds(&self) -> bool {
        self.ended == Ended::Complete && self.checks.iter().all(|check| check.holds)
    }
}

/// How a measurement ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It came to its end.
    Complete,
    /// Someone stopped it; the results are partial.
    Stopped,
    /// It could not go on, for this reason; the results are partial.
    Failed(String),
}

/// How a series is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Points joined by lines; points at the same x are averaged.
    Line,
    /// Points alone; none is averaged.
    Scatter,
    /// A bar at each x; bars at the same x are averaged.
    Histogram,
}

/// What an axis shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// As in `loss`.
    pub label: String,
    /// As in `%`.
    pub unit: String,
    /// Whether it is logarithmic.
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

/// A plot that series belong to.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    pub(super) title: String,
    pub(super) kind: Kind,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) confidence: bool,
}

impl Plot {
    /// A plot of lines; labels and units as in `("loss", "%")`.
    pub fn line(title: &str, x: (&str, &str), y: (&str, &str)) -> Plot {
        let axis = |(label, unit): (&str, &str)| Axis {
            label: label.into(),
            unit: unit.into(),
            log: false,
        };
        Plot { title: title.into(), kind: Kind::Line, x: axis(x), y: axis(y), confidence: false }
    }

    /// The same with points alone.
    pub fn scatter(title: &str, x: (&str, &str), y: (&str, &str)) -> Plot {
        Plot { kind: Kind::Scatter, ..Plot::line(title, x, y) }
    }

    /// The same with bars.
    pub fn histogram(title: &str, x: (&str, &str), y: (&str, &str)) -> Plot {
        Plot { kind: Kind::Histogram, ..Plot::line(title, x, y) }
    }

    /// With error bars that are 95 % confidence intervals instead of standard errors.
    pub fn confidence(mut self) -> Plot {
        self.confidence = true;
        self
    }

    /// With a logarithmic x axis.
    pub fn log_x(mut self) -> Plot {
        self.x.log = true;
        self
    }

    /// With a logarithmic y axis.
    pub fn log_y(mut self) -> Plot {
        self.y.log = true;
        self
    }
}

/// Points of one kind in one plot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The title of the plot that it belongs to.
    pub plot: String,
    /// As in `plain cubic`.
    pub name: String,
    /// How it is drawn.
    pub kind: Kind,
    /// What x is.
    pub x: Axis,
    /// What y is.
    pub y: Axis,
    /// Whether errors of its points are half-widths of 95 % confidence intervals instead of standard errors.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confidence: bool,
    /// In the order of measurement.
    pub points: Vec<Point>,
}

/// A point: one measurement, or the mean of several.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Where.
    pub x: f64,
    /// What; the mean if there are several.
    #[serde(deserialize_with = "null_is_nan")]
    pub y: f64,
    /// The standard error of the mean, if there are several, or as [`Series::confidence`] says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// Each measurement, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raw: Vec<f64>,
    /// What to write at x instead of a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

impl Series {
    /// Adds a measurement; where kind says so, points at the same x become one.
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

/// The mean and, of two or more, its standard error.
fn mean_and_error(values: &[f64]) -> (f64, Option<f64>) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    let error = (values.len() > 1).then(|| (squares / (n - 1.0) / n).sqrt());
    (mean, error)
}

/// Half-width of the 95 % confidence interval of the mean, by Student's distribution; not a number for fewer
/// than two values.
pub fn student_95(values: &[f64]) -> f64 {
    /// Quantiles for 1 to 15 degrees of freedom; beyond that, an upper bound by that of 15.
    const QUANTILES: [f64; 15] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131,
    ];
    let degrees = values.len().saturating_sub(1).clamp(1, QUANTILES.len());
    mean_and_error(values).1.map_or(f64::NAN, |error| error * QUANTILES[degrees - 1])
}

/// Something that must hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// One line that says what.
    pub name: String,
    /// What was measured; the mean over repeats.
    #[serde(deserialize_with = "null_is_nan")]
    pub value: f64,
    /// What it must be.
    pub bound: Bound,
    /// Whether it is.
    pub holds: bool,
    /// The value of each repeat, if there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub raw: Vec<f64>,
}

impl Check {
    pub(super) fn new(name: &str, value: f64, bound: Bound) -> Check {
        Check { name: name.into(), value, bound, holds: bound.holds(value), raw: vec![] }
    }

    /// Adds a repeat's value: the mean must hold.
    pub(super) fn add(&mut self, value: f64) {
        if self.raw.is_empty() {
            self.raw.push(self.value);
        }
        self.raw.push(value);
        self.value = mean_and_error(&self.raw).0;
        self.holds = self.bound.holds(self.value);
    }
}

/// What a value must be; written as in `>= 0.9`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
    /// Between the two, both included.
    Within(f64, f64),
}

impl Bound {
    /// Whether `value` is so; a value that is not a number never is.
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
        let wrong = || format!("bound {text:?} is not as in \">= 1\", \"<= 1\" or \"1 to 2\"");
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

/// JSON has no NaN: a value that could not be measured is written as null.
fn null_is_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_that_of_the_mean() {
        assert_eq!(mean_and_error(&[4.0]), (4.0, None));
        let (mean, error) = mean_and_error(&[1.0, 2.0, 3.0, 4.0]);
        assert_eq!(mean, 2.5);
        // Standard deviation sqrt(5/3), over sqrt(4).
        assert!((error.unwrap() - (5.0f64 / 3.0).sqrt() / 2.0).abs() < 1e-12);
    }

    #[test]
    fn an_interval_of_six_is_as_wide_as_student_says() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        // Standard deviation sqrt(3.5), over sqrt(6), and 2.571 for five degrees of freedom.
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
    fn what_is_not_a_number_holds_nothing() {
        assert!(!Bound::AtLeast(0.0).holds(f64::NAN));
        assert!(!Bound::AtMost(0.0).holds(f64::NAN));
        assert!(!Bound::Within(0.0, 1.0).holds(f64::NAN));
        let check = Check::new("never measured", f64::NAN, Bound::AtMost(1.0));
        let text = serde_json::to_string(&check).unwrap();
        assert!(text.contains("\"value\":null"), "{text}");
        assert!(serde_json::from_str::<Check>(&text).unwrap().value.is_nan());
    }

    #[test]
    fn a_repeated_check_judges_the_mean() {
        let mut check = Check::new("ratio", 0.8, Bound::AtLeast(0.9));
        assert!(!check.holds);
        check.add(1.2);
        assert!(check.holds);
        assert_eq!(check.raw, [0.8, 1.2]);
    }
}

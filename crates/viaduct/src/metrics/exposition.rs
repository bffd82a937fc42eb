//! Prometheus text format: families of samples, each with its help and its type.

use std::fmt::{Display, Write as _};

/// Type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counter, which only rises; its name ends in `_total`.
    Counter,
    /// Gauge, which rises and falls.
    Gauge,
    /// Histogram: cumulative buckets, their sum and their count.
    Histogram,
}

/// Names and values of labels.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// Text under construction.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    family: &'static str,
}

impl Exposition {
    /// Begins a family; its samples follow.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.family = name;
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Adds a sample of a counter or a gauge.
    pub fn sample(&mut self, labels: Labels<'_>, value: impl Display) {
        self.line("", labels, value);
    }

    /// Adds a histogram. `counts[i]` is the number of values above the previous bound and up
    /// to `bounds[i]`; the last one counts the values above all bounds. `sum` is the sum of
    /// the values.
    pub fn histogram(&mut self, labels: Labels<'_>, bounds: &[f64], counts: &[u64], sum: f64) {
        let mut below = 0;
        let infinite = [f64::INFINITY];
        for (bound, count) in bounds.iter().chain(&infinite).zip(counts) {
            below += count;
            let le = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            self.line("_bucket", &[labels, &[("le", &le)]].concat(), below);
        }
        self.line("_sum", labels, sum);
        self.line("_count", labels, below);
    }

    /// Returns the complete text.
    pub fn finish(self) -> String {
        self.text
    }

    fn line(&mut self, suffix: &str, labels: Labels<'_>, value: impl Display) {
        let text = &mut self.text;
        text.push_str(self.family);
        text.push_str(suffix);
        for (n, (key, value)) in labels.iter().enumerate() {
            text.push(if n == 0 { '{' } else { ',' });
            text.push_str(key);
            text.push_str("=\"");
            escape(value, text);
            text.push('"');
        }
        let end = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(text, "{end} {value}");
    }
}

fn escape(value: &str, out: &mut String) {
    for c in value.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            other => out.push(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_add_up_and_labels_are_escaped() {
        let mut text = Exposition::default();
        text.family("x_seconds", Kind::Histogram, "Time.");
        text.histogram(&[("peer", "a\"b")], &[0.5, 1.0], &[1, 2, 3], 9.5);
        assert_eq!(
            text.finish(),
            "# HELP x_seconds Time.\n# TYPE x_seconds histogram\n\
             x_seconds_bucket{peer=\"a\\\"b\",le=\"0.5\"} 1\n\
             x_seconds_bucket{peer=\"a\\\"b\",le=\"1\"} 3\n\
             x_seconds_bucket{peer=\"a\\\"b\",le=\"+Inf\"} 6\n\
             x_seconds_sum{peer=\"a\\\"b\"} 9.5\n\
             x_seconds_count{peer=\"a\\\"b\"} 6\n"
        );
    }
}

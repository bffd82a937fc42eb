//! What was found: a figure for each program and way across.

use std::ops::{Add, Sub};
use std::time::Duration;

/// The programs, in the order in which they are run and shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// iperf3 with Linux's usual congestion control.
    Cubic,
    /// iperf3 with one that does not take loss for congestion.
    Bbr,
    /// curl and a web server.
    Download,
    /// Small messages at a steady pace.
    Messages,
}

impl Program {
    /// All of them.
    pub(super) const ALL: [Program; 4] =
        [Program::Cubic, Program::Bbr, Program::Download, Program::Messages];
}

/// The two ways across.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The kernel as it is.
    Plain,
    /// A gateway at each site.
    Viaduct,
}

/// What a program got.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Figure {
    /// Bits of payload a second.
    Throughput(f64),
    /// How long the download took.
    Took(Duration),
    /// The download was given up after so long.
    GaveUp(Duration),
    /// Half of the messages, and 99 of 100, came within these times.
    Delays { median: Duration, p99: Duration },
    /// Nothing: it could not be run, for this reason.
    None(String),
}

impl Figure {
    /// More is better; nothing for a program that could not be run.
    fn merit(&self) -> Option<f64> {
        match self {
            Figure::Throughput(rate) => Some(*rate),
            Figure::Took(time) | Figure::GaveUp(time) => Some(1.0 / time.as_secs_f64()),
            Figure::Delays { p99, .. } => Some(1.0 / p99.as_secs_f64()),
            Figure::None(_) => None,
        }
    }
}

/// What the gateways and the link say that they saw, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Bytes of data packets sent across.
    pub(super) data: u64,
    /// Bytes of repairs sent beside them.
    pub(super) repairs: u64,
    /// Data packets that the link lost.
    pub(super) lost: u64,
    /// Of them, rebuilt by the gateway at the far end; the others are left to TCP.
    pub(super) recovered: u64,
    /// Packets, repairs among them, that found the link's queue full.
    pub(super) overfilled: u64,
}

impl Add for Seen {
    type Output = Seen;

    fn add(self, more: Seen) -> Seen {
        Seen {
            data: self.data + more.data,
            repairs: self.repairs + more.repairs,
            lost: self.lost + more.lost,
            recovered: self.recovered + more.recovered,
            overfilled: self.overfilled + more.overfilled,
        }
    }
}

impl Sub for Seen {
    type Output = Seen;

    /// What was seen since `earlier`.
    fn sub(self, earlier: Seen) -> Seen {
        Seen {
            data: self.data.saturating_sub(earlier.data),
            repairs: self.repairs.saturating_sub(earlier.repairs),
            lost: self.lost.saturating_sub(earlier.lost),
            recovered: self.recovered.saturating_sub(earlier.recovered),
            overfilled: self.overfilled.saturating_sub(earlier.overfilled),
        }
    }
}

impl Seen {
    /// Bytes of repairs for each byte of data.
    pub(super) fn overhead(&self) -> f64 {
        self.repairs as f64 / self.data.max(1) as f64
    }
}

/// All that was found so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    figures: Vec<(Program, Way, Figure)>,
    seen: Vec<(Program, Seen)>,
}

impl Findings {
    /// Whether no program has run to its end.
    pub(super) fn is_empty(&self) -> bool {
        self.figures.is_empty()
    }

    /// Notes what `program` got.
    pub(super) fn add(&mut self, program: Program, way: Way, figure: Figure) {
        self.figures.push((program, way, figure));
    }

    /// What `program` got, if it has run.
    pub(super) fn figure(&self, program: Program, way: Way) -> Option<&Figure> {
        let this = |entry: &&(Program, Way, Figure)| (entry.0, entry.1) == (program, way);
        self.figures.iter().find(this).map(|entry| &entry.2)
    }

    /// Notes what the gateways saw while `program` ran.
    pub(super) fn add_seen(&mut self, program: Program, seen: Seen) {
        self.seen.push((program, seen));
    }

    /// What the gateways saw while each program ran.
    pub(super) fn seen(&self) -> &[(Program, Seen)] {
        &self.seen
    }

    /// How many times better `program` fared with Viaduct.
    pub(super) fn factor(&self, program: Program) -> Option<f64> {
        let merit = |way| self.figure(program, way).and_then(Figure::merit);
        let factor = merit(Way::Viaduct)? / merit(Way::Plain)?;
        factor.is_finite().then_some(factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_time_and_more_throughput_are_better() {
        let mut findings = Findings::default();
        assert_eq!(findings.factor(Program::Cubic), None);
        let second = Duration::from_secs(1);
        findings.add(Program::Cubic, Way::Plain, Figure::Throughput(1e6));
        findings.add(Program::Cubic, Way::Viaduct, Figure::Throughput(1e8));
        findings.add(Program::Download, Way::Plain, Figure::GaveUp(60 * second));
        findings.add(Program::Download, Way::Viaduct, Figure::Took(2 * second));
        findings.add(Program::Bbr, Way::Plain, Figure::None("not installed".into()));
        findings.add(Program::Bbr, Way::Viaduct, Figure::Throughput(1e8));
        assert_eq!(findings.factor(Program::Cubic), Some(100.0));
        assert_eq!(findings.factor(Program::Download), Some(30.0));
        assert_eq!(findings.factor(Program::Bbr), None);
    }

    #[test]
    fn a_figure_of_nothing_gives_no_factor() {
        let mut findings = Findings::default();
        findings.add(Program::Cubic, Way::Plain, Figure::Throughput(0.0));
        findings.add(Program::Cubic, Way::Viaduct, Figure::Throughput(1.0));
        assert_eq!(findings.factor(Program::Cubic), None);
    }
}

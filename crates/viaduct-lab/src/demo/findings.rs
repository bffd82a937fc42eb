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
    /// Two of iperf3 at once, with Linux's usual congestion control.
    Pair,
}

impl Program {
    /// Those that cross the link that was asked for.
    pub(super) const ALL: [Program; 4] =
        [Program::Cubic, Program::Bbr, Program::Download, Program::Messages];
}

/// What the link is like while programs cross it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// As it was asked for; all programs cross it.
    Asked,
    /// It loses nothing.
    Clean,
    /// It loses packets in long bursts.
    Bursts,
    /// It loses nothing, and two flows fill its queue, one of which is never protected.
    Shared,
}

impl Phase {
    /// Those beside the one that was asked for.
    pub(super) const OTHERS: [Phase; 3] = [Phase::Clean, Phase::Bursts, Phase::Shared];

    /// Programs that cross it.
    pub(super) fn programs(self) -> &'static [Program] {
        match self {
            Phase::Asked => &Program::ALL,
            Phase::Clean | Phase::Bursts => &[Program::Cubic, Program::Bbr],
            Phase::Shared => &[Program::Pair],
        }
    }
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
    /// Bits of payload a second of two flows.
    Pair(f64, f64),
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
            Figure::Pair(first, second) => Some(first + second),
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
    figures: Vec<(Phase, Program, Way, Figure)>,
    seen: Vec<(Phase, Program, Seen)>,
}

impl Findings {
    /// Whether no program has run to its end.
    pub(super) fn is_empty(&self) -> bool {
        self.figures.is_empty()
    }

    /// Notes what `program` got.
    pub(super) fn add(&mut self, phase: Phase, program: Program, way: Way, figure: Figure) {
        self.figures.push((phase, program, way, figure));
    }

    /// What `program` got on the link that was asked for, if it has run.
    pub(super) fn figure(&self, program: Program, way: Way) -> Option<&Figure> {
        self.figure_of(Phase::Asked, program, way)
    }

    /// What `program` got, if it has run.
    pub(super) fn figure_of(&self, phase: Phase, program: Program, way: Way) -> Option<&Figure> {
        let this = |entry: &&(Phase, Program, Way, Figure)| {
            (entry.0, entry.1, entry.2) == (phase, program, way)
        };
        self.figures.iter().find(this).map(|(.., figure)| figure)
    }

    /// Notes what the gateways saw while `program` ran.
    pub(super) fn add_seen(&mut self, phase: Phase, program: Program, seen: Seen) {
        self.seen.push((phase, program, seen));
    }

    /// What the gateways saw while each program ran.
    pub(super) fn seen(&self, phase: Phase) -> impl Iterator<Item = (Program, Seen)> + Clone {
        let these = self.seen.iter().filter(move |(of, ..)| *of == phase);
        these.map(|&(_, program, seen)| (program, seen))
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
        findings.add(Phase::Asked, Program::Cubic, Way::Plain, Figure::Throughput(1e6));
        findings.add(Phase::Asked, Program::Cubic, Way::Viaduct, Figure::Throughput(1e8));
        findings.add(Phase::Asked, Program::Download, Way::Plain, Figure::GaveUp(60 * second));
        findings.add(Phase::Asked, Program::Download, Way::Viaduct, Figure::Took(2 * second));
        findings.add(Phase::Asked, Program::Bbr, Way::Plain, Figure::None("not installed".into()));
        findings.add(Phase::Asked, Program::Bbr, Way::Viaduct, Figure::Throughput(1e8));
        assert_eq!(findings.factor(Program::Cubic), Some(100.0));
        assert_eq!(findings.factor(Program::Download), Some(30.0));
        assert_eq!(findings.factor(Program::Bbr), None);
    }

    #[test]
    fn a_figure_of_nothing_gives_no_factor() {
        let mut findings = Findings::default();
        findings.add(Phase::Asked, Program::Cubic, Way::Plain, Figure::Throughput(0.0));
        findings.add(Phase::Asked, Program::Cubic, Way::Viaduct, Figure::Throughput(1.0));
        assert_eq!(findings.factor(Program::Cubic), None);
    }
}

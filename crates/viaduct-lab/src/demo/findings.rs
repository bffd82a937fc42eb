//! Findings of the demo: a figure for each program and setup.

use std::ops::{Add, Sub};
use std::time::Duration;

/// Measured programs, in the order in which they run and are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// iperf3 with TCP cubic, Linux's default congestion control.
    Cubic,
    /// iperf3 with TCP BBR, which does not treat every loss as congestion.
    Bbr,
    /// Download with curl from a web server.
    Download,
    /// Small messages at a constant rate.
    Messages,
    /// Two concurrent iperf3 flows with TCP cubic.
    Pair,
}

impl Program {
    /// Programs that cross the requested link.
    pub(super) const ALL: [Program; 4] =
        [Program::Cubic, Program::Bbr, Program::Download, Program::Messages];
}

/// State of the link while programs cross it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The requested link; all programs cross it.
    Requested,
    /// No loss.
    Clean,
    /// Loss in long bursts.
    Bursts,
    /// No loss; two flows fill the queue, and the gateways never protect the second.
    Shared,
}

impl Phase {
    /// All phases except the requested link.
    pub(super) const OTHERS: [Phase; 3] = [Phase::Clean, Phase::Bursts, Phase::Shared];

    /// Returns the programs that run in this phase.
    pub(super) fn programs(self) -> &'static [Program] {
        match self {
            Phase::Requested => &Program::ALL,
            Phase::Clean | Phase::Bursts => &[Program::Cubic, Program::Bbr],
            Phase::Shared => &[Program::Pair],
        }
    }
}

/// Setup of the sites: without or with gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    /// Without gateways.
    Plain,
    /// With a gateway at each site.
    Viaduct,
}

/// Result of one program.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Figure {
    /// Goodput in bits per second.
    Throughput(f64),
    /// Goodput of two flows in bits per second.
    Pair(f64, f64),
    /// Duration of the download.
    Took(Duration),
    /// The download was aborted after this time.
    GaveUp(Duration),
    /// Median and 99th percentile of the messages' one-way delays.
    Delays { median: Duration, p99: Duration },
    /// The program could not be run, for this reason.
    None(String),
}

impl Figure {
    /// Returns the figure on a scale where higher is better; `None` if the program could not run.
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

/// Counters of the gateways and the link, summed over both directions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counters {
    /// Bytes of data packets sent over the link.
    pub(super) data: u64,
    /// Bytes of repairs sent in addition.
    pub(super) repairs: u64,
    /// Data packets that the link lost.
    pub(super) lost: u64,
    /// Lost packets that the far gateway rebuilt; the others are left to TCP.
    pub(super) recovered: u64,
    /// Packets dropped because the link's queue was full, repairs included.
    pub(super) overfilled: u64,
}

impl Add for Counters {
    type Output = Counters;

    fn add(self, more: Counters) -> Counters {
        self.with(&more, |own, more| own + more)
    }
}

impl Sub for Counters {
    type Output = Counters;

    /// Returns the counts since `earlier`.
    fn sub(self, earlier: Counters) -> Counters {
        self.with(&earlier, u64::saturating_sub)
    }
}

impl Counters {
    fn with(&self, other: &Counters, combine: fn(u64, u64) -> u64) -> Counters {
        Counters {
            data: combine(self.data, other.data),
            repairs: combine(self.repairs, other.repairs),
            lost: combine(self.lost, other.lost),
            recovered: combine(self.recovered, other.recovered),
            overfilled: combine(self.overfilled, other.overfilled),
        }
    }

    /// Returns the repair bytes per data byte.
    pub(super) fn overhead(&self) -> f64 {
        self.repairs as f64 / self.data.max(1) as f64
    }
}

/// All findings so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    figures: Vec<(Phase, Program, Setup, Figure)>,
    counters: Vec<(Phase, Program, Counters)>,
}

impl Findings {
    /// True if no program has finished yet.
    pub(super) fn is_empty(&self) -> bool {
        self.figures.is_empty()
    }

    /// Records the result of `program`.
    pub(super) fn add(&mut self, phase: Phase, program: Program, setup: Setup, figure: Figure) {
        self.figures.push((phase, program, setup, figure));
    }

    /// Returns the result of `program` on the requested link, if it has run.
    pub(super) fn figure(&self, program: Program, setup: Setup) -> Option<&Figure> {
        self.figure_of(Phase::Requested, program, setup)
    }

    /// Returns the result of `program` in a phase, if it has run.
    pub(super) fn figure_of(
        &self,
        phase: Phase,
        program: Program,
        setup: Setup,
    ) -> Option<&Figure> {
        let this = |entry: &&(Phase, Program, Setup, Figure)| {
            (entry.0, entry.1, entry.2) == (phase, program, setup)
        };
        self.figures.iter().find(this).map(|(.., figure)| figure)
    }

    /// Records the gateways' counts while `program` ran.
    pub(super) fn add_counters(&mut self, phase: Phase, program: Program, counters: Counters) {
        self.counters.push((phase, program, counters));
    }

    /// Returns the gateways' counts for each program of a phase.
    pub(super) fn counters(
        &self,
        phase: Phase,
    ) -> impl Iterator<Item = (Program, Counters)> + Clone {
        let these = self.counters.iter().filter(move |(of, ..)| *of == phase);
        these.map(|&(_, program, counters)| (program, counters))
    }

    /// Returns whether `program` was aborted.
    pub(super) fn has_given_up(&self, program: Program, setup: Setup) -> bool {
        matches!(self.figure(program, setup), Some(Figure::GaveUp(_)))
    }

    /// Returns the factor by which `program` improved with Viaduct; `None` if it is not known.
    pub(super) fn factor(&self, program: Program) -> Option<f64> {
        if [Setup::Plain, Setup::Viaduct].iter().all(|setup| self.has_given_up(program, *setup)) {
            return None;
        }
        let merit = |setup| self.figure(program, setup).and_then(Figure::merit);
        let factor = merit(Setup::Viaduct)? / merit(Setup::Plain)?;
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
        findings.add(Phase::Requested, Program::Cubic, Setup::Plain, Figure::Throughput(1e6));
        findings.add(Phase::Requested, Program::Cubic, Setup::Viaduct, Figure::Throughput(1e8));
        findings.add(
            Phase::Requested,
            Program::Download,
            Setup::Plain,
            Figure::GaveUp(60 * second),
        );
        findings.add(Phase::Requested, Program::Download, Setup::Viaduct, Figure::Took(2 * second));
        findings.add(
            Phase::Requested,
            Program::Bbr,
            Setup::Plain,
            Figure::None("not installed".into()),
        );
        findings.add(Phase::Requested, Program::Bbr, Setup::Viaduct, Figure::Throughput(1e8));
        assert_eq!(findings.factor(Program::Cubic), Some(100.0));
        assert_eq!(findings.factor(Program::Download), Some(30.0));
        assert_eq!(findings.factor(Program::Bbr), None);
    }

    #[test]
    fn two_downloads_that_gave_up_give_no_factor() {
        let mut findings = Findings::default();
        for setup in [Setup::Plain, Setup::Viaduct] {
            let figure = Figure::GaveUp(Duration::from_secs(60));
            findings.add(Phase::Requested, Program::Download, setup, figure);
        }
        assert_eq!(findings.factor(Program::Download), None);
    }

    #[test]
    fn a_figure_of_nothing_gives_no_factor() {
        let mut findings = Findings::default();
        findings.add(Phase::Requested, Program::Cubic, Setup::Plain, Figure::Throughput(0.0));
        findings.add(Phase::Requested, Program::Cubic, Setup::Viaduct, Figure::Throughput(1.0));
        assert_eq!(findings.factor(Program::Cubic), None);
    }
}

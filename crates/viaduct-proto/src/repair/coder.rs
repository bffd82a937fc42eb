//! Encoder of a sender: a code with fixed parameters, one that adapts to the losses, or none.

use super::auto::{Auto, Leaving, Pace};
use super::classes::{Repairs, Treatment};
use super::control::{self, Regime, Report};
use super::names::manifest_delay;
use super::section::Manner;
use crate::fec::{Encoder, Fire, Seq};
use crate::time::{Duration, Instant};
use crate::upgrade::ControlRecord;
use crate::wire::ip::MutableFields;
use crate::wire::tcp_sack;

/// Encoder of outgoing packets.
pub(super) enum Coder {
    /// Code with fixed parameters.
    Fixed(Box<dyn Encoder>),
    /// Code whose rate adapts to the losses.
    Auto(Box<Auto>),
    /// No code: the link is only observed.
    Observe(Observer),
}

/// State of a link that is only observed.
pub(super) struct Observer {
    next: Seq,
    pace: Pace,
    rtt: Option<Duration>,
    report: Report,
}

impl Observer {
    /// Creates the state of a link whose first packet has number `first`.
    pub(super) fn new(first: Seq) -> Self {
        let (pace, report) = (Pace::default(), Report::default());
        Observer { next: first, pace, rtt: None, report }
    }

    fn state(&self) -> control::State {
        control::State {
            regime: Regime::Observed,
            pace: self.pace.value(),
            rtt: self.rtt,
            report: self.report,
            ..control::State::default()
        }
    }
}

impl Coder {
    /// Classifies a normalised packet that leaves; `fields` are its mutable fields.
    pub(super) fn judge(&mut self, now: Instant, bytes: &[u8], fields: MutableFields) -> Treatment {
        match self {
            Coder::Auto(auto) => auto.judge(now, bytes, fields),
            Coder::Observe(_) if tcp_sack::is_plain_ack(bytes) => Treatment::Unnamed,
            Coder::Fixed(_) | Coder::Observe(_) => Treatment::Named(Repairs::Window, f64::INFINITY),
        }
    }

    /// Manner in which packets are named.
    pub(super) fn manner(&self) -> Manner {
        match self {
            Coder::Fixed(_) => Manner { acks: true, is_observed: false },
            Coder::Auto(auto) => Manner { acks: auto.classifier.acks, is_observed: false },
            Coder::Observe(_) => Manner { acks: false, is_observed: true },
        }
    }

    pub(super) fn push(&mut self, now: Instant, of: Leaving<'_>, fire: &mut Fire<'_>) {
        match self {
            Coder::Fixed(encoder) => encoder.push(of.symbol, fire),
            Coder::Auto(auto) => auto.push(now, of, fire),
            Coder::Observe(observer) => {
                observer.next += 1;
                observer.pace.count(now);
            }
        }
    }

    pub(super) fn flush(&mut self, now: Instant, stage: usize, fire: &mut Fire<'_>) {
        match self {
            Coder::Fixed(encoder) => encoder.flush(stage, fire),
            Coder::Auto(auto) => auto.flush(now, fire),
            Coder::Observe(_) => {}
        }
    }

    pub(super) fn stages(&self) -> usize {
        match self {
            Coder::Fixed(encoder) => encoder.stages(),
            Coder::Auto(auto) => auto.stages(),
            Coder::Observe(_) => 0,
        }
    }

    pub(super) fn next_seq(&self) -> Seq {
        match self {
            Coder::Fixed(encoder) => encoder.next_seq(),
            Coder::Auto(auto) => auto.next_seq(),
            Coder::Observe(observer) => observer.next,
        }
    }

    /// Time after which the names of packets are sent.
    pub(super) fn manifest_delay(&self, now: Instant) -> Duration {
        let is_quiet = matches!(self, Coder::Auto(auto) if auto.is_quiet(now));
        manifest_delay(is_quiet, self.wait(now).unwrap_or_default())
    }

    /// Time for which flows can wait for a lost packet, if known.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        match self {
            Coder::Auto(auto) => Some(auto.wait(now)),
            Coder::Fixed(_) | Coder::Observe(_) => None,
        }
    }

    pub(super) fn control(&self, now: Instant) -> Option<control::State> {
        match self {
            Coder::Auto(auto) => Some(auto.state(now)),
            Coder::Observe(observer) => Some(observer.state()),
            Coder::Fixed(_) => None,
        }
    }

    /// State for the handover to a new process, if the code adapts to the losses.
    pub(super) fn record(&self) -> Option<ControlRecord> {
        match self {
            Coder::Auto(auto) => Some(auto.record()),
            Coder::Fixed(_) | Coder::Observe(_) => None,
        }
    }

    /// Handles the peer's report on the path to the peer.
    pub(super) fn handle_report(&mut self, now: Instant, report: Report, rtt: Option<Duration>) {
        match self {
            Coder::Auto(auto) => auto.handle_report(now, report, rtt),
            Coder::Observe(observer) => (observer.report, observer.rtt) = (report, rtt),
            Coder::Fixed(_) => {}
        }
    }

    /// Returns whether the link is known to lose packets at the moment.
    pub(super) fn is_lossy(&self) -> bool {
        matches!(self, Coder::Auto(auto) if auto.is_lossy())
    }

    /// Packets a second, if the code adapts to the losses.
    pub(super) fn pace(&self) -> Option<f64> {
        match self {
            Coder::Auto(auto) => Some(auto.pace.value()),
            Coder::Fixed(_) | Coder::Observe(_) => None,
        }
    }

    /// Time at which the next copy or the next requested repair is due.
    pub(super) fn copies_due(&self) -> Option<Instant> {
        match self {
            Coder::Auto(auto) => [auto.copies.due(), auto.answers.due].into_iter().flatten().min(),
            Coder::Fixed(_) | Coder::Observe(_) => None,
        }
    }

    /// Bytes of memory held for packets that the peer may request.
    pub(super) fn kept(&self) -> usize {
        match self {
            Coder::Auto(auto) => auto.kept(),
            Coder::Fixed(_) | Coder::Observe(_) => 0,
        }
    }

    pub(super) fn memory(&self) -> usize {
        match self {
            Coder::Fixed(encoder) => encoder.memory(),
            Coder::Auto(auto) => auto.memory(),
            Coder::Observe(_) => 0,
        }
    }
}

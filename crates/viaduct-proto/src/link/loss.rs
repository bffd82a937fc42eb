//! Loss processes of a link.

use serde::{Deserialize, Serialize};

use crate::rng::Rng;

/// Loss process, which decides for each packet, in order, whether it is lost. Rates and
/// probabilities are 0 to 1. The text form, also under serde, is that of the key `loss` in
/// [`text`](super::text).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Loss {
    /// No loss.
    #[default]
    None,
    /// Independent loss of each packet with probability `rate`.
    Independent {
        /// Share of the packets lost.
        rate: f64,
    },
    /// Bursts of exactly `length` packets, with at least one delivered between two of them. The
    /// distance between bursts is geometrically distributed, with a mean at which the share `rate`
    /// of all packets is lost in the long run.
    Bursts {
        /// Share of the packets lost; at most length / (length + 1).
        rate: f64,
        /// Packets in each burst; 1 or more.
        length: u32,
    },
    /// Two states, good and bad, each with its own loss; the state may change before each
    /// packet. The first state is the good one.
    GilbertElliott {
        /// Probability of leaving the good state.
        p_good_to_bad: f64,
        /// Probability of leaving the bad state: the inverse of the mean stay in it, in packets.
        p_bad_to_good: f64,
        /// Loss in the good state.
        loss_good: f64,
        /// Loss in the bad state.
        loss_bad: f64,
    },
    /// Replay of losses recorded on a link.
    Trace(Trace),
    /// Combination of independent processes: a packet is lost if any of them loses it.
    Both(Vec<Loss>),
}

impl Loss {
    /// Share of packets lost in the long run, 0 to 1. For a trace, the share of its own packets.
    pub fn mean(&self) -> f64 {
        match self {
            Loss::None => 0.0,
            Loss::Independent { rate } | Loss::Bursts { rate, .. } => *rate,
            Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, loss_good, loss_bad } => {
                let moves = p_good_to_bad + p_bad_to_good;
                let bad = if moves > 0.0 { p_good_to_bad / moves } else { 0.0 };
                bad * loss_bad + (1.0 - bad) * loss_good
            }
            Loss::Trace(trace) => trace.mean(),
            Loss::Both(parts) => 1.0 - parts.iter().map(|p| 1.0 - p.mean()).product::<f64>(),
        }
    }
}

/// Recorded sequence of fates as run lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Packets delivered, then lost, then delivered, and so on; the first may be 0.
    pub runs: Vec<u32>,
    /// True if the trace repeats from its start; otherwise all packets after its end are delivered.
    pub repeats: bool,
}

impl Trace {
    /// Number of packets in the trace.
    pub fn packets(&self) -> u64 {
        self.runs.iter().map(|&run| u64::from(run)).sum()
    }

    fn mean(&self) -> f64 {
        let lost: u64 = self.runs.iter().skip(1).step_by(2).map(|&run| u64::from(run)).sum();
        lost as f64 / self.packets().max(1) as f64
    }
}

/// State of a [`Loss`] process.
#[derive(Clone, Debug)]
pub struct LossProcess(State);

#[derive(Clone, Debug)]
enum State {
    Never,
    Independent { rate: f64 },
    Bursts { begin: f64, length: u32, left: u32 },
    GilbertElliott { leave: [f64; 2], loss: [f64; 2], bad: bool },
    Trace { trace: Trace, run: usize, used: u32 },
    Any(Vec<LossProcess>),
}

impl LossProcess {
    /// Creates the process in its first state.
    pub fn new(loss: &Loss) -> Self {
        LossProcess(match loss {
            Loss::None => State::Never,
            &Loss::Independent { rate } => State::Independent { rate },
            &Loss::Bursts { rate, length } => {
                State::Bursts { begin: burst_begin(rate, length), length, left: 0 }
            }
            &Loss::GilbertElliott { p_good_to_bad, p_bad_to_good, loss_good, loss_bad } => {
                State::GilbertElliott {
                    leave: [p_good_to_bad, p_bad_to_good],
                    loss: [loss_good, loss_bad],
                    bad: false,
                }
            }
            Loss::Trace(trace) if trace.packets() == 0 => State::Never,
            Loss::Trace(trace) => State::Trace { trace: trace.clone(), run: 0, used: 0 },
            Loss::Both(parts) => State::Any(parts.iter().map(LossProcess::new).collect()),
        })
    }

    /// Returns whether the next packet is lost.
    pub fn next(&mut self, rng: &mut Rng) -> bool {
        match &mut self.0 {
            State::Never => false,
            State::Independent { rate } => rng.chance(*rate),
            State::Bursts { begin, length, left } => next_of_bursts(*begin, *length, left, rng),
            State::GilbertElliott { leave, loss, bad } => {
                *bad ^= rng.chance(leave[usize::from(*bad)]);
                rng.chance(loss[usize::from(*bad)])
            }
            State::Trace { trace, run, used } => next_of_trace(trace, run, used),
            // Every part must decide about every packet, so the evaluation must not stop at the
            // first loss.
            State::Any(parts) => parts.iter_mut().fold(false, |lost, p| p.next(rng) | lost),
        }
    }
}

/// Probability q that a burst begins at a packet where one may begin. Between two bursts one packet
/// is always delivered, and then a geometrically distributed number of packets, together 1/q on
/// average. Hence rate = length / (length + 1/q).
fn burst_begin(rate: f64, length: u32) -> f64 {
    if rate <= 0.0 || length == 0 { 0.0 } else { rate / (f64::from(length) * (1.0 - rate)) }
}

/// Decides about the next packet; `left` counts the rest of a burst, and the packet after it.
fn next_of_bursts(begin: f64, length: u32, left: &mut u32, rng: &mut Rng) -> bool {
    if *left == 0 {
        if !rng.chance(begin) {
            return false;
        }
        *left = length.saturating_add(1);
    }
    *left -= 1;
    *left > 0
}

/// Decides about the next packet. The trace must have at least one packet, since an empty one that
/// repeats would never end.
fn next_of_trace(trace: &Trace, run: &mut usize, used: &mut u32) -> bool {
    while let Some(&length) = trace.runs.get(*run) {
        if *used < length {
            *used += 1;
            return *run % 2 == 1;
        }
        *used = 0;
        *run += 1;
        if *run == trace.runs.len() && trace.repeats {
            *run = 0;
        }
    }
    false
}

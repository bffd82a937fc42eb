//! Controller of the repair rate, which follows the losses on the link.
//!
//! The peer reports random losses, with the lengths of their bursts, and drops of a full queue.
//! Random losses determine the rate of repairs: the lowest rate at which few bursts are repaired
//! later than flows can wait ([`overhead`]). Losses by congestion do not raise the rate, because
//! repairs would fill the queue further. The rate rises immediately and falls slowly: losses of the
//! last ten seconds may recur.
//!
//! ```text
//!   report ─▶ bursts per packet ─▶ lowest overhead × trim ─▶ fast up, slowly down ─▶ encoder
//!             (last 1 s or 10 s,                  ▲
//!              the higher rate)      losses that flows have seen
//! ```
//!
//! [`Controller`] connects three state machines: `Recurrence` detects whether losses recur, `Trim`
//! corrects the rate according to its outcomes, and `Room` reduces the rate while a queue drops
//! packets.

pub mod bursts;
mod handover;
pub mod histogram;
pub mod losses;
pub mod offered;
pub mod overhead;
pub mod path;
pub mod queue;
mod recurrence;
mod room;
mod state;
mod trim;

use crate::fec::{MAX_COVER, window};
use crate::time::{Duration, Instant};
use bursts::{BUCKETS, Bursts};
use overhead::Rates;
use recurrence::Recurrence;
use room::Room;
use trim::Trim;

pub use state::{Regime, Report, State};

/// Target rate, per second, of single-packet losses that are repaired too late: a cubic flow still
/// fills its link if less than one such loss occurs in half a minute. The target is multiplied by
/// the mean burst length, at most by [`MAX_LATER`]: late repairs of longer bursts still help,
/// because the peer requests the missing packets, and a TCP sender undoes the reduction of its
/// window once the complete burst has arrived.
const TARGET: f64 = 0.03;
const MAX_LATER: f64 = 10.0;
/// Target for quick repairs: at most the fraction [`QUICK_LATE`] of the bursts is repaired later
/// than [`QUICK`], provided that an overhead of [`MAX_QUICK`] is enough.
const QUICK: Duration = Duration::from_millis(15);
const QUICK_LATE: f64 = 0.01;
const MAX_QUICK: f64 = 0.03;
/// Factor by which the overhead for the target [`QUICK`] exceeds the computed overhead. The
/// computation assumes that a repair contains its entire window. In fact, only the first few
/// repairs after a packet are certain to contain this packet; later repairs contain a share of the
/// packets ([`window`]).
const QUICK_MORE: f64 = 1.2;
/// Shares of `max_overhead` that may be spent on unrequested repairs. The greater share applies if
/// it achieves the target and the smaller share does not. With the smaller share alone, a flow of
/// few packets would stay slow on a link with long bursts.
const FORWARD: [f64; 2] = [0.5, 0.9];
/// Number of bursts at which losses count as recurring.
const RECURS: usize = 3;
/// Minimum overhead until a link is clean, so that a new loss is repaired immediately.
const MIN_OVERHEAD: f64 = 0.0025;
/// Overhead while the cause of losses is unknown, and from the third to the twelfth burst in the
/// first second of losses after a quiet time, while it is unknown whether the losses continue.
const PRIOR: f64 = 0.03;
/// Overhead while the loss rate is unknown: until the fate of [`FIRST_PACKETS`] packets is known,
/// and after the twelfth burst in the first second of losses after a quiet time. At that time,
/// senders do not tolerate late packets yet, and each loss that they see costs them much
/// throughput.
const FIRST: f64 = 0.08;
const FIRST_PACKETS: u64 = 4_096;
/// Burst length for which the overhead suffices at first, until the fate of [`FIRST_FEW`] packets
/// is known: a burst of this length is repaired before flows stop waiting, even at a low packet
/// rate, as far as `max_overhead` permits ([`FORWARD`]). A flow that is slowed down during slow
/// start stays slow for a long time.
const FIRST_BURST: f64 = 8.0;
const FIRST_FEW: u64 = 1_024;
/// Number of sent packets after which enough is known of the link to end [`FIRST`], even if the
/// cause of the first losses is in doubt.
const FIRST_PASSED: f64 = 16_384.0;
/// Factor by which the overhead decays each second.
const FALL: f64 = 0.5;
/// Fraction of the tolerated late bursts that may be late because the window is too short.
const TOO_SHORT: f64 = 0.1;
/// Group size in the encoder's parameters, which give the overhead as repairs per group.
const PACKETS: u16 = 4_096;
/// Minimum packet rate that is assumed, in packets a second.
const MIN_PACE: f64 = 50.0;

/// Bounds of the repair rate, set by the operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Maximum number of repairs per packet.
    pub max_overhead: f64,
    /// Maximum rate of repairs and copies, in bytes a second.
    pub max_rate: Option<f64>,
}

/// Controller of the rate of repairs towards one peer.
#[derive(Debug)]
pub struct Controller {
    limits: Limits,
    bursts: Bursts,
    /// Bursts per packet, by length.
    rates: Rates,
    /// Logarithm of the ratio of all bursts to the late bursts that the target allows.
    rarity: f64,
    last: Option<(Instant, Report)>,
    recurrence: Recurrence,
    /// Packets sent since the first report.
    passed: f64,
    trim: Trim,
    /// Overhead required by the losses, as returned by [`Controller::wanted`], except that it does
    /// not rise while a queue is full, and falls slowly. Not yet reduced by `room`.
    asked: f64,
    /// Overhead in force.
    pub(in crate::repair) overhead: f64,
    /// Overhead at the time when the queue became long; `None` while it is short.
    frozen: Option<f64>,
    /// Share of the repairs that remains while a queue drops packets, in this host or on the path.
    pub(in crate::repair) room: Room,
    /// Time at which repairs began.
    begun: Option<Instant>,
    pub(in crate::repair) regime: Regime,
}

/// Traffic to a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Packets a second.
    pub pace: f64,
    /// Time for which the flows can wait for a lost packet.
    pub wait: Duration,
}

impl Controller {
    /// Creates a controller without knowledge of the link.
    pub fn new(now: Instant, limits: Limits) -> Self {
        Controller {
            limits,
            bursts: Bursts::default(),
            rates: [0.0; BUCKETS],
            rarity: 0.0,
            last: None,
            recurrence: Recurrence::default(),
            passed: 0.0,
            trim: Trim::new(now),
            asked: 0.0,
            overhead: 0.0,
            frozen: None,
            room: Room::default(),
            begun: None,
            regime: Regime::Unknown,
        }
    }

    /// Last report of the peer.
    pub fn report(&self) -> Report {
        self.last.map(|(_, report)| report).unwrap_or_default()
    }

    /// Returns whether at least one in ten bursts of the last seconds had three packets or
    /// more, which is rare for independent losses.
    pub fn is_bursty(&self) -> bool {
        let long = self.rates[2..].iter().sum::<f64>();
        long > 0.0 && long >= 0.1 * self.rates.iter().sum::<f64>()
    }

    /// Handles a report.
    pub fn handle_report(&mut self, now: Instant, report: Report, traffic: Traffic) {
        let before = self.last.replace((now, report));
        self.bursts.add(now, report.random);
        let (at, old) = before.unwrap_or((now, report));
        self.passed += traffic.pace * now.since(at).as_secs_f64();
        let count = |report: &Report| report.random.bursts.iter().sum::<u64>();
        let new = count(&report).saturating_sub(count(&old));
        let is_unknown = report.random.packets < FIRST_PACKETS;
        let onset_ended = self.recurrence.handle_bursts(now, new, is_unknown);
        let (wanted, most) = self.wanted(now, (&old, &report), traffic);
        // A rate that was based on few losses, or kept in expectation of losses that did not occur,
        // ends immediately.
        let was_known = old.random.packets >= FIRST_PACKETS;
        let has_losses = self.recurrence.has_losses();
        let is_known = was_known && !onset_ended && has_losses && self.bursts.is_enough();
        let fall = if is_known { FALL.powf(now.since(at).as_secs_f64()) } else { 0.0 };
        let fallen = self.asked * fall;
        if report.congested > old.congested {
            self.room.handle_drops(now);
        }
        self.room.settle(now);
        // Repairs may be the cause of the full queue: the rate must not rise, except up to PRIOR.
        let frozen = self.frozen.unwrap_or(self.asked);
        self.frozen = report.queue_full.then_some(frozen);
        let risen = self.frozen.map_or(wanted, |frozen| wanted.min(frozen.max(PRIOR)));
        if self.asked <= 0.0 && risen > 0.0 {
            self.begun = Some(now);
        }
        self.asked = risen.max(fallen);
        if self.asked < MIN_OVERHEAD {
            self.asked = if wanted > 0.0 { MIN_OVERHEAD.min(most) } else { 0.0 };
        }
        // While the cause of losses is in doubt, some repairs are sent: if the losses are random,
        // flows would otherwise slow down before the cause is known. Congestion is recognised soon.
        let doubted = if report.in_doubt { PRIOR.min(most) } else { 0.0 };
        self.overhead = self.asked.max(doubted) * self.room.share();
    }

    /// Returns the overhead that the losses require, and its upper bound. Updates the state of the
    /// link.
    fn wanted(
        &mut self,
        now: Instant,
        (old, report): (&Report, &Report),
        traffic: Traffic,
    ) -> (f64, f64) {
        let is_unknown = report.random.packets < FIRST_PACKETS;
        let pace = traffic.pace.max(MIN_PACE);
        let rates = self.bursts.rates();
        self.rates = rates;
        let bursts = rates.iter().sum::<f64>();
        let mean = if bursts > 0.0 { overhead::loss(&rates) / bursts } else { 1.0 };
        let target = TARGET * mean.clamp(1.0, MAX_LATER);
        let visible = (old.visible, report.visible);
        let trim = self.trim.correct(now, visible, self.begun, target);
        let (events, packets) = (pace * bursts, pace * traffic.wait.as_secs_f64());
        self.rarity = (events / target).ln();
        let [usual, most] = FORWARD.map(|share| share * self.limits.max_overhead);
        let least = overhead::least(&rates, packets, events, target, most / trim);
        let most = if least.is_some() { most } else { usual };
        // Most bursts are repaired much sooner than flows need, if this is cheap.
        let soon = pace * QUICK.as_secs_f64();
        let quick = MAX_QUICK.min(usual);
        let quick = overhead::least(&rates, soon, events, QUICK_LATE * events, quick)
            .map_or(0.0, |least| quick.min(QUICK_MORE * least));
        let floor = match is_unknown {
            true if self.passed < FIRST_PASSED => FIRST,
            true => PRIOR,
            false => self.recurrence.floor(now),
        };
        let wanted = floor.min(usual).max(quick);
        let wanted = wanted.max(least.map_or(most, |least| least * trim)).min(most);
        self.regime = match least {
            _ if report.queue_full => Regime::Congested,
            None => Regime::Bounded,
            Some(_) if is_unknown => Regime::Unknown,
            Some(_) if wanted == 0.0 => Regime::Clean,
            Some(_) => Regime::Repairing,
        };
        (wanted, most)
    }

    /// Parameters of the encoder; `None` if no repairs are to be sent.
    pub fn parameters(&self, traffic: Traffic) -> Option<window::Parameters> {
        if self.overhead <= 0.0 {
            return None;
        }
        let overhead = self.overhead.max(self.room.share() * self.first(traffic));
        let repairs = (overhead * f64::from(PACKETS)).ceil();
        let window = f64::from(self.window(traffic, overhead)).max(3.0 / overhead);
        Some(window::Parameters {
            window: window.min(f64::from(MAX_COVER)) as u16,
            repairs: repairs as u16,
            packets: PACKETS,
        })
    }

    /// Minimum overhead while little is known of the link, so that a burst does not end a slow
    /// start.
    fn first(&self, traffic: Traffic) -> f64 {
        if self.report().random.packets >= FIRST_FEW {
            return 0.0;
        }
        let packets = traffic.pace * traffic.wait.as_secs_f64();
        let needed = FIRST_BURST / (packets - FIRST_BURST).max(1.0);
        needed.min(FORWARD[1] * self.limits.max_overhead)
    }

    /// Number of packets that a repair covers: the packets that pass while flows can wait, or fewer
    /// packets if these suffice for nearly all bursts. A shorter window costs less work per packet.
    fn window(&self, traffic: Traffic, overhead: f64) -> u16 {
        let reach = self.reach(traffic);
        if self.report().random.packets < FIRST_PACKETS || self.rarity <= 0.0 {
            return reach;
        }
        let needed = self.rarity - TOO_SHORT.ln();
        overhead::delay(&self.rates, overhead, needed, reach).unwrap_or(reach)
    }

    /// Number of packets that pass while flows can wait, with a margin.
    pub fn reach(&self, traffic: Traffic) -> u16 {
        let reach = 1.2 * traffic.pace.max(MIN_PACE) * traffic.wait.as_secs_f64();
        reach.clamp(16.0, f64::from(MAX_COVER)) as u16
    }
}

#[cfg(test)]
mod tests;

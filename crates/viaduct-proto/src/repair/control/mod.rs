//! The controller of repairs: how many a link's losses ask for.
//!
//! The peer reports what was lost by chance, in bursts of which lengths, and what a full queue dropped. Losses by
//! chance ask for repairs ([`overhead`]), such that hardly a burst is late for the flows that wait for it; those by
//! congestion ask for none, as repairs would fill the queue further. The rate rises at once, and falls slowly: what a
//! link has done within ten seconds it may do again.
//!
//! ```text
//!   report ─▶ bursts a packet ─▶ least overhead × trim ─▶ up at once, down by half a second ─▶ encoder
//!                 ▲ of 1 s or 10 s              ▲
//!                                 lateness of what was repaired
//! ```

pub mod bursts;
pub mod histogram;
pub mod losses;
pub mod offered;
pub mod overhead;
pub mod path;
pub mod queue;

use std::fmt;

use crate::fec::{MAX_COVER, window};
use crate::time::{Duration, Instant};
use bursts::{BUCKETS, Bursts, Counts};
use overhead::Rates;

/// Single losses a second that may be late: a cubic flow keeps its link at fewer than one in half a
/// minute. Of longer bursts more may be, up to this many times: what comes late, but whole, is undone
/// by senders that have sent it again, and repairs that are asked for make it whole.
const TARGET: f64 = 0.03;
const MAX_LATER: f64 = 10.0;
/// Share of the losses that may come back later than this, where no more repairs than so many for each
/// packet bring the others back.
const QUICK: Duration = Duration::from_millis(15);
const QUICK_LATE: f64 = 0.01;
const MAX_QUICK: f64 = 0.03;
/// What that takes beyond what is reckoned: older packets are not in each repair.
const QUICK_MORE: f64 = 1.2;
/// Share of the repairs that there may be which leave without being asked for; the greater one where it is enough and
/// the other is not, as for a flow of few packets on a link with long bursts, which would stay slow.
const FORWARD: [f64; 2] = [0.5, 0.9];
/// Bursts within that time that are told from none.
const RECURS: usize = 3;
/// Overhead that is kept until a link has been clean for long: a new loss is then repaired at once.
const MIN_OVERHEAD: f64 = 0.0025;
/// Overhead while it is not known why packets are lost, or of the first few after a time without, whether more will be.
const PRIOR: f64 = 0.03;
/// Overhead while it is not known how many are: until the fate of so many packets is known, and after a time without
/// losses. Flows have not learnt to wait then, and each loss that they see costs much.
const FIRST: f64 = 0.08;
const FIRST_PACKETS: u64 = 4_096;
/// Length of bursts that are repaired while flows can wait, however few packets that is: a flow that is slowed
/// down in its slow start stays slow for long. The same until the fate of so many packets is known.
const FIRST_BURST: f64 = 8.0;
const FIRST_FEW: u64 = 1_024;
/// Packets of which that many should be known, though it is in doubt why the first were lost.
const FIRST_PASSED: f64 = 16_384.0;
/// Time after whose end a loss is the first of others, perhaps, and in which those tell how many there are.
const QUIET: Duration = Duration::from_secs(10);
const ONSET: Duration = Duration::from_secs(1);
/// Bursts in that time of which a full queue may have been the reason, though it was not seen.
const FEW: u64 = 12;
/// Time without a loss after which a link is clean.
const CLEAN: Duration = Duration::from_secs(60);
/// Share by which the overhead falls a second.
const FALL: f64 = 0.5;
/// Bounds of the correction by outcomes.
const TRIM: [f64; 2] = [0.75, 1.5];
/// A step up after [`LOOK`] with more loss events that flows see than [`TOO_MANY`] times as many as
/// may be, and one down after [`CALM`] without any.
const TRIM_STEPS: [f64; 2] = [1.1, 0.97];
const LOOK: Duration = Duration::from_secs(5);
const TOO_MANY: f64 = 3.0;
/// Time without such an event after which less may do.
const CALM: Duration = Duration::from_secs(30);
/// Time after which repairs have brought back what was lost before they began, as far as they could.
const SETTLES: Duration = Duration::from_secs(2);
/// Time for which a queue has to drop packets before the overhead is halved: what flows that slow down cause ends
/// before, and losses by chance are then to be repaired as ever, or they would slow down again. Time after which it is
/// halved once more, and after which a queue that drops none is not full any more.
const PERSISTS: Duration = Duration::from_millis(1_200);
const YIELDS: Duration = Duration::from_millis(50);
const RECOVERS: Duration = Duration::from_millis(500);
/// Of the bursts that may be late, the share that the window is too short for.
const TOO_SHORT: f64 = 0.1;
/// Unit of an encoder's rate: repairs for so many packets.
const PACKETS: u16 = 4_096;
/// Least packets a second that are reckoned with.
const MIN_PACE: f64 = 50.0;

/// Bounds set by the operator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Repairs for each packet, at most.
    pub max_overhead: f64,
    /// Bytes of repairs and copies a second, at most.
    pub max_rate: Option<f64>,
}

/// What a peer reports of the way to it. Counters are totals since its receiver began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Losses by chance.
    pub random: Counts,
    /// Packets lost by congestion.
    pub congested: u64,
    /// Losses by chance that flows have seen: not repaired, or too late for them.
    pub visible: u64,
    /// Whether the queue is long now, so that it may be full.
    pub queue_full: bool,
    /// Whether it is not known of several losses why they were, as they came beside a long queue.
    pub in_doubt: bool,
}

/// State of the way to a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Regime {
    /// Little was reported yet.
    #[default]
    Unknown,
    /// Nothing was lost by chance for a minute: no repairs.
    Clean,
    /// Losses are repaired.
    Repairing,
    /// They ask for more repairs than there may be.
    Bounded,
    /// A queue is long: no more repairs than before.
    Congested,
    /// No repairs are made.
    Observed,
}

impl fmt::Display for Regime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Regime::Unknown => "little is known of the link yet",
            Regime::Clean => "clean: no packet was lost by chance for 60 s",
            Regime::Repairing => "repairing what is lost by chance",
            Regime::Bounded => "losses ask for more repairs than max_overhead allows",
            Regime::Congested => "congested: the link's queue is long, repairs do not rise",
            Regime::Observed => "observed: nothing is repaired",
        })
    }
}

/// What is known of the way to a peer, and how it is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct State {
    /// State of the link.
    pub regime: Regime,
    /// Repairs for each packet.
    pub overhead: f64,
    /// Packets a second.
    pub pace: f64,
    /// Time for which flows can wait for a packet.
    pub wait: Duration,
    /// Round-trip time, if it is known.
    pub rtt: Option<Duration>,
    /// What the peer reported last.
    pub report: Report,
}

/// Room that a full queue leaves to repairs.
#[derive(Clone, Copy, Debug)]
struct Room {
    /// Share of the overhead.
    share: f64,
    /// When it is halved next, and when a packet was last dropped.
    due: Instant,
    dropped: Instant,
}

/// The first losses after a time without.
#[derive(Clone, Copy, Debug)]
struct Onset {
    since: Instant,
    bursts: u64,
}

/// Chooses the rate of repairs towards one peer.
#[derive(Debug)]
pub struct Controller {
    limits: Limits,
    bursts: Bursts,
    /// Bursts a packet, and the logarithm of how much rarer late ones are to be.
    rates: Rates,
    rarity: f64,
    last: Option<(Instant, Report)>,
    /// When the last bursts by chance were reported, newest first, and the last that flows have seen.
    lost: [Option<Instant>; RECURS],
    seen: Option<Instant>,
    onset: Option<Onset>,
    /// Packets that have left since the first report.
    passed: f64,
    /// When [`Controller::trim`] was last looked at, and the losses that flows had seen then.
    trimmed: Instant,
    visible: u64,
    /// Overhead that losses ask for, and what there is room for.
    asked: f64,
    overhead: f64,
    trim: f64,
    /// The overhead when the queue became long.
    frozen: Option<f64>,
    /// Room that a full queue leaves.
    room: Option<Room>,
    /// When repairs began.
    begun: Option<Instant>,
    regime: Regime,
}

/// What is known of the traffic to a peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Packets a second.
    pub pace: f64,
    /// Time for which its flows can wait for a packet.
    pub wait: Duration,
}

impl Controller {
    /// A controller that knows nothing of the link.
    pub fn new(now: Instant, limits: Limits) -> Self {
        Controller {
            limits,
            bursts: Bursts::default(),
            rates: [0.0; BUCKETS],
            rarity: 0.0,
            last: None,
            lost: [None; RECURS],
            seen: None,
            onset: None,
            passed: 0.0,
            trimmed: now,
            visible: 0,
            asked: 0.0,
            overhead: 0.0,
            trim: 1.0,
            frozen: None,
            room: None,
            begun: None,
            regime: Regime::Unknown,
        }
    }

    /// Changes the bounds.
    pub fn change(&mut self, limits: Limits) {
        self.limits = limits;
        self.overhead = self.overhead.min(limits.max_overhead);
    }

    /// What the peer reported last.
    pub fn report(&self) -> Report {
        self.last.map(|(_, report)| report).unwrap_or_default()
    }

    /// State of the link.
    pub fn regime(&self) -> Regime {
        self.regime
    }

    /// Repairs for each packet.
    pub fn overhead(&self) -> f64 {
        self.overhead
    }

    /// Share of the repairs that a queue leaves room for, which is 1 unless it drops packets.
    pub fn room(&self) -> f64 {
        self.room.map_or(1.0, |room| room.share)
    }

    /// Whether one in ten bursts of the last seconds, or more, took three packets or more: losses
    /// that have nothing to do with each other hardly do.
    pub fn is_bursty(&self) -> bool {
        let long = self.rates[2..].iter().sum::<f64>();
        long > 0.0 && long >= 0.1 * self.rates.iter().sum::<f64>()
    }

    /// Takes a report.
    pub fn handle_report(&mut self, now: Instant, report: Report, traffic: Traffic) {
        let before = self.last.replace((now, report));
        self.bursts.add(now, report.random);
        let (at, old) = before.unwrap_or((now, report));
        self.passed += traffic.pace * now.since(at).as_secs_f64();
        let count = |report: &Report| report.random.bursts.iter().sum::<u64>();
        let new = count(&report).saturating_sub(count(&old));
        let is_unknown = report.random.packets < FIRST_PACKETS;
        if new > 0 && !is_unknown && self.lost[0].is_none_or(|at| now.since(at) >= QUIET) {
            self.onset = Some(Onset { since: now, bursts: 0 });
        }
        let was_onset = self.onset.is_some();
        self.onset = self.onset.filter(|onset| now.since(onset.since) < ONSET);
        self.onset.iter_mut().for_each(|onset| onset.bursts += new);
        let new = new.min(RECURS as u64) as usize;
        self.lost.rotate_right(new);
        self.lost[..new].fill(Some(now));
        let pace = traffic.pace.max(MIN_PACE);
        let rates = self.bursts.rates();
        self.rates = rates;
        let bursts = rates.iter().sum::<f64>();
        let mean = if bursts > 0.0 { overhead::loss(&rates) / bursts } else { 1.0 };
        let target = TARGET * mean.clamp(1.0, MAX_LATER);
        self.correct(now, &report, &old, target);
        let (events, packets) = (pace * bursts, pace * traffic.wait.as_secs_f64());
        self.rarity = (events / target).ln();
        let [usual, most] = FORWARD.map(|share| share * self.limits.max_overhead);
        let least = overhead::least(&rates, packets, events, target, most / self.trim);
        let most = if least.is_some() { most } else { usual };
        // Most of them sooner than flows can wait, where that is cheap.
        let soon = pace * QUICK.as_secs_f64();
        let quick = MAX_QUICK.min(usual);
        let quick = overhead::least(&rates, soon, events, QUICK_LATE * events, quick)
            .map_or(0.0, |least| quick.min(QUICK_MORE * least));
        let floor = match self.onset.map_or(0, |onset| onset.bursts) {
            _ if is_unknown && self.passed < FIRST_PASSED => FIRST,
            _ if is_unknown => PRIOR,
            bursts if bursts > FEW => FIRST,
            bursts if bursts >= RECURS as u64 => PRIOR,
            _ => self.floor(now),
        };
        let wanted = floor.min(usual).max(quick);
        let wanted = wanted.max(least.map_or(most, |least| least * self.trim)).min(most);
        self.regime = match least {
            _ if report.queue_full => Regime::Congested,
            None => Regime::Bounded,
            Some(_) if is_unknown => Regime::Unknown,
            Some(_) if wanted == 0.0 => Regime::Clean,
            Some(_) => Regime::Repairing,
        };
        // What few losses have told, or was kept for some that have never come, ends at once.
        let was_known = old.random.packets >= FIRST_PACKETS;
        let has_begun = was_onset && self.onset.is_none();
        let is_known = was_known && !has_begun && self.lost[0].is_some() && self.bursts.is_enough();
        let fall = if is_known { FALL.powf(now.since(at).as_secs_f64()) } else { 0.0 };
        let fallen = self.asked * fall;
        if report.congested > old.congested {
            self.handle_drops(now);
        }
        self.room = self.room.filter(|room| now.since(room.dropped) < RECOVERS);
        // What is lost now may be for repairs: there are to be no more of them, or hardly more.
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
        // If they were lost by chance, flows would slow down before that is known; if not, it is known soon.
        let doubted = if report.in_doubt { PRIOR.min(most) } else { 0.0 };
        self.overhead = self.asked.max(doubted) * self.room();
    }

    /// A full queue has dropped packets, here or on the way: for repairs, perhaps. There are to be fewer as long as it
    /// does.
    pub fn handle_drops(&mut self, now: Instant) {
        let begun = Room { share: 1.0, due: now + PERSISTS, dropped: now };
        let before = self.room.filter(|room| now.since(room.dropped) < RECOVERS);
        let mut room = Room { dropped: now, ..before.unwrap_or(begun) };
        if now >= room.due {
            (room.share, room.due) = (room.share / 2.0, now + YIELDS);
        }
        self.room = Some(room);
    }

    /// Parameters of an encoder; `None` where no repairs are to leave.
    pub fn parameters(&self, traffic: Traffic) -> Option<window::Parameters> {
        if self.overhead <= 0.0 {
            return None;
        }
        let overhead = self.overhead.max(self.room() * self.first(traffic));
        let repairs = (overhead * f64::from(PACKETS)).ceil();
        let window = f64::from(self.window(traffic, overhead)).max(3.0 / overhead);
        Some(window::Parameters {
            window: window.min(f64::from(MAX_COVER)) as u16,
            repairs: repairs as u16,
            packets: PACKETS,
        })
    }

    /// Least overhead while little is known of the link, that a burst may not slow a flow down that begins.
    fn first(&self, traffic: Traffic) -> f64 {
        if self.report().random.packets >= FIRST_FEW {
            return 0.0;
        }
        let packets = traffic.pace * traffic.wait.as_secs_f64();
        let needed = FIRST_BURST / (packets - FIRST_BURST).max(1.0);
        needed.min(FORWARD[1] * self.limits.max_overhead)
    }

    /// Packets that a repair covers: as many as pass while flows can wait, or fewer where losses hardly ever ask for
    /// more. The shorter the window, the less work is each packet.
    fn window(&self, traffic: Traffic, overhead: f64) -> u16 {
        let reach = self.reach(traffic);
        if self.report().random.packets < FIRST_PACKETS || self.rarity <= 0.0 {
            return reach;
        }
        let needed = self.rarity - TOO_SHORT.ln();
        overhead::delay(&self.rates, overhead, needed, reach).unwrap_or(reach)
    }

    /// Packets that pass while flows can wait, and some more.
    pub fn reach(&self, traffic: Traffic) -> u16 {
        let reach = 1.2 * traffic.pace.max(MIN_PACE) * traffic.wait.as_secs_f64();
        reach.clamp(16.0, f64::from(MAX_COVER)) as u16
    }

    /// Least overhead until the link is clean: hardly any packet is lost.
    fn floor(&self, now: Instant) -> f64 {
        let lossy = self.lost[RECURS - 1].is_some_and(|at| now.since(at) < CLEAN);
        if lossy { MIN_OVERHEAD } else { 0.0 }
    }

    /// Asks for more where flows see losses more often than may be, and slowly for less where they see
    /// none.
    fn correct(&mut self, now: Instant, report: &Report, old: &Report, target: f64) {
        if report.visible > old.visible {
            self.seen = Some(now);
        }
        // What was lost before repairs had begun asks for no more of them.
        if self.begun.is_none_or(|at| now.since(at) < SETTLES) {
            (self.visible, self.trimmed) = (report.visible, now);
            return;
        }
        let since = now.since(self.trimmed);
        if since < LOOK {
            return;
        }
        let seen = report.visible.saturating_sub(self.visible) as f64 / since.as_secs_f64();
        let calm = self.seen.is_none_or(|at| now.since(at) >= CALM);
        let step = match () {
            _ if seen > TOO_MANY * target => TRIM_STEPS[0],
            _ if seen > 0.0 || !calm => 1.0,
            _ if since >= CALM => TRIM_STEPS[1],
            _ => return,
        };
        self.trim = (self.trim * step).clamp(TRIM[0], TRIM[1]);
        (self.visible, self.trimmed) = (report.visible, now);
    }
}

#[cfg(test)]
mod tests;

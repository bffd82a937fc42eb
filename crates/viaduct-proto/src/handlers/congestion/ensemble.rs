//! Flows to one destination, which share one window by max-min fairness.
//!
//! ```text
//!   flow 1  ██████████        level: bytes in flight that each flow may have. A flow that wants
//!   flow 2  ██████████ ····   less leaves the rest to the others; the sum is the window
//!   flow 3  ███
//! ```

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::window::{Path, Window};
use crate::flow::Measure;
use crate::time::{Duration, Instant};

/// Segments that every flow may have in flight even if there are many flows, so that none starves.
const FLOOR: f64 = 2.0;
/// Minimum interval between computations of the level.
const LEVEL: Duration = Duration::from_millis(1);
/// Number of flows beyond which each flow is checked less often.
const CROWD: usize = 16;
/// Segment size until a connection has reported one, in bytes.
const SEGMENT: u32 = 1448;

#[derive(Clone, Copy, Debug, Default)]
struct Member {
    /// Last measurement.
    measure: Measure,
    /// Bytes sent since the last measurement.
    since: u64,
    /// Bytes that wait to be sent.
    waiting: u64,
    /// Until this many bytes are acknowledged, retransmissions repair losses from before the last
    /// reduction of the window.
    recovers: u64,
}

#[derive(Debug)]
pub(super) struct Ensemble {
    window: Window,
    members: BTreeMap<u64, Member>,
    /// Sum of the bytes that the flows' connections hold, and of those not sent yet.
    held: u64,
    unsent: u64,
    level: f64,
    leveled: Option<Instant>,
    /// Time at which the last flow left.
    left: Option<Instant>,
    path: Path,
}

impl Ensemble {
    pub(super) fn new() -> Ensemble {
        let segment = f64::from(SEGMENT);
        Ensemble {
            window: Window::new(segment),
            members: BTreeMap::new(),
            held: 0,
            unsent: 0,
            level: 0.0,
            leveled: None,
            left: None,
            path: Path { rtt: Duration::ZERO, shortest: Duration::ZERO, segment },
        }
    }

    pub(super) fn join(&mut self, id: u64) {
        self.members.insert(id, Member::default());
        (self.leveled, self.left) = (None, None);
    }

    pub(super) fn leave(&mut self, id: u64, now: Instant) {
        if let Some(member) = self.members.remove(&id) {
            self.held -= member.held();
            self.unsent -= member.measure.unsent;
        }
        self.leveled = None;
        if self.members.is_empty() {
            self.left = Some(now);
        }
    }

    /// Time since the last flow left; `None` while there are flows.
    pub(super) fn idle(&self, now: Instant) -> Option<Duration> {
        self.left.map(|left| now.since(left))
    }

    /// Handles a flow's measurement, and the number of the flow's bytes that wait in the handler.
    pub(super) fn report(&mut self, id: u64, measure: Measure, waiting: usize, now: Instant) {
        let Some(member) = self.members.get_mut(&id) else { return };
        let (before, known) = (member.measure, member.measure.rtt > Duration::ZERO);
        let lost = known && measure.again > before.again && measure.acked >= member.recovers;
        if lost {
            member.recovers = measure.acked + measure.held - measure.unsent.min(measure.held);
        }
        self.held -= member.held();
        self.unsent -= before.unsent;
        (member.measure, member.since, member.waiting) = (measure, 0, waiting as u64);
        self.held += member.held();
        self.unsent += measure.unsent;
        if measure.rtt > Duration::ZERO {
            let segment = if measure.segment > 0 { measure.segment } else { SEGMENT };
            self.path.segment = segment.into();
            self.path.rtt = measure.rtt;
            let shortest = match self.path.shortest {
                Duration::ZERO => measure.shortest,
                shortest => shortest.min(measure.shortest),
            };
            self.path.shortest = shortest;
        }
        let acked = measure.acked.saturating_sub(before.acked);
        if lost {
            self.window.lost(now, self.path);
        } else if acked > 0 && known {
            let on_the_way = self.on_the_way() + acked as f64;
            self.window.acked(now, acked as f64, on_the_way, self.path);
        }
        self.take_level(now);
    }

    /// Bytes that a flow may send now: whole segments, or all waiting bytes. A window that grows by
    /// bytes would otherwise be sent in small packets (RFC 1122, 4.2.3.4), and a full queue drops a
    /// small packet as readily as a whole segment.
    pub(super) fn may_send(&self, id: u64) -> usize {
        let Some(member) = self.members.get(&id) else { return usize::MAX };
        let least = FLOOR * self.path.segment - member.held() as f64;
        if member.is_full(self.path.segment) {
            return least.max(0.0) as usize;
        }
        let own = self.level - member.sent() as f64;
        let all = self.window.bytes - self.on_the_way();
        let may = own.min(all).max(least).max(0.0);
        let segment = self.path.segment;
        if may >= member.waiting as f64 {
            may as usize
        } else {
            ((may / segment).floor() * segment) as usize
        }
    }

    pub(super) fn sent(&mut self, id: u64, bytes: usize) {
        if let Some(member) = self.members.get_mut(&id) {
            member.since += bytes as u64;
            member.waiting = member.waiting.saturating_sub(bytes as u64);
            self.held += bytes as u64;
        }
    }

    /// Interval until the next check. Data released late and in bursts finds a full queue,
    /// while competing flows, clocked by their acknowledgements, find room. The interval is
    /// therefore short, unless there are many flows.
    pub(super) fn tick(&self) -> Duration {
        let crowd = u32::try_from(self.members.len().div_ceil(CROWD)).unwrap_or(u32::MAX);
        let tick = (self.path.rtt / 64).max(Duration::from_millis(1));
        tick.saturating_mul(crowd).min(Duration::from_millis(25))
    }

    /// Human-readable summary.
    pub(super) fn text(&self) -> String {
        format!(
            "{} flows share {:.0} kB, {:.0} kB of it on the way; {} losses, round trip {:.1} ms",
            self.members.len(),
            self.window.bytes / 1e3,
            self.on_the_way() / 1e3,
            self.window.losses,
            self.path.rtt.as_secs_f64() * 1e3,
        )
    }

    fn on_the_way(&self) -> f64 {
        self.held.saturating_sub(self.unsent) as f64
    }

    /// Computes the level, at most once per [`LEVEL`]: flows that want less get what they want, all
    /// others the level.
    fn take_level(&mut self, now: Instant) {
        if self.leveled.is_some_and(|at| now.since(at) < LEVEL) {
            return;
        }
        self.leveled = Some(now);
        let segment = self.path.segment;
        let mut wants: Vec<u64> = self.members.values().map(|of| of.wants(segment)).collect();
        wants.sort_unstable();
        self.level = level(&wants, self.window.bytes);
    }
}

impl Member {
    fn held(&self) -> u64 {
        self.measure.held + self.since
    }

    /// Bytes in flight, or about to be.
    fn sent(&self) -> u64 {
        self.held().saturating_sub(self.measure.unsent)
    }

    /// Returns whether the connection's own window is the limit, for instance after a loss.
    /// Such a flow leaves the rest of its share to the others.
    fn is_full(&self, segment: f64) -> bool {
        self.measure.unsent as f64 >= segment
    }

    fn wants(&self, segment: f64) -> u64 {
        if self.is_full(segment) { self.sent() } else { self.sent() + self.waiting }
    }
}

/// Max-min fair share with which flows together use at most `all`. `wants` must be sorted.
fn level(wants: &[u64], all: f64) -> f64 {
    let mut left = all;
    for (n, &want) in wants.iter().enumerate() {
        let each = left / (wants.len() - n) as f64;
        if want as f64 > each {
            return each;
        }
        left -= want as f64;
    }
    // No flow is limited; each may use the rest.
    wants.last().map_or(all, |&most| most as f64 + left)
}

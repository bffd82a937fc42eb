//! Measurement of the path from the peer, by names and arrivals.

use std::ops::Range;

use super::arrivals::Arrivals;
use super::known::Known;
use super::needs::Needs;
use crate::fec::Seq;
use crate::repair::align::Named;
use crate::repair::control::path::Path;
use crate::repair::observed::Observed;
use crate::repair::section::Names;
use crate::repair::shadow::{Fate, Outcome, TRIED};
use crate::time::{Duration, Instant};

/// Distance, in numbers, within which losses have a common cause. If a full queue dropped a packet
/// within this distance of packets whose names were lost, the missing packets among these also
/// count as dropped by the queue.
const NEAR: u64 = 1_024;

/// State of the path from the peer, and the trial of codes on this path.
#[derive(Default)]
pub(in crate::repair) struct Measurement {
    pub(in crate::repair) path: Path,
    /// Fates of the packets in observe mode, in which no repairs are sent.
    observed: Option<Box<Observed>>,
    /// Send times of the packets named just now.
    sent: Vec<u32>,
}

/// Names that have just been matched to arrivals.
pub(super) struct Matched<'a> {
    /// Number of the first name of the datagram.
    pub(super) first: Seq,
    pub(super) names: &'a Names<'a>,
    /// Range of the numbers whose names were not known before.
    pub(super) new: Range<Seq>,
    /// Results for the new names, and for some earlier names.
    pub(super) named: &'a [(Seq, Named)],
}

impl Measurement {
    /// Starts or stops the trial of codes on the losses of a path of this round-trip time.
    pub(super) fn observe(&mut self, is_observed: bool, rtt: Duration) {
        if !is_observed {
            self.observed = None;
        } else if self.observed.is_none() {
            self.observed = Some(Box::new(Observed::new(rtt)));
        }
    }

    /// Outcomes of the trial codes for a peer that only observes.
    pub(in crate::repair) fn trials(&self) -> Option<[Outcome; TRIED.len()]> {
        self.observed.as_ref().map(|observed| observed.shadows.outcomes())
    }

    /// Records that the missing packet `seq` has arrived without a recovery.
    pub(super) fn arrived(&mut self, seq: Seq) {
        self.path.losses.arrived(seq);
        if let Some(observed) = &mut self.observed {
            observed.arrived(seq);
        }
    }

    /// Returns whether no fate waits for the trial.
    pub(super) fn is_idle(&self) -> bool {
        self.observed.as_ref().is_none_or(|observed| observed.is_settled())
    }

    /// Housekeeping of the trial.
    pub(super) fn tick(&mut self, now: Instant) {
        if let Some(observed) = &mut self.observed {
            observed.settle(now);
        }
    }

    /// Bytes of memory held by the trial.
    pub(super) fn memory(&self) -> usize {
        self.observed.as_ref().map_or(0, |observed| observed.memory())
    }

    /// Measures the path by names. If the path is not only observed, adds missing packets to
    /// `needs`, except those that a full queue has dropped or that are in no repair.
    pub(super) fn named(
        &mut self,
        now: Instant,
        of: &Matched<'_>,
        known: &mut Known,
        arrivals: &Arrivals,
        needs: &mut Needs,
    ) {
        self.sent.clear();
        if let Some(times) = of.names.times {
            self.sent.extend(times.sent());
        }
        for (seq, sent) in (of.first..).zip(&self.sent) {
            if let Some(row) = known.ledger.row_mut(seq) {
                row.sent = Some(*sent);
            }
        }
        if self.sent.is_empty() && of.new.end < known.ledger.next() {
            self.named_late(now, of, known, needs);
        } else {
            self.named_in_time(now, of, known, arrivals, needs);
        }
        for seq in self.path.losses.condemned() {
            if let Some(row) = known.ledger.row_mut(seq) {
                row.congested = true;
            }
        }
    }

    /// Measures the path by late names: requested or repeated names, which have no send times.
    fn named_late(&mut self, now: Instant, of: &Matched<'_>, known: &mut Known, needs: &mut Needs) {
        let mut near = of.new.start.saturating_sub(NEAR)..of.new.end.saturating_add(NEAR);
        let congested = near.any(|seq| known.ledger.row(seq).is_some_and(|row| row.congested));
        self.path.named_late(now, of.named, congested);
        let missing = of.named.iter().filter(|(_, of)| *of == Named::Missing);
        for &(seq, _) in missing {
            miss(now, seq, congested, self.observed.is_some(), known, needs);
        }
    }

    fn named_in_time(
        &mut self,
        now: Instant,
        of: &Matched<'_>,
        known: &mut Known,
        arrivals: &Arrivals,
        needs: &mut Needs,
    ) {
        let &Matched { first, named, .. } = of;
        let Measurement { path, observed, sent } = self;
        let came = |arrival| arrivals.get(arrival).map(|came| came.at);
        path.named(now, (first, sent), named, came, |seq, congested| {
            miss(now, seq, congested, observed.is_some(), known, needs);
        });
        let Some(observed) = observed else { return };
        for &(seq, of) in named {
            let sent = seq.checked_sub(first).and_then(|at| sent.get(at as usize));
            let is_congested = || known.ledger.row(seq).is_some_and(|row| row.congested);
            match (of, sent) {
                (Named::Arrived(_), Some(&sent)) => observed.named(now, seq, sent, Fate::Arrived),
                (Named::Arrived(_), None) => observed.arrived(seq),
                (Named::Missing, Some(&sent)) => {
                    let fate = if is_congested() { Fate::Congested } else { Fate::Lost };
                    observed.named(now, seq, sent, fate);
                }
                (Named::Missing, None) => {}
            }
        }
    }
}

/// Records the cause of a loss. Adds the packet to `needs` if repairs can recover it, unless a full
/// queue has dropped it.
fn miss(
    now: Instant,
    seq: Seq,
    congested: bool,
    is_observed: bool,
    known: &mut Known,
    needs: &mut Needs,
) {
    let Some(row) = known.ledger.row_mut(seq) else { return };
    row.congested = congested;
    if !congested && !row.is_bare && !is_observed {
        needs.requests.missing(now, seq);
    }
}

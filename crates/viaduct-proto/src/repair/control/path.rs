//! Path from a peer, as inferred from the peer's names and the arrivals.
//!
//! ```text
//!   names with send times ──┬─▶ delays ─▶ queue ──┐ full near a loss?
//!   arrivals, in order ─────┘                     ▼
//!            │              └──── missing ─────▶ losses: random, by congestion
//!            └─────────────▶ offered load ─────────┘ high?
//! ```

use super::Report;
use super::histogram::Verdict;
use super::losses::Losses;
use super::offered::Offered;
use super::queue::{Micros, Queue};
use crate::fec::Seq;
use crate::repair::align::Named;
use crate::time::{Duration, Instant};

/// State of the path.
#[derive(Debug, Default)]
pub struct Path {
    queue: Queue,
    offered: Offered,
    pub(in crate::repair) losses: Losses,
    /// Number of visible loss events, and the time of the last one.
    visible: u64,
    seen: Option<Instant>,
    /// Number of the last missing packet, and the cause of its loss.
    run: Option<(Seq, Verdict)>,
    /// Queueing delays of the packets named just now.
    waits: Vec<Option<Micros>>,
}

impl Path {
    /// Handles the names of consecutive packets, the first of which has number `first`, sent at the
    /// times `sent`. `named` has the result for each of these packets, and for some earlier
    /// packets; `arrived` returns the time of an arrival. Calls `missing` for each missing packet,
    /// with true if the packet was lost by congestion.
    pub fn named(
        &mut self,
        now: Instant,
        (first, sent): (Seq, &[u32]),
        named: &[(Seq, Named)],
        arrived: impl Fn(u64) -> Option<Instant>,
        mut missing: impl FnMut(Seq, bool),
    ) {
        self.waits.clear();
        for &(seq, of) in named {
            let sent = seq.checked_sub(first).and_then(|at| sent.get(at as usize));
            let waits = match (of, sent) {
                (Named::Arrived(arrival), Some(&sent)) => {
                    arrived(arrival).map(|at| self.queue.arrive(at, seq, sent))
                }
                _ => None,
            };
            self.waits.push(waits);
        }
        self.losses.known(now, named.len() as u64);
        let mut before = self.queue.waits;
        for (at, &(seq, of)) in named.iter().enumerate() {
            let sent = seq.checked_sub(first).and_then(|at| sent.get(at as usize));
            if let Some(&sent) = sent {
                self.offered.send(sent);
            }
            match of {
                Named::Arrived(_) => {
                    self.losses.arrived(seq);
                    if sent.is_some() {
                        self.offered.arrive(now);
                    }
                }
                Named::Missing => {
                    let after = self.waits[at..].iter().find_map(|waits| *waits);
                    let waits = before.max(after.unwrap_or(before));
                    let verdict = match self.run {
                        Some((last, verdict)) if seq.checked_sub(1) == Some(last) => verdict,
                        _ => self.judge(now, waits),
                    };
                    self.run = Some((seq, verdict));
                    self.losses.missing(now, seq, verdict);
                    missing(seq, verdict == Verdict::Congestion);
                }
            }
            before = self.waits[at].unwrap_or(before);
        }
    }

    /// Handles packets that were named late because their names were lost. If `congested`, a full
    /// queue has dropped neighbouring packets, and those of the named packets that are missing also
    /// count as dropped by this queue. Otherwise the cause of a loss is doubtful if a queue was
    /// full recently: that queue may have dropped both the packets and their names.
    pub fn named_late(&mut self, now: Instant, named: &[(Seq, Named)], congested: bool) {
        self.losses.known(now, named.len() as u64);
        let verdict = if self.queue.was_full(now) { Verdict::Doubtful } else { Verdict::Chance };
        for &(seq, of) in named {
            match of {
                Named::Arrived(_) => self.losses.arrived(seq),
                Named::Missing if congested => self.losses.missing(now, seq, Verdict::Congestion),
                Named::Missing => self.losses.missing(now, seq, verdict),
            }
        }
    }

    /// Determines the cause of consecutive losses next to packets with the queueing delay `waits`.
    fn judge(&mut self, now: Instant, waits: Micros) -> Verdict {
        let verdict = self.queue.lose(now, waits);
        // A loss that a full queue explains says nothing about the load. If such losses were
        // counted as losses at their load, random losses at the same load would seem to be caused
        // by the load.
        match verdict {
            Verdict::Congestion => verdict,
            _ if self.offered.lose() => Verdict::Congestion,
            _ => verdict,
        }
    }

    /// Counts a visible loss event: a random loss was repaired too late for its flow, or not at
    /// all. Losses within `wait` are one event.
    pub fn visible(&mut self, now: Instant, wait: Duration) {
        if self.seen.is_none_or(|at| now.since(at) > wait) {
            self.visible += 1;
            self.seen = Some(now);
        }
    }

    /// Takes over the totals of the previous process.
    pub(in crate::repair) fn resume(&mut self, report: &Report) {
        self.losses.resume(report.random, report.congested);
        self.visible = report.visible;
    }

    /// Report to the peer.
    pub fn report(&self) -> Report {
        Report {
            random: self.losses.counts,
            congested: self.losses.congested,
            visible: self.visible,
            queue_full: self.queue.is_standing(),
            in_doubt: self.losses.in_doubt(),
        }
    }
}

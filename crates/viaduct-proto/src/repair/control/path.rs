//! The path from a peer, as its names and what has arrived tell of it.
//!
//! ```text
//!   names with send times ──┬─▶ delays ─▶ queue ──┐ full beside a loss?
//!   arrivals, in order ─────┘                     ▼
//!            │              └──── missing ─────▶ losses: by chance, by congestion
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

/// What is known of the path.
#[derive(Debug, Default)]
pub struct Path {
    queue: Queue,
    offered: Offered,
    losses: Losses,
    /// Loss events that flows have seen, and the last one.
    visible: u64,
    seen: Option<Instant>,
    /// Number of the last packet that was missing, and why.
    run: Option<(Seq, Verdict)>,
    /// What packets named just now have waited in queues.
    waits: Vec<Option<Micros>>,
}

impl Path {
    /// Packets from `first` on were named, at the times `sent`: `named` says what has become of each, and of earlier
    /// ones; `arrived` when it came. Calls `missing` for each that is missing, with whether a full queue dropped it.
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
        let mut before = self.queue.waits();
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

    /// Packets were named a while after they had left, as their names were lost: `named` says what has
    /// become of each. Those that are missing were lost in a full queue if their neighbours were, and may have been if one was full
    /// lately: so were their names.
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

    /// Takes the numbers of packets of which it was not known why they were missing, and is now: a full queue dropped them.
    pub fn condemned(&mut self) -> impl Iterator<Item = Seq> {
        self.losses.condemned()
    }

    /// Why packets in a row were lost, beside which others waited so long.
    fn judge(&mut self, now: Instant, waits: Micros) -> Verdict {
        let verdict = self.queue.lose(now, waits);
        if self.offered.lose() { Verdict::Congestion } else { verdict }
    }

    /// A packet that was missing has arrived by itself.
    pub fn arrived(&mut self, seq: Seq) {
        self.losses.arrived(seq);
    }

    /// A packet lost by chance came back too late for its flow, or did not. Those within `wait` are one event.
    pub fn visible(&mut self, now: Instant, wait: Duration) {
        if self.seen.is_none_or(|at| now.since(at) > wait) {
            self.visible += 1;
            self.seen = Some(now);
        }
    }

    /// Counts what was missing for long enough.
    pub fn settle(&mut self, now: Instant) {
        self.losses.settle(now);
    }

    /// When there is something to count.
    pub fn due(&self) -> Option<Instant> {
        self.losses.due()
    }

    /// What the peer is told.
    pub fn report(&self) -> Report {
        Report {
            random: self.losses.random(),
            congested: self.losses.congested(),
            visible: self.visible,
            queue_full: self.queue.is_standing(),
            in_doubt: self.losses.in_doubt(),
        }
    }
}

//! The adaptive code under trial.

use std::collections::VecDeque;

use super::{Fate, Owned, owned};
use crate::fec::{self, Seq};
use crate::repair::auto::{Auto, Leaving};
use crate::repair::classes::Repairs;
use crate::repair::control::Report;
use crate::repair::control::histogram::Verdict;
use crate::repair::control::losses::Losses;
use crate::repair::requests::{Requests, Times};
use crate::repair::section::Need;
use crate::time::{Duration, Instant};
use crate::wire::ip::MutableFields;

/// Interval of loss reports to the sender.
const REPORT: Duration = Duration::from_millis(25);

/// Adaptive code, with the messages that control it.
pub(super) struct Feedback {
    pub(super) auto: Auto,
    rtt: Duration,
    losses: Losses,
    requests: Requests,
    pub(super) report: Report,
    next_report: Instant,
    /// Reports in transit, with their arrival times.
    reports: VecDeque<(Instant, Report)>,
    /// Requests, with the arrival times of their answers.
    needs: VecDeque<(Instant, Need)>,
}

impl Feedback {
    pub(super) fn new(auto: Auto, rtt: Duration) -> Self {
        Feedback {
            auto,
            rtt,
            losses: Losses::default(),
            requests: Requests::default(),
            report: Report::default(),
            next_report: Instant::ZERO,
            reports: VecDeque::new(),
            needs: VecDeque::new(),
        }
    }

    fn times(&self, now: Instant) -> Times {
        Times { wait: self.auto.wait(now), rtt: self.rtt }
    }

    /// Handles the fate of packet `seq`. Adds to `leaving` the repairs that answer requests.
    pub(super) fn step(&mut self, now: Instant, seq: Seq, fate: Fate, leaving: &mut Vec<Owned>) {
        self.losses.known(now, 1);
        match fate {
            Fate::Arrived => {}
            Fate::Lost => {
                self.losses.missing(now, seq, Verdict::Chance);
                self.requests.missing(now, seq);
            }
            Fate::Congested => self.losses.missing(now, seq, Verdict::Congestion),
        }
        self.losses.settle(now);
        if now >= self.next_report {
            self.next_report = now + REPORT;
            let (random, congested) = (self.losses.counts, self.losses.congested);
            let report = Report { random, congested, ..self.report };
            self.reports.push_back((now + self.rtt / 2, report));
            self.requests.expire(now, 0);
        }
        // The answer arrives a full round trip after the request.
        let state = self.auto.state(now);
        let expected = (state.overhead * state.pace * state.wait.as_secs_f64()) as usize;
        let early = self.requests.ask_early(now, expected);
        self.needs.extend(early.map(|need| (now + self.rtt, need)));
        while let Some(need) = self.requests.ask(now, self.times(now), |_, _| 0, |_| false) {
            self.needs.push_back((now + self.rtt, need));
        }
        while self.reports.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, report)) = self.reports.pop_front()
        {
            self.auto.handle_report(now, report, Some(self.rtt));
        }
        while self.needs.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, need)) = self.needs.pop_front()
        {
            self.auto.answer(now, need, &mut |repair| leaving.push(owned(&repair)));
        }
    }

    pub(super) fn push(&mut self, now: Instant, symbol: &[u8], fire: &mut fec::Fire<'_>) {
        let fields = MutableFields::default();
        let (repairs, most) = (Repairs::Window, f64::INFINITY);
        self.auto.push(now, Leaving { fields, packet: symbol, symbol, repairs, most }, fire);
    }

    /// Records that packet `seq` was recovered.
    pub(super) fn here(&mut self, now: Instant, seq: Seq) {
        let wait = self.times(now).wait;
        let missed = self.requests.here(now, seq);
        self.report.visible += u64::from(missed.is_some_and(|time| time > wait));
    }
}

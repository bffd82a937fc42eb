//! Reports to and from the peer: their times, and the round-trip time that they measure.

use crate::rack::HEARTBEAT;
use crate::repair::control;
use crate::repair::control::queue::micros;
use crate::repair::racks::RackConfig;
use crate::repair::receiver::Receiver;
use crate::repair::report::Report;
use crate::repair::sender::Sender;
use crate::time::{Duration, Instant};

/// Interval of loss reports to the peer; they also keep the session alive.
const REPORT_EVERY: Duration = Duration::from_secs(1);
/// Minimum time between two reports while packets are missing. Reports less than
/// [`REPORT_SPARSE`] apart also need [`REPORT_PACKETS`] new packets between them, or a new
/// doubt about the cause of losses.
const REPORT_SOON: Duration = Duration::from_millis(10);
const REPORT_PACKETS: u64 = 64;
const REPORT_SPARSE: Duration = Duration::from_millis(250);
/// Age of the newest report of the other side at which the next one is late: a report may be lost.
/// The waiting side then sends a report every [`LATE_EVERY`]; the late side, as soon as it learns
/// of this, sends a report immediately.
const LATE_AFTER: Duration = Duration::from_millis(1_200);
const LATE_EVERY: Duration = Duration::from_millis(200);
/// Age at which the other side counts as gone, and reports are no longer sent more often.
const GONE_AFTER: Duration = Duration::from_secs(4);
/// Age, at the peer, of this gateway's newest report at which the peer counts as not receiving this
/// gateway's datagrams.
pub(super) const UNHEARD_AFTER: Duration = Duration::from_millis(2_400);
/// Interval of terms, in reports, after the first reports of a session.
const TERMS_EVERY: u32 = 10;
/// Number of reports at the start of a session that are followed by terms, because terms may be
/// lost.
const TERMS_FIRST: u32 = 3;
/// Round-trip time assumed until it is measured.
pub(super) const USUAL_RTT: Duration = Duration::from_millis(100);
/// Smoothing of the round-trip time: the newest sample has a weight of 1 / `RTT_WEIGHT`.
const RTT_WEIGHT: u32 = 8;

/// Last reports in both directions.
pub(super) struct Reporting {
    /// Round-trip time, if it is measured.
    pub(super) rtt: Option<Duration>,
    /// Send time of the peer's newest report, by the peer's clock, and its time of arrival.
    stamp: Option<(u32, Instant)>,
    /// Time and content of the last report sent.
    told: (Instant, control::Report),
    /// Number of reports sent in the current session or since the last change of the config.
    reports: u32,
    /// Interval of reports without losses.
    every: Duration,
    /// Latest time of the next report.
    next: Instant,
    /// True if reports are sent every [`LATE_EVERY`], because the peer must learn of a throttle
    /// that drops most of them.
    pub(super) is_urgent: bool,
}

impl Reporting {
    /// Creates the state before the first report.
    pub(super) fn new(now: Instant, rack: &RackConfig) -> Self {
        let every = interval(rack);
        Reporting {
            rtt: None,
            stamp: None,
            told: (now, control::Report::default()),
            reports: 0,
            every,
            next: now + every,
            is_urgent: false,
        }
    }

    /// Updates the interval of reports. The next report is due immediately if it has news.
    pub(super) fn change(&mut self, now: Instant, rack: &RackConfig, has_news: bool) {
        self.every = interval(rack);
        if has_news {
            self.next = now;
        }
    }

    /// Restarts the count of reports, so that the next reports are followed by terms.
    pub(super) fn restart(&mut self) {
        self.reports = 0;
    }

    pub(super) fn handle_report(&mut self, now: Instant, report: &Report) {
        self.stamp = Some((report.stamp, now));
        let age = report.echo.map(|(_, held)| Duration::from_micros(held.into()));
        if age.is_some_and(|age| age >= LATE_AFTER) {
            self.next = now;
        }
        if let Some(newest) = report.rtt(now) {
            let smooth = |rtt: Duration| (rtt * (RTT_WEIGHT - 1) + newest) / RTT_WEIGHT;
            self.rtt = Some(self.rtt.map_or(newest, smooth));
        }
    }

    /// Time of the next report: soon if `path` differs from the last report, or if the peer's next
    /// report is late.
    pub(super) fn due(&self, path: &control::Report) -> Instant {
        let (at, told) = &self.told;
        let heard_at = self.stamp.map(|(_, heard_at)| heard_at);
        let late = heard_at
            .filter(|heard_at| *at < *heard_at + GONE_AFTER)
            .map(|heard_at| (heard_at + LATE_AFTER).max(*at + LATE_EVERY));
        let urgent = self.is_urgent.then_some(*at + LATE_EVERY);
        let next = late.into_iter().chain(urgent).fold(self.next, Instant::min);
        let is_doubted = path.in_doubt && !told.in_doubt;
        let is_old = path.random.bursts != told.random.bursts
            || path.congested != told.congested
            || path.visible != told.visible;
        if !is_old && !is_doubted {
            return next;
        }
        let many = is_doubted || path.random.packets - told.random.packets >= REPORT_PACKETS;
        let soon = (self.rtt.unwrap_or(USUAL_RTT) / 4).max(REPORT_SOON);
        next.min(*at + if many { soon } else { soon.max(REPORT_SPARSE) })
    }

    pub(super) fn next(
        &mut self,
        now: Instant,
        sender: Option<&Sender>,
        receiver: &Receiver,
    ) -> Report {
        let wait = sender.and_then(|sender| sender.coder.wait(now)).unwrap_or(USUAL_RTT / 4);
        let held = |at| u32::try_from(now.since(at).as_micros()).unwrap_or(u32::MAX);
        let path = receiver.measurement.path.report();
        (self.told, self.next) = ((now, path), now + self.every);
        Report {
            next: sender.map_or(0, |sender| sender.coder.next_seq()),
            stamp: micros(now),
            echo: self.stamp.map(|(stamp, at)| (stamp, held(at))),
            wait: u32::try_from(wait.as_micros()).unwrap_or(u32::MAX),
            loss: receiver.stats().link,
            path,
        }
    }

    /// Counts a report of the current session; returns whether terms are sent after it.
    pub(super) fn counts_terms(&mut self) -> bool {
        let has_terms = self.reports < TERMS_FIRST || self.reports.is_multiple_of(TERMS_EVERY);
        self.reports = self.reports.saturating_add(1);
        has_terms
    }
}

/// Interval of reports. The reports of a member of a rack are heartbeats.
fn interval(rack: &RackConfig) -> Duration {
    if rack.own_weight.is_some() { HEARTBEAT } else { REPORT_EVERY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reports_and_then_every_tenth_have_terms() {
        let mut reporting = Reporting::new(Instant::ZERO, &RackConfig::default());
        let with_terms = (0..31).filter(|_| reporting.counts_terms()).collect::<Vec<_>>();
        assert_eq!(with_terms, [0, 1, 2, 10, 20, 30]);
        reporting.restart();
        assert!(reporting.counts_terms());
    }

    #[test]
    fn a_new_loss_is_reported_soon() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let reporting = Reporting::new(at(0), &RackConfig::default());
        let mut path = control::Report::default();
        assert_eq!(reporting.due(&path), at(1_000));
        path.congested = 1;
        assert_eq!(reporting.due(&path), at(250));
        path.random.packets = REPORT_PACKETS;
        assert_eq!(reporting.due(&path), at(25));
    }

    #[test]
    fn a_late_peer_gets_frequent_reports_and_a_late_side_reports_immediately() {
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        let mut reporting = Reporting::new(at(0), &RackConfig::default());
        let path = control::Report::default();
        reporting.stamp = Some((1, at(100)));
        (reporting.told.0, reporting.next) = (at(900), at(1_900));
        assert_eq!(reporting.due(&path), at(1_300));
        (reporting.told.0, reporting.next) = (at(1_300), at(2_300));
        assert_eq!(reporting.due(&path), at(1_500));
        (reporting.told.0, reporting.next) = (at(4_100), at(5_100));
        assert_eq!(reporting.due(&path), at(5_100), "the peer counts as gone");
        (reporting.told.0, reporting.next) = (at(1_300), at(2_300));
        let echo = |held_ms: u32| Report { echo: Some((1, held_ms * 1_000)), ..Report::default() };
        reporting.handle_report(at(1_400), &echo(900));
        assert_eq!(reporting.due(&path), at(2_300), "reports have arrived in both directions");
        reporting.handle_report(at(1_450), &echo(1_250));
        assert_eq!(reporting.due(&path), at(1_450), "our report is late at the peer");
    }
}

//! Reordering window: time for which flows can wait for a lost packet, as a share of a round trip.
//!
//! A TCP sender that does not wait for a recovered packet retransmits it, and the flow's receiver
//! reports the duplicate (DSACK). As long as such reports are rare, flows can wait longer, and
//! fewer repairs suffice. Linux waits for nearly a round trip once its reordering window (RACK) has
//! grown; other senders wait less. Flows other than TCP send no such reports and get a quarter of a
//! round trip.

use crate::time::{Duration, Instant};

/// Bounds of the share.
const SHARES: [f64; 2] = [0.25, 0.75];
/// Initial value of the share: a new sender waits for a quarter of a round trip, and undoes some of
/// its premature window reductions.
const FIRST: f64 = 0.35;
/// Factors of a step down and of a step up.
const STEPS: [f64; 2] = [0.8, 1.15];
/// Number of spurious retransmissions a second above which the share is too large. Each
/// retransmission costs a window reduction that is undone a round trip later.
const TOO_MANY: f64 = 0.5;
/// Number of bursts that suffice for an early step.
const ENOUGH: u64 = 10;
/// Time from one step to the next: with at least [`ENOUGH`] bursts, and with fewer.
const TIMES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

#[derive(Debug)]
pub(super) struct ReorderingWindow {
    /// Share of a round trip.
    pub(super) share: f64,
    since: Instant,
    /// Count of loss bursts at the last step.
    bursts: u64,
    /// Spurious retransmissions since the last step; those within one round trip count as one.
    hasty: u64,
    /// Time of the last spurious retransmission that was counted.
    last: Option<Instant>,
    /// TCP packets since the last step.
    tcp: u64,
    /// All packets since the last step.
    all: u64,
}

impl ReorderingWindow {
    pub(super) fn new(now: Instant) -> Self {
        let share = FIRST;
        ReorderingWindow { share, since: now, bursts: 0, hasty: 0, last: None, tcp: 0, all: 0 }
    }

    /// Takes over the share of the previous process, and its totals of bursts by length.
    pub(super) fn resume(&mut self, share: f64, bursts: Option<[u64; 16]>) {
        self.share = share.clamp(SHARES[0], SHARES[1]);
        self.bursts = bursts.map_or(0, |bursts| bursts.iter().sum());
    }

    pub(super) fn count(&mut self, is_tcp: bool) {
        self.all += 1;
        self.tcp += u64::from(is_tcp);
    }

    /// Handles a duplicate segment (DSACK). All duplicates within one round trip count as one.
    pub(super) fn handle_dsack(&mut self, now: Instant, rtt: Duration) {
        if self.last.is_none_or(|at| now.since(at) > rtt) {
            self.hasty += 1;
            self.last = Some(now);
        }
    }

    /// Adapts the share; `bursts` is the total number of loss bursts since the peer's receiver
    /// started.
    pub(super) fn learn(&mut self, now: Instant, bursts: u64) {
        let (passed, many) = (now.since(self.since), bursts.saturating_sub(self.bursts));
        let is_enough = passed >= TIMES[0] && many >= ENOUGH;
        if !is_enough && passed < TIMES[1] {
            return;
        }
        if many > 0 {
            let hasty = self.hasty as f64 / passed.as_secs_f64();
            let is_tcp = 2 * self.tcp > self.all;
            let step = if is_tcp && hasty <= TOO_MANY { STEPS[1] } else { STEPS[0] };
            self.share = (self.share * step).clamp(SHARES[0], SHARES[1]);
        }
        let share = self.share;
        *self = ReorderingWindow { share, bursts, last: self.last, ..ReorderingWindow::new(now) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    /// Runs a flow for some seconds, with `bursts` losses a second, of which `hasty` are
    /// retransmitted too early. Returns the resulting share.
    fn run(
        reordering_window: &mut ReorderingWindow,
        begun: u64,
        seconds: u64,
        bursts: u64,
        hasty: u64,
        is_tcp: bool,
    ) -> f64 {
        for second in begun..begun + seconds {
            for n in 0..hasty {
                let at = Duration::from_millis(1_000 * second + 1_000 * n / hasty);
                reordering_window.handle_dsack(Instant::ZERO + at, RTT);
                reordering_window.handle_dsack(Instant::ZERO + at, RTT);
            }
            (0..1_000).for_each(|_| reordering_window.count(is_tcp));
            let now = Instant::ZERO + Duration::from_secs(second + 1);
            reordering_window.learn(now, bursts * (second + 1));
        }
        reordering_window.share
    }

    #[test]
    fn the_window_grows_if_senders_wait_and_shrinks_if_they_do_not() {
        let mut reordering_window = ReorderingWindow::new(Instant::ZERO);
        assert_eq!(run(&mut reordering_window, 0, 20, 100, 0, true), SHARES[1]);
        assert!(run(&mut reordering_window, 20, 3, 100, 5, true) < 0.5);
        assert_eq!(run(&mut reordering_window, 23, 20, 100, 5, true), 0.25);
        assert!(run(&mut reordering_window, 43, 20, 100, 0, true) > 0.7);
        assert_eq!(
            run(&mut reordering_window, 63, 20, 100, 0, false),
            0.25,
            "flows that report no duplicates"
        );
    }

    #[test]
    fn few_bursts_count_after_ten_seconds_and_no_bursts_change_nothing() {
        let mut reordering_window = ReorderingWindow::new(Instant::ZERO);
        assert_eq!(run(&mut reordering_window, 0, 9, 1, 0, true), FIRST);
        assert!(run(&mut reordering_window, 9, 2, 1, 0, true) > FIRST);
        let share = reordering_window.share;
        assert_eq!(run(&mut reordering_window, 11, 100, 0, 0, true), share);
    }
}

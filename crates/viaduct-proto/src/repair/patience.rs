//! The time for which flows can wait for a packet, as a share of a round trip.
//!
//! A sender of TCP that does not wait for a recovered packet sends it again, and its receiver says that it came twice.
//! As long as that is rare, flows can wait for longer, and fewer repairs do. Linux waits for nearly a round trip where
//! it has learnt to (RACK's reordering window); other senders for less. Flows that are not of TCP say nothing: a quarter
//! of a round trip has to do for them.

use crate::time::{Duration, Instant};

/// Least and greatest share, and the first: a sender that has not learnt to wait yet waits for a quarter, and undoes some
/// of what it has done too soon.
const SHARES: [f64; 2] = [0.25, 0.75];
const FIRST: f64 = 0.35;
/// Steps down and up.
const STEPS: [f64; 2] = [0.8, 1.15];
/// Times a second that senders do not wait: more are too many. Each costs a window that is cut and, a round trip later,
/// put back.
const TOO_MANY: f64 = 0.5;
/// Bursts that tell, and the time in which so many, or fewer after the greater one, have to have come.
const ENOUGH: u64 = 10;
const TIMES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];

/// What is known of it.
#[derive(Debug)]
pub(super) struct Patience {
    /// Share of a round trip.
    pub(super) share: f64,
    since: Instant,
    /// Bursts of losses when it was last changed.
    bursts: u64,
    /// Times since that senders did not wait, and the last one.
    hasty: u64,
    last: Option<Instant>,
    /// Packets of TCP since, and all.
    tcp: u64,
    all: u64,
}

impl Patience {
    pub(super) fn new(now: Instant) -> Self {
        let share = FIRST;
        Patience { share, since: now, bursts: 0, hasty: 0, last: None, tcp: 0, all: 0 }
    }

    /// Counts a packet that leaves.
    pub(super) fn count(&mut self, is_tcp: bool) {
        self.all += 1;
        self.tcp += u64::from(is_tcp);
    }

    /// A segment came twice. All that come twice in one round trip are of one burst.
    pub(super) fn handle_dsack(&mut self, now: Instant, rtt: Duration) {
        if self.last.is_none_or(|at| now.since(at) > rtt) {
            self.hasty += 1;
            self.last = Some(now);
        }
    }

    /// Learns from what has happened, where `bursts` were lost since the peer's receiver began.
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
        *self = Patience { share, bursts, last: self.last, ..Patience::new(now) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    /// Seconds of a flow, so many bursts a second, of which so many are sent again; the share after them.
    fn run(
        patience: &mut Patience,
        begun: u64,
        seconds: u64,
        bursts: u64,
        hasty: u64,
        is_tcp: bool,
    ) -> f64 {
        for second in begun..begun + seconds {
            for n in 0..hasty {
                let at = Duration::from_millis(1_000 * second + 1_000 * n / hasty);
                patience.handle_dsack(Instant::ZERO + at, RTT);
                patience.handle_dsack(Instant::ZERO + at, RTT);
            }
            (0..1_000).for_each(|_| patience.count(is_tcp));
            let now = Instant::ZERO + Duration::from_secs(second + 1);
            patience.learn(now, bursts * (second + 1));
        }
        patience.share
    }

    #[test]
    fn it_grows_where_senders_wait_and_shrinks_where_they_do_not() {
        let mut patience = Patience::new(Instant::ZERO);
        assert_eq!(run(&mut patience, 0, 20, 100, 0, true), SHARES[1]);
        assert!(run(&mut patience, 20, 3, 100, 5, true) < 0.5);
        assert_eq!(run(&mut patience, 23, 20, 100, 5, true), 0.25);
        assert!(run(&mut patience, 43, 20, 100, 0, true) > 0.7);
        assert_eq!(run(&mut patience, 63, 20, 100, 0, false), 0.25, "flows that say nothing");
    }

    #[test]
    fn few_bursts_tell_in_ten_seconds_and_none_tell_nothing() {
        let mut patience = Patience::new(Instant::ZERO);
        assert_eq!(run(&mut patience, 0, 9, 1, 0, true), FIRST);
        assert!(run(&mut patience, 9, 2, 1, 0, true) > FIRST);
        let share = patience.share;
        assert_eq!(run(&mut patience, 11, 100, 0, 0, true), share);
    }
}

//! Health checks of replicas and of next hops: when each target is probed, and what the results
//! mean.

use super::State;
use crate::time::{Duration, Instant};

/// Times and counts of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// Time between the starts of two probes of a target, while the probes succeed.
    pub interval: Duration,
    /// Time within which a probe must be answered.
    pub timeout: Duration,
    /// Successes in a row after which a target that is down is up.
    pub rise: u32,
    /// Failures in a row after which a target that is up is down.
    pub fall: u32,
}

impl Default for Timing {
    /// Detects within 0.3 s that a target does not answer.
    fn default() -> Timing {
        let tenth = Duration::from_millis(100);
        Timing { interval: tenth, timeout: tenth, rise: 2, fall: 2 }
    }
}

/// Probe to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Index of the target.
    pub target: usize,
    /// Number of the probe among those of this target.
    pub number: u64,
}

/// Health of a set of targets.
#[derive(Clone, Debug, Default)]
pub struct Checker {
    targets: Vec<Target>,
    has_changed: bool,
}

#[derive(Clone, Debug)]
struct Target {
    timing: Timing,
    /// `None` before the first decision.
    is_up: Option<bool>,
    /// Results in a row that contradict `is_up`.
    contrary: u32,
    /// Reason of the last failure.
    reason: String,
    /// Pending probe, and its deadline.
    pending: Option<(u64, Instant)>,
    /// Start of the next probe.
    next: Instant,
    probes: u64,
    failures: u64,
    falls: u64,
}

/// Counters of a target's checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Probes sent.
    pub probes: u64,
    /// Probes that failed.
    pub failures: u64,
    /// Number of times that the target went down.
    pub falls: u64,
}

impl Checker {
    /// Creates the checks of targets with these timings. The first probes are due immediately.
    pub fn new(timings: impl IntoIterator<Item = Timing>, now: Instant) -> Checker {
        let target = |timing| Target {
            timing,
            is_up: None,
            contrary: 0,
            reason: "it has not been checked yet".to_owned(),
            pending: None,
            next: now,
            probes: 0,
            failures: 0,
            falls: 0,
        };
        Checker { targets: timings.into_iter().map(target).collect(), has_changed: false }
    }

    /// Creates the checks of a changed list of targets. Each target has a timing, and the index in
    /// the old list of the target whose state and counters it keeps; `None` for a new target.
    /// Results of pending probes are ignored.
    #[must_use]
    pub fn reload(&self, new: &[(Timing, Option<usize>)], now: Instant) -> Checker {
        let mut checker = Checker::new(new.iter().map(|(timing, _)| *timing), now);
        for (target, (timing, old)) in checker.targets.iter_mut().zip(new) {
            if let Some(known) = old.and_then(|old| self.targets.get(old)) {
                *target = Target { timing: *timing, pending: None, next: now, ..known.clone() };
            }
        }
        checker
    }

    /// Returns the next probe to send.
    pub fn poll_probe(&mut self, now: Instant) -> Option<Probe> {
        let is_due = |one: &Target| one.pending.is_none() && one.next <= now;
        let target = self.targets.iter().position(is_due)?;
        let one = &mut self.targets[target];
        one.probes += 1;
        one.pending = Some((one.probes, now + one.timing.timeout));
        one.next = now + one.timing.interval;
        Some(Probe { target, number: one.probes })
    }

    /// Handles the result of a probe: success, or the reason of the failure. A result after the
    /// probe's deadline is ignored.
    pub fn handle_result(&mut self, now: Instant, probe: Probe, result: Result<(), String>) {
        let Some(one) = self.targets.get_mut(probe.target) else { return };
        if one.pending.is_none_or(|(number, _)| number != probe.number) {
            return;
        }
        one.pending = None;
        if result.is_err() {
            // A refusal may arrive immediately. The next probe is delayed, so that `fall` refusals
            // take longer than the restart of a service's socket.
            one.next = one.next.min(now + one.timing.timeout.min(one.timing.interval));
        }
        self.has_changed |= one.judge(result);
    }

    /// Handles a failed connection of a flow: the next probe is due immediately, unless a probe is
    /// pending or failures are already being counted. The failure itself does not count, since its
    /// cause may be beyond the target.
    pub fn handle_suspicion(&mut self, now: Instant, target: usize) {
        if let Some(one) = self.targets.get_mut(target)
            && one.contrary == 0
            && one.pending.is_none()
        {
            one.next = one.next.min(now);
        }
    }

    /// Time of the next probe, or deadline of a pending one, whichever is first.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = |one: &Target| one.pending.map_or(one.next, |(_, deadline)| deadline);
        self.targets.iter().map(due).min()
    }

    /// Handles pending probes whose deadline has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        for one in &mut self.targets {
            if one.pending.is_some_and(|(_, deadline)| deadline <= now) {
                one.pending = None;
                one.next = now;
                let waited = one.timing.timeout.as_millis();
                let silent = Err(format!("no answer within {waited} ms"));
                self.has_changed |= one.judge(silent);
            }
        }
    }

    /// Returns `Some` once after one or more targets went up or down.
    pub fn poll_changed(&mut self) -> Option<()> {
        std::mem::take(&mut self.has_changed).then_some(())
    }

    /// Returns whether a target is known to be up.
    pub fn is_up(&self, target: usize) -> bool {
        self.targets.get(target).is_some_and(|one| one.is_up == Some(true))
    }

    /// Returns whether a target is known to be down.
    pub fn is_down(&self, target: usize) -> bool {
        self.targets.get(target).is_some_and(|one| one.is_up == Some(false))
    }

    /// Returns whether each target is known to be up or down.
    pub fn is_settled(&self) -> bool {
        self.targets.iter().all(|one| one.is_up.is_some())
    }

    /// State of a target, for the operator.
    pub fn state(&self, target: usize) -> State {
        match self.targets.get(target) {
            Some(Target { is_up: Some(true), contrary: 0, .. }) => State::Up,
            Some(Target { is_up: Some(true), reason, .. }) => State::Degraded(reason.clone()),
            Some(Target { reason, .. }) => State::Down(reason.clone()),
            None => State::Down("there is no such target".to_owned()),
        }
    }

    /// Counters of a target.
    pub fn counters(&self, target: usize) -> Counters {
        let of = |one: &Target| Counters {
            probes: one.probes,
            failures: one.failures,
            falls: one.falls,
        };
        self.targets.get(target).map(of).unwrap_or_default()
    }
}

impl Target {
    /// Counts a result; returns whether the target went up or down.
    fn judge(&mut self, result: Result<(), String>) -> bool {
        let is_good = result.is_ok();
        if let Err(reason) = result {
            self.failures += 1;
            self.reason = reason;
        }
        if self.is_up == Some(is_good) {
            self.contrary = 0;
            return false;
        }
        self.contrary += 1;
        let needed = match (self.is_up, is_good) {
            // The first success is enough for a target whose state is not known yet.
            (None, true) => 1,
            (_, true) => self.timing.rise,
            (_, false) => self.timing.fall,
        };
        if self.contrary < needed {
            return false;
        }
        self.falls += u64::from(self.is_up == Some(true));
        (self.is_up, self.contrary) = (Some(is_good), 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    /// Probes a target until `end`; after each step, `answers` returns the target's answer, if any.
    /// Returns the times at which its state changed.
    fn run(
        timing: Timing,
        end: Duration,
        answers: impl Fn(Duration) -> Option<Result<(), String>>,
    ) -> (Checker, Vec<(u128, bool)>) {
        let mut now = Instant::ZERO;
        let mut checker = Checker::new([timing], now);
        let mut changes = Vec::new();
        let mut sent = Vec::new();
        while now < Instant::ZERO + end {
            for probe in std::mem::take(&mut sent) {
                if let Some(result) = answers(now.since(Instant::ZERO)) {
                    checker.handle_result(now, probe, result);
                }
            }
            checker.handle_timeout(now);
            sent.extend(checker.poll_probe(now));
            if checker.poll_changed().is_some() {
                changes.push((now.since(Instant::ZERO).as_millis(), checker.is_up(0)));
            }
            now += STEP;
        }
        (checker, changes)
    }

    #[test]
    fn a_silent_target_is_down_within_an_interval_and_the_timeouts() {
        let silent = Duration::from_millis(1_005)..Duration::from_millis(2_000);
        let (checker, changes) = run(Timing::default(), Duration::from_secs(4), |now| {
            (!silent.contains(&now)).then_some(Ok(()))
        });
        let [(10, true), (down, false), (up, true)] = changes[..] else { panic!("{changes:?}") };
        assert!((1_005..=1_305).contains(&down), "{down}");
        assert!((2_000..=2_310).contains(&up), "{up}");
        let counters = checker.counters(0);
        assert_eq!(counters.falls, 1);
        assert!((9..=11).contains(&counters.failures), "{counters:?}");
        assert!((38..=41).contains(&counters.probes), "{counters:?}");
    }

    #[test]
    fn a_lost_probe_changes_nothing_but_is_shown() {
        let lost = Duration::from_millis(500)..Duration::from_millis(520);
        let (checker, changes) = run(Timing::default(), Duration::from_millis(650), |now| {
            (!lost.contains(&now)).then_some(Ok(()))
        });
        assert_eq!((changes, checker.counters(0).failures), (vec![(10, true)], 1));
        assert_eq!(checker.state(0), State::Up);
        let (checker, _) = run(Timing::default(), Duration::from_millis(120), |now| match now {
            now if now < Duration::from_millis(100) => Some(Ok(())),
            _ => Some(Err("connection refused".to_owned())),
        });
        assert_eq!(checker.state(0), State::Degraded("connection refused".to_owned()));
    }

    #[test]
    fn a_target_that_refuses_is_down_without_a_timeout_and_late_answers_are_ignored() {
        let slow = Timing { timeout: Duration::from_secs(5), fall: 3, ..Timing::default() };
        let refuse = |_| Some(Err("connection refused".to_owned()));
        let (checker, changes) = run(slow, Duration::from_secs(1), refuse);
        assert_eq!(changes, [(210, false)]);
        assert_eq!(checker.state(0), State::Down("connection refused".to_owned()));

        let mut checker = Checker::new([Timing::default()], Instant::ZERO);
        let probe = checker.poll_probe(Instant::ZERO).unwrap();
        let late = Instant::ZERO + Duration::from_millis(100);
        checker.handle_timeout(late);
        checker.handle_result(late, probe, Ok(()));
        assert!(!checker.is_up(0) && !checker.is_settled());
    }

    #[test]
    fn a_reload_keeps_the_state_of_targets_that_stay() {
        let mut checker = Checker::new([Timing::default(); 2], Instant::ZERO);
        while let Some(probe) = checker.poll_probe(Instant::ZERO) {
            checker.handle_result(Instant::ZERO, probe, Ok(()));
        }
        let later = Instant::ZERO + STEP;
        let timing = Timing::default();
        let new = checker.reload(&[(timing, None), (timing, Some(1))], later);
        assert_eq!((new.is_up(0), new.is_up(1)), (false, true));
        assert_eq!(new.poll_timeout(), Some(later));
    }

    #[test]
    fn a_suspected_target_is_probed_immediately_but_not_while_failures_are_counted() {
        let slow = Timing { interval: Duration::from_secs(5), ..Timing::default() };
        let (mut checker, mut now) = (Checker::new([slow], Instant::ZERO), Instant::ZERO);
        let probe = checker.poll_probe(now).unwrap();
        checker.handle_result(now, probe, Ok(()));
        assert_eq!(checker.poll_probe(now), None);
        now += STEP;
        checker.handle_suspicion(now, 0);
        let probe = checker.poll_probe(now).unwrap();
        checker.handle_result(now, probe, Err("connection refused".to_owned()));
        checker.handle_suspicion(now, 0);
        assert_eq!(checker.poll_probe(now), None, "no extra probe while failures are counted");
        assert_eq!(checker.poll_timeout(), Some(now + slow.timeout));
    }
}

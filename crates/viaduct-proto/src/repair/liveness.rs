//! Liveness of one path to a peer with several paths: probes in both directions.
//!
//! ```text
//!   every 50 ms, or 500 ms while nothing else uses the path, or 10 ms while answers are missing:
//!                probe, with its timestamp and the peer's newest ───▶
//!                                                                    ◀── the same
//!   newest own timestamp that has come back ▶ round trip; too old: the path is down
//!   time of arrival, minus peer's timestamp ▶ offset: delay of the path, up to a constant that is
//!                                            the same on all paths
//! ```
//!
//! Other datagrams prove nothing, because they may have been sent over another path.

use super::control::queue::micros;
use crate::reader::Reader;
use crate::time::{Duration, Instant};

/// Kind of the section with a probe.
pub(super) const PROBE: u8 = 10;
const LEN: usize = 13;
const WITH_ECHO: u8 = 1;
const BUSY: u8 = 2;

/// Interval of probes while other packets or messages use the path, and before the first answer.
const PROBE_EVERY: Duration = Duration::from_millis(50);
/// Interval of probes on a path that is up and used, once no probe has been answered for a round
/// trip and [`HASTY_AFTER`]: a flow in slow start may fill the path's queue, which then drops most
/// probes.
const HASTY_EVERY: Duration = Duration::from_millis(10);
const HASTY_AFTER: Duration = Duration::from_millis(100);
/// Interval of probes on a path that is not used.
const IDLE_EVERY: Duration = Duration::from_millis(500);
/// Time without an answer to any probe, beyond 5/4 of a round trip, after which a path that is used
/// is down. More than twenty probes are sent in each direction within this time, and random loss
/// seldom drops all of them.
const TOLERANCE: Duration = Duration::from_millis(300);
/// [`TOLERANCE`] of a path that is not used.
const IDLE_TOLERANCE: Duration = Duration::from_secs(3);
/// Time for which probes on a path that was down must be answered before it is up again.
const RETURN_AFTER: Duration = Duration::from_secs(1);
/// Delay of a timer at which this machine counts as having stalled.
const STALL: Duration = Duration::from_millis(100);
/// Time without a probe from the peer on this path, after which the peer's datagrams no longer wait
/// for packets on this path. Applies if probes have been frequent for a second.
const UNHEARD_AFTER: Duration = Duration::from_millis(150);
/// [`UNHEARD_AFTER`] if probes have not been frequent for a second.
const IDLE_UNHEARD_AFTER: Duration = Duration::from_millis(1_500);
/// Round-trip time assumed until it is measured.
const USUAL_RTT: Duration = Duration::from_millis(100);
/// Longest round trip that is measured, in microseconds.
const MAX_RTT: u32 = 5_000_000;
/// Weight of the newest round trip: 1 / `RTT_WEIGHT`.
const RTT_WEIGHT: u32 = 4;
/// Age of the last probe at which the next probe is accepted, whatever its timestamp.
const STALE: Duration = Duration::from_secs(10);
/// Number of the newest offsets that are remembered.
const OFFSETS: usize = 8;

/// Probe. Times are in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Probe {
    /// Send time.
    pub(super) stamp: u32,
    /// Timestamp of the other side's newest probe, and the time since that probe's arrival.
    pub(super) echo: Option<(u32, u32)>,
    /// True if the sender uses the path, and needs frequent probes.
    pub(super) is_busy: bool,
}

impl Probe {
    /// Parses a section's body; `None` if it is malformed.
    pub(super) fn parse(body: &[u8]) -> Option<Probe> {
        let mut rest = Reader(body);
        let (flags, stamp, echo, held) = (rest.u8()?, rest.u32()?, rest.u32()?, rest.u32()?);
        let is_valid = body.len() == LEN && flags <= WITH_ECHO | BUSY;
        let echo = (flags & WITH_ECHO != 0).then_some((echo, held));
        is_valid.then_some(Probe { stamp, echo, is_busy: flags & BUSY != 0 })
    }

    /// Appends the body to `out`.
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let flag = |is: bool, flag: u8| if is { flag } else { 0 };
        out.push(flag(self.echo.is_some(), WITH_ECHO) | flag(self.is_busy, BUSY));
        let (echo, held) = self.echo.unwrap_or_default();
        out.extend([self.stamp, echo, held].iter().flat_map(|number| number.to_be_bytes()));
    }
}

/// Liveness of a path.
#[derive(Debug)]
pub(super) struct Liveness {
    /// Time of the next probe.
    next: Instant,
    /// Use of the path, by this side and by the peer.
    is_busy: [bool; 2],
    /// Time since which probes have been frequent.
    hurries_since: Option<Instant>,
    /// Newest timestamp of the peer, and its time of arrival.
    heard: Option<(u32, Instant)>,
    /// Send time of the newest probe that the peer has answered.
    confirmed: Option<Instant>,
    /// Time at which this machine resumed after a stall.
    resumed: Option<Instant>,
    rtt: Option<Duration>,
    /// Newest offsets, as a ring.
    offsets: [u32; OFFSETS],
    /// Position of the next offset in the ring.
    next_offset: usize,
    is_up: bool,
    /// Time since which probes have been answered, while the path is down.
    steady_since: Option<Instant>,
    /// True if the path has been up before.
    is_known: bool,
}

impl Liveness {
    /// Creates the state of a path on which no probe has been answered yet.
    pub(super) fn new(now: Instant) -> Liveness {
        Liveness {
            next: now,
            is_busy: [false; 2],
            hurries_since: None,
            heard: None,
            confirmed: None,
            resumed: None,
            rtt: None,
            offsets: [0; OFFSETS],
            next_offset: 0,
            is_up: false,
            steady_since: None,
            is_known: false,
        }
    }

    /// Returns whether the path carries datagrams in both directions.
    pub(super) fn is_up(&self) -> bool {
        self.is_up
    }

    /// Round-trip time of the path.
    pub(super) fn rtt(&self) -> Option<Duration> {
        self.rtt
    }

    /// Largest of the newest offsets, in microseconds modulo 2^32; `None` before the first.
    pub(super) fn offset(&self) -> Option<u32> {
        self.heard?;
        let newest = self.offsets[0];
        let ahead = |offset: u32| offset.wrapping_sub(newest).cast_signed();
        self.offsets.iter().copied().max_by_key(|offset| ahead(*offset))
    }

    /// Returns whether the peer's probes currently arrive.
    pub(super) fn is_heard(&self, now: Instant) -> bool {
        let is_steady = self.hurries_since.is_some_and(|at| now.since(at) > RETURN_AFTER);
        let limit = if is_steady { UNHEARD_AFTER } else { IDLE_UNHEARD_AFTER };
        self.heard.is_some_and(|(_, at)| now.since(at) < limit)
    }

    /// Sets whether packets or messages of this side use the path. Returns true if the next probe
    /// may be due earlier than before.
    pub(super) fn set_busy(&mut self, now: Instant, is_busy: bool) -> bool {
        self.is_busy[0] = is_busy;
        self.hurry(now)
    }

    fn hurry(&mut self, now: Instant) -> bool {
        if !self.is_busy.contains(&true) {
            self.hurries_since = None;
            return false;
        }
        if self.hurries_since.is_some() {
            return false;
        }
        self.hurries_since = Some(now);
        self.next = self.next.min(now + PROBE_EVERY);
        true
    }

    /// Handles a probe of the peer.
    pub(super) fn handle_probe(&mut self, now: Instant, probe: Probe) {
        let is_newer = |(stamp, _): (u32, Instant)| probe.stamp.wrapping_sub(stamp) < 1 << 31;
        // The peer's clock may have restarted, or advanced by half of its range.
        let is_stale = self.heard.is_none_or(|(_, at)| now.since(at) >= STALE);
        if is_stale || self.heard.is_some_and(is_newer) {
            let offset = micros(now).wrapping_sub(probe.stamp);
            match is_stale {
                true => self.offsets = [offset; OFFSETS],
                false => self.offsets[self.next_offset] = offset,
            }
            self.next_offset = (self.next_offset + 1) % OFFSETS;
            self.heard = Some((probe.stamp, now));
            self.is_busy[1] = probe.is_busy;
            self.hurry(now);
        }
        let Some((echo, held)) = probe.echo else { return };
        let passed = micros(now).wrapping_sub(echo);
        let Some(rtt) = passed.checked_sub(held).filter(|rtt| *rtt <= MAX_RTT) else { return };
        let (rtt, sent) = (Duration::from_micros(rtt.into()), Duration::from_micros(passed.into()));
        let smooth = |before: Duration| (before * (RTT_WEIGHT - 1) + rtt) / RTT_WEIGHT;
        self.rtt = Some(self.rtt.map_or(rtt, smooth));
        self.confirmed = self.confirmed.max(Some(now - sent));
        self.judge(now);
    }

    /// Current interval of probes.
    fn interval(&self, now: Instant) -> Duration {
        let Some(since) = self.hurries_since else {
            return if self.is_known { IDLE_EVERY } else { PROBE_EVERY };
        };
        let limit = self.rtt.unwrap_or(USUAL_RTT) + HASTY_AFTER;
        let is_late = self.confirmed.max(Some(since)).is_some_and(|at| now.since(at) > limit);
        if self.is_up && is_late { HASTY_EVERY } else { PROBE_EVERY }
    }

    /// Time of the next probe.
    pub(super) fn poll_timeout(&self) -> Instant {
        self.next
    }

    /// Returns the probe that is due, if any, and updates the state of the path.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<Probe> {
        if now < self.next {
            return None;
        }
        if now.since(self.next) >= STALL {
            self.resumed = Some(now);
        }
        self.judge(now);
        self.next = now + self.interval(now);
        let held = |at| u32::try_from(now.since(at).as_micros()).unwrap_or(u32::MAX);
        let echo = self.heard.map(|(stamp, at)| (stamp, held(at)));
        Some(Probe { stamp: micros(now), echo, is_busy: self.is_busy[0] })
    }

    fn judge(&mut self, now: Instant) {
        let limit = |more| self.rtt.unwrap_or(USUAL_RTT) * 5 / 4 + more;
        let within = |at: Option<Instant>, limit| at.is_some_and(|at| now.since(at) <= limit);
        // Frequent answers can be expected only once probes have been frequent for a round trip.
        let is_answered = within(self.confirmed, limit(IDLE_TOLERANCE))
            && (self.hurries_since.is_none()
                || within(self.confirmed.max(self.hurries_since), limit(TOLERANCE)));
        let is_answered = is_answered || self.is_up && within(self.resumed, limit(TOLERANCE));
        match (self.is_up, is_answered) {
            (true, false) => (self.is_up, self.steady_since) = (false, None),
            (false, true) => {
                let since = *self.steady_since.get_or_insert(now);
                self.is_up = !self.is_known || now.since(since) >= RETURN_AFTER;
                self.is_known |= self.is_up;
            }
            (false, false) => self.steady_since = None,
            (true, true) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    /// Runs two ends until `end`, with a delay of 20 ms each way; probes sent while `passes` is
    /// false are lost. Returns the times at which the path's state has changed at the first end,
    /// each with true if the path is up.
    fn changes(end: u64, idle_from: u64, passes: impl Fn(u64) -> bool) -> Vec<(u64, bool)> {
        let mut ends = [Liveness::new(at(0)), Liveness::new(at(7))];
        let (mut flying, mut changes, mut was_up) = (Vec::new(), Vec::new(), false);
        for now in 0..end {
            // Only one of the ends uses the path.
            ends[0].set_busy(at(now), (1_000..idle_from).contains(&now));
            for (n, one) in ends.iter_mut().enumerate() {
                let probe = one.handle_timeout(at(now)).filter(|_| passes(now));
                flying.extend(probe.map(|probe| (now + 20, 1 - n, probe)));
            }
            for &(_, to, probe) in flying.iter().filter(|(due, ..)| *due == now) {
                ends[to].handle_probe(at(now), probe);
            }
            if ends[0].is_up() != was_up {
                was_up = !was_up;
                changes.push((now, was_up));
            }
        }
        let rtt = ends[0].rtt().unwrap();
        assert!(rtt.abs_diff(Duration::from_millis(40)) < Duration::from_millis(1), "{rtt:?}");
        changes
    }

    #[test]
    fn a_path_is_down_soon_after_a_failure_and_up_once_it_is_steady() {
        let changes = changes(5_000, 5_000, |now| !(2_000..3_000).contains(&now));
        let [(up, true), (down, false), (again, true)] = changes[..] else { panic!("{changes:?}") };
        assert!(up < 700 && (2_250..2_450).contains(&down), "{changes:?}");
        assert!((4_000..4_200).contains(&again), "{changes:?}");
    }

    #[test]
    fn single_lost_probes_do_not_take_a_path_down() {
        assert_eq!(changes(5_000, 5_000, |now| now < 1_500 || now / 50 % 3 == 0).len(), 1);
    }

    #[test]
    fn a_queue_that_drops_most_probes_does_not_take_a_path_down() {
        // A fixed pattern, in which one of four probes passes.
        let passes = |now: u64| (now / 3).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0;
        let changes = changes(6_000, 6_000, |now| !(1_500..5_000).contains(&now) || passes(now));
        assert_eq!(changes.len(), 1, "{changes:?}");
    }

    #[test]
    fn an_unused_path_is_probed_seldom_and_its_failure_is_found_later() {
        let changes = changes(9_000, 2_000, |now| now < 3_000);
        let [(_, true), (down, false)] = changes[..] else { panic!("{changes:?}") };
        assert!((5_500..6_600).contains(&down), "{changes:?}");
    }

    #[test]
    fn a_path_is_up_again_soon_after_an_outage_of_any_length() {
        let changes = changes(2_500_000, 2_500_000, |now| !(2_000..2_402_000).contains(&now));
        let [(_, true), (_, false), (again, true)] = changes[..] else { panic!("{changes:?}") };
        assert!((2_403_000..2_403_200).contains(&again), "{changes:?}");
    }

    #[test]
    fn probes_of_a_peer_with_a_restarted_clock_are_accepted() {
        let mut path = Liveness::new(at(0));
        for (now, stamp) in [(0, 1_500_000_000), (50, 1_500_050_000), (20_000, 7), (20_050, 50_007)]
        {
            path.handle_probe(at(now), Probe { stamp, echo: None, is_busy: true });
            let echo = path.handle_timeout(at(now)).and_then(|probe| probe.echo);
            assert!(echo.is_none_or(|echo| echo == (stamp, 0)), "{now}: {echo:?}");
        }
        assert!(path.is_heard(at(20_060)));
        assert_eq!(path.offset(), Some(20_000_000 - 7));
    }

    #[test]
    fn a_machine_that_has_stalled_probes_again_before_a_path_is_down() {
        let mut path = Liveness::new(at(0));
        let probe = path.handle_timeout(at(0)).unwrap();
        path.set_busy(at(0), true);
        let echo = Some((probe.stamp, 0));
        path.handle_probe(at(40), Probe { stamp: 9, echo, is_busy: false });
        assert!(path.is_up());
        path.handle_timeout(at(2_000));
        assert!(path.is_up());
        for n in 1..20 {
            path.handle_timeout(at(2_000 + 50 * n));
        }
        assert!(!path.is_up());
    }

    #[test]
    fn offsets_differ_by_the_delays_of_paths() {
        let offset = |delay: u32| {
            let mut path = Liveness::new(at(0));
            let stamp = micros(at(100)).wrapping_sub(3_000_000_000 + delay);
            path.handle_probe(at(100), Probe { stamp, echo: None, is_busy: false });
            path.offset().unwrap()
        };
        assert_eq!(offset(30_000).wrapping_sub(offset(10_000)), 20_000);
        assert_eq!(Liveness::new(at(0)).offset(), None);
    }

    #[test]
    fn a_probe_round_trips_and_has_one_length() {
        for (echo, is_busy) in [(None, true), (Some((7, 8)), false), (Some((7, 8)), true)] {
            let (probe, mut bytes) = (Probe { stamp: 1, echo, is_busy }, Vec::new());
            probe.emit(&mut bytes);
            assert_eq!((bytes.len(), Probe::parse(&bytes)), (LEN, Some(probe)));
            bytes.push(0);
            assert_eq!(Probe::parse(&bytes), None);
            assert_eq!(Probe::parse(&bytes[..5]), None);
        }
    }
}

//! Detection of a network that throttles UDP: such a network drops far more of the peer's datagrams
//! than of the packets that they protect, although both take the same path.
//!
//! ```text
//!   far end: losses of both ── Throttled ──▶ this side: its own queue has dropped nothing?
//!            ◀── Throttled, in case only     then handshake over another transport
//!                the far end can connect
//! ```

use crate::repair::session::Tally;
use crate::time::{Duration, Instant};

/// Kind of the section that notifies the peer that its datagrams are throttled; the section has no
/// body.
pub(super) const THROTTLED: u8 = 8;

/// Minimum duration of a measurement.
const MEASURE: Duration = Duration::from_secs(5);
/// Minimum number of datagrams in a measurement.
const MIN_DATAGRAMS: u64 = 100;
/// Number of measurements in a row that must show the throttle.
const ROUNDS: u32 = 2;
/// Minimum share of datagrams that a throttle drops.
const MIN_LOSS: f64 = 0.3;
/// Minimum ratio of the share of dropped datagrams to the share of dropped packets.
const MIN_RATIO: f64 = 4.0;
/// Time after a drop in this machine's own queue for which losses prove nothing.
const OWN_DROPS: Duration = Duration::from_secs(15);

/// Detector of a throttle, and its notice to the peer.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    /// Start of the measurement, with the tallies of datagrams and of packets.
    begun: Option<(Instant, [Tally; 2])>,
    /// Number of measurements in a row that have shown a throttle.
    rounds: u32,
    dropped_at: Option<Instant>,
    /// True if the reports to the peer say that UDP is throttled.
    pub(super) tells: bool,
}

impl Throttle {
    /// Continues the measurement; `tallies` are those of the peer's datagrams over UDP and of its
    /// packets.
    pub(super) fn measure(&mut self, now: Instant, tallies: [Tally; 2]) {
        let (since, before) = *self.begun.get_or_insert((now, tallies));
        let datagrams = tallies[0].sent.saturating_sub(before[0].sent);
        if now.since(since) < MEASURE || datagrams < MIN_DATAGRAMS {
            return;
        }
        let [of_datagrams, of_packets] = [0, 1].map(|n| tallies[n].loss_since(before[n]));
        let is_throttled = of_datagrams >= MIN_LOSS && of_datagrams >= MIN_RATIO * of_packets;
        self.rounds = if is_throttled { self.rounds + 1 } else { 0 };
        self.tells = self.rounds >= ROUNDS;
        self.begun = Some((now, tallies));
    }

    /// Restarts the detection for a new session.
    pub(super) fn restart(&mut self) {
        *self = Throttle { dropped_at: self.dropped_at, ..Throttle::default() };
    }

    pub(super) fn handle_own_drops(&mut self, now: Instant) {
        self.dropped_at = Some(now);
    }

    /// Handles the peer's notice that datagrams of this gateway are throttled. Returns false if the
    /// notice is ignored: recent drops in this machine's own queue would also explain the losses.
    pub(super) fn handle_told(&mut self, now: Instant) -> bool {
        let is_own = self.dropped_at.is_some_and(|at| now.since(at) < OWN_DROPS);
        self.tells |= !is_own;
        !is_own
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    /// Seconds until the peer is notified of a throttle, if this happens within a minute. Each
    /// argument is a rate a second and a loss in percent.
    fn told_after(datagrams: (u64, u64), packets: (u64, u64)) -> Option<u64> {
        let mut throttle = Throttle::default();
        (0..60).find(|&second| {
            let tally = |(sent, percent): (u64, u64)| Tally {
                sent: second * sent,
                lost: second * sent * percent / 100,
            };
            throttle.measure(at(second), [tally(datagrams), tally(packets)]);
            throttle.tells
        })
    }

    #[test]
    fn a_throttle_drops_datagrams_and_spares_packets() {
        assert_eq!(told_after((300, 60), (10_000, 1)), Some(10));
        assert_eq!(told_after((10, 60), (10_000, 1)), Some(20), "few datagrams take longer");
        assert_eq!(told_after((300, 20), (10_000, 1)), None, "repairs come in bursts");
        assert_eq!(told_after((300, 60), (10_000, 30)), None, "the link itself is bad");
        assert_eq!(told_after((1, 60), (10, 1)), None, "reports alone are too few");
        assert_eq!(told_after((300, 60), (0, 0)), Some(10));
    }

    #[test]
    fn drops_by_this_machines_queue_explain_losses() {
        let mut throttle = Throttle::default();
        assert!(throttle.handle_told(at(0)) && throttle.tells);
        throttle.restart();
        throttle.handle_own_drops(at(1));
        assert!(!throttle.handle_told(at(10)) && !throttle.tells);
        assert!(throttle.handle_told(at(20)));
    }
}

//! Round-trip time of a link, from its pings.

use crate::time::{Duration, Instant};

/// Minimum time for which the shortest round-trip time is kept.
const WINDOW: Duration = Duration::from_secs(10);

/// Round-trip time estimated from pings, and the ping that is outstanding.
#[derive(Debug, Default)]
pub(super) struct Rtt {
    is_ping_due: bool,
    /// Payload of the last ping: its send time. `None` once the ping is answered.
    pinged: Option<u64>,
    pub(super) smoothed: Option<Duration>,
    /// Minimum of the previous window and of the current one, which began at `began`.
    shortest: [Option<Duration>; 2],
    began: Instant,
}

impl Rtt {
    /// Schedules a ping, unless the last one is unanswered: it may be waiting for the
    /// retransmission of a lost packet.
    pub(super) fn schedule_ping(&mut self) {
        self.is_ping_due = self.pinged.is_none();
    }

    /// Takes the payload of the ping to be sent now, if one is due.
    pub(super) fn take_ping(&mut self, now: Instant) -> Option<u64> {
        let ping = std::mem::take(&mut self.is_ping_due).then(|| now.as_nanos())?;
        self.pinged = Some(ping);
        Some(ping)
    }

    /// Processes the answer to a ping. Returns false if there was no ping with this payload.
    pub(super) fn handle_pong(&mut self, now: Instant, payload: u64) -> bool {
        let is_answer = self.pinged.take() == Some(payload);
        if is_answer {
            self.note(now, now - Instant::from_nanos(payload));
        }
        is_answer
    }

    fn note(&mut self, now: Instant, sample: Duration) {
        let before = self.smoothed.unwrap_or(sample);
        self.smoothed = Some(before - before / 8 + sample / 8);
        if now - self.began > WINDOW {
            self.shortest = [self.shortest[1], None];
            self.began = now;
        }
        let [_, current] = &mut self.shortest;
        *current = Some(current.map_or(sample, |least| least.min(sample)));
    }

    /// Shortest round-trip time of the last ten to twenty seconds.
    pub(super) fn shortest(&self) -> Option<Duration> {
        self.shortest.into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_round_trip_is_forgotten_when_the_path_becomes_longer() {
        let mut rtt = Rtt::default();
        let ms = Duration::from_millis;
        let mut now = Instant::ZERO;
        rtt.note(now, ms(20));
        for _ in 0..30 {
            now += ms(1_000);
            rtt.note(now, ms(100));
        }
        assert_eq!(rtt.shortest(), Some(ms(100)));
        assert!(rtt.smoothed.is_some_and(|rtt| rtt > ms(95)));
    }
}

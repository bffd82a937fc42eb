//! Round-trip time of a link, from its pings.

use crate::time::{Duration, Instant};

/// Minimum time for which the shortest round-trip time is kept.
const WINDOW: Duration = Duration::from_secs(10);

/// Round-trip time estimated from pings.
#[derive(Debug, Default)]
pub(super) struct Rtt {
    smoothed: Option<Duration>,
    /// Minimum of the previous window and of the current one, which began at `began`.
    shortest: [Option<Duration>; 2],
    began: Instant,
}

impl Rtt {
    pub(super) fn note(&mut self, now: Instant, sample: Duration) {
        let before = self.smoothed.unwrap_or(sample);
        self.smoothed = Some(before - before / 8 + sample / 8);
        if now - self.began > WINDOW {
            self.shortest = [self.shortest[1], None];
            self.began = now;
        }
        let [_, current] = &mut self.shortest;
        *current = Some(current.map_or(sample, |least| least.min(sample)));
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
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
    fn the_shortest_is_forgotten_when_the_path_has_become_longer() {
        let mut rtt = Rtt::default();
        let ms = Duration::from_millis;
        let mut now = Instant::ZERO;
        rtt.note(now, ms(20));
        for _ in 0..30 {
            now += ms(1_000);
            rtt.note(now, ms(100));
        }
        assert_eq!(rtt.shortest(), Some(ms(100)));
        assert!(rtt.smoothed().is_some_and(|rtt| rtt > ms(95)));
    }
}

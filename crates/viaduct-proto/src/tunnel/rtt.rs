//! A link's round trip, from its pings.

use crate::time::{Duration, Instant};

/// For how long the shortest round trip is believed.
const WINDOW: Duration = Duration::from_secs(10);

/// What the pings have shown.
#[derive(Debug, Default)]
pub(super) struct Rtt {
    smoothed: Option<Duration>,
    /// The shortest of the window before and of this one, and when this one began.
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

    /// The shortest of the last ten to twenty seconds.
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

//! How much may be on its way: one window, moved as one TCP connection moves its own (CUBIC, RFC 9438).

use crate::time::{Duration, Instant};

/// Segments to begin with (RFC 6928), and at least.
const INITIAL: f64 = 10.0;
const LEAST: f64 = 2.0;
/// What a loss leaves of it.
const KEPT: f64 = 0.7;
/// How fast it grows, in segments a second cubed.
const SCALE: f64 = 0.4;
/// Segments a round trip, of a window that is no more aggressive than Reno's.
const FRIENDLY: f64 = 3.0 * (1.0 - KEPT) / (1.0 + KEPT);
/// How much longer a round trip may get before the first doubling ends: an eighth, and this at least.
const QUEUED: Duration = Duration::from_millis(4);
/// Segments below which it doubles whatever others have queued.
const LOW: f64 = 16.0;

/// What is known of the path when something was acknowledged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// The round trip now, and the shortest.
    pub(super) rtt: Duration,
    pub(super) shortest: Duration,
    /// Bytes of a segment.
    pub(super) segment: f64,
}

/// The window, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Window {
    bytes: f64,
    /// Beyond this it grows with care.
    threshold: f64,
    /// What it was when something was lost last.
    most: f64,
    /// When it began to grow with care, and what Reno's would be since.
    epoch: Option<(Instant, f64)>,
    /// Time of the last acknowledgement.
    last: Option<Instant>,
    /// Losses until then are those of the same event.
    until: Option<Instant>,
    losses: u64,
}

impl Window {
    /// Of a path that nothing is known of but its segments.
    pub(super) fn new(segment: f64) -> Window {
        Window {
            bytes: INITIAL * segment,
            threshold: f64::INFINITY,
            most: 0.0,
            epoch: None,
            last: None,
            until: None,
            losses: 0,
        }
    }

    /// Bytes that may be on their way.
    pub(super) fn bytes(&self) -> f64 {
        self.bytes
    }

    /// How often it has been reduced.
    pub(super) fn losses(&self) -> u64 {
        self.losses
    }

    /// So many bytes were acknowledged, and so many are on their way. A window that is not used does not
    /// grow: it has not been tried.
    pub(super) fn acked(&mut self, now: Instant, bytes: f64, on_the_way: f64, path: Path) {
        let since = self.last.map_or(Duration::ZERO, |last| now.since(last));
        self.last = Some(now);
        if self.bytes < self.threshold {
            let queued = path.rtt > path.shortest + QUEUED.max(path.shortest / 8);
            if queued && self.bytes >= LOW * path.segment {
                self.threshold = self.bytes;
            } else if self.bytes <= 2.0 * on_the_way {
                self.bytes += bytes;
            }
            return;
        }
        if self.bytes > 1.25 * on_the_way + LEAST * path.segment {
            // Time in which the window is not used does not count (RFC 9438, 5.8). To begin the epoch anew
            // would take the curve back to where it stood after the last loss, below what has grown since.
            if let Some((began, _)) = &mut self.epoch {
                *began += since;
            }
            return;
        }
        let grown = self.target(now, bytes, path) - self.bytes;
        self.bytes += (grown * bytes / self.bytes).clamp(0.0, bytes / 2.0);
    }

    /// Something was lost. What was sent before the window is reduced is known as lost within two round
    /// trips, by a probe of the tail at the latest, and is one event.
    pub(super) fn lost(&mut self, now: Instant, path: Path) {
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        self.losses += 1;
        self.until = Some(now + 2 * path.rtt);
        // One that has not got as far as before leaves room for others sooner.
        self.most =
            if self.bytes < self.most { self.bytes * (1.0 + KEPT) / 2.0 } else { self.bytes };
        self.bytes = (self.bytes * KEPT).max(LEAST * path.segment);
        (self.threshold, self.epoch) = (self.bytes, None);
    }

    /// What it would be a round trip from now.
    fn target(&mut self, now: Instant, acked: f64, path: Path) -> f64 {
        let (began, friendly) = self.epoch.get_or_insert((now, self.bytes));
        *friendly += FRIENDLY * path.segment * acked / self.bytes;
        let most = self.most.max(*friendly);
        let short = (most - self.threshold).max(0.0) / path.segment;
        let plateau = (short / SCALE).cbrt();
        let at = (now.since(*began) + path.rtt).as_secs_f64() - plateau;
        (most + SCALE * at.powi(3) * path.segment).max(*friendly)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: f64 = 1000.0;

    fn at(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    fn path(rtt: u64) -> Path {
        let rtt = Duration::from_millis(rtt);
        Path { rtt, shortest: Duration::from_millis(40), segment: SEGMENT }
    }

    #[test]
    fn it_doubles_each_round_trip_until_a_queue_or_a_loss_shows() {
        let mut window = Window::new(SEGMENT);
        window.acked(at(0), 10.0 * SEGMENT, 10.0 * SEGMENT, path(40));
        assert_eq!(window.bytes(), 20.0 * SEGMENT);
        window.acked(at(40), 20.0 * SEGMENT, 20.0 * SEGMENT, path(50));
        assert_eq!(window.bytes(), 20.0 * SEGMENT, "a queue has built up");
        let mut window = Window::new(SEGMENT);
        window.lost(at(0), path(40));
        assert_eq!(window.bytes(), 7.0 * SEGMENT);
    }

    #[test]
    fn losses_of_one_event_are_one() {
        let mut window = Window::new(SEGMENT);
        for n in 0..4 {
            window.lost(at(10 * n), path(40));
        }
        assert_eq!(window.losses(), 1);
        window.lost(at(80), path(40));
        assert_eq!(window.losses(), 2);
    }

    #[test]
    fn after_a_loss_it_comes_back_to_where_it_was_and_lingers_there() {
        let mut window = Window::new(SEGMENT);
        window.bytes = 100.0 * SEGMENT;
        window.lost(at(0), path(40));
        let mut trace = Vec::new();
        for n in 1..200 {
            let bytes = window.bytes();
            window.acked(at(40 * n), bytes, bytes, path(40));
            trace.push(window.bytes() / SEGMENT);
        }
        // (100 - 70) / 0.4 is 75, whose cube root is 4.2 s: some 105 round trips. Reno needs 57.
        let back = trace.iter().position(|&bytes| bytes > 99.0).unwrap();
        assert!((40..110).contains(&back), "{back}");
        assert!(trace.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn growth_goes_on_where_it_stood_after_a_while_without_use() {
        let mut window = Window::new(SEGMENT);
        window.bytes = 100.0 * SEGMENT;
        window.lost(at(0), path(40));
        let grow = |window: &mut Window, rounds: std::ops::Range<u64>| {
            for n in rounds {
                let bytes = window.bytes();
                window.acked(at(40 * n), bytes, bytes, path(40));
            }
            window.bytes()
        };
        let mut steady = window.clone();
        grow(&mut steady, 1..60);
        let expected = grow(&mut steady, 60..70);
        grow(&mut window, 1..60);
        for n in 60..70 {
            window.acked(at(40 * n), SEGMENT, SEGMENT, path(40));
        }
        let found = grow(&mut window, 70..80);
        assert!((found - expected).abs() < 0.5 * SEGMENT, "{found} and {expected}");
    }

    #[test]
    fn what_is_not_used_does_not_grow() {
        let mut window = Window::new(SEGMENT);
        window.acked(at(0), SEGMENT, SEGMENT, path(40));
        assert_eq!(window.bytes(), 10.0 * SEGMENT);
        window.lost(at(0), path(40));
        for n in 1..100 {
            window.acked(at(40 * n), SEGMENT, SEGMENT, path(40));
        }
        assert_eq!(window.bytes(), 7.0 * SEGMENT);
    }
}

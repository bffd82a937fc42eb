//! Congestion window, shared by the flows to one destination. It behaves like the window of one TCP
//! connection (CUBIC, RFC 9438).

use crate::time::{Duration, Instant};

/// Initial window in segments (RFC 6928).
const INITIAL: f64 = 10.0;
/// Minimum window in segments.
const MIN_WINDOW: f64 = 2.0;
/// Multiplicative decrease: factor of the window after a loss.
const KEPT: f64 = 0.7;
/// CUBIC's C: growth in segments per second cubed.
const SCALE: f64 = 0.4;
/// Additive increase, in segments a round trip, that gives Reno's average window (RFC 9438, 4.3).
const FRIENDLY: f64 = 3.0 * (1.0 - KEPT) / (1.0 + KEPT);
/// Slow start ends when the round-trip time has grown by an eighth, and by at least this time.
const QUEUED: Duration = Duration::from_millis(4);
/// Window in segments below which queueing delay, perhaps caused by other flows, does not end slow
/// start.
const LOW: f64 = 16.0;

#[derive(Clone, Copy, Debug)]
pub(super) struct Path {
    /// Current round-trip time.
    pub(super) rtt: Duration,
    /// Minimum round-trip time.
    pub(super) shortest: Duration,
    /// Bytes of a segment (MSS).
    pub(super) segment: f64,
}

/// Congestion window in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    /// Bytes that may be in flight.
    pub(super) bytes: f64,
    /// Slow-start threshold.
    threshold: f64,
    /// Window at the last loss (CUBIC's W_max).
    most: f64,
    /// Start of congestion avoidance, and Reno's window since (CUBIC's W_est).
    epoch: Option<(Instant, f64)>,
    /// Time of the last acknowledgement.
    last: Option<Instant>,
    /// End of the current congestion event, to which all losses before it belong.
    until: Option<Instant>,
    pub(super) losses: u64,
}

impl Window {
    /// Initial window of an unknown path with segments of this size.
    pub(super) fn new(segment: f64) -> Window {
        Window { bytes: INITIAL * segment, threshold: f64::INFINITY, ..Window::default() }
    }

    /// Handles the acknowledgement of `bytes` bytes. Before it, `on_the_way` bytes were in flight.
    /// A window that is not fully used does not grow, because the path has not been probed at its
    /// size.
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
        if self.bytes > 1.25 * on_the_way + MIN_WINDOW * path.segment {
            // Time in which the window is not used does not count (RFC 9438, 5.8). A new epoch
            // would instead restart the curve where it was after the last loss, and lose the growth
            // since.
            if let Some((began, _)) = &mut self.epoch {
                *began += since;
            }
            return;
        }
        let grown = self.target(now, bytes, path) - self.bytes;
        self.bytes += (grown * bytes / self.bytes).clamp(0.0, bytes / 2.0);
    }

    /// Handles a loss. Losses of data sent before a reduction are detected within two round trips,
    /// by a tail loss probe at the latest, and count as the same event.
    pub(super) fn lost(&mut self, now: Instant, path: Path) {
        if self.until.is_some_and(|until| now < until) {
            return;
        }
        self.losses += 1;
        self.until = Some(now + 2 * path.rtt);
        // Fast convergence: a flow that has not regained its last maximum releases bandwidth
        // sooner.
        self.most =
            if self.bytes < self.most { self.bytes * (1.0 + KEPT) / 2.0 } else { self.bytes };
        self.bytes = (self.bytes * KEPT).max(MIN_WINDOW * path.segment);
        (self.threshold, self.epoch) = (self.bytes, None);
    }

    /// Window that CUBIC would have one round trip from now.
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
    fn the_window_doubles_each_round_trip_until_a_queue_or_a_loss() {
        let mut window = Window::new(SEGMENT);
        window.acked(at(0), 10.0 * SEGMENT, 10.0 * SEGMENT, path(40));
        assert_eq!(window.bytes, 20.0 * SEGMENT);
        window.acked(at(40), 20.0 * SEGMENT, 20.0 * SEGMENT, path(50));
        assert_eq!(window.bytes, 20.0 * SEGMENT, "a queue has built up");
        let mut window = Window::new(SEGMENT);
        window.lost(at(0), path(40));
        assert_eq!(window.bytes, 7.0 * SEGMENT);
    }

    #[test]
    fn losses_of_one_event_count_once() {
        let mut window = Window::new(SEGMENT);
        for n in 0..4 {
            window.lost(at(10 * n), path(40));
        }
        assert_eq!(window.losses, 1);
        window.lost(at(80), path(40));
        assert_eq!(window.losses, 2);
    }

    #[test]
    fn after_a_loss_the_window_returns_to_its_former_size_and_lingers_there() {
        let mut window = Window::new(SEGMENT);
        window.bytes = 100.0 * SEGMENT;
        window.lost(at(0), path(40));
        let mut trace = Vec::new();
        for n in 1..200 {
            let bytes = window.bytes;
            window.acked(at(40 * n), bytes, bytes, path(40));
            trace.push(window.bytes / SEGMENT);
        }
        // The cube root of (100 - 70) / 0.4 is 4.2: CUBIC needs 4.2 s, about 105 round trips. Reno
        // needs 57.
        let back = trace.iter().position(|&bytes| bytes > 99.0).unwrap();
        assert!((40..110).contains(&back), "{back}");
        assert!(trace.windows(2).all(|pair| pair[0] <= pair[1]));
    }

    #[test]
    fn growth_continues_where_it_stopped_after_a_pause() {
        let mut window = Window::new(SEGMENT);
        window.bytes = 100.0 * SEGMENT;
        window.lost(at(0), path(40));
        let grow = |window: &mut Window, rounds: std::ops::Range<u64>| {
            for n in rounds {
                let bytes = window.bytes;
                window.acked(at(40 * n), bytes, bytes, path(40));
            }
            window.bytes
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
    fn an_unused_window_does_not_grow() {
        let mut window = Window::new(SEGMENT);
        window.acked(at(0), SEGMENT, SEGMENT, path(40));
        assert_eq!(window.bytes, 10.0 * SEGMENT);
        window.lost(at(0), path(40));
        for n in 1..100 {
            window.acked(at(40 * n), SEGMENT, SEGMENT, path(40));
        }
        assert_eq!(window.bytes, 7.0 * SEGMENT);
    }
}

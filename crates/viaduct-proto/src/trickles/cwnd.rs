//! Reno's window in closed form: a TCP sender's `cwnd` after a given number of acknowledgements
//! (2.5, Figure 5), in O(1), so that a stateless server can compute it.

/// Maximum window in packets: the window is a two-byte field of a continuation.
pub const MAX_WINDOW: u32 = u16::MAX as u32;

/// Initial values of a recovery epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reno {
    /// Initial window in packets: 1 to [`MAX_WINDOW`].
    pub start: u32,
    /// Threshold below which slow start applies; congestion avoidance above.
    pub ssthresh: u32,
}

impl Reno {
    /// The window after `credits` acknowledgements, in packets; monotonic in `credits`.
    ///
    /// Slow start adds one packet for each acknowledgement, up to `ssthresh`. After that a window
    /// of w needs w acknowledgements to grow by one. From s (the larger of start and ssthresh) the
    /// n-th step is complete after s + (s + 1) + … + (s + n - 1) = n·s + n(n - 1)/2
    /// acknowledgements, so after y of them n = ⌊(1 - 2s + √((2s - 1)² + 8y)) / 2⌋. Derivation:
    /// `docs/trickles/protocol.md`.
    pub fn after(self, credits: u64) -> u32 {
        let start = u64::from(self.start.clamp(1, MAX_WINDOW));
        let slow = u64::from(self.ssthresh.min(MAX_WINDOW)).saturating_sub(start);
        if credits <= slow {
            return clamp(start + credits);
        }
        // Any window reaches the maximum with fewer acknowledgements than this.
        let left = (credits - slow).min(1 << 33);
        let odd = 2 * (start + slow) - 1;
        let steps = ((odd * odd + 8 * left).isqrt() - odd) / 2;
        clamp(start + slow + steps)
    }
}

fn clamp(window: u64) -> u32 {
    u32::try_from(window).unwrap_or(MAX_WINDOW).min(MAX_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reno, simulated one acknowledgement at a time.
    struct Direct {
        window: u32,
        ssthresh: u32,
        count: u32,
    }

    impl Direct {
        fn new(reno: Reno) -> Self {
            Direct { window: reno.start, ssthresh: reno.ssthresh, count: 0 }
        }

        fn acknowledge(&mut self) {
            if self.window >= MAX_WINDOW {
                return;
            }
            if self.window < self.ssthresh {
                self.window += 1;
                return;
            }
            self.count += 1;
            if self.count == self.window {
                (self.window, self.count) = (self.window + 1, 0);
            }
        }
    }

    #[test]
    fn all_small_windows_equal_the_simulation() {
        for start in 1..=24 {
            for ssthresh in 0..=32 {
                let reno = Reno { start, ssthresh };
                let mut direct = Direct::new(reno);
                for k in 0..=1_500 {
                    assert_eq!(reno.after(k), direct.window, "{reno:?} after {k}");
                    direct.acknowledge();
                }
            }
        }
    }

    #[test]
    fn growth_stops_at_the_maximum_window() {
        let reno = Reno { start: MAX_WINDOW - 1, ssthresh: 0 };
        assert_eq!(reno.after(u64::from(MAX_WINDOW) - 2), MAX_WINDOW - 1);
        assert_eq!(reno.after(u64::from(MAX_WINDOW) - 1), MAX_WINDOW);
        for credits in [1 << 34, u64::MAX] {
            assert_eq!(reno.after(credits), MAX_WINDOW);
            assert_eq!(Reno { start: 1, ssthresh: 2 }.after(credits), MAX_WINDOW);
            assert_eq!(Reno { start: 1, ssthresh: u32::MAX }.after(credits), MAX_WINDOW);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Any start and threshold, after every number of acknowledgements up to a random limit of
        /// at most a million.
        #[test]
        fn equals_the_direct_simulation(
            start in prop_oneof![1..64u32, 1..=MAX_WINDOW],
            ssthresh in prop_oneof![0..256u32, 0..=2 * MAX_WINDOW],
            most in 1..=1_000_000u64,
        ) {
            let reno = Reno { start, ssthresh };
            let mut direct = Direct::new(reno);
            for k in 0..=most {
                prop_assert_eq!(reno.after(k), direct.window, "after {}", k);
                direct.acknowledge();
            }
        }
    }
}

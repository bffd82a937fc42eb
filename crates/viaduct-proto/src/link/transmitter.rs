//! Transmitter: sends packets one after the other at the link's rate, exact to the nanosecond.

use crate::time::{Duration, Instant};

/// Sends packets back to back at a rate. Fractions of a nanosecond are carried from one packet
/// to the next, so that a busy transmitter keeps any rate exactly.
#[derive(Clone, Debug)]
pub struct Transmitter {
    /// Bits per second; None for unlimited.
    rate: Option<u64>,
    /// Time at which the packet on the wire has left.
    pub(super) free_at: Instant,
    /// Remainder of the time after `free_at`, in 1/rate of a nanosecond.
    carry: u64,
}

impl Transmitter {
    /// Creates a transmitter that is free at `now`; `rate` in bits per second, 0 acting as 1.
    pub fn new(rate: Option<u64>, now: Instant) -> Self {
        Transmitter { rate: rate.map(|r| r.max(1)), free_at: now, carry: 0 }
    }

    /// Transmission time of `bytes`, rounded down to the nanosecond.
    pub fn duration(&self, bytes: u64) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| divide(nanobits(bytes), rate).0)
    }

    /// Sends a packet that is ready at `ready`; returns the time at which its last bit has left.
    pub fn send(&mut self, ready: Instant, bytes: u64) -> Instant {
        if ready > self.free_at {
            (self.free_at, self.carry) = (ready, 0);
        }
        if let Some(rate) = self.rate {
            let (took, carry) = divide(nanobits(bytes) + u128::from(self.carry), rate);
            self.free_at += took;
            self.carry = carry;
        }
        self.free_at
    }
}

/// Bits times nanoseconds per second.
fn nanobits(bytes: u64) -> u128 {
    u128::from(bytes) * 8 * 1_000_000_000
}

fn divide(nanobits: u128, rate: u64) -> (Duration, u64) {
    let nanos = u64::try_from(nanobits / u128::from(rate)).unwrap_or(u64::MAX);
    (Duration::from_nanos(nanos), (nanobits % u128::from(rate)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_that_does_not_divide_a_second_is_kept_exactly() {
        let mut t = Transmitter::new(Some(7_777_777), Instant::ZERO);
        let packets = 7_777_777u64;
        let last = (0..packets).map(|_| t.send(Instant::ZERO, 1500)).last().unwrap();
        assert_eq!(last, Instant::from_nanos(1500 * 8 * 1_000_000_000));
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let mut t = Transmitter::new(Some(8_000), Instant::ZERO);
        assert_eq!(t.send(Instant::from_nanos(5_000_000), 1), Instant::from_nanos(6_000_000));
        assert_eq!(t.send(Instant::from_nanos(5_000_000), 1), Instant::from_nanos(7_000_000));
    }
}

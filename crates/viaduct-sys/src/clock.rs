//! The monotonic clock in nanoseconds.

use rustix::time::{ClockId, clock_gettime};

/// Returns the nanoseconds since boot, without the time in suspend (`CLOCK_MONOTONIC`). The value
/// never decreases, is the same in all processes of a time namespace, and is read without a system
/// call.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    #[test]
    fn the_clock_advances_in_real_time() {
        let (clock, start) = (std::time::Instant::now(), super::now());
        std::thread::sleep(Duration::from_millis(20));
        let passed = Duration::from_nanos(super::now() - start);
        assert!(passed >= Duration::from_millis(20) && passed <= clock.elapsed());
    }
}

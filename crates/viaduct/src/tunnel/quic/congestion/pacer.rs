//! Pacing: datagrams are sent at a given rate, in bursts that are large enough to justify a
//! wake-up.

use std::time::Duration;

use viaduct_proto::time::Instant;

/// Size of a burst: the bytes of this time at the pacing rate, but at least [`MIN_BURST`] packets.
const BURST: Duration = Duration::from_millis(1);
const MIN_BURST: u64 = 2;
/// Maximum burst after a pause: the bytes of this time at the pacing rate, but at least [`AT_ONCE`]
/// packets.
const PAUSE: Duration = Duration::from_millis(4);
const AT_ONCE: u64 = 10;
/// Maximum delay for which the pacer compensates if it is called late after a wait, because the
/// timer was late or the machine was busy. The additional bytes fill the gap on the path.
const LATE: Duration = Duration::from_millis(20);

/// Size of a burst in bytes, at a rate in bytes a second.
pub(in super::super) fn quantum(rate: f64, mtu: u64) -> u64 {
    ((rate * BURST.as_secs_f64()) as u64).max(MIN_BURST * mtu)
}

/// Pacer of a path.
#[derive(Debug, Default)]
pub(in super::super) struct Pacer {
    /// Number of bytes that may be sent; negative if more bytes have been sent.
    credit: f64,
    at: Instant,
    /// True if the last call had to wait.
    waited: bool,
}

impl Pacer {
    /// Returns the number of bytes that may be sent now, if that is at least a burst; otherwise the
    /// time at which to call again.
    pub(in super::super) fn poll(
        &mut self,
        now: Instant,
        rate: f64,
        mtu: u64,
    ) -> Result<u64, Instant> {
        let pause = if std::mem::take(&mut self.waited) { LATE } else { PAUSE };
        let most = (rate * pause.as_secs_f64()).max((AT_ONCE * mtu) as f64);
        let earned = rate * now.since(self.at).as_secs_f64();
        (self.credit, self.at) = ((self.credit + earned).min(most), now);
        let missing = quantum(rate, mtu) as f64 - self.credit;
        if missing <= 0.0 {
            return Ok(self.credit as u64);
        }
        self.waited = true;
        // If the rate is near zero, the next check is at most a second later.
        let after = Duration::try_from_secs_f64(missing / rate).unwrap_or(LATE);
        Err(now + after.min(Duration::from_secs(1)))
    }

    /// Accounts for sent bytes.
    pub(in super::super) fn spend(&mut self, bytes: u64) {
        self.credit -= bytes as f64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes a second.
    const RATE: f64 = 25e6;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos((100_000 + ms) * 1_000_000)
    }

    #[test]
    fn bursts_are_sent_at_the_rate_however_late_the_timer_is() {
        let mut pacer = Pacer::default();
        let first = pacer.poll(at(0), RATE, 1200).unwrap();
        assert_eq!(first, 100_000, "a small burst after a pause");
        pacer.spend(first);
        assert_eq!(pacer.poll(at(0), RATE, 1200), Err(at(1)));
        let mut sent = 0;
        for ms in (2..2000).step_by(7) {
            let bytes = pacer.poll(at(ms), RATE, 1200).unwrap();
            pacer.spend(bytes);
            sent += bytes;
            assert!(pacer.poll(at(ms), RATE, 1200).is_err());
        }
        let rate = sent as f64 / 1.997;
        assert!((0.99 * RATE..1.01 * RATE).contains(&rate), "{rate}");
    }

    #[test]
    fn the_first_burst_is_small_on_a_slow_path() {
        let mut pacer = Pacer::default();
        assert_eq!(pacer.poll(at(0), 1000.0, 1200), Ok(12_000));
        pacer.spend(12_000);
        assert_eq!(
            pacer.poll(at(0), 1000.0, 1200),
            Err(at(1000)),
            "due in 2.4 s; checked again earlier"
        );
    }
}

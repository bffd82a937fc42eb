//! Datagrams leave at a rate, in bursts that are worth a wake-up.

use std::time::Duration;

use viaduct_proto::time::Instant;

/// What a burst holds: so much time's worth, but not less than two packets.
const BURST: Duration = Duration::from_millis(1);
const LEAST: u64 = 2;
/// What a wake-up that comes late may make good, and what leaves at once after a pause: so much
/// time's worth, but not less than so many packets. Timers are late by a millisecond or two.
const LATE: Duration = Duration::from_millis(4);
const AT_ONCE: u64 = 10;

/// Bytes of a burst, at a rate in bytes a second.
pub(super) fn quantum(rate: f64, mtu: u64) -> u64 {
    ((rate * BURST.as_secs_f64()) as u64).max(LEAST * mtu)
}

/// The pacer of a path.
#[derive(Debug, Default)]
pub(in super::super) struct Pacer {
    /// Bytes that may leave; less than none after a packet that was longer.
    credit: f64,
    at: Instant,
}

impl Pacer {
    /// Bytes that may leave now, if they are worth it.
    pub(in super::super) fn poll(
        &mut self,
        now: Instant,
        rate: f64,
        mtu: u64,
    ) -> Result<u64, Instant> {
        let most = (rate * LATE.as_secs_f64()).max((AT_ONCE * mtu) as f64);
        let earned = rate * now.since(self.at).as_secs_f64();
        (self.credit, self.at) = ((self.credit + earned).min(most), now);
        let missing = quantum(rate, mtu) as f64 - self.credit;
        if missing <= 0.0 {
            return Ok(self.credit as u64);
        }
        // A rate of next to nothing is looked at again.
        let after = Duration::try_from_secs_f64(missing / rate).unwrap_or(LATE);
        Err(now + after.min(Duration::from_secs(1)))
    }

    /// So many have left.
    pub(in super::super) fn spend(&mut self, bytes: u64) {
        self.credit -= bytes as f64;
    }
}

//! Fates of packets from a peer that only observes, as input of the trial codes.

use std::collections::VecDeque;

use super::shadow::{Fate, Shadows};
use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// Time after which a packet's fate is settled; until then it may be late.
const SETTLES: Duration = Duration::from_millis(500);
/// Maximum number of waiting fates; beyond this limit, the oldest are dropped.
const MAX_WAITING: usize = 1 << 16;
/// Maximum number of packets that the trial codes handle in one call; on faster links they see only
/// a part of the packets.
const MAX_STEPS: usize = 1 << 13;

/// Fates of the packets from a peer.
pub(super) struct Observed {
    /// Fates, oldest first: number, time of naming, send time and fate.
    fates: VecDeque<(Seq, Instant, Instant, Fate)>,
    pub(super) shadows: Shadows,
    /// Send time of the newest packet, on the peer's clock and on a clock that does not wrap.
    clock: Option<(u32, Instant)>,
}

impl Observed {
    /// Creates the state for a path of the given round-trip time.
    pub(super) fn new(rtt: Duration) -> Self {
        Observed { fates: VecDeque::new(), shadows: Shadows::new(rtt), clock: None }
    }

    /// Records the fate of the packet just named, which the peer sent at `sent`, in microseconds of
    /// its clock.
    pub(super) fn named(&mut self, now: Instant, seq: Seq, sent: u32, fate: Fate) {
        let (last, at) = self.clock.unwrap_or((sent, Instant::ZERO));
        let passed = sent.wrapping_sub(last).cast_signed().max(0).cast_unsigned();
        let at = at + Duration::from_micros(passed.into());
        self.clock = Some((sent, at));
        if self.fates.len() == MAX_WAITING {
            self.fates.pop_front();
        }
        self.fates.push_back((seq, now, at, fate));
    }

    /// Records that the missing packet `seq` has arrived.
    pub(super) fn arrived(&mut self, seq: Seq) {
        let at = self.fates.partition_point(|&(of, ..)| of < seq);
        if let Some((of, .., fate)) = self.fates.get_mut(at)
            && *of == seq
        {
            *fate = Fate::Arrived;
        }
    }

    /// Returns whether no fate waits.
    pub(super) fn is_settled(&self) -> bool {
        self.fates.is_empty()
    }

    /// Runs the trial codes on settled fates.
    pub(super) fn settle(&mut self, now: Instant) {
        let settled = self.fates.partition_point(|&(_, named, ..)| now.since(named) >= SETTLES);
        for (.., at, fate) in self.fates.drain(..settled).take(MAX_STEPS) {
            self.shadows.step(at, fate);
        }
    }

    pub(super) fn memory(&self) -> usize {
        self.fates.capacity() * size_of::<(Seq, Instant, Instant, Fate)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_packets_are_not_lost_and_clocks_may_wrap() {
        let mut observed = Observed::new(Duration::from_millis(100));
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        for n in 0..100u32 {
            let fate = if n % 10 == 0 { Fate::Lost } else { Fate::Arrived };
            observed.named(
                at(n.into()),
                n.into(),
                (u32::MAX - 50_000).wrapping_add(1_000 * n),
                fate,
            );
        }
        observed.arrived(20);
        observed.arrived(1_000);
        observed.settle(at(400));
        assert_eq!(observed.shadows.outcomes()[0].packets, 0);
        observed.settle(at(700));
        assert_eq!(
            (observed.shadows.outcomes()[1].packets, observed.shadows.outcomes()[1].lost),
            (100, 9)
        );
    }
}

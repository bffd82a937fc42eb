//! Handover of an encoder's control state to a new process.

use super::{Auto, Pace, USUAL_RTT};
use crate::fec::{Fire, MAX_COVER};
use crate::repair::requests::MAX_WORK;
use crate::time::{Duration, Instant};
use crate::upgrade::ControlRecord;

/// Minimum number of repairs of the last packets.
const LAST_REPAIRS: usize = 4;
/// Number of packets per repair that is sent in addition to [`LAST_REPAIRS`].
const PACKETS_PER_REPAIR: u64 = 16;

impl Auto {
    /// Sends repairs of all packets that the peer may still miss: the new process's encoder does
    /// not have these packets, and cannot answer requests for them.
    pub(in crate::repair) fn finish(&mut self, now: Instant, fire: &mut Fire<'_>) {
        if !self.is_lossy() {
            return;
        }
        let time = self.rtt.unwrap_or(USUAL_RTT) + 2 * self.wait(now);
        let packets = (self.pace.value() * time.as_secs_f64()) as u64;
        let packets = packets.clamp(1, MAX_COVER.into());
        let most = MAX_WORK / packets as usize;
        let count = (LAST_REPAIRS + (packets / PACKETS_PER_REPAIR) as usize).min(most);
        let next = self.next_seq();
        self.combine(now, next.saturating_sub(packets), next.saturating_sub(1), count, fire);
    }

    /// State for the handover to a new process.
    pub(in crate::repair) fn record(&self) -> ControlRecord {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        ControlRecord {
            pace: self.pace.value().into(),
            rtt: self.rtt.map(nanos),
            share: self.reordering_window.share.into(),
            ..self.controller.record()
        }
    }

    /// Takes over the state of the previous process. The classification of flows comes from
    /// `passive`, an encoder of this process that has not sent anything.
    pub(in crate::repair) fn resume(
        &mut self,
        now: Instant,
        passive: Auto,
        record: Option<&ControlRecord>,
    ) {
        self.classifier = passive.classifier;
        let Some(record) = record else { return };
        self.rtt = record.rtt.map(Duration::from_nanos);
        self.pace = Pace::new(record.pace.into());
        let bursts = record.counts.last().map(|(_, losses)| losses.bursts);
        self.reordering_window.resume(record.share.into(), bursts);
        self.controller.resume(now, record);
        self.set(now);
    }
}

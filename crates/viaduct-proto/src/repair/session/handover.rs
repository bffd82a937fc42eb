//! Handover of sessions to a new process, which then sends and receives in place of this process.
//!
//! The keys and the next counters are handed over, and only one process sends at a time, so
//! no counter is used twice. A process that resumes after a failed handover skips
//! [`SKIPPED`] counters.

use super::super::seal::{Opener, Sealer};
use super::{Live, Session};
use crate::repair::handshake::Keys;
use crate::time::Instant;
use crate::upgrade::{LiveRecord, SessionKey, SessionRecord};

/// Counters skipped after a failed handover: more than the new process can have used.
const SKIPPED: u64 = 1 << 32;

impl Session {
    /// State for the handover to a new process.
    pub(in crate::repair) fn record(&self) -> SessionRecord {
        SessionRecord {
            live: self.live.iter().map(Live::record).collect(),
            clock_heard: self.clocks.heard,
            clock_sent: self.clocks.sent,
            heard_at: self.schedule.heard_at().map(Instant::as_nanos),
            handshake_at: self.schedule.handshake_at().map(Instant::as_nanos),
            is_retrying: self.schedule.is_retrying(),
        }
    }

    /// Takes over the sessions of the previous process. Counters that this process has received in
    /// the meantime are still refused.
    pub(in crate::repair) fn resume(&mut self, now: Instant, slot: u16, record: &SessionRecord) {
        let (mut old, lane) = (std::mem::take(&mut self.live), self.offer.lane);
        let live = record.live.iter().map(|record| {
            let at = old.iter().position(|live| live.index == record.indices[0]);
            Live::restored(record, lane, at.map(|at| old.swap_remove(at)))
        });
        self.live = live.collect();
        self.slot = slot;
        self.clocks.heard = self.clocks.heard.max(record.clock_heard);
        self.clocks.sent = self.clocks.sent.max(record.clock_sent);
        let [heard_at, handshake_at] =
            [record.heard_at, record.handshake_at].map(|at| at.map(Instant::from_nanos));
        self.schedule.resume(heard_at, handshake_at);
        self.pending.fill_with(|| None);
        self.update_schedule(now);
        if record.is_retrying {
            // This process cannot use answers to the initiations of the previous process.
            self.schedule.start(now);
        }
    }

    /// Resumes after a failed handover.
    pub(in crate::repair) fn skip_counters(&mut self) {
        self.live.iter_mut().for_each(|live| live.sealer.skip(SKIPPED));
    }
}

impl Live {
    fn record(&self) -> LiveRecord {
        LiveRecord {
            indices: [self.index, self.sealer.receiver()],
            transport: self.transport,
            born: self.born.as_nanos(),
            initiator: self.initiator,
            confirmed: self.confirmed,
            keys: [SessionKey(self.keys.send), SessionKey(self.keys.receive)],
            counter: self.sealer.counter(),
            received: self.opener.received(),
        }
    }

    /// Session of `record` in this lane; `known` is the same session, if this process has opened
    /// its messages.
    fn restored(record: &LiveRecord, lane: u8, known: Option<Live>) -> Live {
        let [SessionKey(send), SessionKey(receive)] = record.keys;
        let [index, peer_index] = record.indices;
        let known = known.filter(|live| live.keys.receive == receive);
        let sealer = Sealer::at(&send, (lane, peer_index), record.counter);
        Live {
            index,
            transport: record.transport,
            born: Instant::from_nanos(record.born),
            initiator: record.initiator,
            confirmed: record.confirmed || known.as_ref().is_some_and(|live| live.confirmed),
            sealer,
            next: known.as_ref().map_or(record.received, |live| live.next),
            opener: known
                .map_or_else(|| Opener::after(&receive, record.received), |live| live.opener),
            keys: Keys { send, receive },
        }
    }
}

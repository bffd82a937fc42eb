//! Injection of recovered packets: first a hold, during which the packet may still arrive; then
//! changes that make its destination accept the packet, and that signal congestion to its flow.
//!
//! ```text
//!   recovered ─▶ reorder hold ─▶ valid? ─▶ congestion ─▶ SYN ─▶ timestamp ─▶ injected
//!                                            │ withheld   └ altered, withheld
//! ```

use super::known::Known;
use crate::repair::congestion::{Congestion, Signal};
use crate::repair::identity::IdentityKey;
use crate::repair::ledger::{Row, State};
use crate::repair::outbox::Outbox;
use crate::repair::recent::Recent;
use crate::repair::reorder_hold::{HeldRecovery, ReorderHold};
use crate::repair::section::PREFIX;
use crate::repair::sites::Sites;
use crate::repair::stats::ReceiverStats;
use crate::repair::syns::{SynVerdict, Syns};
use crate::time::{Duration, Instant};
use crate::wire::ip::{self, Header};

/// Recovered packets in hold, and state of the packets' flows and destinations.
#[derive(Default)]
pub(in crate::repair) struct Injection {
    pub(super) hold: ReorderHold,
    pub(in crate::repair) syns: Syns,
    congestion: Congestion,
    pub(in crate::repair) recent: Recent,
}

pub(super) struct Target<'a> {
    pub(super) key: &'a IdentityKey,
    pub(super) sites: &'a Sites,
    /// Round-trip time of the path.
    pub(super) rtt: Duration,
}

impl Injection {
    /// Injects recovered packets whose hold has ended.
    pub(super) fn release(
        &mut self,
        now: Instant,
        known: &mut Known,
        target: &Target<'_>,
        stats: &mut ReceiverStats,
        out: &mut Outbox,
    ) {
        while let Some(recovery) = self.hold.pop(now) {
            if let Some(state) = self.inject(now, recovery, known, target, stats, out) {
                known.settle(recovery.seq, state);
            }
        }
    }

    /// Injects a recovered packet, or returns the new state of a packet that is not injected.
    /// `None` if the state does not change.
    fn inject(
        &mut self,
        now: Instant,
        recovery: HeldRecovery,
        known: &Known,
        target: &Target<'_>,
        stats: &mut ReceiverStats,
        out: &mut Outbox,
    ) -> Option<State> {
        // No row: the peer restarted during the hold. No bytes: the store has freed their memory.
        let &Row { mut fields, congested, .. } = known.ledger.row(recovery.seq)?;
        let packet = known.store.get(recovery.identity).and_then(|of| of.get(PREFIX..))?;
        let header = right_header(packet, target.sites, stats)?;
        if congested {
            match self.congestion.judge(now, target.rtt, (&header, packet, fields.tos)) {
                Signal::None => {}
                Signal::Mark(tos) => {
                    fields.tos = tos;
                    stats.marked += 1;
                }
                Signal::Withhold => {
                    stats.left_lost += 1;
                    return Some(State::Withheld);
                }
            }
        }
        let verdict = self.syns.judge(target.key, packet);
        match verdict {
            SynVerdict::Lost | SynVerdict::Lower(..) => {}
            SynVerdict::Altered => {
                stats.altered += 1;
                return Some(State::Arrived);
            }
            SynVerdict::Withheld => {
                stats.withheld += 1;
                return Some(State::Missing);
            }
        }
        out.push_with(|out| {
            let start = out.len();
            out.extend_from_slice(packet);
            ip::restore(&mut out[start..], fields);
            stats.renewed += u64::from(self.recent.renew(now, &mut out[start..]));
            if let SynVerdict::Lower(syn, most) = verdict {
                syn.lower(&mut out[start..], most);
            }
        });
        stats.recovered += 1;
        // Packets dropped by a full queue do not count towards the latency: their flows must slow
        // down anyway.
        if let Some(due) = recovery.due.filter(|_| !congested) {
            stats.record_latency(now.since(due));
        }
        None
    }
}

/// Parses the header of a recovered packet. Returns `None` and counts the packet if the header is
/// malformed, or if the packet does not belong to the two sites.
fn right_header(packet: &[u8], sites: &Sites, stats: &mut ReceiverStats) -> Option<Header> {
    match Header::parse(packet) {
        Ok(header) if header.total_len == packet.len() && sites.arrives(&header) => Some(header),
        Ok(_) => {
            stats.foreign += 1;
            None
        }
        Err(_) => {
            stats.garbled += 1;
            None
        }
    }
}

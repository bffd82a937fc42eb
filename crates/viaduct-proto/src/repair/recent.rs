//! Latest TCP timestamps seen by hosts, with which the hosts accept recovered packets.
//!
//! A packet that is lost and not recovered is retransmitted with a new timestamp. Once the
//! retransmission has arrived, a TCP host refuses all packets with older timestamps
//! ([`tcp_timestamp`]), including those that were lost at about the same time and are recovered a
//! moment later. The sender counts the refused packets as lost, and slows down again after each
//! such round. A recovered packet that would be refused therefore gets the newest timestamp that
//! its destination has seen, which this host then echoes again.

use std::collections::HashMap;

use super::flow::Flow;
use crate::time::{Duration, Instant};
use crate::wire::ip::Header;
use crate::wire::tcp_timestamp;

/// Maximum number of remembered flows.
const MAX_FLOWS: usize = 4_096;
/// Time for which flows are followed after a recovery, and after which idle flows may be forgotten.
const FOLLOWED: Duration = Duration::from_secs(10);

/// Latest timestamps seen by hosts.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// Time and timestamp by flow, in the direction towards the host.
    flows: HashMap<Flow, (Instant, u32)>,
    /// Time until which flows are followed; `None` before the first recovery.
    until: Option<Instant>,
}

impl Recent {
    /// Handles a packet from a host, which echoes the newest timestamp that the host has seen.
    pub(super) fn leaves(&mut self, now: Instant, packet: &[u8]) {
        if self.until.is_none_or(|until| now > until) {
            self.flows.clear();
            return;
        }
        let Some(echo) = tcp_timestamp::echo(packet) else { return };
        let Ok(header) = Header::parse(packet) else { return };
        if self.flows.len() >= MAX_FLOWS {
            self.flows.retain(|_, (at, _)| now.since(*at) < FOLLOWED);
        }
        let flow = Flow::of(&header, packet).back();
        if self.flows.len() < MAX_FLOWS || self.flows.contains_key(&flow) {
            self.flows.insert(flow, (now, echo));
        }
    }

    /// Renews the timestamp of a recovered packet if its destination would refuse the packet.
    /// Returns whether the timestamp was renewed.
    pub(super) fn renew(&mut self, now: Instant, packet: &mut [u8]) -> bool {
        self.until = Some(now + FOLLOWED);
        let Ok(header) = Header::parse(packet) else { return false };
        let last = self.flows.get(&Flow::of(&header, packet));
        last.is_some_and(|&(_, last)| tcp_timestamp::renew(packet, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::tcp_timestamp::tests::stamped;

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    /// A segment from one port to another.
    fn packet(from: u16, to: u16, stamps: (u32, u32)) -> Vec<u8> {
        let mut packet = stamped(stamps.0, stamps.1);
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        packet[20..22].copy_from_slice(&from.to_be_bytes());
        packet[22..24].copy_from_slice(&to.to_be_bytes());
        packet
    }

    #[test]
    fn packets_that_a_host_would_refuse_get_the_newest_timestamp_that_it_has_seen() {
        let mut recent = Recent::default();
        let renewed = |recent: &mut Recent, from, to, stamp| {
            let mut packet = packet(from, to, (stamp, 0));
            (recent.renew(at(1), &mut packet), packet[44..48].to_vec())
        };
        recent.leaves(at(1), &packet(80, 7, (0, 9)));
        assert_eq!(renewed(&mut recent, 7, 80, 5), (false, vec![0, 0, 0, 5]), "not followed yet");
        recent.leaves(at(1), &packet(80, 7, (0, 9)));
        assert_eq!(renewed(&mut recent, 7, 80, 5), (true, vec![0, 0, 0, 9]));
        assert_eq!(renewed(&mut recent, 7, 80, 10), (false, vec![0, 0, 0, 10]));
        assert_eq!(renewed(&mut recent, 8, 80, 5), (false, vec![0, 0, 0, 5]), "of another flow");
        recent.leaves(at(12), &packet(80, 7, (0, 9)));
        assert_eq!(renewed(&mut recent, 7, 80, 5), (false, vec![0, 0, 0, 5]), "long ago");
    }

    #[test]
    fn the_number_of_remembered_flows_is_bounded() {
        let mut recent = Recent::default();
        recent.renew(at(1), &mut packet(1, 80, (1, 0)));
        for port in 0..10_000 {
            recent.leaves(at(1), &packet(80, port, (0, 9)));
        }
        assert_eq!(recent.flows.len(), MAX_FLOWS);
    }
}

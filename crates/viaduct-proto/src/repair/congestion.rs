//! Handling of recovered packets that a full queue had dropped.
//!
//! Drops are the signal by which a queue slows senders down, and repairs must not hide this signal
//! (RFC 9265). A packet of a flow with ECN is marked and injected. Of the packets of any other
//! flow, the first in each round trip stays lost, and the rest are injected.

use std::collections::HashMap;

use super::flow::Flow;
use crate::time::{Duration, Instant};
use crate::wire::ip::Header;

/// Maximum number of remembered flows.
const MAX_FLOWS: usize = 4_096;
/// Mask of the ECN field, the two low bits of the traffic class.
const ECN: u8 = 3;
/// ECN field of a flow without ECN.
const NOT_ECT: u8 = 0;
/// ECN field of a packet with a congestion mark.
const CE: u8 = 3;

/// Treatment of a recovered packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// Injected with this traffic class.
    Mark(u8),
    /// Not injected: stays lost.
    Withhold,
    /// Injected unchanged: the flow has already received a signal in this round trip.
    None,
}

/// Time of the last congestion signal to each flow.
#[derive(Debug, Default)]
pub(super) struct Congestion {
    told: HashMap<Flow, Instant>,
}

impl Congestion {
    /// Decides how to treat a recovered packet of the given traffic class that a full queue had
    /// dropped. While [`MAX_FLOWS`] flows have had a signal within a round trip, all packets
    /// without ECN stay lost.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        rtt: Duration,
        (header, packet, tos): (&Header, &[u8], u8),
    ) -> Signal {
        if tos & ECN != NOT_ECT {
            return Signal::Mark(tos | CE);
        }
        if self.told.len() >= MAX_FLOWS {
            self.told.retain(|_, at| now.since(*at) < rtt);
        }
        if self.told.len() >= MAX_FLOWS {
            return Signal::Withhold;
        }
        let told = self.told.entry(Flow::of(header, packet)).or_insert(Instant::ZERO);
        if *told != Instant::ZERO && now.since(*told) < rtt {
            return Signal::None;
        }
        *told = now;
        Signal::Withhold
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::transport::TCP;

    const RTT: Duration = Duration::from_millis(100);

    fn packet(port: u16) -> Vec<u8> {
        let mut packet = vec![0; 40];
        (packet[0], packet[3], packet[9]) = (0x45, 40, TCP);
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        packet
    }

    fn judge(congestion: &mut Congestion, millis: u64, port: u16, tos: u8) -> Signal {
        let (packet, at) = (packet(port), Instant::ZERO + Duration::from_millis(millis));
        congestion.judge(at, RTT, (&Header::parse(&packet).unwrap(), &packet, tos))
    }

    #[test]
    fn each_flow_loses_one_packet_a_round_trip() {
        let mut congestion = Congestion::default();
        let mut of = |millis, port| judge(&mut congestion, millis, port, 0);
        assert_eq!(
            [of(1, 7), of(2, 7), of(3, 8)],
            [Signal::Withhold, Signal::None, Signal::Withhold]
        );
        assert_eq!([of(100, 7), of(101, 7)], [Signal::None, Signal::Withhold]);
    }

    #[test]
    fn packets_of_flows_with_ecn_are_marked() {
        let mut congestion = Congestion::default();
        assert_eq!(judge(&mut congestion, 1, 7, 0xb9), Signal::Mark(0xbb));
        assert_eq!(judge(&mut congestion, 1, 7, 2), Signal::Mark(3));
    }

    #[test]
    fn the_number_of_remembered_flows_is_bounded() {
        let mut congestion = Congestion::default();
        for n in 0..10_000 {
            judge(&mut congestion, 1, n, 0);
        }
        assert_eq!(congestion.told.len(), MAX_FLOWS);
        judge(&mut congestion, 200, 7, 0);
        assert_eq!(congestion.told.len(), 1);
    }
}

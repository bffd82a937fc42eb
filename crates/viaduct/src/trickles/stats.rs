//! What a port counts.

use viaduct_proto::trickles::packet::stats::{Refusal, Refusals};
use viaduct_sys::udp::SendReport;

/// Counters of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Messages that came.
    pub received: u64,
    /// Packets that came and were refused.
    pub refused: Refusals,
    /// Routers' words that a packet was too long.
    pub too_big: u64,
    /// What became of what was sent.
    pub sent: SendReport,
    /// Of the packets that were sent in TCP's format, those that left together with others.
    pub together: u64,
}

impl PortStats {
    pub(super) fn refuse(&mut self, why: Refusal) {
        self.refused.count(why);
    }

    pub(super) fn together(&mut self, packets: u64) {
        self.together += packets;
        self.sent.sent += packets;
    }

    pub(super) fn add(&mut self, report: SendReport) {
        let sent = &mut self.sent;
        sent.sent += report.sent;
        sent.too_long += report.too_long;
        sent.no_buffer += report.no_buffer;
        sent.refused += report.refused;
        sent.other += report.other;
    }
}

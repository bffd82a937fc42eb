//! Counters of a port.

use viaduct_proto::trickles::packet::stats::{Refusal, Refusals};
use viaduct_sys::socket::udp::SendReport;

/// Counters of a port since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortStats {
    /// Messages that arrived.
    pub received: u64,
    /// Packets that arrived and were refused.
    pub refused: Refusals,
    /// ICMP errors that report a packet as too long.
    pub too_big: u64,
    /// Results of sending.
    pub sent: SendReport,
    /// Packets in TCP's format that were sent as part of a run.
    pub together: u64,
}

impl PortStats {
    pub(crate) fn refuse(&mut self, why: Refusal) {
        self.refused.count(why);
    }

    /// Counts a parsed packet as received or refused.
    pub(crate) fn count<T>(&mut self, read: Result<T, Refusal>) -> Option<T> {
        let read = read.inspect_err(|&why| self.refuse(why)).ok();
        self.received += u64::from(read.is_some());
        read
    }

    pub(crate) fn together(&mut self, packets: u64) {
        self.together += packets;
        self.sent.sent += packets;
    }

    pub(crate) fn add(&mut self, report: SendReport) {
        let sent = &mut self.sent;
        sent.sent += report.sent;
        sent.too_long += report.too_long;
        sent.no_buffer += report.no_buffer;
        sent.refused += report.refused;
        sent.other += report.other;
    }
}

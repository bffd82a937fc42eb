//! Port of a packet thread to a WAN: its taps and its socket.

use std::net::SocketAddr;

use viaduct_sys::route::qdisc::QdiscDrops;
use viaduct_sys::socket::udp::UdpBatch;

use super::taps::Taps;

/// Port of a packet thread to a WAN.
pub struct WanPort {
    /// Copies of the packets that cross the WAN.
    pub taps: Taps,
    /// Socket that sends repairs.
    pub udp: UdpBatch,
    /// Address to which peers send their datagrams.
    pub listen: SocketAddr,
    /// Queueing discipline of the WAN, in which repairs wait with all other outgoing packets.
    pub own_queue: QdiscDrops,
}

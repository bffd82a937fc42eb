//! Flow of a packet.

use std::net::IpAddr;

use crate::wire::ip::Header;
use crate::wire::transport;

/// Flow key: addresses, protocol, and ports if the packet contains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    pub(super) protocol: u8,
    pub(super) source: (IpAddr, u16),
    pub(super) destination: (IpAddr, u16),
}

impl Flow {
    pub(super) fn of(header: &Header, packet: &[u8]) -> Flow {
        let [source, destination] = transport::ports(packet).unwrap_or_default();
        Flow {
            protocol: header.protocol,
            source: (header.source, source),
            destination: (header.destination, destination),
        }
    }

    /// Returns the flow of the reverse direction.
    pub(super) fn back(self) -> Flow {
        Flow { source: self.destination, destination: self.source, ..self }
    }
}

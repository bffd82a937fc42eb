//! Flow of a packet.

use std::hash::{Hash, Hasher};
use std::net::IpAddr;

use crate::wire::ip::Header;
use crate::wire::transport;

/// Flow key: addresses, protocol, and ports if the packet contains them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) protocol: u8,
    pub(super) source: (IpAddr, u16),
    pub(super) destination: (IpAddr, u16),
}

/// Hashes a few long words, for each packet; a derived implementation would take three times as
/// long.
impl Hash for Flow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [(source, from), (destination, to)] = [self.source, self.destination];
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                state.write_u64(
                    u64::from(source.to_bits()) << 32 | u64::from(destination.to_bits()),
                );
            }
            _ => [source, destination].map(wide).into_iter().for_each(|of| state.write_u128(of)),
        }
        let ports = u64::from(from) << 16 | u64::from(to);
        state.write_u64(u64::from(self.protocol) << 32 | ports);
    }
}

/// Address as 128 bits; an IPv4 address is mapped to IPv6.
fn wide(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
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

//! Addresses of the two sites of a peer.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::wire::ip::Header;

/// Prefixes of two sites. Only packets between them are encoded, decoded or injected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    /// Prefixes of this site.
    pub local: Vec<IpNet>,
    /// Prefixes of the peer's site.
    pub remote: Vec<IpNet>,
}

impl Sites {
    /// Returns whether a packet comes from the peer's site and goes to this site.
    pub fn arrives(&self, header: &Header) -> bool {
        within(&self.remote, header.source) && within(&self.local, header.destination)
    }
}

/// Returns whether one of the prefixes contains the address.
pub(super) fn within(prefixes: &[IpNet], address: IpAddr) -> bool {
    prefixes.iter().any(|prefix| prefix.contains(&address))
}

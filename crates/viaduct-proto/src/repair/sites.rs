//! Which addresses are at which end.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::wire::ip::Header;

/// The prefixes of two sites. Only packets between them are encoded, decoded or injected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sites {
    /// Prefixes of this site.
    pub local: Vec<IpNet>,
    /// Prefixes of the peer's.
    pub remote: Vec<IpNet>,
}

impl Sites {
    /// Whether a packet goes from here to the peer's site.
    pub fn leaves(&self, header: &Header) -> bool {
        within(&self.local, header.source) && within(&self.remote, header.destination)
    }

    /// Whether a packet comes from the peer's site to here.
    pub fn arrives(&self, header: &Header) -> bool {
        within(&self.remote, header.source) && within(&self.local, header.destination)
    }
}

fn within(prefixes: &[IpNet], address: IpAddr) -> bool {
    prefixes.iter().any(|prefix| prefix.contains(&address))
}

//! Second WAN of a packet thread.

use std::collections::HashSet;
use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use viaduct_proto::repair::PeerConfig;
use viaduct_sys::route::qdisc::QdiscDrops;
use viaduct_sys::socket::udp::UdpBatch;

use super::site::Site;
use super::taps::Taps;
use super::wan_port::WanPort;

/// Second WAN.
pub struct SecondWan {
    /// Port that sends and receives the datagrams of this WAN's path.
    pub port: WanPort,
    /// The peers' addresses on the paths by this WAN.
    ends: HashSet<SocketAddr>,
}

impl SecondWan {
    /// Opens the second WAN of `site`; `None` if there is only one. Errors: the interface is gone,
    /// the address cannot be used, or the kernel refuses.
    pub fn open(site: &Site, udp: Option<UdpBatch>) -> Result<Option<SecondWan>> {
        let (Some(wan), Some(udp)) = (site.config.wans.get(1), udp) else { return Ok(None) };
        let own_queue = QdiscDrops::of(&wan.interface)
            .context("cannot read the queueing discipline of the second WAN")?;
        let taps = Taps::open(site, &wan.interface)?;
        let port = WanPort { taps, udp, listen: wan.listen, own_queue, earlier_drops: [0; 2] };
        Ok(Some(SecondWan { port, ends: ends(&site.peers()) }))
    }

    /// Replaces the peers' addresses by those of [`ends`].
    pub fn set_ends(&mut self, ends: HashSet<SocketAddr>) {
        self.ends = ends;
    }

    /// Returns whether datagrams to `address` take this WAN.
    pub fn leads_to(&self, address: &SocketAddr) -> bool {
        self.ends.contains(address)
    }
}

/// Addresses of `peers` on the paths by the second WAN.
pub fn ends(peers: &[PeerConfig]) -> HashSet<SocketAddr> {
    peers.iter().filter_map(|peer| peer.paths).map(|paths| paths.endpoints[1]).collect()
}

//! Copies of the packets that cross the WAN.

use anyhow::{Context as _, Result};
use viaduct_sys::capture::filter::BpfInsn;
use viaduct_sys::capture::ring::{Ring, RingConfig};

use super::site::Site;

/// Taps of the two directions.
pub struct Taps {
    /// Packets that leave for the peers' sites.
    pub outgoing: Ring,
    /// Packets that come from the peers' sites, and the peers' datagrams.
    pub incoming: Ring,
}

impl Taps {
    /// Opens both taps. If the gateway only observes, offloads stay on: the taps then report
    /// packets that devices segment, merge or complete. Errors: the interface is gone, or the
    /// kernel refuses.
    pub fn open(site: &Site) -> Result<Taps> {
        let config = RingConfig { max_packet: site.wan_mtu.max(1500), bytes: site.ring_bytes() };
        let wan = &site.config.wan;
        let open = |program: &[BpfInsn]| match site.only_observes() {
            true => Ring::open_with_offloads(wan, config, program),
            false => Ring::open_filtered(wan, config, program),
        };
        let (outgoing, incoming) = site.filters()?;
        let (outgoing, incoming) = (open(&outgoing)?, open(&incoming)?);
        incoming.ignore_outgoing().context("cannot restrict a tap to incoming packets")?;
        Ok(Taps { outgoing, incoming })
    }
}

//! Copies of the packets that cross the WAN.

use anyhow::{Context as _, Result};
use viaduct_proto::repair::wire::LANE_AT;
use viaduct_sys::capture::fanout::{Directions, Fanout};
use viaduct_sys::capture::filter::{BpfInsn, FanoutProgram};
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
    /// Opens the taps of all workers on the first WAN, and the fanouts that distribute packets
    /// among them (`None` with a single worker). Errors: the interface is gone, or the kernel
    /// refuses.
    pub fn open_all(site: &Site) -> Result<(Vec<Taps>, Option<Fanouts>)> {
        let taps = (0..site.config.workers).map(|_| Taps::open(site, &site.config.wan));
        let taps = taps.collect::<Result<Vec<_>>>()?;
        let fanouts = (taps.len() > 1).then(|| Fanouts::new(&taps)).transpose()?;
        Ok((taps, fanouts))
    }

    /// Opens the taps on the second WAN; `None` if there is only one. Errors: those of
    /// [`Taps::open`].
    pub fn open_second(site: &Site) -> Result<Option<Taps>> {
        let second = site.config.wans.get(1);
        second.map(|wan| Taps::open(site, &wan.interface)).transpose()
    }

    /// Opens both taps of an interface. If the gateway only observes, offloads stay on: a frame may
    /// then be a packet that a device will segment, that was merged on arrival, or whose checksum
    /// is missing. Errors: the interface is gone, or the kernel refuses.
    pub fn open(site: &Site, wan: &str) -> Result<Taps> {
        let config = RingConfig { max_packet: site.wan_mtu.max(1500), bytes: site.ring_bytes() };
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

/// Distribution of the packets of each direction among the workers' taps.
pub struct Fanouts {
    outgoing: Fanout,
    incoming: Fanout,
}

impl Fanouts {
    fn new(taps: &[Taps]) -> Result<Fanouts> {
        let rings = |of: fn(&Taps) -> &Ring| taps.iter().map(of).collect::<Vec<_>>();
        let refused = "cannot create a group of taps";
        Ok(Fanouts {
            outgoing: Fanout::new(&rings(|taps| &taps.outgoing), Directions::Both)
                .context(refused)?,
            incoming: Fanout::new(&rings(|taps| &taps.incoming), Directions::Incoming)
                .context(refused)?,
        })
    }

    /// Assigns the packets of each share to its worker in `owners`. A peer's datagram names its
    /// lane; the lane of any other packet follows from its addresses.
    pub fn distribute(&self, site: &Site, owners: &[u8]) -> Result<()> {
        let program = |datagrams| FanoutProgram { members: owners.to_vec(), datagrams }.build();
        self.outgoing.set_program(&program(None)?)?;
        let listen = (site.config.listen, LANE_AT as u32);
        Ok(self.incoming.set_program(&program(Some(listen))?)?)
    }
}

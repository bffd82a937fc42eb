//! Two small sites over a link of 10 Mb/s with a round-trip time of 300 ms, connected by a tunnel.
//!
//! ```text
//!   a1 ─▶ a2 near ══ links ══ far b2 ─▶ b1 a server of sessions
//! ```

use super::browsing::CONGESTION;
use crate::example_tunnel::{Links, Tunnel};
use crate::experiments::prelude::*;
use crate::topology::programs::sessions::SessionServer;

const PORT: u16 = 6200;

/// The two sites. Dropping them stops their programs.
pub(super) struct SmallSites {
    pub(super) tunnel: Tunnel,
    _server: SessionServer,
    pub(super) world: Dumbbell,
}

impl SmallSites {
    /// Builds the sites and connects them by a tunnel with these links.
    pub(super) fn build(links: Links, seed: u64, journal: &Journal) -> Result<SmallSites> {
        let world = Dumbbell::over(link("rate=10M,delay=150ms,queue=100ms"), 2, seed, journal)?;
        let (near, far) = (&world.hosts_a()[1], &world.hosts_b()[1]);
        for host in [near, far] {
            host.set_congestion_control(CONGESTION)?;
        }
        let server = SessionServer::start(world.b1(), PORT)?;
        let tunnel = Tunnel::start(near, far, server.address(), links)?;
        Ok(SmallSites { tunnel, _server: server, world })
    }
}

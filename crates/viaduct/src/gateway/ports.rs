//! Ports of a packet thread: its sockets and the TUN.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use tracing::warn;
use viaduct_proto::keys::Entropy;
use viaduct_proto::repair::Local;
use viaduct_proto::time::Instant;
use viaduct_sys::clock;
use viaduct_sys::socket::udp::UdpBatch;

use super::fake_tcp::FakeTcpPort;
use super::injector::Injector;
use super::path_choice;
use super::site::Site;

/// Sockets and the TUN of a packet thread.
pub struct Ports {
    /// Socket that sends repairs.
    pub udp: UdpBatch,
    /// Socket of the second WAN, if there are two.
    pub second: Option<UdpBatch>,
    /// Ports and sockets of fake TCP, if a peer may use it.
    pub fake_tcp: Option<FakeTcpPort>,
    /// TUN through which recovered packets enter the kernel.
    pub injector: Injector,
}

impl Ports {
    /// Opens the ports of a gateway at a regular start, not in an upgrade.
    pub fn open(site: &mut Site, local: &Local, injector: Injector) -> Result<Ports> {
        let now = Instant::from_nanos(clock::now());
        let fake_tcp = open_fake_tcp(site, local.entropy.clone(), now)?;
        let udp = open_udp(site, 0, site.config.listen)?;
        let second = site.config.wans.get(1);
        let second = second.map(|wan| open_udp(site, 1, wan.listen)).transpose()?;
        Ok(Ports { udp, second, fake_tcp, injector })
    }

    /// Ports of all workers, which share the socket and the TUN.
    pub fn of_workers(mut self, site: &Site) -> Result<Vec<Ports>> {
        let others = (1..site.config.workers).map(|_| {
            let udp = self.udp.try_clone().context("cannot duplicate the repair socket")?;
            Ok(Ports { udp, second: None, fake_tcp: None, injector: self.injector.share()? })
        });
        let mut others = others.collect::<Result<Vec<_>>>()?;
        others.insert(0, self);
        Ok(others)
    }
}

/// Opens the socket that sends repairs. With two WANs, its datagrams take the path with
/// index `path`.
fn open_udp(site: &Site, path: usize, listen: SocketAddr) -> Result<UdpBatch> {
    let table = if site.config.wans.is_empty() { "[site]" } else { "[[site.wan]]" };
    let cannot_use = || format!("{table} listen: cannot use {listen}");
    let udp = UdpBatch::bind(listen).with_context(cannot_use)?;
    udp.block_receive().context("cannot filter the repair socket")?;
    if !site.config.wans.is_empty() {
        let rules = path_choice::rules(&site.config, |_| Default::default());
        udp.set_mark(rules.mark(path)).context("cannot mark the repair socket")?;
    }
    Ok(udp)
}

/// Opens the ports of fake TCP if a peer may use it. If that fails, peers with `transport = "auto"`
/// use UDP. Errors: the ports cannot be opened, and a peer may use only fake TCP.
fn open_fake_tcp(site: &mut Site, entropy: Entropy, now: Instant) -> Result<Option<FakeTcpPort>> {
    if !site.config.wants_fake_tcp() {
        return Ok(None);
    }
    match FakeTcpPort::open(site, entropy, now) {
        Ok(port) => {
            site.fake_tcp = port.addresses()?;
            Ok(Some(port))
        }
        Err(error) if site.forces_fake_tcp() => Err(error),
        Err(error) => {
            warn!("{error:#}; peers are reached by UDP alone");
            Ok(None)
        }
    }
}

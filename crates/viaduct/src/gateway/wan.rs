//! A WAN interface that falls, rises or gets another MTU while the gateway runs: the kernel forgets
//! the routes through one that falls, and with another MTU other packets leave room for repairs.

use anyhow::Result;
use viaduct_sys::interface::Interface;

use super::site::Site;

/// What the WAN was like when the room for repairs was made.
#[derive(Debug)]
pub struct WanWatch {
    interface: Interface,
    mtu: usize,
    falls: u64,
    stale: bool,
}

impl WanWatch {
    /// Of the WAN of `site`, whose room has just been made.
    pub fn new(site: &Site) -> Result<WanWatch> {
        let interface = Interface::new(&site.config.wan)?;
        Ok(WanWatch { interface, mtu: site.wan_mtu, falls: 0, stale: false })
    }

    /// Whether the room must be made again, after the interface fell `falls` times in all. One that
    /// is down or away waits.
    pub fn is_stale(&mut self, falls: u64) -> bool {
        self.stale |= falls != self.falls;
        self.falls = falls;
        let mtu = self.interface.mtu().ok().and_then(|mtu| usize::try_from(mtu).ok());
        self.stale |= mtu.is_some_and(|mtu| mtu != self.mtu);
        self.stale && self.interface.is_up().unwrap_or(false)
    }

    /// The room has been made for `site`.
    pub fn settled(&mut self, site: &Site) {
        self.mtu = site.wan_mtu;
        self.stale = false;
    }
}

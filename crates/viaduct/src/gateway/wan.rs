//! WAN that changes while the gateway runs: an interface that goes down, comes up or gets
//! another MTU, and routes to the peers that another program changes. The kernel drops the
//! routes through an interface that goes down. With another MTU, the packet length that leaves
//! room for repairs changes. The routes of this program replace others, which may be gone.

use anyhow::{Context, Result};
use viaduct_sys::route::interface::Interface;
use viaduct_sys::route::watch::RouteWatch;

use super::preflight::pair;
use super::site::Site;

/// State of the WAN at the time when the room for repairs was made.
#[derive(Debug)]
pub struct WanWatch {
    interface: Interface,
    mtu: usize,
    falls: u64,
    routes: RouteWatch,
    stale: bool,
    /// Reason why the room could not be made again, if it was tried.
    trouble: Option<String>,
}

impl WanWatch {
    /// Creates a watch on the WAN of `site`, whose room has just been made.
    pub fn new(site: &Site) -> Result<WanWatch> {
        let interface = Interface::new(&site.config.wan)?;
        let (mtu, routes) = (site.wan_mtu, watch_routes(site)?);
        Ok(WanWatch { interface, mtu, falls: 0, routes, stale: false, trouble: None })
    }

    /// Returns whether the room must be made again, given the total number of times that the
    /// interface went down. While the interface is down or absent, this waits.
    pub fn is_stale(&mut self, falls: u64) -> bool {
        self.stale |= falls != self.falls;
        self.falls = falls;
        let mtu = self.interface.mtu().ok().and_then(|mtu| usize::try_from(mtu).ok());
        self.stale |= mtu.is_some_and(|mtu| mtu != self.mtu);
        self.stale |= self.routes.changed();
        self.stale && self.interface.is_up().unwrap_or(false)
    }

    /// Problem of the interface itself, if it carries nothing.
    pub fn down(&self) -> Option<String> {
        let name = self.interface.name();
        match (self.interface.mtu(), self.interface.is_up()) {
            (Err(_), _) => Some(format!("{name} is gone")),
            (Ok(_), Ok(false)) => Some(format!("{name} is down")),
            (Ok(_), Ok(true)) if !self.interface.is_running().unwrap_or(true) => {
                Some(format!("{name} has no carrier"))
            }
            (Ok(_), _) => None,
        }
    }

    /// Marks the room as no longer in force, so that it is made again.
    pub fn set_stale(&mut self) {
        self.stale = true;
    }

    /// Notes that the room has been made for `site`.
    pub fn mark_applied(&mut self, site: &Site) -> Result<()> {
        // A new watch is needed: replacing routes by ours has caused notifications.
        self.routes = watch_routes(site)?;
        (self.mtu, self.stale) = (site.wan_mtu, false);
        self.trouble = None;
        Ok(())
    }

    /// Notes that the room could not be made. Returns true if the reason is new.
    pub fn record_failure(&mut self, why: String) -> bool {
        let is_new = self.trouble.as_ref() != Some(&why);
        self.trouble = Some(why);
        is_new
    }

    /// Reason why the room could not be made.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

/// Watches the routes to the peers of `site` from now on.
fn watch_routes(site: &Site) -> Result<RouteWatch> {
    let peers = site.config.peers.iter().flat_map(|peer| &peer.prefixes);
    RouteWatch::new(peers.map(pair).collect()).context("watch the routes to the peers")
}

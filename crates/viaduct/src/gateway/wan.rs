//! A WAN that changes while the gateway runs: an interface that falls, rises or gets another MTU,
//! and routes to the peers that somebody changes. The kernel forgets the routes through an
//! interface that falls, with another MTU other packets leave room for repairs, and our routes stand
//! for others that may be gone.

use anyhow::{Context, Result};
use viaduct_sys::interface::Interface;
use viaduct_sys::route_watch::RouteWatch;

use super::machine::pair;
use super::site::Site;

/// What the WAN was like when the room for repairs was made.
#[derive(Debug)]
pub struct WanWatch {
    interface: Interface,
    mtu: usize,
    falls: u64,
    routes: RouteWatch,
    stale: bool,
    /// What is in the way of making the room again, if it was tried.
    trouble: Option<String>,
}

impl WanWatch {
    /// Of the WAN of `site`, whose room has just been made.
    pub fn new(site: &Site) -> Result<WanWatch> {
        let interface = Interface::new(&site.config.wan)?;
        let (mtu, routes) = (site.wan_mtu, watch_routes(site)?);
        Ok(WanWatch { interface, mtu, falls: 0, routes, stale: false, trouble: None })
    }

    /// Whether the room must be made again, after the interface fell `falls` times in all. One that
    /// is down or away waits.
    pub fn is_stale(&mut self, falls: u64) -> bool {
        self.stale |= falls != self.falls;
        self.falls = falls;
        let mtu = self.interface.mtu().ok().and_then(|mtu| usize::try_from(mtu).ok());
        self.stale |= mtu.is_some_and(|mtu| mtu != self.mtu);
        self.stale |= self.routes.changed();
        self.stale && self.interface.is_up().unwrap_or(false)
    }

    /// What is wrong with the interface itself, if it carries nothing.
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

    /// The room that was in force is not any more: it must be made again.
    pub fn set_stale(&mut self) {
        self.stale = true;
    }

    /// The room has been made for `site`.
    pub fn settled(&mut self, site: &Site) -> Result<()> {
        // A new watch: to put our routes in place others were taken away and back.
        self.routes = watch_routes(site)?;
        (self.mtu, self.stale) = (site.wan_mtu, false);
        self.trouble = None;
        Ok(())
    }

    /// The room could not be made; true if that is news.
    pub fn failed(&mut self, why: String) -> bool {
        let news = self.trouble.as_ref() != Some(&why);
        self.trouble = Some(why);
        news
    }

    /// What is in the way of making the room.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }
}

/// Notice of what happens to the routes to the peers of `site` from now on.
fn watch_routes(site: &Site) -> Result<RouteWatch> {
    let peers = site.config.peers.iter().flat_map(|peer| &peer.prefixes);
    RouteWatch::new(peers.map(pair).collect()).context("watch the routes to the peers")
}

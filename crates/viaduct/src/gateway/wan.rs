//! Changes of the WAN while the gateway runs. In each case the room for repairs (lowered route MTUs
//! and MSS clamps, see [`super::system`]) must be made again:
//!
//! - The interface goes down: the kernel drops all routes through it.
//! - The interface gets another MTU: the packet length that leaves room for repairs changes.
//! - Another program changes the routes to the peers: the gateway's own routes are copies of them.

use anyhow::{Context, Result};
use tracing::{info, warn};
use viaduct_sys::route::interface::Interface;
use viaduct_sys::route::watch::RouteWatch;

use super::control::Control;
use super::preflight::pair;
use super::site::Site;
use super::system::System;

/// State of the WAN when the room for repairs was last made.
#[derive(Debug)]
pub struct WanWatch {
    interface: Interface,
    /// Second interface, if there are two.
    second: Option<Interface>,
    mtu: usize,
    falls: u64,
    routes: RouteWatch,
    stale: bool,
    /// True from the time at which the room is made until the lowered routes are checked.
    is_unverified: bool,
    /// Reason why the room could not be made, entirely or in part.
    trouble: Option<String>,
}

impl WanWatch {
    /// Creates a watch on the WAN of `site`, whose room has just been made.
    pub fn new(site: &Site) -> Result<WanWatch> {
        let interface = Interface::new(&site.config.wan)?;
        let second = site.config.wans.get(1);
        let second = second.map(|wan| Interface::new(&wan.interface)).transpose()?;
        let (mtu, routes) = (site.wan_mtu, watch_routes(site)?);
        Ok(WanWatch {
            interface,
            second,
            mtu,
            falls: 0,
            routes,
            stale: false,
            is_unverified: true,
            trouble: None,
        })
    }

    /// Returns true if the room must be made again, and the interface is up. `falls` is the number
    /// of times that the interface has gone down so far.
    pub fn is_stale(&mut self, falls: u64) -> bool {
        self.stale |= falls != self.falls;
        self.falls = falls;
        let mtu = |of: &Interface| of.mtu().ok().and_then(|mtu| usize::try_from(mtu).ok());
        let mtu = [&self.interface].into_iter().chain(&self.second).filter_map(mtu).min();
        self.stale |= mtu.is_some_and(|mtu| mtu != self.mtu);
        self.stale |= self.routes.changed();
        self.stale && self.interface.is_up().unwrap_or(false)
    }

    /// Problem of the interface itself, if it is gone, down or without a carrier.
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

    /// Marks the room as no longer in force: it must be made again.
    pub fn set_stale(&mut self) {
        self.stale = true;
    }

    /// Records that the room has been made for `site`. Its routes are still to be checked.
    pub fn mark_applied(&mut self, site: &Site) -> Result<()> {
        self.mark_complete(site)?;
        self.is_unverified = true;
        Ok(())
    }

    /// Records that the MTUs of the waiting routes are also lowered.
    fn mark_complete(&mut self, site: &Site) -> Result<()> {
        // The old watch has notifications of the routes that the gateway itself has replaced.
        self.routes = watch_routes(site)?;
        (self.mtu, self.stale) = (site.wan_mtu, false);
        self.trouble = None;
        Ok(())
    }

    /// Records that the room could not be made. Returns true if the reason is new.
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

impl Control {
    /// Makes the room for repairs ([`super::system`]) again when the WAN has changed. Must be
    /// called once a second: an attempt fails while the routes of the WAN are not back yet.
    pub(super) async fn follow_wan(&mut self, system: &mut System) {
        if !self.wan.is_stale(self.workers.wan_falls()) {
            if std::mem::take(&mut self.wan.is_unverified) && !system.is_in_force(&self.site) {
                self.wan.set_stale();
            }
            if system.retry(&self.site) {
                info!("the size of packets is now limited, so that repairs fit the WAN");
                if let Err(error) = self.wan.mark_complete(&self.site) {
                    warn!("{error:#}");
                }
            }
            self.log_wait_reason(system);
            return;
        }
        let done = match Site::new(self.site.config.clone()) {
            Ok(site) => self.apply(site, system).await,
            Err(error) => Err(error),
        };
        self.log_wait_reason(system);
        match done {
            Ok(()) if system.wait_reason().is_some() || self.wan.trouble.is_some() => {}
            Ok(()) if system.has_room() => {
                info!(
                    mtu = self.site.wan_mtu,
                    "the WAN has changed: the size of packets is limited again, so that repairs fit"
                );
            }
            Ok(()) => {}
            Err(e) => {
                let why = format!("repairs do not fit the WAN: {e:#}");
                if self.wan.record_failure(why.clone()) {
                    warn!("the WAN has changed, and {why}; tried again each second");
                }
            }
        }
    }

    /// Reports in the status and the log why the room for repairs is not made yet.
    fn log_wait_reason(&mut self, system: &System) {
        if let Some(reason) = system.wait_reason()
            && self.wan.record_failure(reason.clone())
        {
            warn!("{reason}; tried again each second");
        }
    }
}

/// Starts a watch on the routes to the peers of `site`.
fn watch_routes(site: &Site) -> Result<RouteWatch> {
    let peers = site.config.peer_sites().flat_map(|peer| &peer.prefixes);
    RouteWatch::new(peers.map(pair).collect()).context("cannot watch the routes to the peers")
}

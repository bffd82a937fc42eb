//! What a gateway changes on its machine, and puts back.

use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;

use anyhow::{Context as _, Result, bail};
use tracing::{info, warn};
use viaduct_sys::intercept::Intercept;
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::MssClamp;
use viaduct_sys::route::RouteMtu;
use viaduct_sys::rules_watch::RulesWatch;

use super::injector::Injector;
use super::machine::pair;
use super::site::Site;
use crate::proxy::keeper::Interception;

/// The changes that are in force.
pub struct System {
    changes: Changes,
    /// Whether offloads are off.
    is_cut: bool,
    room: Room,
    /// Where in the changes those for the room begin.
    mark: usize,
    /// Not all of the room is in force.
    incomplete: bool,
    /// Routes that cannot be lowered yet, each with what it waits for.
    waiting: Vec<(Lowered, String)>,
    /// Hears of rules that somebody takes away; a kernel without nftables has none.
    rules: Option<RulesWatch>,
}

/// A prefix, and the longest packet towards it.
type Lowered = ((IpAddr, u8), u32);
/// Waiting routes that are tried in a second, at most: each takes some milliseconds.
const MAX_TRIES: usize = 16;

/// What keeps packets short towards peers whose repairs would not fit otherwise.
#[derive(Debug, Default)]
struct Room {
    routes: Vec<Lowered>,
    clamps: Vec<MssClamp>,
}

impl System {
    /// Puts back what an earlier run left, then makes this run's changes: all of them, or none. Where nothing is repaired
    /// there are none.
    pub fn prepare(site: &Site) -> Result<(System, Injector)> {
        let config = &site.config;
        fs::create_dir_all(&config.run_dir)
            .with_context(|| format!("[site] run_dir: cannot make {}", config.run_dir.display()))?;
        let changes = Changes::open(&config.journal())?;
        for warning in changes.warnings() {
            warn!("left by an earlier run: {warning}");
        }
        if changes.took_over() {
            info!("put back what an earlier run that was killed had left");
        }
        // First: another gateway of this name has it already, and nothing of its must be touched.
        let mut injector = Injector::new(site);
        if !site.only_observes() {
            injector.open()?;
        }
        let mark = changes.mark();
        let mut system = System {
            changes,
            is_cut: false,
            room: Room::default(),
            mark,
            incomplete: false,
            waiting: Vec::new(),
            rules: RulesWatch::new().ok(),
        };
        system.follow(site)?;
        Ok((system, injector))
    }

    /// Makes the room that `site` asks for instead of the one in force. What somebody else has undone
    /// meanwhile is made again. Where a peer's route is not there its part waits ([`System::waits`]).
    ///
    /// # Errors
    /// A rule cannot be made: the room before stays, as far as it can still be made
    /// ([`System::is_complete`]).
    pub fn follow(&mut self, site: &Site) -> Result<()> {
        let room = Room::new(site)?;
        self.changes.repeat(self.mark)?;
        self.changes.restore_since(self.mark)?;
        if !self.is_cut && !site.only_observes() {
            // Below the room, and to the end: a gateway that observes again works on as well.
            self.changes.offload_off(&site.config.wan)?;
            (self.is_cut, self.mark) = (true, self.changes.mark());
        }
        let made = room.make_clamps(&mut self.changes);
        if made.is_err() {
            let back = self.changes.restore_since(self.mark).map_err(anyhow::Error::from);
            let again = back.and_then(|()| self.room.make_clamps(&mut self.changes));
            self.incomplete = again.is_err();
        } else {
            (self.room, self.incomplete) = (room, false);
        }
        self.waiting = self.room.routes.iter().map(|&route| (route, String::new())).collect();
        self.try_routes(site, usize::MAX);
        made?;
        for clamp in &self.room.clamps {
            let longest = clamp.max_packet;
            info!(longest, "packets are kept short, so that repairs fit the WAN");
        }
        Ok(())
    }

    /// Whether all lowered routes are still in force: another program may have changed one before it
    /// was watched.
    pub fn is_in_force(&self, site: &Site) -> bool {
        let waits = |route: &Lowered| self.waiting.iter().any(|(waiting, _)| waiting == route);
        let lowered = |&((ip, length), longest): &Lowered| {
            let plan = RouteMtu::plan((ip, length), &site.config.wan, longest);
            plan.ok().is_none_or(|plan| plan.is_empty())
        };
        self.room.routes.iter().filter(|route| !waits(route)).all(lowered)
    }

    /// Tries anew what waits; whether that was the last of it.
    pub fn retry(&mut self, site: &Site) -> bool {
        let waited = !self.waiting.is_empty();
        self.try_routes(site, MAX_TRIES);
        waited && self.waiting.is_empty()
    }

    fn try_routes(&mut self, site: &Site, most: usize) {
        let mut waiting = std::mem::take(&mut self.waiting);
        // Those that were not tried come first the next time.
        let later = waiting.split_off(waiting.len().min(most));
        self.waiting = later;
        for (route, _) in waiting {
            let ((ip, length), longest) = route;
            if let Err(error) = self.changes.route_mtu((ip, length), &site.config.wan, longest) {
                self.waiting.push((route, format!("{}: {error}", site.to_peer(ip))));
            }
        }
    }

    /// What the room for repairs waits for, if it waits.
    pub fn waits(&self) -> Option<String> {
        // The least: which of them is tried next is no news.
        let first = self.waiting.iter().map(|(_, why)| why).filter(|why| !why.is_empty()).min()?;
        let more = self.waiting.len() - 1;
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        Some(format!("repairs have no room: {first}{more}"))
    }

    /// Has the kernel hand over the flows of split mode, to somebody who listens already.
    pub fn intercept(&mut self, site: &Site, intercept: Intercept) -> Result<()> {
        // Below the room, which is remade whenever the WAN changes: this stays.
        self.changes.restore_since(self.mark)?;
        self.changes.intercept(intercept)?;
        self.mark = self.changes.mark();
        self.follow(site)
    }

    /// Has new flows of split mode pass by; those that have begun still find here.
    pub fn pass_by(&mut self) -> Result<()> {
        Ok(self.changes.pass_by()?)
    }

    /// Restores rules that another program removed. Call it once a second.
    pub fn keep(&self, interception: &Interception) {
        if interception.is_missing() || self.rules.as_ref().is_some_and(RulesWatch::lost) {
            interception.keep(&self.changes);
        }
    }

    /// Whether the room that was last asked for is in force.
    pub fn is_complete(&self) -> bool {
        !self.incomplete
    }

    /// Whether packets must be kept short at all.
    pub fn has_room(&self) -> bool {
        !self.room.routes.is_empty()
    }

    /// Puts everything back.
    pub fn restore(self) -> Result<()> {
        Ok(self.changes.restore()?)
    }
}

impl Room {
    /// What `site` needs: lower route MTUs and MSS towards peers whose repairs would not fit.
    fn new(site: &Site) -> Result<Room> {
        let mut by_size: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for peer in &site.config.peers {
            let Some(longest) = site.clamp(peer) else { continue };
            by_size
                .entry(u32::try_from(longest)?)
                .or_default()
                .extend(peer.prefixes.iter().map(pair));
        }
        let mut room = Room::default();
        for (i, (max_packet, peers)) in by_size.into_iter().enumerate() {
            room.routes.extend(peers.iter().map(|&prefix| (prefix, max_packet)));
            room.clamps.push(MssClamp {
                instance: format!("{}_{i}", table_name(&site.config.name)),
                interface: site.config.wan.clone(),
                peers,
                max_packet,
            });
        }
        Ok(room)
    }

    fn make_clamps(&self, changes: &mut Changes) -> Result<()> {
        self.clamps.iter().try_for_each(|clamp| Ok(changes.mss_clamp(clamp.clone())?))
    }
}

/// What would keep the room that `site` needs from being made, one line each; changes nothing.
///
/// # Errors
/// A route leads to a VLAN of the configured interface: that is a trunk, whose packets are tagged.
pub fn plan(site: &Site) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    for ((ip, length), longest) in Room::new(site)?.routes {
        if let Err(error) = RouteMtu::plan((ip, length), &site.config.wan, longest) {
            warnings.push(format!("{}: {error}; the gateway waits for it", site.to_peer(ip)));
        }
    }
    if let Some(vlan) = super::machine::vlan_of_trunk(&site.config) {
        bail!(
            "[site] wan: {:?} is a trunk: packets to peers leave tagged, by its VLAN {vlan:?}, \
                which is \
             expected here",
            site.config.wan
        );
    }
    Ok(warnings)
}

fn table_name(site: &str) -> String {
    site.chars().take(24).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

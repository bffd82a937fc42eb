//! Changes that a gateway makes to its machine, and reverts.
//!
//! The *room for repairs* (`Room`) consists of lowered route MTUs and MSS clamps. They limit the
//! length of packets towards some peers, so that a repair of a full-size packet fits into the MTU
//! of the WAN.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::{fs, io};

use anyhow::{Context as _, Result, bail};
use tracing::{info, warn};
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::mss_clamp::MssClamp;
use viaduct_sys::nft::path_rules::PathRules;
use viaduct_sys::nft::rule_watch::RuleWatch;
use viaduct_sys::route::mtu::RouteMtu;

use super::injector::Injector;
use super::path_choice;
use super::preflight::pair;
use super::site::Site;
use crate::engine::intercept::InterceptState;
use crate::handover::old_process;
use crate::settings::thread::ProxyThread;

/// Changes that are in force.
pub struct System {
    changes: Changes,
    /// True if offloads are off.
    offloads_off: bool,
    room: Room,
    /// Index in the journal of the first change that makes room for repairs. These changes are the
    /// last ones, so that they can be replaced while the others stay.
    mark: usize,
    /// True if, after a failure, the changes in force are not those of the config in force.
    incomplete: bool,
    /// Routes whose MTU cannot be lowered yet, each with the reason.
    waiting: Vec<(Lowered, String)>,
    /// Notifications about rules that another program removes; `None` if they cannot be received,
    /// for example because the kernel has no nftables.
    rules: Option<RuleWatch>,
    /// State of the gateway's rules in nftables and policy routing. The proxy of split mode, if
    /// there is one, reports the same state.
    rule_state: Arc<InterceptState>,
}

/// Prefix, and the maximum length of packets towards it.
type Lowered = ((IpAddr, u8), u32);
/// Maximum number of waiting routes that are tried per second: each attempt takes some
/// milliseconds.
const MAX_ATTEMPTS: usize = 16;

/// Room for repairs: route MTUs and MSS clamps that limit the length of packets towards peers to
/// which repairs would otherwise exceed the MTU of the WAN.
#[derive(Debug, Default)]
struct Room {
    routes: Vec<Lowered>,
    clamps: Vec<MssClamp>,
}

impl System {
    /// Reverts the changes of an earlier run, then makes those of this run: all of them, or none
    /// after an error. With a single WAN, nothing is changed if all peers are only observed.
    pub fn prepare(site: &Site) -> Result<(System, Injector)> {
        let config = &site.config;
        fs::create_dir_all(&config.run_dir).with_context(|| {
            format!("[site] run_dir: cannot create {}", config.run_dir.display())
        })?;
        let changes = Changes::open(&config.journal())?;
        for warning in changes.warnings() {
            warn!("left by an earlier run: {warning}");
        }
        if changes.took_over() {
            info!("the changes of an earlier run that was killed were reverted");
        }
        // The TUN is opened before any change is made. Opening it fails if another gateway of this
        // name runs, whose changes must not be touched.
        let mut injector = Injector::new(site);
        if !site.only_observes() {
            injector.open()?;
        }
        let mark = changes.mark();
        let mut system = System {
            changes,
            offloads_off: false,
            room: Room::default(),
            mark,
            incomplete: false,
            waiting: Vec::new(),
            rules: RuleWatch::new().ok(),
            rule_state: Arc::default(),
        };
        system.apply(site)?;
        system.open_paths(site)?;
        Ok((system, injector))
    }

    /// With two WANs, lets packets arrive on both, and distributes outgoing packets between them.
    fn open_paths(&mut self, site: &Site) -> Result<()> {
        if site.config.wans.is_empty() {
            return Ok(());
        }
        for interface in site.config.interfaces() {
            // Loose reverse-path filtering: the main table's route to the peers' hosts uses one
            // WAN only.
            self.changes.sysctl(&format!("net/ipv4/conf/{interface}/rp_filter"), "2")?;
        }
        self.choose_paths(path_choice::rules(&site.config, |_| Default::default()))
    }

    /// Makes packets take the paths in `rules`. Errors: the kernel refuses the rules. The earlier
    /// rules then stay in force.
    pub fn choose_paths(&mut self, rules: PathRules) -> Result<()> {
        // With two WANs `lower_mtu` is refused, so no packet size limits follow in the journal.
        self.changes.path_rules(rules)?;
        self.mark = self.changes.mark();
        Ok(())
    }

    /// Restores missing rules and routes of the paths, for example after an interface was down.
    /// Errors: the kernel refuses.
    pub fn keep_paths(&self) -> Result<()> {
        self.changes.repair().map(drop)?;
        Ok(())
    }

    /// Takes over the old process's changes, which stay in force, and their `locks`. The journal's
    /// changes with index `mark` and higher are the packet size limits that `site` needs. Until
    /// [`System::own`], the old process is responsible for all changes. `flows` is the proxy of
    /// split mode.
    ///
    /// # Errors
    /// The journal is not the old process's, or cannot be written.
    pub fn take_over(
        site: &Site,
        (offloads_off, mark): (bool, usize),
        locks: Vec<(String, OwnedFd)>,
        flows: Option<&ProxyThread>,
    ) -> Result<System> {
        let changes = Changes::take_over(&site.config.journal(), old_process()?, locks)?;
        let room = Room::new(site)?;
        let missing = |&((ip, length), longest): &Lowered| {
            let plan = RouteMtu::plan((ip, length), &site.config.wan, longest);
            let why = plan.err().map(|error| format!("{}: {error}", site.no_route_to(ip)));
            why.map(|why| (((ip, length), longest), why))
        };
        let waiting = room.routes.iter().filter_map(missing).collect();
        let (mark, rules) = (mark.min(changes.mark()), RuleWatch::new().ok());
        Ok(System {
            changes,
            offloads_off,
            room,
            mark,
            incomplete: false,
            waiting,
            rules,
            rule_state: flows
                .map(|flows| flows.engine.handle.intercept_state().clone())
                .unwrap_or_default(),
        })
    }

    /// Makes this process responsible for the changes.
    pub fn own(&mut self) {
        self.changes.own();
    }

    /// Makes this process the journal's owner again, after another process has failed to take over.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn reclaim(&self) -> Result<()> {
        Ok(self.changes.reclaim()?)
    }

    /// Leaves the changes to the process that has taken them over.
    pub fn leave(&mut self) {
        self.changes.leave();
    }

    /// Returns whether offloads are off, and the index of the first packet size limit in the
    /// journal, for [`System::take_over`].
    pub fn marks(&self) -> (bool, usize) {
        (self.offloads_off, self.mark)
    }

    /// Duplicates of the instance locks of the rules, for [`System::take_over`].
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn locks(&self) -> io::Result<Vec<(String, OwnedFd)>> {
        let copy = |(name, fd): (&str, BorrowedFd<'_>)| -> io::Result<_> {
            Ok((name.to_owned(), fd.try_clone_to_owned()?))
        };
        self.changes.locks().map(copy).collect()
    }

    /// Replaces the MTU and MSS limits in force with those that `site` needs. Changes that another
    /// program has undone are made again. If there is no route to a peer yet, the MTU of that route
    /// is lowered once it exists ([`System::retry`], [`System::wait_reason`]). Errors: a rule
    /// cannot be installed. The previous MSS clamps are restored, if possible
    /// ([`System::is_complete`]).
    pub fn apply(&mut self, site: &Site) -> Result<()> {
        let room = Room::new(site)?;
        self.changes.repeat(self.mark)?;
        let made_before = self.changes.mark();
        let undone = self.changes.restore_since(self.mark);
        self.incomplete |= self.changes.mark() < made_before;
        undone?;
        if !self.offloads_off && !site.only_observes() {
            // The change of offloads precedes `mark`, so `apply` never reverts it: offloads stay
            // off until exit, even if a reload sets all peers to `observe`.
            for interface in site.config.interfaces() {
                self.changes.offload_off(interface)?;
            }
            (self.offloads_off, self.mark) = (true, self.changes.mark());
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
            info!(longest, "the size of packets is limited, so that repairs fit the WAN");
        }
        Ok(())
    }

    /// Returns whether the lowered MTU of every route is still in force, except for waiting routes.
    /// Another program may have changed a route before the watch on it began.
    pub fn is_in_force(&self, site: &Site) -> bool {
        let waits = |route: &Lowered| self.waiting.iter().any(|(waiting, _)| waiting == route);
        let lowered = |&((ip, length), longest): &Lowered| {
            let plan = RouteMtu::plan((ip, length), &site.config.wan, longest);
            plan.ok().is_none_or(|plan| plan.is_empty())
        };
        self.room.routes.iter().filter(|route| !waits(route)).all(lowered)
    }

    /// Tries up to [`MAX_ATTEMPTS`] of the waiting routes again. Returns true if there were waiting
    /// routes, and none is left.
    pub fn retry(&mut self, site: &Site) -> bool {
        let waited = !self.waiting.is_empty();
        self.try_routes(site, MAX_ATTEMPTS);
        waited && self.waiting.is_empty()
    }

    fn try_routes(&mut self, site: &Site, most: usize) {
        let mut waiting = std::mem::take(&mut self.waiting);
        // Routes that were not tried come first the next time.
        let later = waiting.split_off(waiting.len().min(most));
        self.waiting = later;
        for (route, _) in waiting {
            let ((ip, length), longest) = route;
            if let Err(error) = self.changes.route_mtu((ip, length), &site.config.wan, longest) {
                self.waiting.push((route, format!("{}: {error}", site.no_route_to(ip))));
            }
        }
    }

    /// Reason why the MTU of a route cannot be lowered yet, if there is such a route.
    pub fn wait_reason(&self) -> Option<String> {
        // The first reason in alphabetical order is shown, so that the message does not depend on
        // the order of attempts.
        let first = self.waiting.iter().map(|(_, why)| why).filter(|why| !why.is_empty()).min()?;
        let more = self.waiting.len() - 1;
        let more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
        Some(format!("repairs do not fit the WAN: {first}{more}"))
    }

    /// Makes the kernel redirect the flows of split mode to the proxy `flows`.
    pub fn intercept(&mut self, site: &Site, flows: &ProxyThread) -> Result<()> {
        self.rule_state = flows.engine.handle.intercept_state().clone();
        let Some(intercept) = flows.settings().intercept.clone() else { return Ok(()) };
        // The change for interception precedes `mark` in the journal, so that `apply` can replace
        // the later changes and leave interception in force.
        self.changes.restore_since(self.mark)?;
        self.changes.intercept(intercept)?;
        self.mark = self.changes.mark();
        self.apply(site)
    }

    /// Lets new flows of split mode bypass the proxy. Packets of existing flows are still
    /// redirected.
    pub fn stop_intercepting(&mut self) -> Result<()> {
        Ok(self.changes.pass_by()?)
    }

    /// Restores rules that another program removed. Must be called once a second.
    pub fn restore_rules(&self) {
        let has_deletions = || self.rules.as_ref().is_some_and(RuleWatch::has_deletions);
        if self.rule_state.is_missing() || has_deletions() {
            self.rule_state.restore_missing(&self.changes);
        }
    }

    /// Returns whether rules are missing and could not be restored.
    pub fn has_missing_rules(&self) -> bool {
        self.rule_state.is_missing()
    }

    /// Records that the changes of the config in force could not be made again.
    pub fn set_incomplete(&mut self) {
        self.incomplete = true;
    }

    /// Returns whether the changes of the last successful [`System::apply`] are in force.
    pub fn is_complete(&self) -> bool {
        !self.incomplete
    }

    /// Returns whether packets towards any peer are limited to make room for repairs.
    pub fn has_room(&self) -> bool {
        !self.room.routes.is_empty()
    }

    /// Reverts all changes.
    pub fn restore(self) -> Result<()> {
        Ok(self.changes.restore()?)
    }
}

impl Room {
    /// Route MTUs and MSS clamps that `site` needs: those for peers with a maximum packet length
    /// ([`Site::clamp`]).
    fn new(site: &Site) -> Result<Room> {
        let mut by_size: BTreeMap<u32, Vec<_>> = BTreeMap::new();
        for peer in site.config.peer_sites() {
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

/// Reasons why the MTU of a route to a peer cannot be lowered, one line each. Changes nothing.
/// Errors: the route to a peer uses a VLAN on the configured interface, which is therefore a trunk.
pub fn plan(site: &Site) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    for ((ip, length), longest) in Room::new(site)?.routes {
        if let Err(error) = RouteMtu::plan((ip, length), &site.config.wan, longest) {
            warnings.push(format!("{}: {error}; the gateway keeps trying", site.no_route_to(ip)));
        }
    }
    if let Some(vlan) = super::preflight::vlan_of_trunk(&site.config) {
        bail!(
            "[site] wan: {:?} is a VLAN trunk, and packets to peers use its VLAN {vlan:?}: \
             give that interface instead",
            site.config.wan
        );
    }
    Ok(warnings)
}

/// Name of a site, as a part of the names of its nftables tables.
pub fn table_name(site: &str) -> String {
    site.chars().take(24).map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}

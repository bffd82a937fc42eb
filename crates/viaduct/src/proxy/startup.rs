//! Start of a proxy: its listeners, and the changes to the machine that they need.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use tracing::warn;
use viaduct_sys::capture::filter::SynFilter;
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::intercept::Selector;
use viaduct_sys::nft::syn_hold::{SynHold, SynPath};

use super::settings::Settings;
use crate::engine::listen_set::{self, InheritedFd, ListenSet, SynSourceConfig};

/// An address and a prefix length.
type Prefix = (IpAddr, u8);

/// Opens the listen sets of all loops, or takes over those that a parent `left`, and makes the
/// changes to the machine that belong to them. Dropping the changes reverts them.
pub fn open(
    settings: &Settings,
    left: &[InheritedFd],
) -> Result<(Vec<ListenSet>, Option<Changes>)> {
    if !left.is_empty() {
        let listen_set = ListenSet::inherited(left, queue(settings), most_held(settings))?;
        return Ok((vec![listen_set], None));
    }
    // First: another proxy at this port may own the rules, and nothing of its must be touched.
    let mut changes = claim(settings)?;
    let listen_sets = listen_sets(settings)?;
    // Rules are set only after a listener is in place.
    if let Some(changes) = &mut changes {
        change(settings, changes)?;
    }
    Ok((listen_sets, changes))
}

/// Opens only the listen sets of all loops.
pub fn listen_sets(settings: &Settings) -> Result<Vec<ListenSet>> {
    let (ways, ports) = concern(settings);
    let (sources, destinations) = ends(&ways);
    let (sources, destinations, ports) = (&sources[..], &destinations[..], &ports[..]);
    let filter = SynFilter { sources, destinations, ports, share: None };
    let seen = settings.engine.limits.early.is_some() && settings.engine.target.may_be_in_syn();
    let held = settings.holds.then_some((queue(settings), most_held(settings)));
    let wanted =
        seen.then_some(SynSourceConfig { filter, held, may_be_late: settings.may_be_late });
    settings.engine.listen_sets(wanted)
}

/// Maximum number of held SYNs.
fn most_held(settings: &Settings) -> u32 {
    let (most, _) = settings.engine.limits.early.unwrap_or_default();
    u32::try_from(most).unwrap_or(u32::MAX)
}

/// Number of the queue that holds SYNs.
fn queue(settings: &Settings) -> u16 {
    settings.engine.listen.first().map_or(0, SocketAddr::port)
}

/// SYNs that concern this proxy: their sources and destinations, and the ports.
fn concern(settings: &Settings) -> (Vec<Selector>, Vec<u16>) {
    match &settings.intercept {
        Some(intercept) => (intercept.ways.clone(), intercept.ports.clone()),
        None => {
            let listen = &settings.engine.listen;
            let ports = listen.iter().map(SocketAddr::port).collect();
            (vec![Selector { from: Vec::new(), to: listen_set::prefixes(listen) }], ports)
        }
    }
}

/// All sources (none if one entry matches any), and all destinations.
fn ends(ways: &[Selector]) -> (Vec<Prefix>, Vec<Prefix>) {
    let all = |end: fn(&Selector) -> &Vec<Prefix>| ways.iter().flat_map(end).copied().collect();
    let anywhere = ways.iter().any(|way| way.from.is_empty());
    (if anywhere { Vec::new() } else { all(|way| &way.from) }, all(|way| &way.to))
}

/// Reverts the remains of an earlier run, and claims the tables that this run is to make, if
/// any.
fn claim(settings: &Settings) -> Result<Option<Changes>> {
    let intercept = settings.intercept.as_ref().map(|intercept| intercept.instance.clone());
    let instances = intercept.into_iter().chain(settings.holds.then(|| hold_instance(settings)));
    let instances: Vec<String> = instances.collect();
    let journal = settings.engine.journal();
    // A journal of an earlier run is handled even if this run changes nothing.
    if instances.is_empty() && !journal.exists() {
        return Ok(None);
    }
    let mut changes = Changes::open(&journal)?;
    for warning in changes.warnings() {
        warn!("left by an earlier run: {warning}");
    }
    for instance in &instances {
        changes.lock_instance(instance)?;
    }
    // Without changes, dropping them here deletes the journal.
    Ok((!instances.is_empty()).then_some(changes))
}

/// Name of the table that holds SYNs.
fn hold_instance(settings: &Settings) -> String {
    format!("hold_{}", queue(settings))
}

/// Makes the kernel divert connections to the proxy, and hold their SYNs, as configured.
fn change(settings: &Settings, changes: &mut Changes) -> Result<()> {
    let intercept = &settings.intercept;
    if settings.holds {
        let (instance, queue) = (hold_instance(settings), queue(settings));
        let (ways, ports) = concern(settings);
        let whose = if intercept.is_some() { SynPath::Forwarded } else { SynPath::Local };
        changes.syn_hold(SynHold { instance, queue, whose, ways, ports })?;
    }
    if let Some(intercept) = intercept {
        changes.intercept(intercept.clone())?;
    }
    Ok(())
}

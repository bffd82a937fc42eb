//! How a proxy is begun: its doors, and what it changes on the machine for them.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use tracing::warn;
use viaduct_sys::filter::SynFilter;
use viaduct_sys::hold::{Hold, Where};
use viaduct_sys::intercept::Way;
use viaduct_sys::journal::Changes;

use super::doors::{self, Door, Doors, Wanted};
use super::settings::Settings;

/// An address and a prefix's length.
type Prefix = (IpAddr, u8);

/// Opens the doors, those of each loop, or takes over those that a parent `left`, and makes the changes
/// that belong to them; they are put back when they are dropped.
pub fn open(settings: &Settings, left: &[Door]) -> Result<(Vec<Doors>, Option<Changes>)> {
    if !left.is_empty() {
        let doors = Doors::inherited(left, queue(settings), most_held(settings))?;
        return Ok((vec![doors], None));
    }
    // First: another proxy of this port may have them, and nothing of its must be touched.
    let mut changes = claim(settings)?;
    let doors = doors(settings)?;
    // Only now that somebody listens.
    if let Some(changes) = &mut changes {
        change(settings, changes)?;
    }
    Ok((doors, changes))
}

/// Opens the doors alone, those of each loop.
pub fn doors(settings: &Settings) -> Result<Vec<Doors>> {
    let (ways, ports) = concern(settings);
    let (sources, destinations) = ends(&ways);
    let (sources, destinations, ports) = (&sources[..], &destinations[..], &ports[..]);
    let filter = SynFilter { sources, destinations, ports, share: None };
    let seen = settings.limits.early.is_some() && settings.target.is_in_the_syn();
    let held = settings.holds.then_some((queue(settings), most_held(settings)));
    let wanted = seen.then_some(Wanted { filter, held, may_be_late: settings.may_be_late });
    Doors::open_for(settings.workers, &settings.listen, wanted, settings.options)
}

/// SYNs that are held, at most.
fn most_held(settings: &Settings) -> u32 {
    let (most, _) = settings.limits.early.unwrap_or_default();
    u32::try_from(most).unwrap_or(u32::MAX)
}

/// The queue of held SYNs.
fn queue(settings: &Settings) -> u16 {
    settings.listen.first().map_or(0, SocketAddr::port)
}

/// Which SYNs concern this proxy: their ways, and the ports where they go.
fn concern(settings: &Settings) -> (Vec<Way>, Vec<u16>) {
    match &settings.intercept {
        Some(intercept) => (intercept.ways.clone(), intercept.ports.clone()),
        None => {
            let ports = settings.listen.iter().map(SocketAddr::port).collect();
            (vec![Way { from: Vec::new(), to: doors::prefixes(&settings.listen) }], ports)
        }
    }
}

/// All sources, none if one way has any, and all destinations.
fn ends(ways: &[Way]) -> (Vec<Prefix>, Vec<Prefix>) {
    let all = |end: fn(&Way) -> &Vec<Prefix>| ways.iter().flat_map(end).copied().collect();
    let anywhere = ways.iter().any(|way| way.from.is_empty());
    (if anywhere { Vec::new() } else { all(|way| &way.from) }, all(|way| &way.to))
}

/// Puts back what an earlier run has left, and makes sure of the tables that this one is to make, if
/// any.
fn claim(settings: &Settings) -> Result<Option<Changes>> {
    let intercept = settings.intercept.as_ref().map(|intercept| intercept.instance.clone());
    let instances = intercept.into_iter().chain(settings.holds.then(|| hold_instance(settings)));
    let instances: Vec<String> = instances.collect();
    let journal = settings.journal();
    // One of an earlier run that was to change something is heeded all the same.
    if instances.is_empty() && !journal.exists() {
        return Ok(None);
    }
    let mut changes = Changes::open(&journal)?;
    for warning in changes.warnings() {
        warn!("left by an earlier run: {warning}");
    }
    for instance in &instances {
        changes.claim(instance)?;
    }
    // Without changes its end, here, deletes the journal.
    Ok((!instances.is_empty()).then_some(changes))
}

/// Names the table that holds SYNs.
fn hold_instance(settings: &Settings) -> String {
    format!("hold_{}", queue(settings))
}

/// Has the kernel hand connections to the proxy, and hold their SYNs, if that is wanted.
fn change(settings: &Settings, changes: &mut Changes) -> Result<()> {
    let intercept = &settings.intercept;
    if settings.holds {
        let (instance, queue) = (hold_instance(settings), queue(settings));
        let (ways, ports) = concern(settings);
        let whose = if intercept.is_some() { Where::Passing } else { Where::Here };
        changes.hold(Hold { instance, queue, whose, ways, ports })?;
    }
    if let Some(intercept) = intercept {
        changes.intercept(intercept.clone())?;
    }
    Ok(())
}

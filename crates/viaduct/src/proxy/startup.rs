//! Start of a proxy: its listeners, and the changes to the machine that they need.

use anyhow::Result;
use tracing::warn;
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::syn_hold::{SynHold, SynPath};

use crate::engine::listen_set::{InheritedFd, ListenSet};
use crate::settings::Settings;

/// Opens the listen sets of all loops, or takes over those that a parent `left`, and makes the
/// changes to the machine that belong to them. Dropping the changes reverts them.
pub fn open(
    settings: &Settings,
    left: &[InheritedFd],
) -> Result<(Vec<ListenSet>, Option<Changes>)> {
    if !left.is_empty() {
        let listen_set = ListenSet::inherited(left, settings.syn_queue(), settings.max_held())?;
        return Ok((vec![listen_set], None));
    }
    // First: another proxy at this port may own the rules, and nothing of its must be touched.
    let mut changes = claim(settings)?;
    let listen_sets = settings.listen_sets()?;
    // Rules are set only after a listener is in place.
    if let Some(changes) = &mut changes {
        change(settings, changes)?;
    }
    Ok((listen_sets, changes))
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
    format!("hold_{}", settings.syn_queue())
}

/// Makes the kernel divert connections to the proxy, and hold their SYNs, as configured.
fn change(settings: &Settings, changes: &mut Changes) -> Result<()> {
    let intercept = &settings.intercept;
    if settings.holds {
        let (instance, queue) = (hold_instance(settings), settings.syn_queue());
        let (ways, ports) = settings.scope();
        let whose = if intercept.is_some() { SynPath::Forwarded } else { SynPath::Local };
        changes.syn_hold(SynHold { instance, queue, whose, ways, ports })?;
    }
    if let Some(intercept) = intercept {
        changes.intercept(intercept.clone())?;
    }
    Ok(())
}

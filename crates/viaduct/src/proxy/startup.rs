//! Start of a proxy: its listeners, and the changes to the machine that they need.

use anyhow::Result;
use tracing::warn;
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::syn_hold::{SynHold, SynPath};

use crate::engine::listen_set::{InheritedFd, ListenSet};
use crate::settings::Settings;

/// Opens the listen sets of all loops, and makes the changes to the machine that they need.
/// Dropping the changes reverts them. If the parent process has left descriptors open (`left`),
/// uses the parent's listen set, and changes nothing.
pub fn open(
    settings: &Settings,
    left: &[InheritedFd],
) -> Result<(Vec<ListenSet>, Option<Changes>)> {
    if !left.is_empty() {
        let listen_set = ListenSet::inherited(left, settings.syn_queue(), settings.max_held())?;
        return Ok((vec![listen_set], None));
    }
    // The rules are claimed first, because nothing may be changed if another proxy owns the rules
    // of this port.
    let mut changes = claim(settings)?;
    let listen_sets = settings.listen_sets()?;
    // Rules are set only after a listener is in place.
    if let Some(changes) = &mut changes {
        change(settings, changes)?;
    }
    Ok((listen_sets, changes))
}

/// Reverts the changes that an earlier run has left, and locks the nftables tables that this run
/// will create. `None` if this run creates no tables.
fn claim(settings: &Settings) -> Result<Option<Changes>> {
    let intercept = settings.intercept.as_ref().map(|intercept| intercept.instance.clone());
    let instances = intercept.into_iter().chain(settings.holds.then(|| hold_instance(settings)));
    let instances: Vec<String> = instances.collect();
    let journal = settings.engine.journal();
    // The journal of an earlier run is processed even if this run changes nothing.
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
    // If this run makes no changes, `changes` is dropped here, which deletes the journal.
    Ok((!instances.is_empty()).then_some(changes))
}

/// Name of the instance of rules that hold SYNs.
fn hold_instance(settings: &Settings) -> String {
    format!("hold_{}", settings.syn_queue())
}

/// Makes the kernel divert connections to the proxy and hold their SYNs, as configured.
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

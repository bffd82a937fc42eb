//! Capabilities that a service needs.

use anyhow::{Result, bail};
use rustix::thread::{CapabilitySet, capabilities};

/// Checks that this process has the capabilities `needed` by the service `what`.
///
/// # Errors
/// A line that names the first missing capability, and the remedy.
pub fn check(what: &str, needed: &[&str]) -> Result<()> {
    // If the kernel does not report capabilities, the first call that needs a missing one fails.
    let Ok(sets) = capabilities(None) else { return Ok(()) };
    let has = |name: &&str| {
        CapabilitySet::from_name(name.trim_start_matches("CAP_"))
            .is_none_or(|one| sets.effective.contains(one))
    };
    match needed.iter().find(|name| !has(name)) {
        Some(name) => bail!(
            "{what} needs the capabilities {}, and {name} is missing: run it as root, or from its \
             systemd unit",
            needed.join(" and ")
        ),
        None => Ok(()),
    }
}

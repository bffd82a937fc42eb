//! A change of the system: how it is made, checked and undone.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::JournalError;
use super::owner::lock_instance;
use crate::capture::offload::OffloadState;
use crate::nft::intercept::Intercept;
use crate::nft::mss_clamp::MssClamp;
use crate::nft::path_rules::PathRules;
use crate::nft::rst_guard::RstGuard;
use crate::nft::spray::Spray;
use crate::nft::syn_hold::SynHold;
use crate::nft::table::Table;
use crate::route::mtu::RouteMtu;
use crate::route::sysctl::Sysctl;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    Offload(OffloadState),
    Route(RouteMtu),
    Mss(MssClamp),
    Intercept(Intercept),
    #[serde(rename = "hold")]
    SynHold(SynHold),
    #[serde(rename = "keep_out")]
    RstGuard(RstGuard),
    Sysctl(Sysctl),
    Spray(Spray),
    Paths(PathRules),
    /// A change that another version of this program has recorded; it cannot be undone.
    #[serde(untagged)]
    Unknown(Value),
}

impl Change {
    /// Returns the instance whose nftables table must be locked, because another process may
    /// install a table of the same name.
    pub(super) fn instance(&self) -> Option<&str> {
        match self {
            Change::Intercept(intercept) => Some(&intercept.instance),
            Change::SynHold(hold) => Some(&hold.instance),
            Change::RstGuard(guard) => Some(&guard.instance),
            Change::Spray(spray) => Some(&spray.instance),
            Change::Paths(paths) => Some(&paths.instance),
            _ => None,
        }
    }

    fn table(&self) -> Option<&dyn Table> {
        match self {
            Change::Mss(clamp) => Some(clamp),
            Change::Intercept(intercept) => Some(intercept),
            Change::SynHold(hold) => Some(hold),
            Change::RstGuard(guard) => Some(guard),
            Change::Spray(spray) => Some(spray),
            Change::Paths(paths) => Some(paths),
            Change::Offload(_) | Change::Route(_) | Change::Sysctl(_) | Change::Unknown(_) => None,
        }
    }

    /// Returns whether the change's table is in place; true for a change without a table.
    pub(super) fn is_installed(&self) -> Result<bool, JournalError> {
        Ok(self.table().map_or(Ok(true), |table| table.is_installed())?)
    }

    pub(super) fn apply(&self) -> Result<(), JournalError> {
        match self {
            Change::Offload(state) => state.switch_off()?,
            Change::Route(route) => route.apply()?,
            Change::Sysctl(sysctl) => sysctl.apply()?,
            other => other.table().map_or(Ok(()), |table| table.apply())?,
        }
        Ok(())
    }

    pub(super) fn undo(&self) -> Result<(), JournalError> {
        match self {
            Change::Offload(state) => state.restore()?,
            Change::Route(route) => route.undo()?,
            Change::Sysctl(sysctl) => sysctl.undo()?,
            Change::Unknown(value) => return Err(JournalError::Unknown(value.to_string())),
            other => other.table().map_or(Ok(()), |table| table.undo())?,
        }
        Ok(())
    }
}

/// Undoes changes as [`undo_all`] does, except those whose tables another process has locked.
/// Returns the changes that were skipped, and the result of [`undo_all`] for the others.
pub(super) fn undo_unlocked(changes: Vec<Change>) -> (Vec<Change>, (Vec<Change>, Vec<String>)) {
    let mut locks = BTreeMap::new();
    for instance in changes.iter().filter_map(Change::instance) {
        locks.entry(instance.to_owned()).or_insert_with(|| lock_instance(instance));
    }
    let is_ours = |change: &Change| change.instance().is_none_or(|name| locks[name].is_some());
    let (ours, disputed) = changes.into_iter().partition(is_ours);
    (disputed, undo_all(ours))
}

/// Undoes changes, the last one first. Returns the changes that could not be undone, in order, and
/// the reasons. Unknown changes are not returned, as no later attempt could undo them.
pub(super) fn undo_all(changes: Vec<Change>) -> (Vec<Change>, Vec<String>) {
    let mut left = Vec::new();
    let mut errors = Vec::new();
    for change in changes.into_iter().rev() {
        if let Err(error) = change.undo() {
            errors.push(whole(&error));
            if !matches!(change, Change::Unknown(_)) {
                left.insert(0, change);
            }
        }
    }
    (left, errors)
}

/// Formats an error with all its causes, in one line.
fn whole(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

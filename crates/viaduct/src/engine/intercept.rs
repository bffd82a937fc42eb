//! State of the interception rules, shared by the event loops, the control side and the rule
//! reconciler: whether rules are missing, how often they were restored, and the changes to revert.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tracing::warn;
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::intercept::Intercept;
use viaduct_sys::nft::table::Table as _;

/// State of the interception rules.
#[derive(Debug, Default)]
pub struct InterceptState {
    restored: AtomicU64,
    missing: AtomicBool,
    /// Journalled changes that installed the rules, while this process maintains them.
    changes: Mutex<Option<Changes>>,
}

impl InterceptState {
    /// Stops diverting new connections. Established connections still arrive here.
    pub fn pass_by(&self) {
        if let Some(Err(error)) = self.changes().as_mut().map(Changes::pass_by) {
            let error = anyhow::Error::from(error);
            warn!("cannot stop diverting new connections: {error:#}");
        }
    }

    pub(crate) fn changes(&self) -> MutexGuard<'_, Option<Changes>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether rules are missing, in which case connections may bypass the proxy.
    pub fn is_missing(&self) -> bool {
        self.missing.load(Ordering::Relaxed)
    }

    /// Number of times that the rules were restored.
    pub fn restored(&self) -> u64 {
        self.restored.load(Ordering::Relaxed)
    }

    /// Restores the missing part of `changes`.
    pub fn restore_missing(&self, changes: &Changes) {
        match changes.repair() {
            Ok(false) => self.missing.store(false, Ordering::Relaxed),
            Ok(true) => {
                warn!("our rules (nftables or ip rule) were removed, and have been restored");
                self.restored.fetch_add(1, Ordering::Relaxed);
                self.missing.store(false, Ordering::Relaxed);
            }
            Err(error) => {
                if !self.missing.swap(true, Ordering::Relaxed) {
                    let error = anyhow::Error::from(error);
                    warn!(
                        "our rules were removed, so connections bypass the proxy; cannot restore \
                         the rules, retrying each second: {error:#}"
                    );
                }
            }
        }
    }

    /// Checks whether `intercept`, which another process maintains, is installed.
    pub(crate) fn check(&self, intercept: &Intercept) {
        let there = intercept.is_installed().unwrap_or(false)
            || intercept.passed_by().is_installed().unwrap_or(false);
        if self.missing.swap(!there, Ordering::Relaxed) && there {
            self.restored.fetch_add(1, Ordering::Relaxed);
        }
    }
}

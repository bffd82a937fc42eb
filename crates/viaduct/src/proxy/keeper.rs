//! Keeps the rules that divert connections to a proxy in place: a firewall reload or a network
//! manager may remove them.
//!
//! ```text
//!   rules are removed ──▶ RuleWatch ───▶ keeper ──▶ Changes::repair, a warning
//!                                          └─ Interception: restored, missing ──▶ loops, status
//!   a proxy ends ──▶ Interception::pass_by: new connections are no longer diverted
//! ```

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use tracing::warn;
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::intercept::Intercept;
use viaduct_sys::nft::rule_watch::RuleWatch;
use viaduct_sys::nft::table::Table as _;

use super::demand::{Woken, wait};

/// Minimum time between two checks: two programs that fight over rules must not load the
/// machine.
const PAUSE: Duration = Duration::from_secs(1);

/// State of the interception rules.
#[derive(Debug, Default)]
pub struct Interception {
    restored: AtomicU64,
    missing: AtomicBool,
    /// Journalled changes that made the rules, while this process keeps them.
    changes: Mutex<Option<Changes>>,
}

impl Interception {
    /// Stops diverting new connections. Established connections still arrive here.
    pub fn pass_by(&self) {
        if let Some(Err(error)) = self.changes().as_mut().map(Changes::pass_by) {
            let error = anyhow::Error::from(error);
            warn!("new connections are led here still: {error:#}");
        }
    }

    fn changes(&self) -> MutexGuard<'_, Option<Changes>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether rules are missing, so that connections may pass by.
    pub fn is_missing(&self) -> bool {
        self.missing.load(Ordering::Relaxed)
    }

    /// Number of times that the rules were restored.
    pub fn restored(&self) -> u64 {
        self.restored.load(Ordering::Relaxed)
    }

    /// Restores the missing part of `changes`.
    pub fn keep(&self, changes: &Changes) {
        match changes.repair() {
            Ok(false) => self.missing.store(false, Ordering::Relaxed),
            Ok(true) => {
                warn!("rules of ours were taken away (nftables or ip rule), and are back");
                self.restored.fetch_add(1, Ordering::Relaxed);
                self.missing.store(false, Ordering::Relaxed);
            }
            Err(error) => {
                if !self.missing.swap(true, Ordering::Relaxed) {
                    let error = anyhow::Error::from(error);
                    warn!(
                        "rules of ours were taken away, and what they led here passes by; tried \
                         again each second: {error:#}"
                    );
                }
            }
        }
    }

    /// Checks whether another process keeps `intercept` in place.
    fn look(&self, intercept: &Intercept) {
        let there = intercept.is_installed().unwrap_or(false)
            || intercept.passed_by().is_installed().unwrap_or(false);
        if self.missing.swap(!there, Ordering::Relaxed) && there {
            self.restored.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A thread that keeps the rules. Dropping it ends the thread and reverts the changes.
#[derive(Debug)]
pub struct Keeper {
    end: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    state: Arc<Interception>,
}

/// Rules to keep: its own, or those of the parent, which it only checks.
enum Kept {
    Ours,
    Parents(Intercept),
}

impl Keeper {
    /// Starts a keeper of `changes`; without them it only checks `intercept`, which a parent
    /// keeps. `None` if there is neither.
    ///
    /// # Errors
    /// The kernel does not report changes of rules.
    pub fn start(
        changes: Option<Changes>,
        intercept: Option<&Intercept>,
        state: &Arc<Interception>,
    ) -> Result<Option<Keeper>> {
        let kept = match (&changes, intercept) {
            (Some(_), _) => Kept::Ours,
            (None, Some(intercept)) => Kept::Parents(intercept.clone()),
            (None, None) => return Ok(None),
        };
        let watch = RuleWatch::new().context("watch nftables and ip rules")?;
        let (end, ended) = UnixStream::pair()?;
        let (state, its) = (state.clone(), state.clone());
        let run = move || run(&kept, &watch, &ended, &its);
        let thread = thread::Builder::new().name("rules".to_owned()).spawn(run)?;
        *state.changes() = changes;
        Ok(Some(Keeper { end: Some(end), thread: Some(thread), state }))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(JoinHandle::join);
        let changes = self.state.changes().take();
        drop(changes);
    }
}

fn run(kept: &Kept, watch: &RuleWatch, ended: &UnixStream, state: &Interception) {
    let [nft, route] = watch.sockets();
    let is_over = |patience| wait(&[ended], Some(patience)) == Woken::Work;
    loop {
        let retry = state.is_missing().then_some(PAUSE);
        wait(&[ended, &nft, &route], retry);
        if is_over(Duration::ZERO) {
            return;
        }
        if watch.has_deletions() || state.is_missing() {
            match kept {
                Kept::Ours => drop(state.changes().as_ref().map(|changes| state.keep(changes))),
                Kept::Parents(intercept) => state.look(intercept),
            }
            if is_over(PAUSE) {
                return;
            }
        }
    }
}

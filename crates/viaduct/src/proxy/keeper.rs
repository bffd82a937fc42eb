//! Keeps the rules that lead connections to a proxy in place: a firewall that is reloaded or a network
//! manager may take them away.
//!
//! ```text
//!   somebody takes rules away ──▶ RulesWatch ──▶ keeper ──▶ Changes::repair, a warning
//!                                                  └─ Interception: restored, missing ──▶ loops, status
//!   a proxy ends ──▶ Interception::pass_by: new connections are led here no more
//! ```

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use tracing::warn;
use viaduct_sys::intercept::Intercept;
use viaduct_sys::journal::Changes;
use viaduct_sys::rules_watch::RulesWatch;
use viaduct_sys::table::Table as _;

use super::demand::{Woken, wait};

/// The least time between two looks: two that fight over rules shall not fill the machine.
const PAUSE: Duration = Duration::from_secs(1);

/// What became of the rules.
#[derive(Debug, Default)]
pub struct Interception {
    restored: AtomicU64,
    missing: AtomicBool,
    /// The changes that made them, while they are kept by this process.
    changes: Mutex<Option<Changes>>,
}

impl Interception {
    /// Leads no new connection here any more: they pass by. Those that have begun still find here.
    pub fn pass_by(&self) {
        if let Some(Err(error)) = self.changes().as_mut().map(Changes::pass_by) {
            let error = anyhow::Error::from(error);
            warn!("new connections are led here still: {error:#}");
        }
    }

    fn changes(&self) -> MutexGuard<'_, Option<Changes>> {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether rules are missing: connections may pass by.
    pub fn is_missing(&self) -> bool {
        self.missing.load(Ordering::Relaxed)
    }

    /// How often they were put back.
    pub fn restored(&self) -> u64 {
        self.restored.load(Ordering::Relaxed)
    }

    /// Puts back what is missing of `changes`.
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

    /// Sees whether another process keeps `intercept`.
    fn look(&self, intercept: &Intercept) {
        let there = intercept.is_there().unwrap_or(false)
            || intercept.passed_by().is_there().unwrap_or(false);
        if self.missing.swap(!there, Ordering::Relaxed) && there {
            self.restored.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A thread that keeps them. When this is dropped it has ended, and what was changed is put back.
#[derive(Debug)]
pub struct Keeper {
    end: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    state: Arc<Interception>,
}

/// What it keeps: its own, or those of the parent, which it only looks at.
enum Kept {
    Ours,
    Parents(Intercept),
}

impl Keeper {
    /// Of `changes`; without them of `intercept`, which a parent keeps. `None` if there is neither.
    ///
    /// # Errors
    /// The kernel does not say what becomes of rules.
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
        let watch = RulesWatch::new().context("watch nftables and ip rules")?;
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

fn run(kept: &Kept, watch: &RulesWatch, ended: &UnixStream, state: &Interception) {
    let [nft, route] = watch.sockets();
    let is_over = |patience| wait(&[ended], Some(patience)) == Woken::Work;
    loop {
        let retry = state.is_missing().then_some(PAUSE);
        wait(&[ended, &nft, &route], retry);
        if is_over(Duration::ZERO) {
            return;
        }
        if watch.lost() || state.is_missing() {
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

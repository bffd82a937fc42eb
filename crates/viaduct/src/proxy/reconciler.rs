//! Reconciler of the rules that divert connections to a proxy: restores rules that a firewall
//! reload or a network manager has removed.
//!
//! ```text
//!   rules are removed ──▶ RuleWatch ───▶ reconciler ──▶ Changes::repair, a warning
//!                                          └─ InterceptState: restored, missing ──▶ loops, status
//!   a proxy ends ──▶ InterceptState::pass_by: new connections are no longer diverted
//! ```

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use viaduct_sys::journal::Changes;
use viaduct_sys::nft::intercept::Intercept;
use viaduct_sys::nft::rule_watch::RuleWatch;

use super::on_demand::{Woken, wait};
use crate::engine::intercept::InterceptState;

/// Minimum time between two checks, which limits the load if another program keeps removing the
/// rules.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Thread that keeps the rules in place. Dropping this value ends the thread, and reverts the
/// changes.
#[derive(Debug)]
pub struct RuleReconciler {
    end: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    state: Arc<InterceptState>,
}

/// Owner of the rules.
enum Rules {
    /// This process, whose reconciler restores missing rules.
    Ours,
    /// The parent process; the reconciler only checks whether rules are missing.
    Parents(Intercept),
}

impl RuleReconciler {
    /// Starts a reconciler that restores the rules of `changes`. Without `changes` it only checks
    /// the rules of `intercept`, which a parent restores. `None` if neither is given.
    ///
    /// # Errors
    /// The kernel does not report changes of rules.
    pub fn start(
        changes: Option<Changes>,
        intercept: Option<&Intercept>,
        state: &Arc<InterceptState>,
    ) -> Result<Option<RuleReconciler>> {
        let rules = match (&changes, intercept) {
            (Some(_), _) => Rules::Ours,
            (None, Some(intercept)) => Rules::Parents(intercept.clone()),
            (None, None) => return Ok(None),
        };
        let watch = RuleWatch::new().context("cannot watch nftables and ip rules")?;
        let (end, ended) = UnixStream::pair()?;
        let (state, theirs) = (state.clone(), state.clone());
        let run = move || run(&rules, &watch, &ended, &theirs);
        // The changes are set before the thread starts, because without them the thread would
        // ignore a deletion.
        *state.changes() = changes;
        let thread = thread::Builder::new().name("rules".to_owned()).spawn(run);
        // Without the thread, the changes are reverted.
        let thread = thread.inspect_err(|_| drop(state.changes().take()))?;
        Ok(Some(RuleReconciler { end: Some(end), thread: Some(thread), state }))
    }
}

impl Drop for RuleReconciler {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(JoinHandle::join);
        let changes = self.state.changes().take();
        drop(changes);
    }
}

fn run(rules: &Rules, watch: &RuleWatch, ended: &UnixStream, state: &InterceptState) {
    let [nft, route] = watch.sockets();
    let is_over = |timeout| wait(&[ended], Some(timeout)) == Woken::Work;
    loop {
        let retry = state.is_missing().then_some(CHECK_INTERVAL);
        wait(&[ended, &nft, &route], retry);
        if is_over(Duration::ZERO) {
            return;
        }
        if watch.has_deletions() || state.is_missing() {
            match rules {
                Rules::Ours => {
                    if let Some(changes) = state.changes().as_ref() {
                        state.restore_missing(changes);
                    }
                }
                Rules::Parents(intercept) => state.check(intercept),
            }
            if is_over(CHECK_INTERVAL) {
                return;
            }
        }
    }
}

//! The control side's part of an upgrade.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tracing::{error, warn};

use super::{ControlRequest, ControlState, GatewayHandover};
use crate::engine::upgrade::ProxyHandover;
use crate::gateway::ConfigSource;
use crate::gateway::control::{Control, DRAIN_POLL};
use crate::gateway::listeners::Listeners;
use crate::gateway::site::Site;
use crate::gateway::system::System;
use crate::gateway::workers::ToWorkers;
use crate::handover::{ConfigText, Outcome, Upgrader, next_outcome};
use crate::settings::thread::ProxyThread;
use crate::signals::{SignalStreams, either};

/// Event of an upgrade, for the control side.
#[derive(Debug)]
pub enum UpgradeEvent {
    /// Request of the upgrader.
    Request(ControlRequest),
    /// Result of an upgrade.
    Outcome(Outcome),
}

/// Control side's state of the upgrades of this process.
pub struct UpgradeState {
    upgrader: Arc<Upgrader>,
    requests: UnboundedReceiver<ControlRequest>,
    outcomes: UnboundedReceiver<Outcome>,
    /// True while another process may take over: nothing on the machine may be changed.
    is_active: bool,
    /// True once another process is responsible for the changes to the machine.
    is_left: Arc<AtomicBool>,
    /// True once the new process serves, and this one has to end.
    is_released: bool,
    /// Listeners of the process that this one continues.
    inherited: Option<[Option<OwnedFd>; 2]>,
}

impl UpgradeState {
    /// Creates the state of a gateway whose packet threads are `workers`, and whose proxy of split
    /// mode is `flows`.
    pub fn new(
        site: &Site,
        source: &ConfigSource,
        (workers, flows): (ToWorkers, Option<&ProxyThread>),
        inherited: Option<[Option<OwnedFd>; 2]>,
    ) -> Result<UpgradeState> {
        let ((control, requests), (outcome, outcomes)) = (unbounded_channel(), unbounded_channel());
        let is_left = Arc::<AtomicBool>::default();
        // The proxy's config is a part of the gateway's, so it is not handed over separately.
        let none = ConfigText::default;
        let flows = flows.map(|flows| ProxyHandover::new(none(), &flows.engine.handle, None));
        let service = GatewayHandover {
            key: site.config.secret.public(),
            config: source.text.clone(),
            workers,
            flows,
            control,
            is_left: is_left.clone(),
        };
        let (program, socket) = (source.program.clone(), site.config.socket());
        let upgrader = Upgrader::new(program, socket, Box::new(service), outcome);
        let upgrader = Arc::new(upgrader);
        Ok(UpgradeState {
            upgrader,
            requests,
            outcomes,
            is_active: false,
            is_left,
            is_released: false,
            inherited,
        })
    }

    /// Upgrader, which hands the gateway to a new process.
    pub fn upgrader(&self) -> Arc<Upgrader> {
        self.upgrader.clone()
    }

    /// Takes the listeners of the process that this one continues.
    pub fn take_inherited(&mut self) -> Option<[Option<OwnedFd>; 2]> {
        self.inherited.take()
    }

    /// Returns whether another process may be taking over.
    pub fn is_active(&self) -> bool {
        self.is_active
    }

    /// Returns whether another process is responsible for the machine.
    pub fn is_left(&self) -> bool {
        self.is_left.load(Ordering::Relaxed)
    }

    /// Records that the new process serves.
    pub fn release(&mut self) {
        self.is_released = true;
    }

    /// Returns whether this process has to end because the new one serves.
    pub fn is_released(&self) -> bool {
        self.is_released
    }

    /// Begins an upgrade if one is [due](Upgrader::is_due) and none is in progress. Returns false
    /// if the config is to be reloaded instead.
    pub fn begin_if_due(&self) -> bool {
        if self.is_active {
            warn!("not reloaded: an upgrade is in progress");
            return true;
        }
        let begun = self.upgrader.is_due().then(|| self.upgrader.begin());
        match begun {
            Some(Err(error)) => {
                error!("not upgraded: cannot start a thread: {error}");
                false
            }
            begun => begun.is_some(),
        }
    }

    /// Waits for the next event. A failed attempt takes the machine back before its outcome is
    /// returned.
    pub async fn next(&mut self) -> UpgradeEvent {
        tokio::select! {
            biased;
            Some(request) = self.requests.recv() => UpgradeEvent::Request(request),
            outcome = next_outcome(Some(&mut self.outcomes)) => UpgradeEvent::Outcome(outcome),
        }
    }

    /// Handles a request of the upgrader; `export` returns the state that is handed over, or the
    /// reason why the gateway cannot be handed over.
    pub fn handle(
        &mut self,
        request: ControlRequest,
        system: &System,
        export: impl FnOnce() -> Result<ControlState>,
    ) {
        match request {
            ControlRequest::Export(reply) => {
                let state = export();
                self.is_active = state.is_ok();
                let _ = reply.send(state);
            }
            ControlRequest::TakeBack => {
                self.is_active = false;
                if let Err(error) = system.reclaim() {
                    warn!("cannot write the journal: {error:#}");
                }
            }
        }
    }
}

impl Control {
    /// Handles an event of an upgrade. `draining` is true while the gateway stops.
    pub(in crate::gateway) async fn handle_upgrade(
        &mut self,
        event: UpgradeEvent,
        draining: bool,
        system: &mut System,
    ) {
        match event {
            UpgradeEvent::Request(request) => {
                let refusal = self.upgrade_refusal(draining);
                let Control { upgrade, listeners, site, tls, .. } = self;
                upgrade.handle(request, system, || {
                    if let Some(reason) = refusal {
                        bail!("{reason}");
                    }
                    Ok(ControlState {
                        listeners: listeners.export()?,
                        marks: system.marks(),
                        is_serving: site.is_serving,
                        locks: system.locks()?,
                        tls: tls.dialled(),
                    })
                });
            }
            UpgradeEvent::Outcome(Outcome::Failed) if self.upgrade.is_active => {
                warn!("not reloaded: another upgrade is in progress");
            }
            UpgradeEvent::Outcome(Outcome::Failed) => self.reload_and_log(system).await,
            UpgradeEvent::Outcome(Outcome::Released) => self.upgrade.release(),
        }
    }

    /// Reason why this gateway cannot be handed over.
    fn upgrade_refusal(&self, draining: bool) -> Option<&'static str> {
        if draining {
            return Some("the gateway is stopping");
        }
        let (_, dead) = self.workers.counts();
        let lacks = "a gateway without one of its packet threads cannot be handed over: restart it";
        (dead > 0).then_some(lacks)
    }

    /// Leaves the machine to the process that has taken over, and waits until the flows of split
    /// mode that have stayed here have ended. A termination signal ends the wait.
    pub(in crate::gateway) async fn finish_flows(
        &mut self,
        system: &mut System,
        signals: &mut SignalStreams,
    ) {
        system.leave();
        self.workers.leave();
        self.listeners = Listeners::new(self.workers.to_all());
        while self.flows.as_ref().is_some_and(|flows| !flows.engine.is_over()) {
            tokio::select! {
                () = either(&mut signals.terminate, &mut signals.interrupt) => break,
                _ = signals.hangup.recv() => self.reopen_log(),
                _ = signals.user1.recv() => self.reopen_log(),
                () = tokio::time::sleep(DRAIN_POLL) => {}
            }
        }
    }
}

//! Thread that checks next hops, by connections over TCP or requests over HTTP.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::runtime;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};
use viaduct_proto::health::{Checker, Probe};
use viaduct_proto::split::proxy;

use super::auto::{AutoHops, AutoSpec, now};
use super::overlay::{OverlayFollower, Reported, TABLE_INTERVAL};
use super::{Fallback, HopCheck, HopHealth, HopList, HopStatus};
use crate::engine::commands::{CommandSender, WorkerCommand};
use crate::engine::policy::Policies;
use crate::tcp_probe;

/// Wait while there is nothing to check.
const IDLE: Duration = Duration::from_secs(60);
/// `User-Agent` in requests over HTTP.
const AGENT: &str = "viaduct-proxy";

/// Message to the thread.
#[derive(Debug)]
pub enum Message {
    /// Check the hops of these lists and of the overlay from now on.
    Check(Vec<HopList>, Option<AutoSpec>),
    /// A flow could not connect to this hop.
    Suspect(SocketAddr),
    /// End.
    End,
}

/// Result of a probe, and the generation of the lists under which it was sent.
type Answer = (u64, Probe, Result<(), String>);

/// Checks of the next hops that the policies of a proxy name. The thread is started when a policy
/// first needs checks or measurements, and ends when this value is dropped.
#[derive(Debug)]
pub struct HopChecks {
    health: Arc<HopHealth>,
    auto: Arc<AutoHops>,
    workers: Vec<CommandSender>,
    thread: Option<UnboundedSender<Message>>,
}

/// State of the thread.
struct Checking {
    health: Arc<HopHealth>,
    workers: Vec<CommandSender>,
    lists: Vec<HopList>,
    auto: Arc<AutoHops>,
    /// Set if hops are chosen by measurements.
    overlay: Option<OverlayFollower>,
    hops: Vec<(SocketAddr, HopCheck)>,
    checker: Checker,
    generation: u64,
    answers: UnboundedSender<Answer>,
    reports: UnboundedSender<Reported>,
}

impl HopChecks {
    /// Starts the checks that `policies` call for. The event loops of `workers` are told when a hop
    /// goes down.
    pub fn new(policies: &Policies, workers: Vec<CommandSender>) -> HopChecks {
        let (health, auto) = (policies.health.clone(), policies.auto.clone());
        let mut checks = HopChecks { health, auto, workers, thread: None };
        checks.follow(policies);
        checks
    }

    /// Changes the checks to those that `policies` call for.
    pub fn follow(&mut self, policies: &Policies) {
        let lists: Vec<HopList> =
            policies.outbounds().filter_map(|by| by.list()).cloned().collect();
        let auto = policies.outbounds().find_map(|by| by.auto()).cloned();
        let is_needed = auto.is_some() || lists.iter().any(|list| list.check.is_some());
        if self.thread.is_none() && is_needed {
            match self.start() {
                Ok(thread) => self.thread = Some(thread),
                Err(error) => warn!("next hops are not checked: {error:#}"),
            }
        }
        if let Some(thread) = &self.thread {
            let _ = thread.send(Message::Check(lists, auto));
        }
    }

    fn start(&self) -> Result<UnboundedSender<Message>> {
        let (send, messages) = unbounded_channel();
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.context("cannot start a runtime")?;
        let (answers, results) = unbounded_channel();
        let (reports, reported) = unbounded_channel();
        let checking = Checking {
            health: self.health.clone(),
            workers: self.workers.clone(),
            lists: Vec::new(),
            auto: self.auto.clone(),
            overlay: None,
            hops: Vec::new(),
            checker: Checker::default(),
            generation: 0,
            answers,
            reports,
        };
        let run = move || runtime.block_on(checking.run(messages, results, reported));
        thread::Builder::new().name("hop-checks".to_owned()).spawn(run)?;
        self.health.attach(send.clone());
        Ok(send)
    }
}

impl Drop for HopChecks {
    fn drop(&mut self) {
        if let Some(thread) = &self.thread {
            let _ = thread.send(Message::End);
        }
    }
}

impl Checking {
    async fn run(
        mut self,
        mut messages: UnboundedReceiver<Message>,
        mut results: UnboundedReceiver<Answer>,
        mut reported: UnboundedReceiver<Reported>,
    ) {
        loop {
            let wait = self.checker.poll_timeout().map_or(IDLE, |at| at.since(now()));
            let wait = if self.overlay.is_some() { wait.min(TABLE_INTERVAL) } else { wait };
            tokio::select! {
                () = sleep(wait) => self.checker.handle_timeout(now()),
                Some((generation, probe, result)) = results.recv() => {
                    if generation == self.generation {
                        self.checker.handle_result(now(), probe, result);
                    }
                }
                Some((networks, reports)) = reported.recv() => {
                    let mut hops = self.auto.hops();
                    for (hop, report) in reports {
                        hops.handle_report(now(), hop, &networks, &report);
                    }
                }
                message = messages.recv() => match message {
                    Some(Message::Check(lists, auto)) => self.reload(lists, auto),
                    Some(Message::Suspect(hop)) => self.suspect(hop),
                    Some(Message::End) | None => return,
                }
            }
            if self.overlay.as_mut().is_some_and(OverlayFollower::turn) {
                self.check_hops();
            }
            self.send_probes();
            self.publish();
        }
    }

    /// Checks the hops of `lists`, and of the overlay that `auto` names, from now on.
    fn reload(&mut self, lists: Vec<HopList>, auto: Option<AutoSpec>) {
        self.lists = lists;
        match (&mut self.overlay, auto) {
            (Some(overlay), Some(spec)) if overlay.spec.overlay == spec.overlay => {
                overlay.spec = spec;
            }
            (overlay, auto) => {
                let follow =
                    |spec| OverlayFollower::new(spec, self.auto.clone(), self.reports.clone());
                *overlay = auto.map(follow);
            }
        }
        self.check_hops();
    }

    /// Checks the hops of the lists and of the overlay. Hops that were already checked keep their
    /// state.
    fn check_hops(&mut self) {
        let mut wanted = BTreeMap::new();
        if let Some(overlay) = &self.overlay
            && let Some(check) = &overlay.spec.check
        {
            wanted.extend(self.auto.hops().addresses().map(|hop| (hop, check.clone())));
        }
        for list in &self.lists {
            if let Some(check) = &list.check {
                wanted.extend(list.hops.iter().map(|hop| (*hop, check.clone())));
            }
        }
        self.health.retain(|hop| wanted.contains_key(&hop));
        self.auto.hops().keep_down(|hop| wanted.contains_key(&hop));
        let hops: Vec<_> = wanted.into_iter().collect();
        let old = |hop: &SocketAddr| self.hops.iter().position(|(known, _)| known == hop);
        let new: Vec<_> = hops.iter().map(|(hop, check)| (check.timing, old(hop))).collect();
        self.checker = self.checker.reload(&new, now());
        self.generation += 1;
        self.hops = hops;
    }

    fn suspect(&mut self, hop: SocketAddr) {
        if let Some(n) = self.hops.iter().position(|(known, _)| *known == hop) {
            self.checker.handle_suspicion(now(), n);
        }
    }

    /// Sends the probes that are due.
    fn send_probes(&mut self) {
        while let Some(sent) = self.checker.poll_probe(now()) {
            let (hop, check) = self.hops[sent.target].clone();
            let (answers, generation) = (self.answers.clone(), self.generation);
            tokio::spawn(async move {
                // The checker counts a probe without an answer as failed.
                if let Ok(result) = timeout(check.timing.timeout, probe(hop, &check)).await {
                    let _ = answers.send((generation, sent, result));
                }
            });
        }
    }

    /// Publishes the states of the hops. If a hop went down, tells the event loops.
    fn publish(&mut self) {
        let has_changed = self.checker.poll_changed().is_some();
        for (n, &(hop, _)) in self.hops.iter().enumerate() {
            let (counters, is_down) = (self.checker.counters(n), self.checker.is_down(n));
            let was_down = self.health.is_down(hop);
            let state = self.checker.state(n);
            if is_down && !was_down {
                warn!(%hop, "next hop {state}");
            } else if was_down && !is_down {
                info!(%hop, "next hop up");
            }
            self.health.publish(HopStatus {
                hop,
                state,
                is_down,
                probes: counters.probes,
                failures: counters.failures,
                falls: counters.falls,
            });
            self.auto.hops().set_down(hop, is_down);
            if is_down && !was_down {
                // Sent after the new state is published, so that the flows do not choose this hop
                // again.
                let leave = |worker: &CommandSender| worker.send(WorkerCommand::LeaveHop(hop));
                self.workers.iter().for_each(leave);
            }
        }
        if has_changed {
            self.log_lists();
        }
    }

    /// Logs the lists in which no hop is up.
    fn log_lists(&self) {
        let is_down = |list: &&HopList| list.hops.iter().all(|hop| self.health.is_down(*hop));
        for list in self.lists.iter().filter(is_down) {
            let then = match list.fallback {
                Fallback::Direct => "flows go directly to their servers",
                Fallback::Refuse => "flows are refused",
            };
            warn!("no next hop of {} is up: {then}", list.names());
        }
    }
}

/// Probes a hop. The PROXY header marks the connection as a health check, so that hops do not log
/// it.
async fn probe(hop: SocketAddr, check: &HopCheck) -> Result<(), String> {
    let said = match &check.path {
        None => tcp_probe::connect(hop, &proxy::LOCAL_HEADER).await,
        Some(path) => tcp_probe::http(hop, &proxy::LOCAL_HEADER, path, AGENT).await,
    };
    said.map_err(|error| tcp_probe::reason(&error))
}

//! Control handle of a proxy's workers: status, reload, drain and stop.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tokio::sync::oneshot;

use super::commands::{CommandSender, WorkerCommand};
use super::config::EngineConfig;
use super::intercept::InterceptState;
use super::listen_set::ListenSet;
use super::loops::Loops;
use super::next_hops::HopChecks;
use super::snapshot::ProxyStatus;
use super::stats::ProxyStats;
use super::workers::Workers;
use crate::access_log::AccessLog;
use crate::tunnel::stats::TunnelCounters;

/// Time limit for a worker's reply to a query; after it, the worker counts as hung.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Running workers, and their config.
#[derive(Debug)]
pub struct Handle {
    config: EngineConfig,
    workers: Vec<CommandSender>,
    intercept_state: Arc<InterceptState>,
    access_log: AccessLog,
    hop_checks: HopChecks,
    started: Instant,
}

/// An engine that runs in a thread of a process with other tasks.
#[derive(Debug)]
pub struct EngineThread {
    /// Control handle of the workers.
    pub handle: Handle,
    thread: JoinHandle<Result<()>>,
}

/// Loops of an [`EngineThread`] that do not run yet. The thread ends if the loops are dropped.
pub struct WaitingLoops {
    /// The loops.
    pub loops: Loops,
    thread: SyncSender<Loops>,
}

impl Handle {
    /// Returns the handle of `loops`, which were made from `config`; `intercept_state` is the state
    /// of the rules that divert clients to them.
    pub fn new(
        config: EngineConfig,
        loops: &Loops,
        intercept_state: Arc<InterceptState>,
    ) -> Handle {
        let (workers, access_log) = (loops.commands.clone(), loops.access_log.clone());
        config.policies.auto.switch(config.measures_servers());
        let hop_checks = HopChecks::new(&config.policies, workers.clone());
        let started = Instant::now();
        Handle { config, workers, intercept_state, access_log, hop_checks, started }
    }

    /// Reopens the access log's file.
    pub fn reopen_log(&self) {
        self.access_log.reopen();
    }

    /// Workers that carry programs' flows. Errors: no worker runs.
    pub fn workers_of_programs(&self) -> Result<Workers> {
        Workers::new(&self.workers)
    }

    /// Senders of commands to all workers.
    pub fn workers(&self) -> &[CommandSender] {
        &self.workers
    }

    /// State of the interception rules.
    pub fn intercept_state(&self) -> &Arc<InterceptState> {
        &self.intercept_state
    }

    /// Current config.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Applies a new config, which must not contain changes that need a restart. Open
    /// flows continue.
    pub fn reload(&mut self, mut new: EngineConfig) {
        new.policies.health = self.config.policies.health.clone();
        new.policies.auto = self.config.policies.auto.clone();
        new.policies.auto.switch(new.measures_servers());
        self.send_all(|| WorkerCommand::Reload(Box::new(new.part())));
        self.hop_checks.follow(&new.policies);
        self.config = new;
    }

    /// Stops accepting flows; the workers end when all flows have ended or the drain time is over.
    pub fn drain(&self) {
        self.intercept_state.pass_by();
        self.send_all(|| WorkerCommand::Drain);
    }

    /// Ends the workers immediately.
    pub fn stop(&self) {
        self.send_all(|| WorkerCommand::Stop);
    }

    /// Age of the oldest heartbeat of the workers.
    pub fn age(&self) -> Duration {
        self.workers.iter().map(|worker| worker.heartbeat.age()).max().unwrap_or_default()
    }

    fn send_all(&self, command: impl Fn() -> WorkerCommand) {
        self.workers.iter().for_each(|worker| worker.send(command()));
    }

    /// Current status of all workers together.
    pub async fn status(&self) -> ProxyStatus {
        let ask = |worker: &CommandSender| {
            let (reply, answer) = oneshot::channel();
            worker.send(WorkerCommand::Stats(reply));
            answer
        };
        // All workers are queried before the first reply is awaited.
        let answers: Vec<_> = self.workers.iter().map(ask).collect();
        let (mut counters, mut hangs) = (ProxyStats::default(), false);
        for (worker, answer) in self.workers.iter().zip(answers) {
            let answer = tokio::time::timeout(QUERY_TIMEOUT, answer).await.ok();
            match answer.and_then(Result::ok) {
                Some(stats) => counters.add(stats),
                // A worker without flows ends before the others when the proxy drains.
                None => {
                    hangs |= !worker.heartbeat.has_ended();
                    let mut kept = worker.kept();
                    // The links of the worker's tunnels may have ended since the last reply.
                    kept.tunnels.iter_mut().for_each(TunnelCounters::end);
                    counters.add(kept);
                }
            }
        }
        if let Some(over_limit) = &self.config.over_limit {
            counters.refused.over_limit = over_limit.load(Ordering::Relaxed);
        }
        ProxyStatus {
            proxy: self.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: self.started.elapsed().as_secs_f64(),
            listen: self.config.listen.clone(),
            tunnel_listen: self.config.tunnels.as_ref().and_then(|tunnels| tunnels.listen),
            to: self.config.target.to_string(),
            most: self.config.limits.flows as u64,
            hangs,
            restored: self.intercept_state.restored(),
            missing: self.intercept_state.is_missing(),
            next_hops: self.config.policies.health.statuses(),
            auto: self.config.chooses_hops().then(|| self.config.policies.auto.status()),
            handlers: self.config.policies.state(),
            access_log: self.access_log.stats(),
            counters,
        }
    }
}

impl WaitingLoops {
    /// Starts the loops in their thread.
    pub fn start(self) {
        // The thread waits for the loops.
        let _ = self.thread.send(self.loops);
    }
}

impl EngineThread {
    /// Starts an engine in a thread, with these listen sets and this access log.
    pub fn start(
        config: EngineConfig,
        listen_sets: Vec<ListenSet>,
        access_log: AccessLog,
    ) -> Result<EngineThread> {
        let (engine, loops) = EngineThread::prepare(config, listen_sets, access_log)?;
        loops.start();
        Ok(engine)
    }

    /// Prepares an engine in a thread. Its loops can take flows of another process before they are
    /// started.
    pub fn prepare(
        config: EngineConfig,
        listen_sets: Vec<ListenSet>,
        access_log: AccessLog,
    ) -> Result<(EngineThread, WaitingLoops)> {
        let intercept_state = Arc::default();
        let loops = Loops::new(&config, listen_sets, &intercept_state, access_log)?;
        let handle = Handle::new(config, &loops, intercept_state);
        let (start, started) = sync_channel::<Loops>(1);
        let run = move || started.recv().map_or(Ok(()), Loops::run);
        let thread = thread::Builder::new().name("flows".to_owned()).spawn(run);
        let thread = thread.context("cannot start the event loop thread")?;
        Ok((EngineThread { handle, thread }, WaitingLoops { loops, thread: start }))
    }

    /// Returns whether the thread has ended.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the engine immediately, if it has not ended. Errors: the error with which the thread
    /// ended.
    pub fn end(self) -> Result<()> {
        self.handle.stop();
        self.thread.join().unwrap_or_else(|_| Err(anyhow!("the event loop thread panicked")))
    }
}

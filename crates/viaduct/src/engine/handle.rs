//! Control handle of a proxy's workers: queries, changes, and the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tokio::sync::oneshot;

use super::commands::{CommandSender, WorkerCommand};
use super::intercept::InterceptState;
use super::loops::Loops;
use super::settings::Settings;
use super::snapshot::ProxyStatus;
use super::startup;
use super::stats::ProxyStats;
use crate::access_log::AccessLog;

/// Time limit for a worker's reply to a query; after it, the worker counts as hung.
const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Running workers, and their settings.
#[derive(Debug)]
pub struct Handle {
    settings: Settings,
    workers: Vec<CommandSender>,
    intercept_state: Arc<InterceptState>,
    access_log: AccessLog,
    started: Instant,
}

/// A proxy in a thread beside other tasks of the process.
#[derive(Debug)]
pub struct EngineThread {
    /// Control handle of the workers.
    pub handle: Handle,
    thread: JoinHandle<Result<()>>,
}

impl Handle {
    /// Returns the handle of workers that run with `settings`; `intercept_state` is the state of
    /// the rules that divert clients to them.
    pub fn new(
        settings: Settings,
        workers: Vec<CommandSender>,
        intercept_state: Arc<InterceptState>,
    ) -> Handle {
        let access_log = AccessLog::default();
        Handle { settings, workers, intercept_state, access_log, started: Instant::now() }
    }

    /// Sets the access log that the workers write.
    pub fn with_access_log(self, access_log: AccessLog) -> Handle {
        Handle { access_log, ..self }
    }

    /// Reopens the access log's file.
    pub fn reopen_log(&self) {
        self.access_log.reopen();
    }

    /// Sender of commands to the first worker, which is the only one in [`EngineThread`].
    pub fn worker(&self) -> Option<&CommandSender> {
        self.workers.first()
    }

    /// State of the interception rules.
    pub fn intercept_state(&self) -> &Arc<InterceptState> {
        &self.intercept_state
    }

    /// Current settings.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Applies new settings; no flow is cut.
    ///
    /// # Errors
    /// A setting has changed that needs a restart; nothing is applied then.
    pub fn reload(&mut self, new: Settings) -> Result<()> {
        self.settings.check_change(&new)?;
        self.send_all(|| WorkerCommand::Reload(Box::new(new.clone())));
        self.settings = new;
        Ok(())
    }

    /// Stops accepting flows; the workers end when the present flows have ended or their time
    /// is up.
    pub fn drain(&self) {
        self.intercept_state.pass_by();
        self.send_all(|| WorkerCommand::Drain);
    }

    /// Ends the workers at once.
    pub fn stop(&self) {
        self.send_all(|| WorkerCommand::Stop);
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
        // All are asked before the first has answered.
        let answers: Vec<_> = self.workers.iter().map(ask).collect();
        let (mut counters, mut hangs) = (ProxyStats::default(), false);
        for answer in answers {
            let answer = tokio::time::timeout(QUERY_TIMEOUT, answer).await.ok();
            match answer.and_then(Result::ok) {
                Some(stats) => counters.add(stats),
                None => hangs = true,
            }
        }
        if let Some(over_limit) = &self.settings.over_limit {
            counters.refused.over_limit = over_limit.load(Ordering::Relaxed);
        }
        ProxyStatus {
            proxy: self.settings.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: self.started.elapsed().as_secs_f64(),
            listen: self.settings.listen.clone(),
            tunnel_listen: self.settings.tunnels.as_ref().and_then(|tunnels| tunnels.listen),
            to: self.settings.target.to_string(),
            most: self.settings.limits.flows as u64,
            hangs,
            restored: self.intercept_state.restored(),
            missing: self.intercept_state.is_missing(),
            handlers: self.settings.policies.state(),
            access_log: self.access_log.stats(),
            counters,
        }
    }
}

impl EngineThread {
    /// Starts a proxy in a thread.
    ///
    /// # Errors
    /// The proxy cannot listen, or see SYNs.
    pub fn start(settings: Settings) -> Result<EngineThread> {
        let intercept_state = Arc::default();
        let loops = Loops::new(&settings, startup::listen_sets(&settings)?, &intercept_state)?;
        let (commands, log) = (loops.commands(), loops.access_log());
        let thread = thread::Builder::new().name("flows".to_owned()).spawn(|| loops.run());
        let thread = thread.context("start the thread of flows")?;
        let handle = Handle::new(settings, commands, intercept_state).with_access_log(log);
        Ok(EngineThread { handle, thread })
    }

    /// Returns whether the thread has ended.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends the proxy at once, if it has not ended.
    ///
    /// # Errors
    /// The error that the thread ended with.
    pub fn end(self) -> Result<()> {
        self.handle.stop();
        self.thread.join().unwrap_or_else(|_| Err(anyhow!("the thread of flows panicked")))
    }
}

//! Control handle of a proxy's workers: queries, changes, and the end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tokio::sync::oneshot;

use super::keeper::Interception;
use super::loops::Loops;
use super::opening;
use super::orders::{Order, ToWorker};
use super::settings::Settings;
use super::snapshot::ProxyStatus;
use super::stats::ProxyStats;
use crate::access_log::AccessLog;

/// Time limit for a worker's reply to a query; after it, the worker counts as hung.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Running workers, and their settings.
#[derive(Debug)]
pub struct Handle {
    settings: Settings,
    workers: Vec<ToWorker>,
    interception: Arc<Interception>,
    access_log: AccessLog,
    started: Instant,
}

/// A proxy in a thread beside other tasks of the process.
#[derive(Debug)]
pub struct Beside {
    /// Control handle of the workers.
    pub handle: Handle,
    thread: JoinHandle<Result<()>>,
}

impl Handle {
    /// Returns the handle of workers that run with `settings`; `interception` is the state of
    /// the rules that divert clients to them.
    pub fn new(
        settings: Settings,
        workers: Vec<ToWorker>,
        interception: Arc<Interception>,
    ) -> Handle {
        let access_log = AccessLog::default();
        Handle { settings, workers, interception, access_log, started: Instant::now() }
    }

    /// Sets the access log that the workers write.
    pub fn with_access_log(self, access_log: AccessLog) -> Handle {
        Handle { access_log, ..self }
    }

    /// Reopens the access log's file.
    pub fn reopen_log(&self) {
        self.access_log.reopen();
    }

    /// Sender of commands to the first worker, which is the only one in [`Beside`].
    pub fn worker(&self) -> Option<&ToWorker> {
        self.workers.first()
    }

    /// State of the interception rules.
    pub fn interception(&self) -> &Arc<Interception> {
        &self.interception
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
        self.tell(|| Order::Reload(Box::new(new.clone())));
        self.settings = new;
        Ok(())
    }

    /// Stops accepting flows; the workers end when the present flows have ended or their time
    /// is up.
    pub fn drain(&self) {
        self.interception.pass_by();
        self.tell(|| Order::Drain);
    }

    /// Ends the workers at once.
    pub fn stop(&self) {
        self.tell(|| Order::Stop);
    }

    fn tell(&self, order: impl Fn() -> Order) {
        self.workers.iter().for_each(|worker| worker.tell(order()));
    }

    /// Current status of all workers together.
    pub async fn status(&self) -> ProxyStatus {
        let ask = |worker: &ToWorker| {
            let (reply, answer) = oneshot::channel();
            worker.tell(Order::Show(reply));
            answer
        };
        // All are asked before the first has answered.
        let answers: Vec<_> = self.workers.iter().map(ask).collect();
        let (mut counters, mut hangs) = (ProxyStats::default(), false);
        for answer in answers {
            let answer = tokio::time::timeout(ANSWER_WITHIN, answer).await.ok();
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
            restored: self.interception.restored(),
            missing: self.interception.is_missing(),
            handlers: self.settings.policies.state(),
            access_log: self.access_log.stats(),
            counters,
        }
    }
}

impl Beside {
    /// Starts a proxy in a thread.
    ///
    /// # Errors
    /// The proxy cannot listen, or see SYNs.
    pub fn start(settings: Settings) -> Result<Beside> {
        let interception = Arc::default();
        let loops = Loops::new(&settings, opening::doors(&settings)?, &interception)?;
        let (orders, log) = (loops.orders(), loops.access_log());
        let thread = thread::Builder::new().name("flows".to_owned()).spawn(|| loops.run());
        let thread = thread.context("start the thread of flows")?;
        let handle = Handle::new(settings, orders, interception).with_access_log(log);
        Ok(Beside { handle, thread })
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

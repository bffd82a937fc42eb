//! What whoever runs a proxy's workers holds of them: to ask, to change and to end them.

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

/// How long one may take to say what it sees; more, and it hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Running workers, and what they were told.
#[derive(Debug)]
pub struct Handle {
    settings: Settings,
    workers: Vec<ToWorker>,
    interception: Arc<Interception>,
    access_log: AccessLog,
    started: Instant,
}

/// Workers in threads of their own, beside something else.
#[derive(Debug)]
pub struct Beside {
    /// To ask, to change and to end it.
    pub handle: Handle,
    thread: JoinHandle<Result<()>>,
}

impl Handle {
    /// Of workers that do what `settings` say, and what became of the rules that lead clients to them.
    pub fn new(
        settings: Settings,
        workers: Vec<ToWorker>,
        interception: Arc<Interception>,
    ) -> Handle {
        let access_log = AccessLog::default();
        Handle { settings, workers, interception, access_log, started: Instant::now() }
    }

    /// The same with the access log that they write.
    pub fn with_access_log(self, access_log: AccessLog) -> Handle {
        Handle { access_log, ..self }
    }

    /// Opens the access log's file again.
    pub fn reopen_log(&self) {
        self.access_log.reopen();
    }

    /// The way to its first worker, which is the only one beside something else.
    pub fn worker(&self) -> Option<&ToWorker> {
        self.workers.first()
    }

    /// What becomes of the rules, for whoever keeps them.
    pub fn interception(&self) -> &Arc<Interception> {
        &self.interception
    }

    /// What it was told.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Has it do what `new` says from now on; no flow is cut.
    ///
    /// # Errors
    /// Something has changed that only a restart can change; nothing happens then.
    pub fn reload(&mut self, new: Settings) -> Result<()> {
        self.settings.check_change(&new)?;
        self.tell(|| Order::Reload(Box::new(new.clone())));
        self.settings = new;
        Ok(())
    }

    /// Has it take no more flows, and end when those that are there have ended or their time is up.
    pub fn drain(&self) {
        self.interception.pass_by();
        self.tell(|| Order::Drain);
    }

    /// Has it end at once.
    pub fn stop(&self) {
        self.tell(|| Order::Stop);
    }

    fn tell(&self, order: impl Fn() -> Order) {
        self.workers.iter().for_each(|worker| worker.tell(order()));
    }

    /// What they say of themselves now, together.
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
    /// Starts one.
    ///
    /// # Errors
    /// It cannot listen, or see SYNs.
    pub fn start(settings: Settings) -> Result<Beside> {
        let interception = Arc::default();
        let loops = Loops::new(&settings, opening::doors(&settings)?, &interception)?;
        let (orders, log) = (loops.orders(), loops.access_log());
        let thread = thread::Builder::new().name("flows".to_owned()).spawn(|| loops.run());
        let thread = thread.context("start the thread of flows")?;
        let handle = Handle::new(settings, orders, interception).with_access_log(log);
        Ok(Beside { handle, thread })
    }

    /// Whether it has ended.
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Ends it at once, if it has not ended.
    ///
    /// # Errors
    /// What it ended with.
    pub fn end(self) -> Result<()> {
        self.handle.stop();
        self.thread.join().unwrap_or_else(|_| Err(anyhow!("the thread of flows panicked")))
    }
}

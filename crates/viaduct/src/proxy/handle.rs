//! What whoever runs a worker holds of it: to ask, to change and to end it.

use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use tokio::sync::oneshot;

use super::opening;
use super::orders::{Order, ToWorker};
use super::settings::Settings;
use super::snapshot::ProxyStatus;
use super::worker::Worker;

/// How long a worker may take to say what it sees; more, and it hangs.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// A running worker, and what it was told.
#[derive(Debug)]
pub struct Handle {
    settings: Settings,
    worker: ToWorker,
    started: Instant,
}

/// A worker in a thread of its own, beside something else.
#[derive(Debug)]
pub struct Beside {
    /// To ask, to change and to end it.
    pub handle: Handle,
    thread: JoinHandle<Result<()>>,
}

impl Handle {
    /// Of a worker that does what `settings` say.
    pub fn new(settings: Settings, worker: ToWorker) -> Handle {
        Handle { settings, worker, started: Instant::now() }
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
        self.settings = new.clone();
        self.worker.tell(Order::Reload(Box::new(new)));
        Ok(())
    }

    /// Has it take no more flows, and end when those that are there have ended or their time is up.
    pub fn drain(&self) {
        self.worker.tell(Order::Drain);
    }

    /// Has it end at once.
    pub fn stop(&self) {
        self.worker.tell(Order::Stop);
    }

    /// What it says of itself now.
    pub async fn status(&self) -> ProxyStatus {
        let (reply, answer) = oneshot::channel();
        self.worker.tell(Order::Show(reply));
        let answer = tokio::time::timeout(ANSWER_WITHIN, answer).await.ok().and_then(Result::ok);
        ProxyStatus {
            proxy: self.settings.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: self.started.elapsed().as_secs_f64(),
            listen: self.settings.listen.clone(),
            to: self.settings.target.to_string(),
            most: self.settings.limits.flows as u64,
            hangs: answer.is_none(),
            counters: answer.unwrap_or_default(),
        }
    }
}

impl Beside {
    /// Starts one.
    ///
    /// # Errors
    /// It cannot listen, or see SYNs.
    pub fn start(settings: Settings) -> Result<Beside> {
        let (worker, to_worker) = Worker::new(&settings, opening::doors(&settings)?)?;
        let thread = thread::Builder::new().name("flows".to_owned()).spawn(|| worker.run());
        let thread = thread.context("start the thread of flows")?;
        Ok(Beside { handle: Handle::new(settings, to_worker), thread })
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

//! Event loops of a proxy: each is a worker in a thread of its own, with its own listeners,
//! flows and limits. The kernel distributes connections among them
//! (`viaduct_sys::capture::filter::Share`).

use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::{Context, Result, anyhow};

use super::doors::Doors;
use super::keeper::Interception;
use super::orders::{Order, ToWorker};
use super::settings::Settings;
use super::worker::Worker;
use crate::access_log::AccessLog;

/// Event loops, before they run.
pub struct Loops {
    workers: Vec<Worker>,
    orders: Vec<ToWorker>,
    access_log: AccessLog,
}

impl Loops {
    /// Returns a loop for each set of `doors`; `interception` is the state of the rules that
    /// divert clients to them.
    ///
    /// # Errors
    /// Same as [`Worker::new`].
    pub fn new(
        settings: &Settings,
        doors: Vec<Doors>,
        interception: &Arc<Interception>,
    ) -> Result<Loops> {
        let (part, access_log) = (settings.part(), settings.access_log.open()?);
        let begin = |doors| Worker::new(&part, doors, interception.clone(), access_log.clone());
        let begun = doors.into_iter().map(begin);
        let (workers, orders) = begun.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        Ok(Loops { workers, orders, access_log })
    }

    /// Access log of the loops.
    pub fn access_log(&self) -> AccessLog {
        self.access_log.clone()
    }

    /// Senders of commands to the loops.
    pub fn orders(&self) -> Vec<ToWorker> {
        self.orders.clone()
    }

    /// Runs until all loops have ended. If one fails, the others are stopped.
    ///
    /// # Errors
    /// The error of the first loop that failed; a panic counts as one.
    pub fn run(mut self) -> Result<()> {
        if let [_] = self.workers[..]
            && let Some(worker) = self.workers.pop()
        {
            return worker.run();
        }
        let (end, ended) = mpsc::channel();
        for (n, worker) in self.workers.into_iter().enumerate() {
            let end = end.clone();
            let run = move || {
                let ran = panic::catch_unwind(AssertUnwindSafe(|| worker.run()));
                let panicked = |_| Err(anyhow!("a loop of flows panicked"));
                // The receiver waits for all loops.
                let _ = end.send(ran.unwrap_or_else(panicked));
            };
            let started = thread::Builder::new().name(format!("flows-{n}")).spawn(run);
            started.context("start a thread of flows")?;
        }
        drop(end);
        let mut all = Ok(());
        for result in ended {
            if result.is_err() {
                self.orders.iter().for_each(|one| one.tell(Order::Stop));
            }
            all = all.and(result);
        }
        all
    }
}

//! Event loops of a proxy: each is a worker in a thread of its own, with its own listeners,
//! flows and limits. The kernel distributes connections among them
//! (`viaduct_sys::capture::filter::Share`).

use std::os::fd::OwnedFd;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::{Context, Result, anyhow};
use viaduct_proto::upgrade::FlowRecord;

use super::commands::{CommandSender, WorkerCommand};
use super::config::EngineConfig;
use super::intercept::InterceptState;
use super::listen_set::ListenSet;
use super::worker::Worker;
use crate::access_log::AccessLog;

/// Event loops, before they run.
pub struct Loops {
    workers: Vec<Worker>,
    /// Senders of commands to the loops.
    pub(super) commands: Vec<CommandSender>,
    /// Access log of the loops.
    pub(super) access_log: AccessLog,
}

impl Loops {
    /// Returns a loop for each of `listen_sets`; `intercept_state` is the state of the rules that
    /// divert clients to them, and `access_log` the log of their flows.
    pub fn new(
        config: &EngineConfig,
        listen_sets: Vec<ListenSet>,
        intercept_state: &Arc<InterceptState>,
        access_log: AccessLog,
    ) -> Result<Loops> {
        let part = config.part();
        let begin = |listen_set| {
            Worker::new(&part, listen_set, intercept_state.clone(), access_log.clone())
        };
        let begun = listen_sets.into_iter().map(begin);
        let (workers, commands) = begun.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        Ok(Loops { workers, commands, access_log })
    }

    /// Continues flows of another process. Flows of that process's loop number `worker` continue in
    /// the loop with the same number here.
    ///
    /// # Errors
    /// There is no such loop, or a flow cannot be continued.
    pub fn restore(
        &mut self,
        worker: u32,
        flows: &[FlowRecord],
        descriptors: Vec<OwnedFd>,
    ) -> Result<()> {
        let mut descriptors = descriptors.into_iter();
        let loop_of = self.workers.get_mut(worker as usize);
        let worker = loop_of.with_context(|| format!("there is no event loop {worker}"))?;
        for flow in flows {
            worker.restore(flow, &mut descriptors).context("cannot continue a flow")?;
        }
        Ok(())
    }

    /// Runs until all loops have ended. If one fails, the others are stopped. Errors: the error of
    /// the first loop that failed. With several loops, a panic counts as an error. A single loop
    /// runs in the calling thread, so its panic reaches the caller.
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
                let panicked = |_| Err(anyhow!("an event loop panicked"));
                // Cannot fail: the receiver waits for all loops.
                let _ = end.send(ran.unwrap_or_else(panicked));
            };
            let started = thread::Builder::new().name(format!("flows-{n}")).spawn(run);
            started.context("cannot start an event loop thread")?;
        }
        drop(end);
        let mut all = Ok(());
        for result in ended {
            if result.is_err() {
                self.commands.iter().for_each(|one| one.send(WorkerCommand::Stop));
            }
            all = all.and(result);
        }
        all
    }
}

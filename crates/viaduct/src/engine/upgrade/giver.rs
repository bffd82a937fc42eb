//! The old process's side of a proxy's upgrade.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context as _, Result};
use tracing::warn;
use viaduct_proto::upgrade::{ListenRecord, Message, ServiceRecord};

use crate::engine::commands::{CommandSender, WorkerCommand};
use crate::engine::handle::Handle;
use crate::engine::intercept::InterceptState;
use crate::engine::transfer::SendFlows;
use crate::handover::{Channel, ConfigText, HandedOver, Handover, TRANSFER_TIMEOUT};

/// Hands a proxy to a new process.
#[derive(Debug)]
pub struct ProxyHandover {
    config: ConfigText,
    workers: Vec<CommandSender>,
    intercept_state: Arc<InterceptState>,
    /// Listener of the metrics.
    metrics: Option<OwnedFd>,
}

impl ProxyHandover {
    /// Returns the handover of the workers of `proxy`. `config` is the config in force.
    pub fn new(config: ConfigText, proxy: &Handle, metrics: Option<OwnedFd>) -> ProxyHandover {
        let (workers, intercept_state) =
            (proxy.workers().to_vec(), proxy.intercept_state().clone());
        ProxyHandover { config, workers, intercept_state, metrics }
    }

    fn ask_all<T>(&self, command: impl Fn(SyncSender<T>) -> WorkerCommand) -> Vec<Receiver<T>> {
        let ask = |worker: &CommandSender| {
            let (reply, answer) = sync_channel(1);
            worker.send(command(reply));
            answer
        };
        self.workers.iter().map(ask).collect()
    }

    fn send_all(&self, command: impl Fn() -> WorkerCommand) {
        self.workers.iter().for_each(|worker| worker.send(command()));
    }
}

impl Handover for ProxyHandover {
    fn send_service(&self, channel: &Channel) -> Result<()> {
        let mut workers: Vec<ListenRecord> = Vec::new();
        let mut listen_fds: Vec<OwnedFd> = Vec::new();
        for reply in self.ask_all(WorkerCommand::Export) {
            let exported = reply.recv_timeout(TRANSFER_TIMEOUT).context(HANGS)?;
            let (record, fds) = exported.context("cannot duplicate descriptors")?;
            workers.push(record);
            listen_fds.extend(fds);
        }
        let config = self.config.to_file()?;
        let changes = self.intercept_state.changes();
        let (mut locks, mut fds) = (Vec::new(), Vec::<BorrowedFd<'_>>::new());
        fds.extend(config.iter().map(|file| file.as_fd()));
        fds.extend(self.metrics.iter().map(|listener| listener.as_fd()));
        for (name, fd) in changes.iter().flat_map(|changes| changes.locks()) {
            locks.push(name.to_owned());
            fds.push(fd);
        }
        fds.extend(listen_fds.iter().map(|fd| fd.as_fd()));
        let service = ServiceRecord {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            has_config: config.is_some(),
            has_metrics: self.metrics.is_some(),
            has_journal: changes.is_some(),
            locks,
            workers,
        };
        channel.send(&Message::Service(service), &fds)
    }

    fn send_state(&self, channel: &Channel) -> Result<HandedOver> {
        let replies = self.workers.iter().enumerate().map(|(number, worker)| -> Result<_> {
            let (reply, answer) = sync_channel(1);
            let worker_number = u32::try_from(number)?;
            let command = SendFlows { worker: worker_number, socket: channel.socket(), reply };
            worker.send(WorkerCommand::SendFlows(command));
            Ok(answer)
        });
        // All workers are asked before the first answer is awaited.
        let replies = replies.collect::<Result<Vec<_>>>()?;
        let answers = replies.into_iter().map(|reply| -> Result<usize> {
            let sent = reply.recv_timeout(TRANSFER_TIMEOUT).context(HANGS)?;
            sent.context("cannot send flows to the new process")
        });
        Ok(HandedOver { flows: answers.sum::<Result<usize>>()?, peers: 0 })
    }

    fn take_back(&self) {
        self.send_all(|| WorkerCommand::Resume);
        if let Some(Err(error)) = self.intercept_state.changes().as_ref().map(|all| all.reclaim()) {
            warn!("cannot write the journal: {:#}", anyhow::Error::new(error));
        }
    }

    fn leave(&self) {
        if let Some(mut changes) = self.intercept_state.changes().take() {
            changes.leave();
        }
    }

    fn end(&self) {
        self.send_all(|| WorkerCommand::Release);
    }
}

const HANGS: &str = "an event loop does not answer";

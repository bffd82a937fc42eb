//! The old process's side of an upgrade.

use std::env;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{Shutdown, shutdown};
use tokio::sync::mpsc::UnboundedSender;
use tracing::{error, info, warn};
use viaduct_proto::upgrade::{Giver, GiverStep, ListenRecord, Message, ServiceRecord};
use viaduct_sys::process::{Process, inherited_fds, signals};
use viaduct_sys::socket::seqpacket;

use super::requests::Report;
use super::{Channel, ConfigText, OPTION, ProgramFile, START_TIMEOUT, TRANSFER_TIMEOUT};
use crate::engine::commands::{CommandSender, WorkerCommand};
use crate::engine::handle::Handle;
use crate::engine::intercept::InterceptState;
use crate::engine::transfer::SendFlows;
use crate::notify::notify_main_process;

/// Time for the exit status of a process that has closed its connection.
const EXIT_TIMEOUT: Duration = Duration::from_millis(200);

/// Result of an upgrade, for the control side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The new process serves.
    Released,
    /// An upgrade on SIGHUP has failed; the signal still asks for a reload.
    Failed,
}

/// Hands a proxy to a new process.
#[derive(Debug)]
pub struct Upgrader {
    program: ProgramFile,
    config: ConfigText,
    workers: Vec<CommandSender>,
    intercept_state: Arc<InterceptState>,
    /// Listener of the metrics.
    metrics: Option<OwnedFd>,
    outcomes: UnboundedSender<Outcome>,
    /// Locked during an attempt; true once another process serves.
    is_released: Mutex<bool>,
}

impl Upgrader {
    /// Returns an upgrader of the workers of `proxy`. `config` is the config in force, and the
    /// control side gets the outcomes.
    pub fn new(
        program: ProgramFile,
        config: ConfigText,
        proxy: &Handle,
        metrics: Option<OwnedFd>,
        outcomes: UnboundedSender<Outcome>,
    ) -> Upgrader {
        let (workers, intercept_state) =
            (proxy.workers().to_vec(), proxy.intercept_state().clone());
        let is_released = Mutex::new(false);
        Upgrader { program, config, workers, intercept_state, metrics, outcomes, is_released }
    }

    /// Returns whether the program's file was replaced since this process was started.
    pub fn is_due(&self) -> bool {
        self.program.is_replaced()
    }

    /// Upgrades to the program's file in a thread. A failure is logged, and reported.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn begin(self: &Arc<Self>) -> std::io::Result<()> {
        let this = self.clone();
        let run = move || {
            if let Err(error) = this.upgrade(None, |_| ()) {
                error!("not upgraded: {error:#}");
                let _ = this.outcomes.send(Outcome::Failed);
            }
        };
        std::thread::Builder::new().name("upgrade".to_owned()).spawn(run).map(drop)
    }

    /// Starts `program`, or the program's own file, and hands the proxy to it. `tell` gets a report
    /// once the new process serves. This process then ends after its last flow.
    ///
    /// # Errors
    /// The new process cannot take over. This process goes on with all of its flows.
    pub fn upgrade(&self, program: Option<&Path>, tell: impl FnOnce(&Report)) -> Result<()> {
        let locked = self.is_released.try_lock();
        let mut is_released = locked.map_err(|_| anyhow!("another upgrade is in progress"))?;
        if *is_released {
            bail!("another process has taken over already: try again");
        }
        let (ours, theirs) = seqpacket::pair().context("cannot connect to a new process")?;
        let channel = Channel::new(ours, START_TIMEOUT)?;
        let mut process = self.start(program, &theirs)?;
        drop(theirs);
        let begun = Instant::now();
        let flows = match self.hand_over(&channel, &mut process) {
            Ok(flows) => flows,
            Err(error) => {
                // Only a process that does not exist any more leaves the flows alone for certain.
                drop(process);
                self.take_back();
                return Err(error);
            }
        };
        *is_released = true;
        drop(is_released);
        if let Some(mut changes) = self.intercept_state.changes().take() {
            changes.leave();
        }
        let (old, new) = (std::process::id(), process.id());
        notify_main_process(new);
        // The control side may have ended.
        let _ = self.outcomes.send(Outcome::Released);
        info!(pid = new, flows, took = ?begun.elapsed(), "another process has taken over");
        tell(&Report { old, new, flows });
        self.send_all(|| WorkerCommand::Release);
        // Without this call, an ended child would remain as a zombie.
        process.wait()?;
        Ok(())
    }

    fn start(&self, program: Option<&Path>, socket: &OwnedFd) -> Result<Process> {
        let path = program.unwrap_or(&self.program.path);
        let is_old = |argument: &std::ffi::OsString| {
            argument.to_str().is_some_and(|text| text.starts_with(&format!("{OPTION}=")))
        };
        let mut command = Command::new(path);
        command.args(env::args_os().skip(1).filter(|argument| !is_old(argument)));
        command.arg(format!("{OPTION}={}", socket.as_raw_fd()));
        command.env_remove("LISTEN_FDS").env_remove("LISTEN_PID");
        inherited_fds::leave_open(&mut command, &[socket.as_fd()]);
        signals::ignore_at_start(
            &mut command,
            &[signal_hook::consts::SIGHUP, signal_hook::consts::SIGUSR1],
        );
        let started = Process::spawn_foreground(command);
        started.with_context(|| format!("cannot start {}", path.display()))
    }

    /// Hands everything over; returns the number of flows.
    fn hand_over(&self, channel: &Channel, process: &mut Process) -> Result<usize> {
        let (mut giver, mut flows) = (Giver::default(), 0);
        let Err(error) = self.converse(channel, process, &mut giver, &mut flows) else {
            return Ok(flows);
        };
        // From here on the new process cannot confirm any more. It may have done so just before.
        let _ = shutdown(&channel.0, Shutdown::Both);
        if let Ok(Some((message, _))) = channel.receive() {
            let _ = giver.handle_message(message);
        }
        if giver.is_released() { Ok(flows) } else { Err(error) }
    }

    fn converse(
        &self,
        channel: &Channel,
        process: &mut Process,
        giver: &mut Giver,
        flows: &mut usize,
    ) -> Result<()> {
        while !giver.is_released() {
            let Some((message, _)) = channel.receive()? else { return Err(ended(process)) };
            match giver.handle_message(message)? {
                GiverStep::SendService => self.send_service(channel)?,
                GiverStep::SendFlows => {
                    seqpacket::set_timeout(&channel.0, TRANSFER_TIMEOUT)?;
                    *flows = self.send_flows(channel)?;
                    channel.send(&Message::End, &[])?;
                    giver.handle_end_sent();
                }
                GiverStep::Release => {}
            }
        }
        Ok(())
    }

    fn send_service(&self, channel: &Channel) -> Result<()> {
        let mut workers: Vec<ListenRecord> = Vec::new();
        let mut listen_fds: Vec<OwnedFd> = Vec::new();
        for reply in self.ask_all(WorkerCommand::Export) {
            let exported = reply.recv_timeout(TRANSFER_TIMEOUT).context(HANGS)?;
            let (record, fds) = exported.map_err(|why| anyhow!(why))?;
            workers.push(record);
            listen_fds.extend(fds);
        }
        let config = self.config.get().map(|text| memory_file(&text)).transpose()?;
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

    fn send_flows(&self, channel: &Channel) -> Result<usize> {
        let replies = self.workers.iter().enumerate().map(|(number, worker)| -> Result<_> {
            let (reply, answer) = sync_channel(1);
            let worker_number = u32::try_from(number)?;
            let socket = channel.0.clone();
            let command = SendFlows { worker: worker_number, socket, reply };
            worker.send(WorkerCommand::SendFlows(command));
            Ok(answer)
        });
        // All workers are asked before the first answer is awaited.
        let replies = replies.collect::<Result<Vec<_>>>()?;
        let answers = replies.into_iter().map(|reply| -> Result<usize> {
            let sent = reply.recv_timeout(TRANSFER_TIMEOUT).context(HANGS)?;
            sent.context("cannot send flows to the new process")
        });
        answers.sum()
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

    /// Goes on with all flows, after the new process has failed.
    fn take_back(&self) {
        self.send_all(|| WorkerCommand::Resume);
        if let Some(Err(error)) = self.intercept_state.changes().as_ref().map(|all| all.reclaim()) {
            warn!("cannot write the journal: {:#}", anyhow::Error::new(error));
        }
    }
}

const HANGS: &str = "an event loop does not answer";

/// Error of a process that has ended too soon.
fn ended(process: &mut Process) -> anyhow::Error {
    let status = match process.wait_for(EXIT_TIMEOUT, || false) {
        Ok(Some(status)) => format!(" ({status})"),
        _ => String::new(),
    };
    anyhow!(
        "the new process has ended{status} before it has taken over: the log has its error; a \
         version that does not know {OPTION} needs a restart"
    )
}

/// Returns a memory file with `text`.
fn memory_file(text: &str) -> Result<File> {
    let mut file = File::from(memfd_create("config", MemfdFlags::CLOEXEC)?);
    file.write_all(text.as_bytes()).context("cannot pass the config on")?;
    Ok(file)
}

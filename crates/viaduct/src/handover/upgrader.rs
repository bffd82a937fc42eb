//! The old process's side of an upgrade.

use std::env;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::net::{Shutdown, shutdown};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tracing::{error, info, warn};
use viaduct_proto::upgrade::{Giver, GiverStep, Message};
use viaduct_sys::process::{Process, inherited_fds, signals};
use viaduct_sys::socket::seqpacket;

use super::requests::Report;
use super::{Channel, OPTION, ProgramFile, START_TIMEOUT, TRANSFER_TIMEOUT};
use crate::notify::{is_main_process_followed, notify_main_process};
use crate::status_socket::SocketFile;

/// Time limit of the wait for the exit status of a process that has closed its connection.
const EXIT_TIMEOUT: Duration = Duration::from_millis(200);
const IN_PROGRESS: &str = "another upgrade is in progress";

/// Result of an upgrade, for the control side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The new process serves.
    Released,
    /// An upgrade on SIGHUP has failed; the signal still asks for a reload.
    Failed,
}

/// Next outcome of an upgrade. Without upgrades the future never completes.
pub async fn next_outcome(outcomes: Option<&mut UnboundedReceiver<Outcome>>) -> Outcome {
    let Some(outcomes) = outcomes else { return std::future::pending().await };
    match outcomes.recv().await {
        Some(outcome) => outcome,
        None => std::future::pending().await,
    }
}

/// Numbers of flows and peers that the new process continues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// Flows of a proxy.
    pub flows: usize,
    /// Peers of a gateway.
    pub peers: usize,
}

/// Service that can continue in another process.
pub trait Handover: Send + Sync {
    /// Sends the data that the new process needs to prepare. This process continues to serve.
    ///
    /// # Errors
    /// The service cannot be handed over, or the new process has ended.
    fn send_service(&self, channel: &Channel) -> Result<()>;

    /// Stops everything that only one process may do, and sends the state.
    ///
    /// # Errors
    /// The new process has ended, or a part of this one does not answer.
    fn send_state(&self, channel: &Channel) -> Result<HandedOver>;

    /// Resumes the service, after the new process has failed and no longer exists.
    fn take_back(&self);

    /// Leaves the changes to the machine in place, for the new process.
    fn leave(&self);

    /// Ends this process, after its last flow if it has any.
    fn end(&self);
}

/// Hands a service to a new process.
pub struct Upgrader {
    program: ProgramFile,
    /// Status socket of the service.
    socket: PathBuf,
    service: Box<dyn Handover>,
    outcomes: UnboundedSender<Outcome>,
    /// Locked during an attempt. Process ID of the process that serves now, if it is another one.
    successor: Mutex<Option<u32>>,
    /// Connection to the new process, while it may still fail to take over.
    attempt: Mutex<Option<OwnedFd>>,
    /// True once this process ends: no further attempt begins.
    is_ending: AtomicBool,
}

impl Upgrader {
    /// Returns an upgrader of `service`, whose status socket is `socket`. The control side gets the
    /// outcomes.
    pub fn new(
        program: ProgramFile,
        socket: PathBuf,
        service: Box<dyn Handover>,
        outcomes: UnboundedSender<Outcome>,
    ) -> Upgrader {
        let (successor, attempt, is_ending) = Default::default();
        Upgrader { program, socket, service, outcomes, successor, attempt, is_ending }
    }

    /// Returns whether SIGHUP asks for an upgrade: the program's file was replaced since this
    /// process was started, and the service manager follows a new process. Without such a manager a
    /// replaced file is logged.
    pub fn is_due(&self) -> bool {
        let (is_replaced, is_followed) = (self.program.is_replaced(), is_main_process_followed());
        if is_replaced && !is_followed {
            warn!(
                "the program was replaced, but no service manager (NOTIFY_SOCKET) would follow a \
                 new process: restart the service to run the new program, or use `viaduct \
                 upgrade` if nothing supervises it"
            );
        }
        is_replaced && is_followed
    }

    /// Aborts the attempt in progress, if there is one, and refuses further ones, because this
    /// process ends. Returns the ID of the process that serves, if it is another one.
    pub fn settle(&self) -> Option<u32> {
        // An attempt that does not see the flag has stored its connection before.
        self.is_ending.store(true, Ordering::SeqCst);
        if let Some(socket) = &*lock(&self.attempt) {
            // If the new process has taken over just before, its message is still received.
            let _ = shutdown(socket, Shutdown::Both);
        }
        *lock(&self.successor)
    }

    /// Upgrades to the program's file in a thread. A failure is logged, and reported to the control
    /// side, unless another upgrade is in progress.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn begin(self: &Arc<Self>) -> std::io::Result<()> {
        let this = self.clone();
        let run = move || {
            let Ok(successor) = this.successor.try_lock() else {
                return error!("not upgraded: {IN_PROGRESS}");
            };
            if let Err(error) = this.attempt(successor, None, |_| ()) {
                error!("not upgraded: {error:#}");
                let _ = this.outcomes.send(Outcome::Failed);
            }
        };
        std::thread::Builder::new().name("upgrade".to_owned()).spawn(run).map(drop)
    }

    /// Starts `program` (`None`: the file from which this process was started), and hands the
    /// service to it. `tell` gets a report once the new process serves. This process then ends
    /// after its last flow.
    ///
    /// # Errors
    /// The new process cannot take over. This process continues, with all flows and peers.
    pub fn upgrade(&self, program: Option<&Path>, tell: impl FnOnce(&Report)) -> Result<()> {
        let successor = self.successor.try_lock().map_err(|_| anyhow!(IN_PROGRESS))?;
        self.attempt(successor, program, tell)
    }

    fn attempt(
        &self,
        mut successor: MutexGuard<'_, Option<u32>>,
        program: Option<&Path>,
        tell: impl FnOnce(&Report),
    ) -> Result<()> {
        if successor.is_some() {
            bail!("another process has taken over already: try again");
        }
        let (ours, theirs) = seqpacket::pair().context("cannot connect to a new process")?;
        *lock(&self.attempt) = Some(ours.try_clone()?);
        if self.is_ending.load(Ordering::SeqCst) {
            bail!("the service is stopping");
        }
        let channel = Channel::new(ours, START_TIMEOUT)?;
        let mut process = self.start(program, &theirs)?;
        drop(theirs);
        let (begun, socket) = (Instant::now(), SocketFile::of(&self.socket));
        let handed = self.hand_over(&channel, &mut process);
        *lock(&self.attempt) = None;
        let handed = match handed {
            Ok(handed) => handed,
            Err(error) => {
                // This kills the new process. Otherwise it might still use the sockets.
                drop(process);
                self.service.take_back();
                return Err(error);
            }
        };
        let (old, new) = (std::process::id(), process.id());
        *successor = Some(new);
        drop(successor);
        self.service.leave();
        notify_main_process(new);
        // Until the status socket is replaced, its clients find this process.
        socket.wait_until_replaced();
        let HandedOver { flows, peers } = handed;
        info!(pid = new, flows, peers, took = ?begun.elapsed(), "another process has taken over");
        tell(&Report { old, new, flows, peers });
        // The control side may have ended.
        let _ = self.outcomes.send(Outcome::Released);
        self.service.end();
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
        // The variable has the ID of this process; if it is unset, the new process answers the
        // watchdog.
        command.env_remove("WATCHDOG_PID");
        inherited_fds::leave_open(&mut command, &[socket.as_fd()]);
        signals::ignore_at_start(
            &mut command,
            &[signal_hook::consts::SIGHUP, signal_hook::consts::SIGUSR1],
        );
        let started = Process::spawn_foreground(command);
        started.with_context(|| format!("cannot start {}", path.display()))
    }

    /// Hands everything over.
    fn hand_over(&self, channel: &Channel, process: &mut Process) -> Result<HandedOver> {
        let (mut giver, mut handed) = (Giver::default(), HandedOver::default());
        let Err(error) = self.converse(channel, process, &mut giver, &mut handed) else {
            return Ok(handed);
        };
        // From here on the new process can no longer confirm; it may have confirmed just before.
        let _ = shutdown(&channel.0, Shutdown::Both);
        if let Ok(Some((message, _))) = channel.receive() {
            let _ = giver.handle_message(message);
        }
        if giver.is_released() { Ok(handed) } else { Err(error) }
    }

    fn converse(
        &self,
        channel: &Channel,
        process: &mut Process,
        giver: &mut Giver,
        handed: &mut HandedOver,
    ) -> Result<()> {
        while !giver.is_released() {
            let Some((message, _)) = channel.receive()? else { return Err(ended(process)) };
            match giver.handle_message(message)? {
                GiverStep::SendService => self.service.send_service(channel)?,
                GiverStep::SendFlows => {
                    seqpacket::set_timeout(&channel.0, TRANSFER_TIMEOUT)?;
                    *handed = self.service.send_state(channel)?;
                    channel.send(&Message::End, &[])?;
                    giver.handle_end_sent();
                }
                GiverStep::Release => {}
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Error about a new process that has ended too soon.
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

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::error::TryRecvError;
    use tokio::sync::mpsc::unbounded_channel;

    use super::*;

    struct Service;

    impl Handover for Service {
        fn send_service(&self, _: &Channel) -> Result<()> {
            Ok(())
        }

        fn send_state(&self, _: &Channel) -> Result<HandedOver> {
            Ok(HandedOver::default())
        }

        fn take_back(&self) {}

        fn leave(&self) {}

        fn end(&self) {}
    }

    #[test]
    fn no_second_attempt_begins_and_none_once_the_process_ends() {
        let (send, mut outcomes) = unbounded_channel();
        let program = ProgramFile { path: "/bin/false".into(), running: None };
        let upgrader = Upgrader::new(program, "/none.sock".into(), Box::new(Service), send);
        let upgrader = Arc::new(upgrader);
        let attempt = lock(&upgrader.successor);
        upgrader.begin().unwrap();
        while Arc::strong_count(&upgrader) > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(outcomes.try_recv(), Err(TryRecvError::Empty), "no reason for a reload");
        drop(attempt);
        upgrader.begin().unwrap();
        assert_eq!(outcomes.blocking_recv(), Some(Outcome::Failed));
        assert_eq!(upgrader.settle(), None);
        let refused = upgrader.upgrade(None, |_| ()).unwrap_err();
        assert!(refused.to_string().contains("is stopping"), "{refused}");
    }
}

//! Event loop of the agent: SYNs, clients, ended processes, signals, the status socket.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::geteuid;
use slab::Slab;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::MissedTickBehavior;
use tracing::{debug, info, warn};
use viaduct_proto::flow::Registry;
use viaduct_proto::time::Instant;
use viaduct_sys::capture::syn::SNAP;
use viaduct_sys::clock;
use viaduct_sys::process::{memory, raise_fd_limit};

use super::HopAgentArgs;
use super::definition::Definition;
use super::hop::{Ended, Hop, ProcessSettings};
use super::metrics::encode;
use super::readiness::{Readiness, Ready};
use super::reload::WaitingHop;
use super::status::AgentStatus;
use super::syns::{SynRead, Syns};
use crate::metrics::{self, Metrics, Page};
use crate::notify::{Phase, notify};
use crate::signals::{SignalStreams, Signals};
use crate::status_socket;
use crate::watchdog::Watchdog;

/// User ID of the first hop's processes. If the agent runs as root, each hop has its own user ID.
/// systemd and distributions do not use these IDs.
const FIRST_USER: u32 = 1_879_048_192;
/// Number of these user IDs. After the last ID, those of removed hops are reused.
const USERS: u32 = 100_000;
/// Maximum number of SYNs read in one turn.
const MAX_SYNS: usize = 256;
/// Interval of checks for running processes during a drain.
const DRAIN_POLL: Duration = Duration::from_millis(20);
/// Interval of attempts to open the listeners of waiting hops.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// The agent.
pub struct Agent {
    pub(super) args: HopAgentArgs,
    pub(super) registry: Registry,
    log_json: bool,
    pub(super) hops: Slab<Hop>,
    /// Definitions with which the agent starts.
    definitions: Vec<Definition>,
    /// Number of user IDs taken or skipped so far.
    next_user: u64,
    signals: Option<Signals>,
}

/// The running agent.
pub(super) struct Service {
    pub(super) agent: Agent,
    /// Hops whose listeners are to be opened.
    pub(super) waiting: Vec<WaitingHop>,
    pub(super) syns: Syns,
    /// Readiness of the tap, of listeners of idle hops, and of processes.
    readiness: Readiness,
    /// Sender of the keys of hops whose pause has ended.
    resume: UnboundedSender<usize>,
    started: Instant,
}

impl Agent {
    /// Creates an agent for hops with these definitions.
    pub fn open(
        args: HopAgentArgs,
        registry: Registry,
        log_json: bool,
        definitions: Vec<Definition>,
    ) -> Result<Agent> {
        let signals = Some(Signals::register()?);
        raise_fd_limit();
        let hops = Slab::new();
        Ok(Agent { args, registry, log_json, hops, definitions, next_user: 0, signals })
    }

    /// Runs until SIGTERM or SIGINT, and then until all processes have ended or a second signal
    /// arrives.
    pub fn run(mut self) -> Result<()> {
        let signals = self.signals.take().context("the signals are in use")?;
        let (runtime, signals) = signals.into_parts();
        let path = self.args.run_dir.path().join(format!("{}.sock", self.args.name));
        let done = runtime.block_on(async {
            let (status, _name) = status_socket::open(&path)?;
            let metrics = self.args.metrics.map(metrics::listen).transpose()?;
            let ((send, ready), (resume, resumed)) = (unbounded_channel(), unbounded_channel());
            let mut service = Service::new(self, Readiness::start(send)?, resume)?;
            memory::drop_clean_pages()?;
            let sockets = (&status, metrics.as_ref());
            let served = service.serve((ready, resumed), sockets, signals).await;
            service.agent.hops.clear();
            served
        });
        notify(Phase::Stopping);
        done
    }

    /// Opens the listeners of a new hop.
    pub(super) fn add(&mut self, mut definition: Definition) -> Result<usize> {
        definition.meaning = String::new();
        let mut hop = Hop::open(definition)?;
        if geteuid().is_root() {
            hop.user = Some(self.take_user()?);
        }
        Ok(self.hops.insert(hop))
    }

    fn take_user(&mut self) -> Result<u32> {
        let is_used = |user: u32| self.hops.iter().any(|(_, hop)| hop.user == Some(user));
        free_user(&mut self.next_user, is_used)
            .with_context(|| format!("all {USERS} user IDs are in use"))
    }
}

impl Service {
    fn new(
        mut agent: Agent,
        readiness: Readiness,
        resume: UnboundedSender<usize>,
    ) -> Result<Service> {
        for definition in std::mem::take(&mut agent.definitions) {
            let name = format!("hop {}", definition.name);
            agent.add(definition).context(name)?;
        }
        let syns = syns(&agent.hops)?;
        let (waiting, started) = (Vec::new(), now());
        let service = Service { agent, waiting, syns, readiness, resume, started };
        service.watch_tap()?;
        service.agent.hops.iter().for_each(|(key, _)| service.watch(key));
        Ok(service)
    }

    async fn serve(
        &mut self,
        (mut ready, mut resumed): (UnboundedReceiver<Ready>, UnboundedReceiver<usize>),
        (status_listener, metrics_listener): (&UnixListener, Option<&TcpListener>),
        mut signals: SignalStreams,
    ) -> Result<()> {
        let (mut watchdog, metrics) = (Watchdog::new(), Metrics::default());
        let mut retry = tokio::time::interval(RETRY_INTERVAL);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (name, hops) = (&self.agent.args.name, self.agent.hops.len());
        info!(name, hops, "up as a hop agent");
        notify(Phase::Ready);
        let mut is_draining = false;
        while !is_draining || self.agent.hops.iter().any(|(_, hop)| hop.is_running()) {
            tokio::select! {
                Some(ready) = ready.recv() => self.handle(ready)?,
                Some(key) = resumed.recv() => {
                    if let Some(hop) = self.agent.hops.get_mut(key) {
                        hop.resume();
                    }
                    self.watch(key);
                }
                () = watchdog.due() => watchdog.answer(Duration::ZERO),
                client = status_socket::accept(status_listener) => {
                    status_socket::show(client, &self.status())?;
                }
                client = metrics::accept(metrics_listener) => {
                    let status = self.status();
                    let trouble = Some(status.troubles().join("\n")).filter(|all| !all.is_empty());
                    metrics.answer(client, Page { counters: encode(&status), trouble });
                }
                _ = signals.hangup.recv(), if !is_draining => self.reload_and_log(),
                _ = retry.tick(), if !self.waiting.is_empty() => self.retry()?,
                _ = signals.terminate.recv() => if self.drain(&mut is_draining) { break },
                _ = signals.interrupt.recv() => if self.drain(&mut is_draining) { break },
                () = tokio::time::sleep(DRAIN_POLL), if is_draining => {}
            }
        }
        info!("stopping");
        Ok(())
    }

    /// Handles a client of a hop: starts the hop's process, or passes the SYN to the running
    /// process. `syn` is empty if the tap did not see the SYN.
    fn want(&mut self, key: usize, syn: &[u8]) {
        let Agent { args, log_json, hops, .. } = &mut self.agent;
        let Some(hop) = hops.get_mut(key) else { return };
        if !hop.is_idle() {
            return hop.pass(syn);
        }
        if hop.listeners.is_empty() {
            return;
        }
        let directory = args.run_dir.path().join(format!("{}.d", args.name));
        let settings =
            ProcessSettings { directory: &directory, memory: args.memory, log_json: *log_json };
        let started = hop.start(Some(syn).filter(|syn| !syn.is_empty()), settings);
        let watched = started.and_then(|()| {
            let end = hop.process_end().context("its process has no descriptor")?;
            Ok(self.readiness.watch(end, Ready::Ended(key))?)
        });
        let failed = match watched {
            Ok(()) => {
                debug!(hop = hop.definition.name, "started");
                None
            }
            Err(error) => Some(hop.failed(format!("{error:#}"))),
        };
        self.unwatch(key);
        if let Some(failed) = failed {
            self.after(key, failed);
        }
    }

    fn allows(&self, key: usize, client: IpAddr) -> bool {
        self.agent.hops.get(key).is_some_and(|hop| hop.definition.allows(client))
    }

    fn handle(&mut self, ready: Ready) -> Result<()> {
        match ready {
            Ready::Tap => {
                let mut packet = [0; SNAP];
                for _ in 0..MAX_SYNS {
                    match self.syns.read(&mut packet) {
                        SynRead::ToHop(key, client, syn) if self.allows(key, client) => {
                            self.want(key, syn);
                        }
                        SynRead::ToHop(..) | SynRead::Other => {}
                        SynRead::Empty => break,
                    }
                }
                self.watch_tap()?;
            }
            Ready::Client(key) => self.want(key, &[]),
            Ready::Ended(key) => {
                let Some(hop) = self.agent.hops.get_mut(key) else { return Ok(()) };
                let ended = hop.ended().context("cannot wait for a process")?;
                self.after(key, ended);
            }
        }
        Ok(())
    }

    /// Waits for the hop's next client, immediately or after a pause; forgets a hop that was
    /// removed.
    fn after(&mut self, key: usize, ended: Ended) {
        let Some(hop) = self.agent.hops.get(key) else { return };
        if hop.listeners.is_empty() {
            self.agent.hops.remove(key);
            return;
        }
        match ended {
            Ended::Well => {
                debug!(hop = hop.definition.name, "idle");
                self.watch(key);
            }
            Ended::Failed(pause) => {
                let fault = hop.status().fault.unwrap_or_default();
                warn!(
                    hop = hop.definition.name,
                    "{fault}; the next process starts after {pause:?} at the earliest"
                );
                let resume = self.resume.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(pause).await;
                    let _ = resume.send(key);
                });
            }
        }
    }

    /// Watches for SYNs.
    pub(super) fn watch_tap(&self) -> Result<()> {
        let watch = |tap| self.readiness.watch(tap, Ready::Tap);
        self.syns.tap().map_or(Ok(()), watch).context("cannot watch for SYNs")
    }

    /// Watches for clients of an idle hop. A client that is already waiting is reported
    /// immediately.
    pub(super) fn watch(&self, key: usize) {
        let Some(hop) = self.agent.hops.get(key).filter(|hop| hop.is_idle()) else { return };
        for listener in &hop.listeners {
            if let Err(error) = self.readiness.watch(listener, Ready::Client(key)) {
                warn!(hop = hop.definition.name, "clients are detected only by their SYN: {error}");
            }
        }
    }

    /// Stops watching for clients of a hop, because its process accepts them.
    pub(super) fn unwatch(&self, key: usize) {
        let listeners = self.agent.hops.get(key).map_or(&[][..], |hop| &hop.listeners);
        listeners.iter().for_each(|listener| self.readiness.unwatch(listener));
    }

    /// Closes all listeners, and makes the processes drain. Returns false at the first call, true
    /// at further calls.
    fn drain(&mut self, is_draining: &mut bool) -> bool {
        self.waiting.clear();
        self.agent.hops.iter_mut().for_each(|(_, hop)| hop.drain());
        std::mem::replace(is_draining, true)
    }

    fn status(&self) -> AgentStatus {
        let mut hops: Vec<_> = self.agent.hops.iter().map(|(_, hop)| hop.status()).collect();
        hops.extend(self.waiting.iter().map(WaitingHop::status));
        hops.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        AgentStatus {
            agent: self.agent.args.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: now().since(self.started).as_secs_f64(),
            hops,
        }
    }
}

/// Takes the next user ID that is not in use; `None` if all are in use. `next` counts the IDs that
/// were taken or skipped.
fn free_user(next: &mut u64, is_used: impl Fn(u32) -> bool) -> Option<u32> {
    for _ in 0..USERS {
        // Each ID of the first round is new.
        let is_first_round = *next < u64::from(USERS);
        let user = FIRST_USER + (*next % u64::from(USERS)) as u32;
        *next += 1;
        if is_first_round || !is_used(user) {
            return Some(user);
        }
    }
    None
}

/// Opens the tap for the SYNs to all hops.
pub(super) fn syns(hops: &Slab<Hop>) -> Result<Syns> {
    let open = hops.iter().filter(|(_, hop)| !hop.listeners.is_empty());
    let addresses = |(key, hop): (usize, &Hop)| {
        let listen = hop.definition.listen.clone().into_iter();
        listen.map(move |at| (at, key))
    };
    Syns::open(open.flat_map(addresses))
}

fn now() -> Instant {
    Instant::from_nanos(clock::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_last_user_id_those_that_are_still_used_are_skipped() {
        let mut next = u64::from(USERS) - 1;
        let is_used = |user: u32| user == FIRST_USER;
        let mut take = || free_user(&mut next, is_used).map(|user| user - FIRST_USER);
        assert_eq!([take(), take(), take()], [Some(USERS - 1), Some(1), Some(2)]);
        assert_eq!(free_user(&mut next, |_| true), None);
    }
}

//! Commands to a worker, and their handling; limits of a worker.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use mio::Waker;
use tokio::sync::oneshot;
use tracing::info;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::Mirrored;

use super::acceptor::MAX_ACCEPTS;
use super::aware::{EventSink, ProgramRequest, SocketId};
use super::config::EngineConfig;
use super::listen_set::BACKLOG;
use super::liveness::DeadPeerLimits;
use super::stats::ProxyStats;
use super::transfer::{Exported, SendFlows};
use super::worker::Worker;
use super::wrapped::{Arrival, Call};
use crate::tunnel::Tunnels;
use crate::watchdog::Heartbeat;

/// Time for which a stopping proxy still accepts clients that have begun a TCP handshake: enough
/// for a round trip over a satellite link and one retransmission.
const HANDSHAKE_GRACE: Duration = Duration::from_millis(1_200);

/// Commands handled in a row before flows are served.
const MAX_COMMANDS: usize = 64;

/// Resource limits and timeouts of a proxy.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of flows.
    pub flows: usize,
    /// Maximum number of early connections, and time for which each waits for its client; `None` if
    /// there are no early connections.
    pub early: Option<(usize, Duration)>,
    /// Timeout for a server's answer.
    pub connect: Duration,
    /// Timeout of the handlers' handshake on inbound connections.
    pub handshake: Duration,
    /// Keepalive and dead-peer limits of the ends.
    pub silence: DeadPeerLimits,
    /// Idle timeout of a flow.
    pub idle: Option<Duration>,
    /// Time without a flow after which the proxy ends; never if `None`.
    pub idle_exit: Option<Duration>,
    /// Time that flows have to end after a request to stop.
    pub drain: Duration,
    /// Time for which the loop busy-polls for events before it sleeps, if that has paid
    /// off recently.
    pub spin: Duration,
    /// Bytes that each end of a handler chain buffers before it stops reading.
    pub chain_buffer: usize,
    /// Maximum number of bytes that flows over Trickles have requested and not yet delivered. The
    /// limit applies to each choice of packet formats that policies name, and is divided among the
    /// event loops.
    pub trickles_buffer: usize,
}

/// Command to a worker.
#[derive(Debug)]
pub enum WorkerCommand {
    /// Apply this config; settings that need a restart stay as they are.
    Reload(Box<EngineConfig>),
    /// Begin the flow that a wrapped program asks for.
    Connect(Box<Call>),
    /// Accept an inbound connection for a wrapped program.
    Accept(Box<Arrival>),
    /// Apply the options that a wrapped program has set on the socket of a flow.
    Mirror(SocketId, Box<Mirrored>),
    /// Connect this flow (key and generation) to its program: a socket for the connection is
    /// now available.
    ConnectProgram(usize, u64),
    /// Pass a program's request to the handlers of its flow.
    Request(Box<ProgramRequest>),
    /// Report the events of all handlers to this listener.
    SetEventSink(Box<dyn EventSink>),
    /// Connect the flows that wait for this next hop, which went down, through another one.
    LeaveHop(SocketAddr),
    /// Reply with the counters.
    Stats(oneshot::Sender<ProxyStats>),
    /// Reply with duplicates of the listen set's descriptors.
    Export(mpsc::SyncSender<Exported>),
    /// Accept no more clients, and send flows to the process that takes over.
    SendFlows(SendFlows),
    /// The process that takes over has failed: continue with all flows, and accept clients again.
    Resume,
    /// The new process serves: close this process's copies of the descriptors that were handed
    /// over, and end once the other flows have ended.
    Release,
    /// Accept no more flows; end once the open ones have ended or their time is up.
    Drain,
    /// End immediately.
    Stop,
}

/// Sender of commands to a worker.
#[derive(Clone, Debug)]
pub struct CommandSender {
    commands: mpsc::Sender<WorkerCommand>,
    waker: Arc<Waker>,
    /// Heartbeat of the worker.
    pub heartbeat: Arc<Heartbeat>,
    /// Counters of the worker when it was last asked, or when it ended.
    kept: Arc<Mutex<ProxyStats>>,
}

impl CommandSender {
    /// Returns a sender that sends through `commands` and wakes the worker with `waker`.
    pub fn new(commands: mpsc::Sender<WorkerCommand>, waker: Arc<Waker>) -> CommandSender {
        CommandSender { commands, waker, heartbeat: Arc::default(), kept: Arc::default() }
    }

    /// Sends a command. If the worker has ended, the command is dropped, and with it its reply
    /// channel.
    pub fn send(&self, command: WorkerCommand) {
        let _ = self.commands.send(command);
        let _ = self.waker.wake();
    }

    /// Stores the counters of this sender's worker. Only the worker itself calls this method.
    pub(super) fn keep(&self, stats: ProxyStats) {
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    /// Counters that the worker stored last.
    pub(super) fn kept(&self) -> ProxyStats {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Worker {
    /// Handles queued commands, at most [`MAX_COMMANDS`] of them.
    pub(super) fn handle_commands(&mut self, now: Instant) {
        for _ in 0..MAX_COMMANDS {
            let Ok(command) = self.commands.try_recv() else { return };
            match command {
                WorkerCommand::Connect(call) => self.handle_call(*call, now),
                WorkerCommand::Accept(arrival) => self.unread.arrivals.push(*arrival),
                WorkerCommand::Mirror(socket_id, mirrored) => {
                    self.mirror(socket_id, *mirrored, now);
                }
                WorkerCommand::ConnectProgram(key, id) => {
                    if self.flows.get(key).is_some_and(|flow| flow.id == id) {
                        self.connect_program(key);
                    }
                }
                WorkerCommand::Request(request) => self.handle_request(*request, now),
                WorkerCommand::SetEventSink(sink) => self.programs.aware.set_sink(sink),
                WorkerCommand::LeaveHop(hop) => self.leave_hop(hop),
                WorkerCommand::Stats(reply) => {
                    self.own.keep(self.stats());
                    drop(reply.send(self.own.kept()));
                }
                WorkerCommand::Reload(config) => {
                    self.upstream.reload(&config, now);
                    self.acceptor.reload(&config.limits);
                    self.config = *config;
                }
                WorkerCommand::Export(reply) => drop(reply.send(self.export())),
                WorkerCommand::SendFlows(command) => {
                    drop(command.reply.send(self.send_flows(&command)));
                }
                WorkerCommand::Resume => self.resume(now),
                WorkerCommand::Release => self.release(now),
                WorkerCommand::Drain => self.drain(now),
                WorkerCommand::Stop => self.deadline = Some(now),
            }
        }
        self.unread.commands = true;
    }

    /// Begins to stop: accepts no new flows, except from clients that have begun a handshake.
    fn drain(&mut self, now: Instant) {
        self.deadline = Some(now + self.config.limits.drain);
        self.listeners_close = Some(now + HANDSHAKE_GRACE);
        self.release_all_held();
        self.acceptor.drop_syns();
        info!(flows = self.flows.len(), "stopping");
    }

    /// Once [`HANDSHAKE_GRACE`] has passed, accepts the clients that have completed their
    /// handshakes, and closes the listeners.
    pub(super) fn close_listeners(&mut self, now: Instant) {
        if self.listeners_close.is_some_and(|at| now >= at) {
            for n in 0..self.acceptor.len() {
                // This many rounds empty a full backlog.
                for _ in 0..BACKLOG as usize / MAX_ACCEPTS {
                    self.unread.listeners.remove(&n);
                    self.accept(n, now);
                    if !self.unread.listeners.contains(&n) {
                        break;
                    }
                }
            }
            self.unread.listeners.clear();
            self.acceptor.close();
            self.listeners_close = None;
            // No client can arrive any more for the early connections that are left.
            while let Some(started) = self.acceptor.early.release() {
                self.end(started.key, true);
            }
        }
    }

    /// Returns whether the worker was told to stop, and either has no work left or has reached its
    /// deadline.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let is_done = self.upstream.is_done();
        let ended = self.flows.is_empty() && self.listeners_close.is_none() && is_done;
        self.deadline.is_some_and(|at| ended || now >= at)
    }

    /// Counters at this moment.
    pub(super) fn stats(&self) -> ProxyStats {
        let (open, waiting) = (self.flows.len() as u64, self.acceptor.early.len() as u64);
        let running = self.upstream.tunnels.as_ref();
        let tunnels = running.map(Tunnels::counters).unwrap_or_default();
        let strangers_dropped = running.map(Tunnels::strangers_dropped);
        let early = self.acceptor.early.stats();
        let mut stats = self.stats.clone();
        let lent = self.flows.lent.iter().map(|lent| &lent.flow);
        self.flows.iter().chain(lent).for_each(|flow| flow.count_for_policy(&mut stats, true));
        ProxyStats { open, waiting, early, tunnels, strangers_dropped, ..stats }
    }
}

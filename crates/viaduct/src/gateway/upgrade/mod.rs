//! Upgrade of a gateway: packets stay protected while the new process starts.
//!
//! ```text
//!   handover::Upgrader ──▶ GatewayHandover ── Export, Pause ──▶ packet thread
//!                              │ ControlRequest ──▶ control side
//!                              │ engine::upgrade ──▶ proxy of split mode
//!                              ┊ messages
//!   handover::Takeover ──▶ takeover: new packet thread, which receives what the old one receives,
//!                          and sends nothing until it takes the sessions over
//! ```
//!
//! Each thread has its own taps, so the new thread's store and decoder are filled when it takes
//! over. The sessions are handed over with keys and counters, so the peer notices only some
//! milliseconds without repairs. The new encoder starts empty, at the next packet number. The old
//! thread's last repairs cover all packets that it has read and the peer may still miss. The new
//! thread encodes all packets that left after the last one that the old thread has read.
//!
//! In split mode the flows are handed over just before the sessions, in the same way as those of
//! `viaduct proxy`. The old process ends after the last flow that stays with it.

mod control;
mod takeover;
mod worker;

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context as _, Result, anyhow};
use tokio::sync::mpsc::UnboundedSender;
use viaduct_proto::keys::PublicKey;
use viaduct_proto::upgrade::{GatewayRecord, MAX_CONNECTIONS, Message, PeerRecord};

use super::commands::{Command, ToWorker};
use super::workers::ToWorkers;
use crate::engine::upgrade::ProxyHandover;
use crate::handover::{Channel, ConfigText, HandedOver, Handover, TRANSFER_TIMEOUT};

pub use control::UpgradeState;
pub use takeover::run;
pub use worker::{HeldPackets, Role, Sockets, UpgradeCommand, WorkerState};

/// Request to the control side about an upgrade.
#[derive(Debug)]
pub enum ControlRequest {
    /// Pauses changes to the machine, and copies the state that the new process needs.
    Export(SyncSender<Result<ControlState>>),
    /// Resumes changes to the machine after a failed upgrade.
    TakeBack,
}

/// State of the control side, for the new process.
#[derive(Debug)]
pub struct ControlState {
    /// Listener of the metrics, and socket of the packet cache.
    pub listeners: [Option<OwnedFd>; 2],
    /// Arguments of [`super::system::System::take_over`].
    pub marks: (bool, usize),
    /// Value of [`super::site::Site::is_serving`].
    pub is_serving: bool,
    /// Instance locks of the rules.
    pub locks: Vec<(String, OwnedFd)>,
    /// Names of the peers whose tunnels over TLS are dialled.
    pub tls: Vec<String>,
}

/// Hands a gateway to a new process.
pub struct GatewayHandover {
    /// Public key of the site.
    pub key: PublicKey,
    /// Config in force.
    pub config: ConfigText,
    /// Packet threads.
    pub workers: ToWorkers,
    /// Proxy of split mode.
    pub flows: Option<ProxyHandover>,
    /// Control side.
    pub control: UnboundedSender<ControlRequest>,
    /// True once another process is responsible for the changes to the machine.
    pub is_left: Arc<AtomicBool>,
}

impl GatewayHandover {
    fn ask_workers<T>(&self, command: impl Fn(SyncSender<T>) -> UpgradeCommand) -> Result<Vec<T>> {
        let ask = |worker: &ToWorker| {
            let (reply, answer) = sync_channel(1);
            worker.send(Command::Upgrade(command(reply)));
            answer
        };
        // All threads are asked before the first answer is awaited.
        let answers: Vec<_> = self.workers.iter().map(ask).collect();
        let answers = answers.iter();
        answers.map(|answer| await_answer(answer, "a packet thread does not answer")).collect()
    }

    fn ask_control(&self) -> Result<ControlState> {
        let (reply, answer) = sync_channel(1);
        // A control side that has ended does not answer.
        let _ = self.control.send(ControlRequest::Export(reply));
        await_answer(&answer, "the control side does not answer")?
    }
}

fn await_answer<T>(answer: &Receiver<T>, failure: &'static str) -> Result<T> {
    answer.recv_timeout(TRANSFER_TIMEOUT).context(failure)
}

impl Handover for GatewayHandover {
    fn send_service(&self, channel: &Channel) -> Result<()> {
        let ControlState { listeners: [metrics, cache], marks, is_serving, locks, tls } =
            self.ask_control()?;
        let exported = self.ask_workers(UpgradeCommand::Export)?.into_iter();
        let (sockets, states): (Vec<_>, Vec<_>) =
            exported.collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
        // The other packet threads have duplicates of the first one's sockets, and no fake TCP.
        let sockets = sockets.into_iter().next().context("there is no packet thread")?;
        let isn_key = states[0].isn_key;
        let peers: Vec<_> = states.into_iter().flat_map(|state| state.peers).collect();
        let config = self.config.to_file()?.ok_or_else(|| anyhow!("there is no config"))?;
        let record = GatewayRecord {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            key: self.key.to_string(),
            has_tun: sockets.tun.is_some(),
            has_metrics: metrics.is_some(),
            has_cache: cache.is_some(),
            fake_tcp: u8::try_from(sockets.fake_tcp.len())?,
            isn_key,
            offloads_off: marks.0,
            mark: u32::try_from(marks.1)?,
            lacks_routes: !is_serving,
            peers: u32::try_from(peers.len())?,
            has_second: sockets.second.is_some(),
            locks: locks.iter().map(|(name, _)| name.clone()).collect(),
            has_flows: self.flows.is_some(),
            tls,
        };
        let mut fds: Vec<BorrowedFd<'_>> = vec![config.as_fd(), sockets.udp.as_fd()];
        let optional = [&sockets.tun, &metrics, &cache, &sockets.second];
        fds.extend(optional.into_iter().flatten().map(|fd| fd.as_fd()));
        fds.extend(locks.iter().map(|(_, fd)| fd.as_fd()));
        fds.extend(sockets.fake_tcp.iter().map(|fd| fd.as_fd()));
        channel.send(&Message::Gateway(record), &fds)?;
        send_peers(channel, peers)?;
        self.flows.iter().try_for_each(|flows| flows.send_service(channel))
    }

    fn send_state(&self, channel: &Channel) -> Result<HandedOver> {
        // Flows are handed over first: packets stay protected meanwhile, but not while the sessions
        // are handed over.
        let flows = self.flows.as_ref().map(|flows| flows.send_state(channel)).transpose()?;
        let states = self.ask_workers(UpgradeCommand::Pause)?;
        let lanes = states.iter().flat_map(|state| &state.peers);
        let peers = lanes.map(|lane| &lane.key).collect::<HashSet<_>>().len();
        for WorkerState { peers, connections, cut, .. } in states {
            send_peers(channel, peers)?;
            for some in connections.chunks(MAX_CONNECTIONS) {
                channel.send(&Message::Connections(some.to_vec()), &[])?;
            }
            channel.send(&Message::Cut(cut), &[])?;
        }
        Ok(HandedOver { peers, ..flows.unwrap_or_default() })
    }

    fn take_back(&self) {
        let resume = || Command::Upgrade(UpgradeCommand::Resume);
        self.workers.iter().for_each(|worker| worker.send(resume()));
        self.flows.iter().for_each(Handover::take_back);
        let _ = self.control.send(ControlRequest::TakeBack);
    }

    fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    fn end(&self) {
        // The control side ends this process, after its last flow.
        self.flows.iter().for_each(Handover::end);
    }
}

fn send_peers(channel: &Channel, peers: Vec<PeerRecord>) -> Result<()> {
    peers.into_iter().try_for_each(|peer| channel.send(&Message::Peer(Box::new(peer)), &[]))
}

//! Upgrade of a gateway: packets stay protected while the new process starts.
//!
//! ```text
//!   handover::Upgrader ──▶ GatewayHandover ── Export, Pause ──▶ packet thread
//!                              │ ControlRequest ──▶ control side
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

mod control;
mod takeover;
mod worker;

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::{Context as _, Result, anyhow};
use tokio::sync::mpsc::UnboundedSender;
use viaduct_proto::keys::PublicKey;
use viaduct_proto::upgrade::{GatewayRecord, MAX_CONNECTIONS, Message, PeerRecord};

use super::commands::{Command, ToWorker};
use crate::handover::{Channel, ConfigText, HandedOver, Handover, TRANSFER_TIMEOUT};

pub use control::{UpgradeEvent, UpgradeState};
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

/// State of the control side that another process continues.
#[derive(Debug)]
pub struct ControlState {
    /// Listener of the metrics, and socket of the packet cache.
    pub listeners: [Option<OwnedFd>; 2],
    /// Arguments of [`super::system::System::take_over`].
    pub marks: (bool, usize),
    /// Value of [`super::site::Site::is_serving`].
    pub is_serving: bool,
}

/// Hands a gateway to a new process.
pub struct GatewayHandover {
    /// Public key of the site.
    pub key: PublicKey,
    /// Config in force.
    pub config: ConfigText,
    /// Packet thread.
    pub worker: ToWorker,
    /// Control side.
    pub control: UnboundedSender<ControlRequest>,
    /// True once another process is responsible for the changes to the machine.
    pub is_left: Arc<AtomicBool>,
}

impl GatewayHandover {
    fn ask_worker<T>(&self, command: impl FnOnce(SyncSender<T>) -> UpgradeCommand) -> Result<T> {
        let (reply, answer) = sync_channel(1);
        self.worker.send(Command::Upgrade(command(reply)));
        await_answer(&answer, "the packet thread does not answer")
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
        let ControlState { listeners: [metrics, cache], marks, is_serving } = self.ask_control()?;
        let (sockets, state) = self.ask_worker(UpgradeCommand::Export)??;
        let config = self.config.to_file()?.ok_or_else(|| anyhow!("there is no config"))?;
        let record = GatewayRecord {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            key: self.key.to_string(),
            has_tun: sockets.tun.is_some(),
            has_metrics: metrics.is_some(),
            has_cache: cache.is_some(),
            fake_tcp: u8::try_from(sockets.fake_tcp.len())?,
            isn_key: state.isn_key,
            offloads_off: marks.0,
            mark: u32::try_from(marks.1)?,
            lacks_routes: !is_serving,
            peers: u32::try_from(state.peers.len())?,
        };
        let mut fds: Vec<BorrowedFd<'_>> = vec![config.as_fd(), sockets.udp.as_fd()];
        fds.extend([&sockets.tun, &metrics, &cache].into_iter().flatten().map(|fd| fd.as_fd()));
        fds.extend(sockets.fake_tcp.iter().map(|fd| fd.as_fd()));
        channel.send(&Message::Gateway(record), &fds)?;
        send_peers(channel, state.peers)
    }

    fn send_state(&self, channel: &Channel) -> Result<HandedOver> {
        let WorkerState { peers, connections, cut, .. } = self.ask_worker(UpgradeCommand::Pause)?;
        let handed = HandedOver { flows: 0, peers: peers.len() };
        send_peers(channel, peers)?;
        for some in connections.chunks(MAX_CONNECTIONS) {
            channel.send(&Message::Connections(some.to_vec()), &[])?;
        }
        channel.send(&Message::Cut(cut), &[])?;
        Ok(handed)
    }

    fn take_back(&self) {
        self.worker.send(Command::Upgrade(UpgradeCommand::Resume));
        let _ = self.control.send(ControlRequest::TakeBack);
    }

    fn leave(&self) {
        self.is_left.store(true, Ordering::Relaxed);
    }

    fn end(&self) {
        // The control side ends this process.
    }
}

fn send_peers(channel: &Channel, peers: Vec<PeerRecord>) -> Result<()> {
    peers.into_iter().try_for_each(|peer| channel.send(&Message::Peer(Box::new(peer)), &[]))
}

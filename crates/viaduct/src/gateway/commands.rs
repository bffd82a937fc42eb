//! Commands of the control side to a packet thread, and their channel.

use std::collections::HashMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Result;
use viaduct_proto::keys::PublicKey;
use viaduct_proto::repair::cache::{Found, Query};
use viaduct_proto::repair::lanes::Shares;
use viaduct_proto::repair::{Clocks, PeerConfig};
use viaduct_sys::capture::filter::BpfInsn;
use viaduct_sys::poll::{Waker, wait};

use super::taps::Taps;
use super::upgrade::UpgradeCommand;

/// Command of the control side to the worker.
pub enum Command {
    /// Replaces the peers, and the filters of the taps. The reply reports whether that succeeded.
    Reload {
        peers: Vec<PeerConfig>,
        outgoing: Vec<BpfInsn>,
        incoming: Vec<BpfInsn>,
        /// New taps of each WAN, which already have these filters; empty if the old taps stay.
        taps: Vec<Taps>,
        reply: Reply<Result<()>>,
    },
    /// Makes the worker own the lanes of `shares`, and no others. Lanes that are new to it start
    /// with clocks of at least `clocks`.
    Own {
        shares: Shares,
        clocks: HashMap<PublicKey, Clocks>,
    },
    /// Searches the packet cache, and sends the packets found.
    Cache(Query, Reply<Found>),
    /// Takes part in an upgrade.
    Upgrade(UpgradeCommand),
    Stop,
}

/// Channel for a reply to the control side.
pub type Reply<T> = tokio::sync::oneshot::Sender<T>;

/// Sender of commands to a packet thread.
#[derive(Clone, Debug)]
pub struct ToWorker {
    commands: mpsc::Sender<Command>,
    waker: Arc<Waker>,
}

/// Commands that a packet thread receives.
pub struct Commands {
    receiver: mpsc::Receiver<Command>,
    waker: Arc<Waker>,
}

/// Creates a channel to a packet thread. Errors: no descriptor is left.
pub fn channel() -> io::Result<(ToWorker, Commands)> {
    let waker = Arc::new(Waker::new()?);
    let (commands, receiver) = mpsc::channel();
    Ok((ToWorker { commands, waker: waker.clone() }, Commands { receiver, waker }))
}

impl ToWorker {
    /// Sends a command. If the packet thread is gone, the command is dropped with its reply
    /// channel.
    pub fn send(&self, command: Command) {
        let _ = self.commands.send(command);
        self.waker.wake();
    }
}

impl Commands {
    /// Takes the next command; `None` if there is none now.
    pub fn take(&self) -> Option<Command> {
        self.receiver.try_recv().ok()
    }

    /// Sleeps until a command is sent, one of `readable` is readable, or `at_most` has passed.
    pub fn wait(&self, readable: &[&dyn AsFd], at_most: Duration) {
        wait(readable, &self.waker, at_most);
    }
}

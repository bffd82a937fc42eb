//! Queue from a master to one run: messages to the run, and sockets lent by the run, which the
//! queue's thread closes.
//!
//! ```text
//!   worker, session ── Outbox ──▶ a thread of the session ──▶ the run's socket
//!                                        └── close(2) of lent sockets, which may block
//! ```
//!
//! The queue preserves the order of all items. The permit of a flow is therefore released after all
//! messages about the flow, so that the permits of a user bound the queue. Messages without a
//! permit are bounded by [`Outbox::await_room`].

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use rustix::net::Shutdown;
use viaduct_proto::wrap::shared::Down;
use viaduct_sys::socket::seqpacket;

use super::quota::Permit;
use crate::engine::flow_socket::Lender;

/// Number of unsent messages at which no further requests are read from a run.
const MAX_UNREAD: usize = 1024;
/// Time after which a run is disconnected if it does not read while [`MAX_UNREAD`] messages are
/// unsent.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Sending end of the queue to a run.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    items: Sender<Item>,
    state: Arc<State>,
}

#[derive(Debug)]
enum Item {
    Message(Down),
    /// Lent socket to close, and the permit of a guest to release afterwards.
    Close(OwnedFd, Option<Arc<Permit>>),
}

#[derive(Debug)]
struct State {
    socket: Arc<OwnedFd>,
    progress: Mutex<Progress>,
    read: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// Number of unsent messages.
    unread: usize,
    /// True if the run gets no further messages.
    has_gone: bool,
}

impl Outbox {
    /// Starts the thread that sends to the run at `socket`. The thread keeps `resource` until all
    /// messages are sent and all sockets are closed.
    pub(super) fn start(socket: Arc<OwnedFd>, resource: impl Send + 'static) -> io::Result<Outbox> {
        let (items, receiver) = channel();
        let progress = Mutex::default();
        let state = Arc::new(State { socket, progress, read: Condvar::new() });
        let sender = state.clone();
        let work = move || {
            sender.run(&receiver);
            drop(resource);
        };
        thread::Builder::new().name("to-run".to_owned()).spawn(work)?;
        Ok(Outbox { items, state })
    }

    /// Queues a message to the run. Errors: the run has gone.
    pub(super) fn send(&self, down: Down) -> io::Result<()> {
        let mut progress = self.state.progress();
        if progress.has_gone {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        progress.unread += 1;
        self.items.send(Item::Message(down)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Waits while [`MAX_UNREAD`] messages are unsent. Returns false if the run has gone, or has
    /// read nothing for [`READ_TIMEOUT`].
    pub(super) fn await_room(&self) -> bool {
        let mut progress = self.state.progress();
        while progress.unread >= MAX_UNREAD && !progress.has_gone {
            let before = progress.unread;
            let waited = self.state.read.wait_timeout(progress, READ_TIMEOUT);
            let timeout;
            (progress, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            if timeout.timed_out() && progress.unread >= before {
                return false;
            }
        }
        !progress.has_gone
    }

    /// Stops sending: unsent messages are dropped; lent sockets are still closed.
    pub(super) fn end(&self) {
        self.state.progress().has_gone = true;
        // The thread may be blocked in a send.
        let _ = rustix::net::shutdown(&self.state.socket, Shutdown::Both);
        self.state.read.notify_all();
    }

    /// Returns whether the run gets no further messages.
    pub(super) fn has_gone(&self) -> bool {
        self.state.progress().has_gone
    }
}

impl State {
    fn run(&self, items: &Receiver<Item>) {
        for item in items {
            match item {
                Item::Message(down) => {
                    let has_gone = self.progress().has_gone
                        || seqpacket::send(&self.socket, &down.emit(), None).is_err();
                    let mut progress = self.progress();
                    progress.unread -= 1;
                    progress.has_gone |= has_gone;
                    drop(progress);
                    self.read.notify_all();
                }
                Item::Close(socket, permit) => {
                    drop(socket);
                    drop(permit);
                }
            }
        }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// [`Lender`] that closes the lent sockets of one flow in the queue's thread.
#[derive(Debug)]
pub(super) struct RunLender {
    pub(super) out: Outbox,
    /// Permit of a guest's flow.
    pub(super) permit: Option<Arc<Permit>>,
}

impl Lender for RunLender {
    fn take_back(&self, socket: OwnedFd) {
        let _ = self.out.items.send(Item::Close(socket, self.permit.clone()));
    }
}

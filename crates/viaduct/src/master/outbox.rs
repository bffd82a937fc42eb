//! The way from a master to one run: what it is told, and the sockets it has lent, which are closed here.
//!
//! ```text
//!   worker, session ── Outbox ──▶ a thread of the session ──▶ the run's socket
//!                                        └── close(2) of lent sockets, which may block
//! ```
//!
//! All goes by one queue in order, so a flow's permit comes back behind all that was said of it: the
//! permits of a user bound the queue. What is said without one is bounded by [`Outbox::await_room`].

use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{io, thread};

use rustix::net::Shutdown;
use viaduct_proto::wrap::shared::Down;
use viaduct_sys::records;

use super::quota::Permit;
use crate::proxy::conn::Lender;

/// Records that may wait for a run before it is asked what else it wants.
const MAX_UNREAD: usize = 1024;
/// A run that reads nothing for so long, while so much waits for it, is left.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The way to a run.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    items: Sender<Item>,
    state: Arc<State>,
}

#[derive(Debug)]
enum Item {
    Message(Down),
    /// A guest's permit is given back when it is closed.
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
    /// Records that wait.
    unread: usize,
    /// It hears nothing more.
    has_gone: bool,
}

impl Outbox {
    /// To the run at `socket`; its thread holds `held` until all is said and closed.
    ///
    /// # Errors
    /// There is no thread for it.
    pub(super) fn start(socket: Arc<OwnedFd>, held: impl Send + 'static) -> io::Result<Outbox> {
        let (items, receiver) = channel();
        let progress = Mutex::default();
        let state = Arc::new(State { socket, progress, read: Condvar::new() });
        let theirs = state.clone();
        let work = move || {
            theirs.work(&receiver);
            drop(held);
        };
        thread::Builder::new().name("to-run".to_owned()).spawn(work)?;
        Ok(Outbox { items, state })
    }

    /// Tells the run.
    ///
    /// # Errors
    /// It has gone.
    pub(super) fn send(&self, down: Down) -> io::Result<()> {
        let mut progress = self.state.progress();
        if progress.has_gone {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        progress.unread += 1;
        self.items.send(Item::Message(down)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Waits while too much is unread. False if the run has gone, or reads nothing for a long time.
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

    /// Says nothing more: what waits is dropped, lent sockets are closed.
    pub(super) fn end(&self) {
        self.state.progress().has_gone = true;
        // Its thread may be about to send.
        let _ = rustix::net::shutdown(&self.state.socket, Shutdown::Both);
        self.state.read.notify_all();
    }

    /// Whether the run hears nothing more.
    pub(super) fn has_gone(&self) -> bool {
        self.state.progress().has_gone
    }
}

impl State {
    fn work(&self, items: &Receiver<Item>) {
        for item in items {
            match item {
                Item::Message(down) => {
                    let has_gone = self.progress().has_gone
                        || records::send(&self.socket, &down.emit(), None).is_err();
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

/// The lender of one flow's sockets.
#[derive(Debug)]
pub(super) struct RunLender {
    pub(super) out: Outbox,
    /// Of a guest.
    pub(super) permit: Option<Arc<Permit>>,
}

impl Lender for RunLender {
    fn take_back(&self, socket: OwnedFd) {
        let _ = self.out.items.send(Item::Close(socket, self.permit.clone()));
    }
}

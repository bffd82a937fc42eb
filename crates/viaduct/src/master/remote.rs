//! Programs of a shared master. The run of each program keeps the program's side of its flows,
//! and is told by messages what to do with it.
//!
//! ```text
//!   Remote    a flow of a program's: its place came with it
//!   Another   one more for a program that listens: the run is asked for a place, which comes later
//! ```

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use viaduct_proto::flow::Failure;
use viaduct_proto::wrap::shared::Down;

use super::outbox::Outbox;
use super::quota::Permit;
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::{PendingConnect, Program};

/// Number of arrivals from which on finished ones are removed.
const MAX_REMEMBERED: usize = 64;

/// Program whose side of a flow is kept by a run.
#[derive(Debug)]
pub(super) struct Remote {
    id: u64,
    place: Option<FlowSocket<TcpStream>>,
    out: Outbox,
    /// Channel for further flows to the program, if it listens.
    line: Option<Arc<Line>>,
    /// True if the run was told how the flow ends.
    told: bool,
    /// Permit of a waiting connect, until it is answered.
    call: Option<Permit>,
}

impl Remote {
    /// Creates flow `id`. `place` will be connected to the program; `out` leads to the run.
    pub(super) fn new(id: u64, place: FlowSocket<TcpStream>, out: &Outbox) -> Remote {
        let (place, out) = (Some(place), out.clone());
        Remote { id, place, out, line: None, told: false, call: None }
    }

    /// Adds the permit of a waiting connect.
    pub(super) fn calling(mut self, call: Option<Permit>) -> Remote {
        self.call = call;
        self
    }

    /// Creates flow `id` to a program that listens.
    pub(super) fn listening(id: u64, place: FlowSocket<TcpStream>, line: Arc<Line>) -> Remote {
        let mut remote = Remote::new(id, place, &line.out);
        remote.line = Some(line);
        remote
    }

    fn tell(&mut self, down: Down) -> io::Result<()> {
        self.told |= !matches!(down, Down::Named { .. });
        self.out.send(down)
    }

    fn take_place(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.place.take().ok_or(io::ErrorKind::NotConnected.into())
    }
}

impl PendingConnect for Remote {
    fn is_lent(&self) -> bool {
        self.place.as_ref().is_some_and(FlowSocket::is_lent)
    }

    fn has_gone(&self) -> bool {
        self.out.has_gone()
    }

    fn set_local_addr(&mut self, own: SocketAddr) {
        let _ = self.tell(Down::Named { id: self.id, own });
    }

    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.take_place()
    }

    fn complete(&mut self, _: &TcpStream) -> io::Result<()> {
        self.tell(Down::Meet { id: self.id })
    }

    fn refuse(&mut self, why: Failure) {
        let _ = self.tell(Down::Refuse { id: self.id, why });
    }
}

impl Program for Remote {
    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.take_place()
    }

    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        Some(Box::new(Another::of(self.line.clone()?)))
    }

    fn connect(&mut self, _: &TcpStream) -> io::Result<()> {
        self.tell(Down::Meet { id: self.id })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if !self.told {
            let _ = self.tell(Down::Gone { id: self.id });
        }
    }
}

/// Channel to the run for further flows to a program.
#[derive(Debug)]
pub(super) struct Line {
    /// Number of the arrival that created it.
    of: u64,
    out: Outbox,
    /// Pending requests, in the order in which they were sent to the run.
    waiting: Mutex<VecDeque<Arc<Slot>>>,
}

/// Channels of a session, as long as they are in use.
#[derive(Debug, Default)]
pub(super) struct Lines(HashMap<u64, Weak<Line>>);

impl Lines {
    /// Creates the channel of arrival `of`.
    pub(super) fn add(&mut self, of: u64, out: &Outbox) -> Arc<Line> {
        if self.0.len() >= MAX_REMEMBERED && self.0.len().is_power_of_two() {
            self.0.retain(|_, line| line.strong_count() > 0);
        }
        let line = Arc::new(Line { of, out: out.clone(), waiting: Mutex::default() });
        self.0.insert(of, Arc::downgrade(&line));
        line
    }

    /// Answers the oldest pending request of arrival `of` for another flow; `None` if there is
    /// no flow.
    pub(super) fn fill(&mut self, of: u64, remote: Option<Remote>) {
        let Some(line) = self.0.get(&of).and_then(Weak::upgrade) else { return };
        let slot = line.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        if let Some(slot) = slot {
            slot.fill(remote);
        }
    }
}

/// Pending request for a flow, and the callback for its completion.
#[derive(Default)]
struct Slot(Mutex<Coming>);

#[derive(Default)]
struct Coming {
    come: Option<Option<Remote>>,
    tell: Option<Box<dyn FnOnce() + Send>>,
}

impl Slot {
    fn fill(&self, remote: Option<Remote>) {
        let mut coming = self.coming();
        coming.come = Some(remote);
        let tell = coming.tell.take();
        drop(coming);
        if let Some(tell) = tell {
            tell();
        }
    }

    fn coming(&self) -> MutexGuard<'_, Coming> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("come", &self.coming().come).finish_non_exhaustive()
    }
}

/// Further flow to a program that listens.
#[derive(Debug)]
struct Another {
    line: Arc<Line>,
    slot: Option<Arc<Slot>>,
    remote: Option<Remote>,
}

impl Another {
    fn of(line: Arc<Line>) -> Another {
        Another { line, slot: None, remote: None }
    }

    fn ask(&self) -> io::Result<Arc<Slot>> {
        let slot = Arc::<Slot>::default();
        let mut waiting = self.line.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.line.out.send(Down::Another { id: self.line.of })?;
        waiting.push_back(slot.clone());
        Ok(slot)
    }
}

impl Program for Another {
    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        let slot = match &self.slot {
            Some(slot) => slot.clone(),
            None => self.slot.insert(self.ask()?).clone(),
        };
        let come = slot.coming().come.take();
        let remote = come.ok_or(io::ErrorKind::WouldBlock)?.ok_or(io::ErrorKind::NotConnected)?;
        self.remote.insert(remote).take_place()
    }

    fn on_available(&mut self, tell: Box<dyn FnOnce() + Send>) {
        let Some(slot) = &self.slot else { return };
        let mut coming = slot.coming();
        if coming.come.is_none() {
            coming.tell = Some(tell);
            return;
        }
        drop(coming);
        tell();
    }

    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        Some(Box::new(Another::of(self.line.clone())))
    }

    fn connect(&mut self, place: &TcpStream) -> io::Result<()> {
        let remote = self.remote.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Program::connect(remote, place)
    }
}

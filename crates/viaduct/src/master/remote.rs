//! Programs of a shared master. The run of each program keeps the program's side of its flows, and
//! acts on the master's messages about them.
//!
//! ```text
//!   RemoteProgram   a flow of a program, whose socket came with the request
//!   FurtherFlow     another flow to a listening program: the master requests the socket
//! ```

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use viaduct_proto::flow::Failure;
use viaduct_proto::wrap::shared::Down;

use super::outbox::Outbox;
use super::quota::{Guest, Kind, Permit};
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::{PendingConnect, Program};

/// Minimum number of channels for a cleanup. Unused channels are removed whenever the number of
/// channels is a power of two of at least this value.
const MIN_CHANNELS_CLEANUP: usize = 64;

/// Program whose side of a flow is in a run's process.
#[derive(Debug)]
pub(super) struct RemoteProgram {
    id: u64,
    bound_socket: Option<FlowSocket<TcpStream>>,
    out: Outbox,
    /// Channel for further flows to the program, if it is a listening one.
    pub(super) channel: Option<Arc<FlowChannel>>,
    /// True if the outcome has been sent to the run.
    has_ended: bool,
    /// Permit of a pending connect, until it is answered.
    pub(super) call: Option<Permit>,
}

impl RemoteProgram {
    /// Creates the program of flow `id`: `bound_socket` will be connected to the program, `out` is
    /// the run's queue.
    pub(super) fn new(id: u64, bound_socket: FlowSocket<TcpStream>, out: &Outbox) -> RemoteProgram {
        let (bound_socket, out) = (Some(bound_socket), out.clone());
        RemoteProgram { id, bound_socket, out, channel: None, has_ended: false, call: None }
    }

    fn send(&mut self, down: Down) -> io::Result<()> {
        self.has_ended |= !matches!(down, Down::Named { .. });
        self.out.send(down)
    }

    fn take_bound_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.bound_socket.take().ok_or(io::ErrorKind::NotConnected.into())
    }
}

impl PendingConnect for RemoteProgram {
    fn is_lent(&self) -> bool {
        self.bound_socket.as_ref().is_some_and(FlowSocket::is_lent)
    }

    fn has_gone(&self) -> bool {
        self.out.has_gone()
    }

    fn set_local_addr(&mut self, own: SocketAddr) {
        let _ = self.send(Down::Named { id: self.id, own });
    }

    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.take_bound_socket()
    }

    fn complete(&mut self, _: &TcpStream) -> io::Result<()> {
        self.send(Down::Meet { id: self.id })
    }

    fn refuse(&mut self, why: Failure) {
        let _ = self.send(Down::Refuse { id: self.id, why });
    }
}

impl Program for RemoteProgram {
    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.take_bound_socket()
    }

    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        FurtherFlow::of(self.channel.clone()?)
    }

    fn connect(&mut self, _: &TcpStream) -> io::Result<()> {
        self.send(Down::Meet { id: self.id })
    }
}

impl Drop for RemoteProgram {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.send(Down::Gone { id: self.id });
        }
    }
}

/// Channel to the run, for requests of further flows to a program.
#[derive(Debug)]
pub(super) struct FlowChannel {
    /// ID of the arrival that created the channel.
    of: u64,
    out: Outbox,
    /// User of the run, if it is a guest.
    guest: Option<Guest>,
    /// Pending requests, in the order in which they were sent to the run.
    waiting: Mutex<VecDeque<Arc<Slot>>>,
}

/// Channels of a session.
#[derive(Debug, Default)]
pub(super) struct FlowChannels(HashMap<u64, Weak<FlowChannel>>);

impl FlowChannels {
    /// Creates the channel of arrival `of`. Further flows to a guest's program need permits.
    pub(super) fn add(&mut self, of: u64, out: &Outbox, guest: Option<Guest>) -> Arc<FlowChannel> {
        if self.0.len() >= MIN_CHANNELS_CLEANUP && self.0.len().is_power_of_two() {
            self.0.retain(|_, channel| channel.strong_count() > 0);
        }
        let (out, waiting) = (out.clone(), Mutex::default());
        let channel = Arc::new(FlowChannel { of, out, guest, waiting });
        self.0.insert(of, Arc::downgrade(&channel));
        channel
    }

    /// Takes the permit of the oldest pending request of arrival `of`, if a guest has one.
    pub(super) fn take_permit(&self, of: u64) -> Option<Permit> {
        let channel = self.0.get(&of).and_then(Weak::upgrade)?;
        let waiting = channel.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.front()?.state().permit.take()
    }

    /// Answers the oldest pending request of arrival `of` for another flow; `remote` is `None` if
    /// the run has no socket for another flow.
    pub(super) fn fill(&mut self, of: u64, remote: Option<RemoteProgram>) {
        let Some(channel) = self.0.get(&of).and_then(Weak::upgrade) else { return };
        let slot = channel.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        if let Some(slot) = slot {
            slot.fill(remote);
        }
    }
}

/// Pending request for a flow, and the callback for its completion.
#[derive(Default)]
struct Slot(Mutex<SlotState>);

#[derive(Default)]
struct SlotState {
    /// Answer of the run, until taken; `Some(None)` if the run has no socket for another flow.
    result: Option<Option<RemoteProgram>>,
    /// Permit of a guest's flow, until the answer takes it.
    permit: Option<Permit>,
    callback: Option<Box<dyn FnOnce() + Send>>,
}

impl Slot {
    fn fill(&self, remote: Option<RemoteProgram>) {
        let mut state = self.state();
        state.result = Some(remote);
        let callback = state.callback.take();
        drop(state);
        if let Some(callback) = callback {
            callback();
        }
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("result", &self.state().result).finish_non_exhaustive()
    }
}

/// Further flow to a listening program.
#[derive(Debug)]
struct FurtherFlow {
    channel: Arc<FlowChannel>,
    /// Permit of a guest's flow, until the request is sent.
    permit: Option<Permit>,
    slot: Option<Arc<Slot>>,
    remote: Option<RemoteProgram>,
}

impl FurtherFlow {
    /// Returns another flow of `channel`; `None` if a guest has reached its limit of flows.
    fn of(channel: Arc<FlowChannel>) -> Option<Box<dyn Program>> {
        let permit = match &channel.guest {
            Some(guest) => Some(guest.take(Kind::Flow)?),
            None => None,
        };
        Some(Box::new(FurtherFlow { channel, permit, slot: None, remote: None }))
    }

    fn request(&mut self) -> io::Result<Arc<Slot>> {
        let slot = Arc::<Slot>::default();
        slot.state().permit = self.permit.take();
        let mut waiting = self.channel.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.channel.out.send(Down::Another { id: self.channel.of })?;
        waiting.push_back(slot.clone());
        Ok(slot)
    }
}

impl Program for FurtherFlow {
    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        let slot = match &self.slot {
            Some(slot) => slot.clone(),
            None => {
                let slot = self.request()?;
                self.slot.insert(slot).clone()
            }
        };
        let result = slot.state().result.take();
        let remote = result.ok_or(io::ErrorKind::WouldBlock)?.ok_or(io::ErrorKind::NotConnected)?;
        self.remote.insert(remote).take_bound_socket()
    }

    fn on_available(&mut self, callback: Box<dyn FnOnce() + Send>) {
        let Some(slot) = &self.slot else { return };
        let mut state = slot.state();
        if state.result.is_none() {
            state.callback = Some(callback);
            return;
        }
        drop(state);
        callback();
    }

    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        FurtherFlow::of(self.channel.clone())
    }

    fn connect(&mut self, bound_socket: &TcpStream) -> io::Result<()> {
        let remote = self.remote.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        Program::connect(remote, bound_socket)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::master::quota::{Limits, Quota};

    #[test]
    fn further_flows_to_a_guest_need_permits_before_the_guest_answers() {
        let limits = Limits::new(80, 8, 8, Some(2), None);
        let quota = Quota::new(limits, Arc::new(AtomicU64::new(0)));
        let guest = Guest::new(&quota, 1);
        let (ours, _run) = UnixStream::pair().unwrap();
        let out = Outbox::start(Arc::new(ours.into()), ()).unwrap();
        let mut channels = FlowChannels::default();
        let channel = channels.add(7, &out, Some(guest.clone()));
        let further = || FurtherFlow::of(channel.clone());
        let mut flows = [further().unwrap(), further().unwrap()];
        assert!(further().is_none(), "the guest has two flows");
        let requested = flows[0].take_socket().unwrap_err();
        assert_eq!(requested.kind(), io::ErrorKind::WouldBlock);
        drop(flows);
        // The requested flow keeps its permit until the run has answered.
        let permit = guest.take(Kind::Flow).unwrap();
        assert!(further().is_none());
        channels.fill(7, None);
        assert!(further().is_some());
        drop(permit);
        let mut answered = further().unwrap();
        answered.take_socket().unwrap_err();
        assert!(channels.take_permit(7).is_some() && channels.take_permit(7).is_none());
    }
}

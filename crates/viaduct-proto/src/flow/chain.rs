//! Chain as its driver sees it: calls of the application and events of the network.

use std::sync::Arc;

use bytes::Bytes;

use super::buffer::Buffer;
use super::call::{Address, Down, Failure, Half, OutputTransport, Place, SocketOption, Up};
use super::core::Core;
use super::ends::{Action, BottomId, Closed, Spawn};
use super::measure::Measure;
use super::registry::Factory;
use crate::time::Instant;

/// Default limit of the bytes that each end of a chain holds before it stops its source.
pub const DEFAULT_LIMIT: usize = 64 << 10;

/// Chain of handlers below one flow of an application (called an instance in the TESLA paper).
#[derive(Debug)]
pub struct Chain {
    core: Core,
}

impl Chain {
    /// Creates a chain of the handlers that `factories` make, in order from the application to the
    /// network. Each end stops its source when it holds `limit` bytes, and may exceed the limit by
    /// the data of one call.
    pub fn new(factories: Arc<[Arc<dyn Factory>]>, limit: usize, now: Instant) -> Chain {
        Chain { core: Core::new(factories, limit, now) }
    }

    /// Creates the chain that `parent` has requested by [`Action::Spawn`], with the same handlers.
    pub fn spawned(parent: &Chain, spawn: &Spawn, now: Instant) -> Chain {
        let mut chain = Chain::new(parent.core.factories.clone(), parent.core.limit, now);
        chain.core.at(spawn.position, now, |handler, cx| handler.spawned(cx, &spawn.message));
        chain.core.run(now);
        chain
    }

    /// Reports that the chain requested by [`Action::Spawn`] is refused.
    pub fn unspawned(&mut self, spawn: &Spawn, now: Instant) {
        self.core.at(spawn.position, now, |handler, cx| handler.unspawned(cx, &spawn.message));
        self.core.run(now);
    }

    /// Handles an [`Action::Wake`] that a chain has issued for a key that this chain has claimed.
    pub fn wake(&mut self, key: &[u8], now: Instant) {
        self.core.woken(key, now);
        self.core.run(now);
    }

    /// Ends the flow; must be called before the chain is dropped. Of the actions that follow, only
    /// [`Action::Wake`] must be carried out.
    pub fn abandon(&mut self, now: Instant) {
        self.core.abandoned(now);
        self.core.run(now);
    }

    /// First connection of a new chain to the network; `None` if its handlers plumbed none.
    pub fn bottom(&self) -> Option<BottomId> {
        self.core.bottoms.get(0).map(|_| BottomId(0))
    }

    /// Next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.core.actions.pop_front()
    }

    /// Earliest timer.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.core.poll_timeout()
    }

    /// Fires the handlers' timers that are due, in the order of their deadlines.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.core.handle_timeout(now);
    }

    // Calls of the application.

    /// Opens the flow.
    pub fn connect(&mut self, now: Instant, to: Address) {
        self.ask(now, Down::Connect(to));
    }

    /// Binds the flow to a local address.
    pub fn bind(&mut self, now: Instant, at: Address) {
        self.ask(now, Down::Bind(at));
    }

    /// Sets a socket option.
    pub fn setsockopt(&mut self, now: Instant, option: SocketOption) {
        self.ask(now, Down::SetOption(option));
    }

    /// Value of a socket option; `None` if the value on the application's own socket applies.
    pub fn getsockopt(&mut self, now: Instant, level: i32, name: i32) -> Option<i32> {
        let first = self.core.first()?;
        self.core.getsockopt(first, now, level, name)
    }

    /// Socket options that the handlers have set on a connection, including before it is opened.
    pub fn options(&self, bottom: BottomId) -> impl Iterator<Item = SocketOption> {
        self.core.bottoms.get(bottom.0).into_iter().flat_map(|at| at.options.iter())
    }

    /// Transport that the handlers name for a connection; `None` leaves the choice to the driver.
    pub fn transport(&self, bottom: BottomId) -> Option<OutputTransport> {
        self.core.bottoms.get(bottom.0)?.transport
    }

    /// Returns whether the application may write.
    pub fn may_write(&self) -> bool {
        !self.core.top.stopped && !self.core.top.closed.write
    }

    /// Writes all of `data`. Returns false if the flow will accept no more data.
    pub fn write(&mut self, now: Instant, data: Bytes) -> bool {
        !self.core.top.closed.write && self.ask(now, Down::Write(data))
    }

    /// Ends one direction.
    pub fn shutdown(&mut self, now: Instant, half: Half) {
        match half {
            Half::Write => self.core.top.closed.write = true,
            Half::Read => self.core.top.closed.avail = true,
        }
        self.ask(now, Down::Shutdown(half));
    }

    /// Closes the flow; data written before is sent first.
    pub fn close(&mut self, now: Instant) {
        self.core.top.closed = Closed { write: true, avail: true };
        self.ask(now, Down::Close);
    }

    /// Number of written bytes that handlers hold. A reset sent now would overtake them. Bytes in
    /// [`Chain::outgoing`] do not count.
    pub fn held(&self) -> u64 {
        self.core.held()
    }

    /// Handles a reset of the application's end: written data is sent, then the handlers' signal to
    /// the other end. The driver resets the connections once both have been sent.
    pub fn abort(&mut self, now: Instant) {
        self.core.top.closed = Closed { write: true, avail: true };
        self.ask(now, Down::Abort);
    }

    /// Local address of the flow.
    pub fn getsockname(&mut self, now: Instant) -> Option<Address> {
        let first = self.core.first()?;
        self.core.getsockname(first, now)
    }

    /// Address of the other end.
    pub fn getpeername(&mut self, now: Instant) -> Option<Address> {
        let first = self.core.first()?;
        self.core.getpeername(first, now)
    }

    /// Sends a request to the handler `to`; returns its answer, or `None` if there is no
    /// such handler.
    pub fn control(&mut self, now: Instant, to: &str, request: &[u8]) -> Option<Vec<u8>> {
        let answer = self.core.control(self.core.first()?, now, to, request);
        self.core.run(now);
        answer
    }

    /// Bytes that wait to be read by the application.
    pub fn incoming(&self) -> &Buffer {
        &self.core.top.buffer
    }

    /// Reports that the application has taken `count` bytes of [`Chain::incoming`].
    pub fn consumed(&mut self, now: Instant, count: usize) {
        let (action, ask) = self.core.top.consumed(count, self.core.limit);
        self.core.actions.extend(action);
        if let Some(what) = ask {
            self.ask(now, what);
        }
    }

    // Events of the network.

    /// Reports an established or failed connection.
    pub fn connected(&mut self, now: Instant, bottom: BottomId, result: Result<(), Failure>) {
        let Some(at) = self.core.bottoms.get_mut(bottom.0) else { return };
        if result.is_err() {
            at.broken();
        }
        self.tell(now, bottom, Up::Connected(result));
    }

    /// Starts an accepted flow, whose connection is established and whose names [are
    /// set](Chain::set_names). The handlers listen, the client is announced to them, and they
    /// accept it. The outcome is [`Action::Accepted`], [`Action::Failed`] or [`Action::Give`];
    /// until [`Action::Accepted`] there is no application.
    pub fn accepted(&mut self, now: Instant) {
        self.ask(now, Down::Listen);
    }

    /// Sets the local and the remote address of a connection.
    pub fn set_names(&mut self, bottom: BottomId, own: Address, peer: Address) {
        if let Some(at) = self.core.bottoms.get_mut(bottom.0) {
            at.names = (Some(own), Some(peer));
        }
    }

    /// Returns whether the chain's handlers use measurements.
    pub fn measures(&self) -> bool {
        self.core.factories.iter().any(|factory| factory.measures())
    }

    /// Sets the kernel's latest measurement of a connection.
    pub fn set_measure(&mut self, bottom: BottomId, measure: Measure) {
        if let Some(at) = self.core.bottoms.get_mut(bottom.0) {
            at.measure = Some(measure);
        }
    }

    /// Delivers bytes from the network. Returns false if the chain will never read more.
    pub fn avail(&mut self, now: Instant, bottom: BottomId, data: Bytes) -> bool {
        self.tell(now, bottom, Up::Avail(data))
    }

    /// Reports the end of stream: the other end will write no more data.
    pub fn finished(&mut self, now: Instant, bottom: BottomId) {
        let Some(at) = self.core.bottoms.get_mut(bottom.0) else { return };
        if !std::mem::replace(&mut at.closed.avail, true) {
            self.tell(now, bottom, Up::Finished);
        }
    }

    /// Reports a broken connection.
    pub fn failed(&mut self, now: Instant, bottom: BottomId, why: Failure) {
        let Some(at) = self.core.bottoms.get_mut(bottom.0).filter(|at| !at.is_over()) else {
            return;
        };
        at.broken();
        self.tell(now, bottom, Up::Failed(why));
    }

    /// Takes over the connections of `giver`, a chain of the same handlers that asked for
    /// [`Action::Give`] with a key that this chain has [claimed](Action::Claim). Returns the old
    /// and the new ID of each connection. The driver must carry out this chain's next actions
    /// before those of other chains, because this chain also claims the keys of the giver's
    /// handlers. Returns `None` if the chain does not accept the giver; the driver then closes the
    /// giver's connections.
    pub fn take(&mut self, now: Instant, giver: Chain) -> Option<Vec<(BottomId, BottomId)>> {
        let moved = self.core.take(giver.core, now);
        self.core.run(now);
        moved
    }

    /// Reports that the key of [`Action::Give`] is not claimed; the chain closes its connections.
    pub fn unclaimed(&mut self, now: Instant) {
        self.core.unclaimed(now);
        self.core.run(now);
    }

    /// Bytes that wait to be sent on a connection; empty if the connection is closed.
    pub fn outgoing(&self, bottom: BottomId) -> &Buffer {
        self.core.bottoms.get(bottom.0).map_or(&self.core.nothing, |at| &at.buffer)
    }

    /// Reports that the connection has taken `count` bytes of [`Chain::outgoing`].
    pub fn sent(&mut self, now: Instant, bottom: BottomId, count: usize) {
        let Some(at) = self.core.bottoms.get_mut(bottom.0) else { return };
        let (action, tell) = at.sent(count, self.core.limit);
        self.core.actions.extend(action);
        if let Some(what) = tell {
            self.tell(now, bottom, what);
        }
    }

    fn ask(&mut self, now: Instant, what: Down) -> bool {
        let asked = self.core.first().is_some_and(|first| self.core.ask(first, what));
        self.core.run(now);
        asked
    }

    fn tell(&mut self, now: Instant, bottom: BottomId, what: Up) -> bool {
        let told = self.core.tell(Place::Bottom(bottom.0), what);
        self.core.run(now);
        told
    }
}

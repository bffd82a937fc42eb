//! The chain, as whoever drives it sees it: what the application asks, what the network says.

use std::sync::Arc;

use bytes::Bytes;

use super::buffer::Buffer;
use super::call::{Address, Down, Failure, Half, Place, SocketOption, Up};
use super::core::Core;
use super::ends::{Action, BottomId, Closed, Spawn};
use super::measure::Measure;
use super::registry::Factory;
use crate::time::Instant;

/// Bytes that each end of a chain holds before it stops its source, unless told otherwise.
pub const DEFAULT_LIMIT: usize = 64 << 10;

/// A chain of handlers under one flow of an application: TESLA's instance.
#[derive(Debug)]
pub struct Chain {
    core: Core,
}

impl Chain {
    /// Of the handlers that `factories` make, the application's first. Each end holds `limit` bytes
    /// before it stops its source, and at most what one call brings beyond that.
    pub fn new(factories: Arc<[Arc<dyn Factory>]>, limit: usize, now: Instant) -> Chain {
        Chain { core: Core::new(factories, limit, now) }
    }

    /// Another chain of the same handlers, for a flow that was accepted.
    pub fn sibling(&self, now: Instant) -> Chain {
        Chain::new(self.core.factories.clone(), self.core.limit, now)
    }

    /// A chain of the same handlers that `parent` wants, as [`Action::Spawn`] says.
    pub fn spawned(parent: &Chain, spawn: &Spawn, now: Instant) -> Chain {
        let mut chain = parent.sibling(now);
        chain.core.at(spawn.position, now, |handler, cx| handler.spawned(cx, &spawn.word));
        chain.core.run(now);
        chain
    }

    /// There is no such chain, nor will there be.
    pub fn unspawned(&mut self, spawn: &Spawn, now: Instant) {
        self.core.at(spawn.position, now, |handler, cx| handler.unspawned(cx, &spawn.word));
        self.core.run(now);
    }

    /// Another chain, or this one, said [`Action::Wake`] with a key that this one has claimed.
    pub fn wake(&mut self, key: &[u8], now: Instant) {
        self.core.woken(key, now);
        self.core.run(now);
    }

    /// The flow is over, and this chain is dropped next. Of its actions, [`Action::Wake`] alone still
    /// counts.
    pub fn abandon(&mut self, now: Instant) {
        self.core.abandoned(now);
        self.core.run(now);
    }

    /// The flow by which a chain that just began meets the network; none if its handlers plumbed
    /// none.
    pub fn bottom(&self) -> Option<BottomId> {
        self.core.bottoms.get(0).map(|_| BottomId(0))
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.core.actions.pop_front()
    }

    /// The earliest timer.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.core.poll_timeout()
    }

    /// Runs the handlers' timers that are due, in their order.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.core.handle_timeout(now);
    }

    // What the application asks.

    /// Opens the flow.
    pub fn connect(&mut self, now: Instant, to: Address) {
        self.ask(now, Down::Connect(to));
    }

    /// Gives it an address of its own.
    pub fn bind(&mut self, now: Instant, at: Address) {
        self.ask(now, Down::Bind(at));
    }

    /// Waits for flows.
    pub fn listen(&mut self, now: Instant, backlog: u32) {
        self.ask(now, Down::Listen(backlog));
    }

    /// Takes a flow that waits.
    pub fn accept(&mut self, now: Instant) {
        self.ask(now, Down::Accept);
    }

    /// Sets an option of the socket.
    pub fn set_option(&mut self, now: Instant, option: SocketOption) {
        self.ask(now, Down::SetOption(option));
    }

    /// Whether the application may write.
    pub fn may_write(&self) -> bool {
        !self.core.top.stopped && !self.core.top.closed.write
    }

    /// Writes all of `data`. `false`: the flow takes no more, ever.
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

    /// Closes the flow; what was written goes out first.
    pub fn close(&mut self, now: Instant) {
        self.core.top.closed = Closed { write: true, avail: true };
        self.ask(now, Down::Close);
    }

    /// Bytes that were written and that a reset would overtake, but for those in
    /// [`Chain::outgoing`].
    pub fn held(&self) -> u64 {
        self.core.held()
    }

    /// The application's end broke: what was written goes out, and then whatever tells the other end. The
    /// connections are to be reset when that has gone.
    pub fn abort(&mut self, now: Instant) {
        self.core.top.closed = Closed { write: true, avail: true };
        self.ask(now, Down::Abort);
    }

    /// The flow's own address.
    pub fn getsockname(&mut self, now: Instant) -> Option<Address> {
        let first = self.core.first()?;
        self.core.getsockname(first, now)
    }

    /// The other end's address.
    pub fn getpeername(&mut self, now: Instant) -> Option<Address> {
        let first = self.core.first()?;
        self.core.getpeername(first, now)
    }

    /// Sends the handler named `to` a request; its answer, if it is in the chain.
    pub fn control(&mut self, now: Instant, to: &str, request: &[u8]) -> Option<Vec<u8>> {
        let answer = self.core.control(self.core.first()?, now, to, request);
        self.core.run(now);
        answer
    }

    /// What the application has not taken yet.
    pub fn incoming(&self) -> &Buffer {
        &self.core.top.buffer
    }

    /// The application has taken `count` bytes of it.
    pub fn consumed(&mut self, now: Instant, count: usize) {
        let (action, ask) = self.core.top.consumed(count, self.core.limit);
        self.core.actions.extend(action);
        if let Some(what) = ask {
            self.ask(now, what);
        }
    }

    // What the network says.

    /// A connection is there, or failed.
    pub fn connected(&mut self, now: Instant, bottom: BottomId, result: Result<(), Failure>) {
        let Some(at) = self.core.bottoms.get_mut(bottom.0) else { return };
        if result.is_err() {
            at.broken();
        }
        self.tell(now, bottom, Up::Connected(result));
    }

    /// This chain is the accepting side, and its connection, whose names
    /// [are set](Chain::set_names), is there. The answer is [`Action::Accepted`],
    /// [`Action::Failed`] or [`Action::Give`]; before the first there is no application.
    pub fn accepted(&mut self, now: Instant) {
        self.tell(now, BottomId(0), Up::Accepted);
    }

    /// A connection waits to be accepted.
    pub fn accept_ready(&mut self, now: Instant, bottom: BottomId) {
        self.tell(now, bottom, Up::AcceptReady);
    }

    /// What a flow's addresses are: its own, and the other end's.
    pub fn set_names(&mut self, bottom: BottomId, own: Address, peer: Address) {
        if let Some(at) = self.core.bottoms.get_mut(bottom.0) {
            at.names = (Some(own), Some(peer));
        }
    }

    /// Whether its handlers ask for measures.
    pub fn measures(&self) -> bool {
        self.core.factories.iter().any(|factory| factory.measures())
    }

    /// What the kernel has measured of a connection by now.
    pub fn set_measure(&mut self, bottom: BottomId, measure: Measure) {
        if let Some(at) = self.core.bottoms.get_mut(bottom.0) {
            at.measure = Some(measure);
        }
    }

    /// Bytes from the network. `false`: nobody will read any more.
    pub fn avail(&mut self, now: Instant, bottom: BottomId, data: Bytes) -> bool {
        self.tell(now, bottom, Up::Avail(data))
    }

    /// The other end has written all that it will.
    pub fn finished(&mut self, now: Instant, bottom: BottomId) {
        let Some(at) = self.core.bottoms.get_mut(bottom.0) else { return };
        if !std::mem::replace(&mut at.closed.avail, true) {
            self.tell(now, bottom, Up::Finished);
        }
    }

    /// The connection broke.
    pub fn failed(&mut self, now: Instant, bottom: BottomId, why: Failure) {
        let Some(at) = self.core.bottoms.get_mut(bottom.0).filter(|at| !at.is_over()) else {
            return;
        };
        at.broken();
        self.tell(now, bottom, Up::Failed(why));
    }

    /// Takes in the connections of `giver`, a chain of the same handlers that said
    /// [`Action::Give`] with a key that this chain has [claimed](Action::Claim). Each of the
    /// giver's connections is this chain's from now on: what it was called, what it is called now.
    /// Its next actions are to be taken before other chains': what the giver had claimed, it claims.
    /// `None`: this chain does not want it; the giver is to be dropped, its connections closed.
    pub fn take(&mut self, now: Instant, giver: Chain) -> Option<Vec<(BottomId, BottomId)>> {
        let moved = self.core.take(giver.core, now);
        self.core.run(now);
        moved
    }

    /// Nobody has claimed what this chain [gives](Action::Give): it closes its connections itself.
    pub fn unclaimed(&mut self, now: Instant) {
        self.core.unclaimed(now);
        self.core.run(now);
    }

    /// What a flow's connection has not taken yet; nothing for one that is gone.
    pub fn outgoing(&self, bottom: BottomId) -> &Buffer {
        self.core.bottoms.get(bottom.0).map_or(&self.core.nothing, |at| &at.buffer)
    }

    /// The connection has taken `count` bytes of it.
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

//! The chain: handlers in their places, and the queue of calls between them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::buffer::Buffer;
use super::call::{Address, Down, Failure, Half, SocketOption, Up};
use super::context::Context;
use super::ends::{Action, Bottom, BottomId, Closed, Top};
use super::handler::{Handler, Output, Timer};
use super::registry::Factory;
use crate::time::Instant;

/// Bytes that each end of a chain holds before it stops its source, unless told otherwise.
pub const DEFAULT_LIMIT: usize = 64 << 10;

/// A chain of handlers under one flow of an application: TESLA's instance.
#[derive(Debug)]
pub struct Chain {
    core: Core,
}

/// A place in a chain that calls can be made to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Node(usize),
    Bottom(usize),
}

/// Who is upstream of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upper {
    Top,
    Node(usize, Output),
}

struct Node {
    /// Taken out while one of its methods runs.
    handler: Option<Box<dyn Handler + Send>>,
    /// Which of the factories made it.
    position: usize,
    up: Upper,
    outputs: Vec<Place>,
    closed: Closed,
}

enum Call {
    Down(Place, Down),
    /// What the flow `Place` tells whoever is upstream of it.
    Up(Place, Up),
}

/// All of a chain, as its handlers' contexts need it.
pub(super) struct Core {
    factories: Arc<[Arc<dyn Factory>]>,
    limit: usize,
    nodes: Vec<Node>,
    bottoms: Vec<Bottom>,
    top: Top,
    queue: VecDeque<Call>,
    timers: Vec<(Instant, usize, Timer)>,
    actions: VecDeque<Action>,
}

impl Chain {
    /// Of the handlers that `factories` make, the application's first. Each end holds `limit` bytes
    /// before it stops its source, and at most what one call brings beyond that.
    pub fn new(factories: Arc<[Arc<dyn Factory>]>, limit: usize, now: Instant) -> Chain {
        let mut core = Core {
            factories,
            limit: limit.max(1),
            nodes: Vec::new(),
            bottoms: Vec::new(),
            top: Top::default(),
            queue: VecDeque::new(),
            timers: Vec::new(),
            actions: VecDeque::new(),
        };
        core.make(0, Upper::Top, now);
        core.run(now);
        Chain { core }
    }

    /// Another chain of the same handlers, for a flow that was accepted.
    pub fn sibling(&self, now: Instant) -> Chain {
        Chain::new(self.core.factories.clone(), self.core.limit, now)
    }

    /// The flow by which a chain that just began meets the network; none if its handlers plumbed
    /// none.
    pub fn bottom(&self) -> Option<BottomId> {
        (!self.core.bottoms.is_empty()).then_some(BottomId(0))
    }

    /// What is to be done next.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.core.actions.pop_front()
    }

    /// The earliest timer.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.core.timers.iter().map(|&(at, ..)| at).min()
    }

    /// Runs the handlers' timers that are due, in their order.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, node, timer)) = self.core.timers.iter().min_by_key(|&&(at, ..)| at)
            && at <= now
        {
            self.core.set_timer(node, timer, None);
            self.core.with(node, now, |handler, cx| handler.timeout(cx, timer));
            self.core.run(now);
        }
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
        if result.is_err() {
            self.core.bottoms[bottom.0].broken();
        }
        self.tell(now, bottom, Up::Connected(result));
    }

    /// A connection waits to be accepted.
    pub fn accept_ready(&mut self, now: Instant, bottom: BottomId) {
        self.tell(now, bottom, Up::AcceptReady);
    }

    /// What a flow's addresses are: its own, and the other end's.
    pub fn set_names(&mut self, bottom: BottomId, own: Address, peer: Address) {
        self.core.bottoms[bottom.0].names = (Some(own), Some(peer));
    }

    /// Bytes from the network. `false`: nobody will read any more.
    pub fn avail(&mut self, now: Instant, bottom: BottomId, data: Bytes) -> bool {
        self.tell(now, bottom, Up::Avail(data))
    }

    /// The other end has written all that it will.
    pub fn finished(&mut self, now: Instant, bottom: BottomId) {
        if self.core.bottoms[bottom.0].closed.avail {
            return;
        }
        self.tell(now, bottom, Up::Finished);
        self.core.bottoms[bottom.0].closed.avail = true;
    }

    /// The connection broke.
    pub fn failed(&mut self, now: Instant, bottom: BottomId, why: Failure) {
        if self.core.bottoms[bottom.0].is_over() {
            return;
        }
        self.core.bottoms[bottom.0].broken();
        self.tell(now, bottom, Up::Failed(why));
    }

    /// What a flow's connection has not taken yet.
    pub fn outgoing(&self, bottom: BottomId) -> &Buffer {
        &self.core.bottoms[bottom.0].buffer
    }

    /// The connection has taken `count` bytes of it.
    pub fn sent(&mut self, now: Instant, bottom: BottomId, count: usize) {
        let (action, tell) = self.core.bottoms[bottom.0].sent(count, self.core.limit);
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

impl Core {
    /// What is downstream of the application.
    fn first(&self) -> Option<Place> {
        match self.nodes.is_empty() {
            false => Some(Place::Node(0)),
            true => (!self.bottoms.is_empty()).then_some(Place::Bottom(0)),
        }
    }

    /// Makes what comes at `position` of the chain: a handler, or its end.
    fn make(&mut self, position: usize, up: Upper, now: Instant) -> Place {
        let Some(factory) = self.factories.get(position).cloned() else {
            self.bottoms.push(Bottom::new(self.bottoms.len(), up));
            return Place::Bottom(self.bottoms.len() - 1);
        };
        let node = self.nodes.len();
        let (handler, closed) = (Some(factory.make()), Closed::default());
        self.nodes.push(Node { handler, position, up, outputs: Vec::new(), closed });
        self.with(node, now, |handler, cx| handler.start(cx));
        Place::Node(node)
    }

    pub(super) fn plumb(&mut self, node: usize, now: Instant) -> Output {
        let output = Output(self.nodes[node].outputs.len());
        let position = self.nodes[node].position + 1;
        let place = self.make(position, Upper::Node(node, output), now);
        self.nodes[node].outputs.push(place);
        output
    }

    pub(super) fn output(&self, node: usize, output: Output) -> Option<Place> {
        self.nodes[node].outputs.get(output.0).copied()
    }

    pub(super) fn set_timer(&mut self, node: usize, timer: Timer, at: Option<Instant>) {
        self.timers.retain(|&(_, n, t)| (n, t) != (node, timer));
        self.timers.extend(at.map(|at| (at, node, timer)));
    }

    pub(super) fn notify(&mut self, event: Vec<u8>) {
        self.actions.push_back(Action::Event(event));
    }

    fn closed(&mut self, place: Place) -> &mut Closed {
        match place {
            Place::Node(node) => &mut self.nodes[node].closed,
            Place::Bottom(bottom) => &mut self.bottoms[bottom].closed,
        }
    }

    /// Queues a call downstream; `false` for bytes that the flow will not take.
    pub(super) fn ask(&mut self, place: Place, what: Down) -> bool {
        if matches!(what, Down::Write(_)) && self.closed(place).write {
            return false;
        }
        self.queue.push_back(Call::Down(place, what));
        true
    }

    /// Queues what the flow `from` tells upstream; `false` for bytes that nobody reads.
    pub(super) fn tell(&mut self, from: Place, what: Up) -> bool {
        if matches!(what, Up::Avail(_)) && self.closed(from).avail {
            return false;
        }
        self.queue.push_back(Call::Up(from, what));
        true
    }

    /// Makes calls until none is left.
    fn run(&mut self, now: Instant) {
        while let Some(call) = self.queue.pop_front() {
            match call {
                Call::Down(place, what) => self.down(place, what, now),
                Call::Up(from, what) => self.up(from, what, now),
            }
        }
    }

    fn down(&mut self, place: Place, what: Down, now: Instant) {
        match place {
            Place::Bottom(bottom) => {
                let (action, tell) = self.bottoms[bottom].take(what, self.limit);
                self.actions.extend(action);
                if let Some(what) = tell {
                    self.tell(place, what);
                }
            }
            Place::Node(node) => {
                let takes = self.with(node, now, |handler, cx| downstream(handler, cx, what));
                self.nodes[node].closed.write |= !takes;
            }
        }
    }

    fn up(&mut self, from: Place, what: Up, now: Instant) {
        let upper = match from {
            Place::Node(node) => self.nodes[node].up,
            Place::Bottom(bottom) => self.bottoms[bottom].up,
        };
        match upper {
            Upper::Top => {
                let (action, ask) = self.top.take(what, self.limit);
                self.actions.extend(action);
                if let Some(what) = ask {
                    self.ask(from, what);
                }
            }
            Upper::Node(node, output) => {
                let takes = self.with(node, now, |handler, cx| upstream(handler, cx, output, what));
                self.closed(from).avail |= !takes;
            }
        }
    }

    /// Calls a handler, which is out of its place meanwhile.
    fn with<T>(
        &mut self,
        node: usize,
        now: Instant,
        call: impl FnOnce(&mut dyn Handler, &mut Context<'_>) -> T,
    ) -> T {
        let mut handler = self.nodes[node].handler.take().expect("calls never nest");
        let done = call(&mut *handler, &mut Context { core: self, node, now });
        self.nodes[node].handler = Some(handler);
        done
    }

    pub(super) fn getsockname(&mut self, place: Place, now: Instant) -> Option<Address> {
        match place {
            Place::Bottom(bottom) => self.bottoms[bottom].names.0.clone(),
            Place::Node(node) => self.with(node, now, |handler, cx| handler.getsockname(cx)),
        }
    }

    pub(super) fn getpeername(&mut self, place: Place, now: Instant) -> Option<Address> {
        match place {
            Place::Bottom(bottom) => self.bottoms[bottom].names.1.clone(),
            Place::Node(node) => self.with(node, now, |handler, cx| handler.getpeername(cx)),
        }
    }

    pub(super) fn control(
        &mut self,
        place: Place,
        now: Instant,
        to: &str,
        request: &[u8],
    ) -> Option<Vec<u8>> {
        match place {
            Place::Bottom(_) => None,
            Place::Node(node) => {
                self.with(node, now, |handler, cx| handler.control(cx, to, request))
            }
        }
    }
}

/// Makes a downstream call; `false` if the flow takes no more bytes.
fn downstream(handler: &mut dyn Handler, cx: &mut Context<'_>, what: Down) -> bool {
    match what {
        Down::Write(data) => return handler.write(cx, data),
        Down::Connect(to) => handler.connect(cx, to),
        Down::Bind(at) => handler.bind(cx, at),
        Down::Listen(backlog) => handler.listen(cx, backlog),
        Down::Accept => handler.accept(cx),
        Down::Shutdown(half) => handler.shutdown(cx, half),
        Down::Close => handler.close(cx),
        Down::MayAvail(may) => handler.may_avail(cx, may),
        Down::SetOption(option) => handler.set_option(cx, option),
    }
    true
}

/// Makes an upstream call; `false` if nobody reads any more.
fn upstream(handler: &mut dyn Handler, cx: &mut Context<'_>, from: Output, what: Up) -> bool {
    match what {
        Up::Avail(data) => return handler.avail(cx, from, data),
        Up::Connected(result) => handler.connected(cx, from, result),
        Up::AcceptReady => handler.accept_ready(cx, from),
        Up::Finished => handler.finished(cx, from),
        Up::Failed(why) => handler.failed(cx, from, why),
        Up::MayWrite(may) => handler.may_write(cx, from, may),
    }
    true
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.factories.iter().map(|factory| factory.name()).collect();
        f.debug_struct("Chain").field("handlers", &names).finish_non_exhaustive()
    }
}

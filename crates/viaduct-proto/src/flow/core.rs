//! Core of a chain: its handlers, and the queue of calls between them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::buffer::Buffer;
use super::call::{Address, Down, OutputTransport, Place, Up, Upper};
use super::context::Context;
use super::ends::{Action, Bottom, Closed, Top};
use super::handler::{Handler, Output, Timer};
use super::handover::Handovers;
use super::measure::Measure;
use super::registry::Factory;
use super::slots::Slots;
use crate::time::Instant;

pub(super) struct Node {
    /// `None` while one of its methods runs.
    handler: Option<Box<dyn Handler + Send>>,
    /// Index of the factory that made the handler.
    pub(super) position: usize,
    pub(super) up: Upper,
    transport: Option<OutputTransport>,
    /// Destination of each output; `None` if it was unplumbed, or is being plumbed.
    pub(super) outputs: Vec<Option<Place>>,
    closed: Closed,
}

pub(super) enum Call {
    Down(Place, Down),
    /// Call of the flow at `Place` to its upstream neighbour.
    Up(Place, Up),
}

/// State of a chain, shared by its handlers' contexts.
pub(super) struct Core {
    pub(super) factories: Arc<[Arc<dyn Factory>]>,
    pub(super) limit: usize,
    pub(super) nodes: Slots<Node>,
    pub(super) bottoms: Slots<Bottom>,
    pub(super) top: Top,
    pub(super) queue: VecDeque<Call>,
    pub(super) timers: Vec<(Instant, usize, Timer)>,
    pub(super) handovers: Handovers,
    /// Buffer of a closed flow, always empty.
    pub(super) nothing: Buffer,
    pub(super) actions: VecDeque<Action>,
}

impl Core {
    /// See [`Chain::new`](super::Chain::new).
    pub(super) fn new(factories: Arc<[Arc<dyn Factory>]>, limit: usize, now: Instant) -> Core {
        let mut core = Core {
            factories,
            limit: limit.max(1),
            nodes: Slots::default(),
            bottoms: Slots::default(),
            top: Top::default(),
            queue: VecDeque::new(),
            timers: Vec::new(),
            handovers: Handovers::default(),
            nothing: Buffer::default(),
            actions: VecDeque::new(),
        };
        core.make(0, Upper::Top, None, now);
        core.run(now);
        core
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.iter().map(|&(at, ..)| at).min()
    }

    /// Fires the handlers' timers that are due, in the order of their deadlines.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, node, timer)) = self.timers.iter().min_by_key(|&&(at, ..)| at)
            && at <= now
        {
            self.set_timer(node, timer, None);
            self.with(node, now, |handler, cx| handler.timeout(cx, timer));
            self.run(now);
        }
    }

    pub(super) fn first(&self) -> Option<Place> {
        match self.factories.is_empty() {
            false => Some(Place::Node(0)),
            true => Some(Place::Bottom(0)),
        }
    }

    /// Creates the part at `position` of the chain: a handler, or a bottom.
    fn make(
        &mut self,
        position: usize,
        up: Upper,
        transport: Option<OutputTransport>,
        now: Instant,
    ) -> Place {
        let Some(factory) = self.factories.get(position).cloned() else {
            let bottom = Bottom::new(self.bottoms.next(), up, transport);
            return Place::Bottom(self.bottoms.push(bottom));
        };
        let (handler, outputs, closed) = (Some(factory.make()), Vec::new(), Closed::default());
        let node = self.nodes.push(Node { handler, position, up, transport, outputs, closed });
        self.with(node, now, |handler, cx| handler.start(cx));
        Place::Node(node)
    }

    pub(super) fn plumb(
        &mut self,
        node: usize,
        transport: Option<OutputTransport>,
        now: Instant,
    ) -> Output {
        let above = self.nodes.get_mut(node).expect("a running handler has a node");
        let (output, position) = (Output(above.outputs.len()), above.position + 1);
        let transport = transport.or(above.transport);
        above.outputs.push(None);
        let place = self.make(position, Upper::Node(node, output), transport, now);
        self.set_output(node, output, Some(place));
        output
    }

    pub(super) fn set_output(&mut self, node: usize, output: Output, place: Option<Place>) {
        let outputs = self.nodes.get_mut(node).map(|node| &mut node.outputs);
        if let Some(at) = outputs.and_then(|outputs| outputs.get_mut(output.0)) {
            *at = place;
        }
    }

    pub(super) fn output(&self, node: usize, output: Output) -> Option<Place> {
        *self.nodes.get(node)?.outputs.get(output.0)?
    }

    pub(super) fn set_timer(&mut self, node: usize, timer: Timer, at: Option<Instant>) {
        self.timers.retain(|&(_, n, t)| (n, t) != (node, timer));
        self.timers.extend(at.map(|at| (at, node, timer)));
    }

    pub(super) fn notify(&mut self, event: Vec<u8>) {
        self.actions.push_back(Action::Event(event));
    }

    pub(super) fn say(&mut self, node: usize, line: &dyn fmt::Display) {
        let position = self.nodes.get(node).map(|node| node.position);
        let name = position.and_then(|at| self.factories.get(at)).map_or("", |f| f.name());
        self.actions.push_back(Action::Say(format!("{name}: {line}")));
    }

    /// Closed directions of a flow; `None` if it was unplumbed.
    fn closed(&mut self, place: Place) -> Option<&mut Closed> {
        match place {
            Place::Node(node) => self.nodes.get_mut(node).map(|node| &mut node.closed),
            Place::Bottom(bottom) => self.bottoms.get_mut(bottom).map(|b| &mut b.closed),
        }
    }

    /// Queues a downstream call. Returns false for a write to a closed flow.
    pub(super) fn ask(&mut self, place: Place, what: Down) -> bool {
        if matches!(what, Down::Write(_)) && self.closed(place).is_none_or(|closed| closed.write) {
            return false;
        }
        self.queue.push_back(Call::Down(place, what));
        true
    }

    /// Queues an upstream call of the flow `from`. Returns false for data that is no longer read.
    pub(super) fn tell(&mut self, from: Place, what: Up) -> bool {
        if matches!(what, Up::Avail(_)) && self.closed(from).is_none_or(|closed| closed.avail) {
            return false;
        }
        self.queue.push_back(Call::Up(from, what));
        true
    }

    /// Makes queued calls until none is left.
    pub(super) fn run(&mut self, now: Instant) {
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
                let Some(bottom) = self.bottoms.get_mut(bottom) else { return };
                let (action, tell) = bottom.take(what, self.limit);
                self.actions.extend(action);
                if let Some(what) = tell {
                    self.tell(place, what);
                }
            }
            Place::Node(node) => {
                let takes = self.with(node, now, |handler, cx| downstream(handler, cx, what));
                if let Some(closed) = self.closed(place) {
                    closed.write |= takes == Some(false);
                }
            }
        }
    }

    fn up(&mut self, from: Place, what: Up, now: Instant) {
        let upper = match from {
            Place::Node(node) => self.nodes.get(node).map(|node| node.up),
            Place::Bottom(bottom) => self.bottoms.get(bottom).map(|bottom| bottom.up),
        };
        let Some(upper) = upper else { return };
        match upper {
            Upper::Node(node, output) if self.handovers.is_given(node, output) => {
                self.handovers.keep(what);
            }
            Upper::Top => {
                let (action, ask) = self.top.take(what, self.limit);
                self.actions.extend(action);
                if let Some(what) = ask {
                    self.ask(from, what);
                }
            }
            Upper::Node(node, output) => {
                let takes = self.with(node, now, |handler, cx| upstream(handler, cx, output, what));
                if let Some(closed) = self.closed(from) {
                    closed.avail |= takes == Some(false);
                }
            }
        }
    }

    /// Calls a handler, which is removed from its node for the duration of the call; `None` if the
    /// handler was unplumbed. (The handler is never running already, because calls do not nest.)
    pub(super) fn with<T>(
        &mut self,
        node: usize,
        now: Instant,
        call: impl FnOnce(&mut dyn Handler, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let mut handler = self.nodes.get_mut(node)?.handler.take()?;
        let done = call(&mut *handler, &mut Context { core: self, node, now });
        self.nodes.get_mut(node)?.handler = Some(handler);
        Some(done)
    }

    pub(super) fn held(&self) -> u64 {
        let handlers = self.nodes.iter().filter_map(|node| node.handler.as_deref());
        handlers.map(|handler| handler.held()).sum()
    }

    pub(super) fn getsockname(&mut self, place: Place, now: Instant) -> Option<Address> {
        match place {
            Place::Bottom(bottom) => self.bottoms.get(bottom)?.names.0.clone(),
            Place::Node(node) => self.with(node, now, |handler, cx| handler.getsockname(cx))?,
        }
    }

    pub(super) fn getpeername(&mut self, place: Place, now: Instant) -> Option<Address> {
        match place {
            Place::Bottom(bottom) => self.bottoms.get(bottom)?.names.1.clone(),
            Place::Node(node) => self.with(node, now, |handler, cx| handler.getpeername(cx))?,
        }
    }

    pub(super) fn getsockopt(
        &mut self,
        place: Place,
        now: Instant,
        level: i32,
        name: i32,
    ) -> Option<i32> {
        match place {
            Place::Bottom(bottom) => self.bottoms.get(bottom)?.options.get(level, name),
            Place::Node(node) => {
                self.with(node, now, |handler, cx| handler.getsockopt(cx, level, name))?
            }
        }
    }

    pub(super) fn measure(&mut self, place: Place, now: Instant) -> Option<Measure> {
        match place {
            Place::Bottom(bottom) => {
                let at = self.bottoms.get(bottom)?;
                let held = at.buffer.len() as u64;
                at.measure.map(|of| Measure {
                    held: of.held + held,
                    unsent: of.unsent + held,
                    ..of
                })
            }
            Place::Node(node) => self.with(node, now, |handler, cx| handler.measure(cx))?,
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
                self.with(node, now, |handler, cx| handler.control(cx, to, request))?
            }
        }
    }
}

/// Makes a downstream call. Returns false if the flow accepts no more bytes.
fn downstream(handler: &mut dyn Handler, cx: &mut Context<'_>, what: Down) -> bool {
    match what {
        Down::Write(data) => return handler.write(cx, data),
        Down::Connect(to) => handler.connect(cx, to),
        Down::Bind(at) => handler.bind(cx, at),
        Down::Listen => handler.listen(cx),
        Down::Accept => handler.accept(cx),
        Down::Shutdown(half) => handler.shutdown(cx, half),
        Down::Close => handler.close(cx),
        Down::Abort => handler.abort(cx),
        Down::MayAvail(may) => handler.may_avail(cx, may),
        Down::SetOption(option) => handler.setsockopt(cx, option),
    }
    true
}

/// Makes an upstream call. Returns false if no more bytes are read.
fn upstream(handler: &mut dyn Handler, cx: &mut Context<'_>, from: Output, what: Up) -> bool {
    match what {
        Up::Avail(data) => return handler.avail(cx, from, data),
        Up::Connected(result) => handler.connected(cx, from, result),
        Up::AcceptReady => handler.accept_ready(cx, from),
        Up::Accepted => handler.accepted(cx, from),
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

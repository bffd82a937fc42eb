//! The works of a chain: handlers in their places, and the queue of calls between them.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::call::{Address, Down, Place, Up, Upper};
use super::context::Context;
use super::ends::{Action, Bottom, Closed, Top};
use super::handler::{Handler, Output, Timer};
use super::registry::Factory;
use crate::time::Instant;

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
    pub(super) factories: Arc<[Arc<dyn Factory>]>,
    pub(super) limit: usize,
    nodes: Vec<Node>,
    pub(super) bottoms: Vec<Bottom>,
    pub(super) top: Top,
    queue: VecDeque<Call>,
    timers: Vec<(Instant, usize, Timer)>,
    pub(super) actions: VecDeque<Action>,
}

impl Core {
    /// See [`Chain::new`](super::Chain::new).
    pub(super) fn new(factories: Arc<[Arc<dyn Factory>]>, limit: usize, now: Instant) -> Core {
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
        core
    }

    /// The earliest timer.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.iter().map(|&(at, ..)| at).min()
    }

    /// Runs the handlers' timers that are due, in their order.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        while let Some(&(at, node, timer)) = self.timers.iter().min_by_key(|&&(at, ..)| at)
            && at <= now
        {
            self.set_timer(node, timer, None);
            self.with(node, now, |handler, cx| handler.timeout(cx, timer));
            self.run(now);
        }
    }

    /// What is downstream of the application.
    pub(super) fn first(&self) -> Option<Place> {
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

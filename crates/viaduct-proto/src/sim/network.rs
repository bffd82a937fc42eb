//! Simulator in virtual time: machines that follow the driving contract, connected by links.
//!
//! ```text
//!   ┌─ node 0 ─┐ port 0        Link         port 0 ┌─ node 1 ─┐
//!   │ Machine  ├───────────────────────────────────▶ Machine  │     now ──▶ next event ──▶ now
//!   │          ◀───────────────────────────────────┤          │
//!   └──────────┘               Link                └──────────┘
//! ```

mod tests;

use crate::link::{Delivery, Link, LinkConfig, flip_bit};
use crate::time::Instant;

/// Number of a machine's port, where its packets leave and arrive; chosen by the machine.
pub type Port = usize;

/// Machine that the simulator drives: this crate's contract, with packets at numbered ports.
pub trait Machine {
    /// Handles a packet that arrived at `port`.
    fn handle_packet(&mut self, now: Instant, port: Port, packet: Vec<u8>);

    /// Returns the next packet to send and its port; a packet for a port without a link is dropped.
    fn poll_transmit(&mut self) -> Option<(Port, Vec<u8>)>;

    /// Deadline of the earliest timer, if any.
    fn poll_timeout(&self) -> Option<Instant>;

    /// Handles the expiry of the deadline.
    fn handle_timeout(&mut self, now: Instant);
}

impl<M: Machine + ?Sized> Machine for Box<M> {
    fn handle_packet(&mut self, now: Instant, port: Port, packet: Vec<u8>) {
        (**self).handle_packet(now, port, packet);
    }

    fn poll_transmit(&mut self) -> Option<(Port, Vec<u8>)> {
        (**self).poll_transmit()
    }

    fn poll_timeout(&self) -> Option<Instant> {
        (**self).poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        (**self).handle_timeout(now);
    }
}

/// Number of a machine in its simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node(usize);

/// Number of a link in its simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkId(usize);

/// Simulation of machines `M` (an enum or box for several kinds), their links, and the time.
#[derive(Debug)]
pub struct Sim<M> {
    now: Instant,
    nodes: Vec<M>,
    links: Vec<Edge>,
    /// Events handled since the clock last moved.
    stalled: u32,
}

/// Link in one direction between two ports.
#[derive(Debug)]
struct Edge {
    from: (Node, Port),
    to: (Node, Port),
    link: Link<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Timeout(usize),
    Arrival(usize),
}

/// Maximum number of events at one instant. With more, a machine's deadline is assumed not
/// to advance.
const STALL: u32 = 10_000_000;

impl<M: Machine> Default for Sim<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine> Sim<M> {
    /// Creates an empty simulation at [`Instant::ZERO`].
    pub fn new() -> Self {
        Sim { now: Instant::ZERO, nodes: Vec::new(), links: Vec::new(), stalled: 0 }
    }

    /// Adds a machine.
    pub fn add(&mut self, machine: M) -> Node {
        self.nodes.push(machine);
        Node(self.nodes.len() - 1)
    }

    /// Connects a port to another, one way. If a port has several links, the first one takes all
    /// packets.
    pub fn connect(
        &mut self,
        from: (Node, Port),
        to: (Node, Port),
        config: LinkConfig,
        seed: u64,
    ) -> LinkId {
        self.links.push(Edge { from, to, link: Link::new(config, seed, self.now) });
        LinkId(self.links.len() - 1)
    }

    /// Connects two ports both ways by equal links with different seeds, `a` to `b` first.
    pub fn connect_both(
        &mut self,
        a: (Node, Port),
        b: (Node, Port),
        config: &LinkConfig,
        seed: u64,
    ) -> [LinkId; 2] {
        let there = self.connect(a, b, config.clone(), seed);
        [there, self.connect(b, a, config.clone(), seed.wrapping_add(1))]
    }

    /// Virtual time.
    pub fn now(&self) -> Instant {
        self.now
    }

    /// Access to a machine.
    pub fn node(&self, node: Node) -> &M {
        &self.nodes[node.0]
    }

    /// Mutable access to a machine. Packets that it then queues are sent at the next step.
    pub fn node_mut(&mut self, node: Node) -> &mut M {
        &mut self.nodes[node.0]
    }

    /// Access to a link, for its counters.
    pub fn link(&self, link: LinkId) -> &Link<Vec<u8>> {
        &self.links[link.0].link
    }

    /// Takes the record of packets that a link has dropped since the last call.
    pub fn take_record(&mut self, link: LinkId) -> crate::link::DropRecord {
        self.links[link.0].link.take_record()
    }

    /// Changes the settings of a link.
    pub fn set_link(&mut self, link: LinkId, config: LinkConfig) {
        self.links[link.0].link.set_config(self.now, config);
    }

    /// Handles all events up to and including `end`; the clock then shows `end`.
    pub fn run_until(&mut self, end: Instant) {
        while self.step(end) {}
        self.now = self.now.max(end);
    }

    /// Runs until no event is left, or until `end`. Returns true if no event is left.
    pub fn run_to_rest(&mut self, end: Instant) -> bool {
        while self.step(end) {}
        self.next().is_none()
    }

    /// Handles the next event if it is not after `end`; otherwise returns false. Panics after ten
    /// million events at one instant, because a machine's deadline then does not advance.
    pub fn step(&mut self, end: Instant) -> bool {
        (0..self.nodes.len()).for_each(|node| self.transmit(node));
        let Some((at, event)) = self.next().filter(|(at, _)| *at <= end) else { return false };
        self.stalled = if at > self.now { 0 } else { self.stalled + 1 };
        assert!(self.stalled < STALL, "{event:?} at {at:?} repeats without end");
        self.now = self.now.max(at);
        match event {
            Event::Timeout(node) => self.nodes[node].handle_timeout(self.now),
            Event::Arrival(edge) => self.arrive(edge),
        }
        true
    }

    /// Returns the earliest event. Simulations are small: a scan of all is faster than a heap.
    fn next(&self) -> Option<(Instant, Event)> {
        let nodes = self.nodes.iter().enumerate();
        let timeouts = nodes.filter_map(|(i, n)| Some((n.poll_timeout()?, Event::Timeout(i))));
        let edges = self.links.iter().enumerate();
        let arrivals = edges.filter_map(|(i, e)| Some((e.link.poll_timeout()?, Event::Arrival(i))));
        arrivals.chain(timeouts).min_by_key(|(at, _)| *at)
    }

    fn transmit(&mut self, node: usize) {
        while let Some((port, packet)) = self.nodes[node].poll_transmit() {
            if let Some(edge) = self.links.iter_mut().find(|e| e.from == (Node(node), port)) {
                let len = packet.len();
                // The link counts and records what it drops.
                let _ = edge.link.push(self.now, packet, len);
            }
        }
    }

    fn arrive(&mut self, edge: usize) {
        let Edge { to: (node, port), link, .. } = &mut self.links[edge];
        let machine = &mut self.nodes[node.0];
        while let Some(Delivery { item: mut packet, copies, flipped, .. }) = link.poll(self.now) {
            if let Some(bit) = flipped {
                flip_bit(&mut packet, bit);
            }
            for _ in 1..copies {
                machine.handle_packet(self.now, *port, packet.clone());
            }
            machine.handle_packet(self.now, *port, packet);
        }
    }
}

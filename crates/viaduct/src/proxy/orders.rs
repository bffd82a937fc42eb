//! What a worker is told, and how it obeys: its bounds when it begins, and orders while it runs.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use mio::Waker;
use tokio::sync::oneshot;
use tracing::{debug, error, info};
use viaduct_proto::time::Instant;
use viaduct_sys::tcp::{self, Mirrored};

use super::arrivals::MAX_ACCEPTS;
use super::aware::{Asked, Listens, Whose};
use super::calls::{Arrival, Call};
use super::doors::BACKLOG;
use super::liveness::DeadPeerLimits;
use super::settings::Settings;
use super::stats::ProxyStats;
use super::tunnels::Tunnels;
use super::worker::Worker;

/// How long those who have begun a handshake are still let in by a proxy that ends: a round trip over
/// satellites, and a lost packet.
const HANDSHAKES: Duration = Duration::from_millis(1_200);

/// Orders that are obeyed before flows have their turn.
const MAX_ORDERS: usize = 64;

/// What keeps a proxy within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Flows at once.
    pub flows: usize,
    /// Early connections at once, and how long each waits; `None` forwards no SYN early.
    pub early: Option<(usize, Duration)>,
    /// How long a server may take to answer.
    pub connect: Duration,
    /// How long whoever comes through handlers may take to say what they want to hear.
    pub words: Duration,
    /// How long an end may be silent.
    pub silence: DeadPeerLimits,
    /// How long a flow may say nothing.
    pub idle: Option<Duration>,
    /// How long it stays without a flow before it ends; for ever if `None`.
    pub idle_exit: Option<Duration>,
    /// How long flows may go on after they were asked to end.
    pub drain: Duration,
    /// How long it looks for what comes next before it sleeps, where that pays.
    pub spin: Duration,
    /// Bytes that each end of a chain of handlers holds before it stops its source.
    pub chain_buffer: usize,
    /// Bytes that flows by Trickles have asked for and not taken yet, at most, all together.
    pub trickles_buffer: usize,
}

/// What a worker is told.
#[derive(Debug)]
pub enum Order {
    /// Do this from now on; what only a restart can change is as it was.
    Reload(Box<Settings>),
    /// Begin what a wrapped program asks for.
    Call(Box<Call>),
    /// Take in a connection to a wrapped program.
    Arrive(Box<Arrival>),
    /// A wrapped program has set options on the socket of a flow.
    Mirror(Whose, Box<Mirrored>),
    /// What this flow waited for to reach its program is there, if it is still this one.
    Reach(usize, u64),
    /// Ask the handlers of a wrapped program's flow.
    Ask(Box<Asked>),
    /// Have this hear of what all handlers say to programs.
    Listen(Box<dyn Listens>),
    /// Say what you see.
    Show(oneshot::Sender<ProxyStats>),
    /// Take no more flows, and end when those that are there have ended or their time is up.
    Drain,
    /// End at once.
    Stop,
}

/// The way to a worker.
#[derive(Clone, Debug)]
pub struct ToWorker {
    orders: mpsc::Sender<Order>,
    waker: Arc<Waker>,
}

impl ToWorker {
    /// By `orders`, waking it by `waker`.
    pub fn new(orders: mpsc::Sender<Order>, waker: Arc<Waker>) -> ToWorker {
        ToWorker { orders, waker }
    }

    /// Tells it. One that is gone drops the order, and with it the way back.
    pub fn tell(&self, order: Order) {
        let _ = self.orders.send(order);
        let _ = self.waker.wake();
    }
}

impl Worker {
    /// Does what it was told.
    pub(super) fn obey(&mut self, now: Instant) {
        for _ in 0..MAX_ORDERS {
            let Ok(order) = self.orders.try_recv() else { return };
            match order {
                Order::Call(call) => self.call(*call, now),
                Order::Arrive(arrival) => self.unread.arrivals.push(*arrival),
                Order::Mirror(whose, mirrored) => self.mirror(whose, *mirrored),
                Order::Reach(key, id) => {
                    if self.flows.get(key).is_some_and(|flow| flow.id == id) {
                        self.reach(key);
                    }
                }
                Order::Ask(asked) => self.ask(*asked, now),
                Order::Listen(listens) => self.aware.listen(listens),
                Order::Show(reply) => drop(reply.send(self.stats())),
                Order::Reload(settings) => {
                    let Settings { target, policies, options, limits, tunnels, .. } = *settings;
                    if let (Some(running), Some(new)) = (&mut self.tunnels, tunnels) {
                        running.set_links(&new.dials, now);
                    }
                    (self.target, self.policies) = (target, policies);
                    (self.options, self.limits) = (options, limits);
                    if let Err(error) = self.open_trickles() {
                        error!("{error:#}");
                    }
                    if let Err(error) = self.teller.prepare(&self.policies) {
                        error!("{error:#}");
                    }
                }
                Order::Drain => self.drain(now),
                Order::Stop => self.deadline = Some(now),
            }
        }
        self.unread.orders = true;
    }

    /// Takes no new flows. Who has begun a handshake is still let in.
    fn drain(&mut self, now: Instant) {
        self.deadline = Some(now + self.limits.drain);
        self.doors_close = Some(now + HANDSHAKES);
        self.let_go();
        for listener in &self.listeners {
            if let Err(error) = tcp::take_no_more(listener) {
                debug!("refuse SYNs: {error}");
            }
        }
        info!(flows = self.flows.len(), "stopping");
    }

    /// Closes the listeners, when those who had begun a handshake have been let in.
    pub(super) fn close_doors(&mut self, now: Instant) {
        if self.doors_close.is_some_and(|at| now >= at) {
            for n in 0..self.listeners.len() {
                // No listener holds more.
                for _ in 0..BACKLOG as usize / MAX_ACCEPTS {
                    self.unread.listeners.remove(&n);
                    self.accept(n, now);
                    if !self.unread.listeners.contains(&n) {
                        break;
                    }
                }
            }
            self.unread.listeners.clear();
            self.listeners.clear();
            (self.tap, self.doors_close) = (None, None);
            // Whoever has not come by now never will.
            while let Some(started) = self.early.release() {
                self.end(started.key, true);
            }
        }
    }

    /// Whether it was asked to end, and can.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        // The last bytes of flows that have ended may still be on their way into a tunnel, or by Trickles.
        let said = self.tunnels.as_ref().is_none_or(Tunnels::are_done) && self.trickles.are_done();
        let ended = self.flows.is_empty() && self.doors_close.is_none() && said;
        self.deadline.is_some_and(|at| ended || now >= at)
    }

    fn stats(&self) -> ProxyStats {
        let (open, waiting) = (self.flows.len() as u64, self.early.len() as u64);
        let tunnels = self.tunnels.as_ref().map(Tunnels::counters).unwrap_or_default();
        let strangers_dropped = self.tunnels.as_ref().map(Tunnels::strangers_dropped);
        let early = self.early.stats();
        ProxyStats { open, waiting, early, tunnels, strangers_dropped, ..self.stats.clone() }
    }
}

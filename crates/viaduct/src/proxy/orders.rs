//! What a worker is told: its bounds when it begins, and orders while it runs.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use mio::Waker;
use tokio::sync::oneshot;

use super::settings::Settings;
use super::stats::ProxyStats;

/// What keeps a proxy within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Flows at once.
    pub flows: usize,
    /// Early connections at once, and how long each waits; `None` forwards no SYN early.
    pub early: Option<(usize, Duration)>,
    /// How long a server may take to answer.
    pub connect: Duration,
    /// How long an end may say nothing before it is probed.
    pub keep_alive: Option<Duration>,
    /// How long a flow may say nothing.
    pub idle: Option<Duration>,
    /// How long it stays without a flow before it ends; for ever if `None`.
    pub idle_exit: Option<Duration>,
    /// How long flows may go on after they were asked to end.
    pub drain: Duration,
    /// Bytes that each end of a chain of handlers holds before it stops its source.
    pub chain_buffer: usize,
}

/// What a worker is told.
#[derive(Debug)]
pub enum Order {
    /// Do this from now on; what only a restart can change is as it was.
    Reload(Box<Settings>),
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

//! Trickles compared with TCP Reno: a long download with each, over the same links with the same
//! losses.
//!
//! ```text
//!   client ──── up: requests ────▶ server             receiver ── up: acknowledgements ──▶ sender
//!          ◀─── down: packets ────                             ◀─ down: segments ─────────
//!             both windows, side by side, at every step: a Sample
//! ```
//!
//! The reference is Reno with SACK and limited transmit, as in kernels, but without pacing and
//! RACK. Messages of Trickles and segments of Reno have the same length, so the overhead of
//! Trickles' messages shows in [`Outcome::bytes`].

mod reno;
pub(crate) mod world;

use crate::link::LinkConfig;
use crate::sim::{Machine, Node, Sim};
use crate::time::{Duration, Instant};
use crate::trickles::server::Settings;
pub(crate) use reno::{Receiver, Sender};
use world::{End, Fetch};

/// Length of a message, and of a segment, in bytes.
const LENGTH: usize = 1_400;
/// Length of an endless download.
const ENDLESS: u64 = 1 << 40;

/// Comparison of two downloads.
#[derive(Clone, Debug, PartialEq)]
pub struct Contest {
    /// Link of the requests and the acknowledgements.
    pub up: LinkConfig,
    /// Link of the data.
    pub down: LinkConfig,
    /// Settings of the Trickles server.
    pub settings: Settings,
    /// Seed of the losses.
    pub seed: u64,
    /// Duration of each download.
    pub time: Duration,
    /// Time between two samples; above zero.
    pub step: Duration,
}

/// State of both downloads at one time. In each pair, the first is Trickles, the second Reno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Time since the beginning.
    pub at: Duration,
    /// Congestion windows, in packets; 0 while none is open.
    pub windows: [u64; 2],
    /// Packets with data so far: for Trickles those that have arrived, for Reno those that are
    /// acknowledged in order.
    pub packets: [u64; 2],
}

/// Result of a comparison. In each pair, the first is Trickles, the second Reno.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Packets with data: for Trickles those that have arrived, for Reno those that are
    /// acknowledged in order.
    pub packets: [u64; 2],
    /// Bytes that have arrived in order.
    pub bytes: [u64; 2],
    /// Recoveries from losses without a timeout.
    pub recoveries: [u64; 2],
    /// Timeouts.
    pub timeouts: [u64; 2],
    /// Both windows at every step.
    pub trace: Vec<Sample>,
}

impl Contest {
    /// Runs both downloads in virtual time. The same contest has the same outcome.
    pub fn run(&self) -> Outcome {
        let (mut ours, client, server) = self.trickles();
        let (mut renos, sender) = self.reno();
        let mut trace = Vec::new();
        let step = self.step.max(Duration::from_micros(1));
        let mut at = Duration::ZERO;
        while at < self.time {
            at = (at + step).min(self.time);
            ours.run_until(Instant::ZERO + at);
            renos.run_until(Instant::ZERO + at);
            let (fetch, sender) = (ours.node(client).as_fetch(), renos.node(sender).as_sender());
            trace.push(Sample {
                at,
                windows: [fetch.client.window(), sender.window().into()],
                packets: [fetch.packets, sender.acknowledged()],
            });
        }
        let (fetch, sender) = (ours.node(client).as_fetch(), renos.node(sender).as_sender());
        let stats = ours.node(server).as_server().stats();
        Outcome {
            packets: [fetch.packets, sender.acknowledged()],
            bytes: [fetch.position(), sender.acknowledged() * LENGTH as u64],
            recoveries: [fetch.client.stats().recoveries, sender.recoveries],
            timeouts: [stats.timeouts, sender.timeouts],
            trace,
        }
    }

    fn trickles(&self) -> (Sim<End>, Node, Node) {
        let mut sim = Sim::new();
        let client = sim.add(End::Client(Box::new(Fetch::new(ENDLESS, Instant::ZERO))));
        let server = sim.add(End::server(self.settings, ENDLESS));
        self.connect(&mut sim, client, server);
        (sim, client, server)
    }

    fn reno(&self) -> (Sim<End>, Node) {
        let mut sim = Sim::new();
        let window = self.settings.initial_window.into();
        let sender = sim.add(End::Sender(Sender::new(LENGTH, window)));
        let receiver = sim.add(End::Receiver(Receiver::default()));
        self.connect(&mut sim, receiver, sender);
        (sim, sender)
    }

    fn connect<M: Machine>(&self, sim: &mut Sim<M>, client: Node, server: Node) {
        sim.connect((client, 0), (server, 0), self.up.clone(), self.seed);
        sim.connect((server, 0), (client, 0), self.down.clone(), self.seed + 1);
    }
}

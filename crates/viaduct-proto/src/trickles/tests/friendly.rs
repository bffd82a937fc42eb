//! A flow that competes with several Reno flows, on one link with one queue (Trickles, Figure 13).
//!
//! ```text
//!   Trickles' server, or one more Sender ─┐                                  ┌─ client or Receiver
//!                                         ├─ Bundle ══ rate, queue ══ Bundle ┤
//!   Senders of Reno ──────────────────────┘                                  └─ their Receivers
//! ```

use std::collections::VecDeque;

use crate::link::LinkConfig;
use crate::rng::Rng;
use crate::sim::trickles::world::{End, Fetch};
use crate::sim::trickles::{Receiver, Sender};
use crate::sim::{Machine, Node, Port, Sim};
use crate::time::{Duration, Instant};
use crate::trickles::server::Settings;

/// The experiment's link, in each direction.
const LINK: &str = "rate=100M,delay=1ms,queue=250kB";
/// Bytes of headers per packet; the first byte identifies the flow.
const HEADERS: usize = 52;
/// Bytes of data in a TCP segment.
const SEGMENT: usize = 1_448;
const ENDLESS: u64 = 1 << 40;
/// Seconds of background flows alone, of warm-up, and of measurement.
const TIMES: [u64; 3] = [1, 2, 6];
const SEEDS: u64 = 3;

/// The ends of several flows at one side of the link.
struct Bundle {
    now: Instant,
    /// Delay until the first end handles a packet: its process must wake up, whereas kernels answer
    /// immediately.
    lag: Duration,
    /// Maximum random delay of each packet, in the first end's host and in the host of all others.
    host_jitter: Duration,
    rng: Rng,
    /// Packets that the two hosts have not handled yet.
    late: [VecDeque<(Instant, usize, Vec<u8>)>; 2],
    /// The ends, each with its start time.
    ends: Vec<(Instant, End)>,
}

impl Machine for Bundle {
    fn handle_packet(&mut self, now: Instant, port: Port, packet: Vec<u8>) {
        self.now = now;
        let whose = usize::from(packet[0]);
        let message = packet[HEADERS..].to_vec();
        let (host, lag) = if whose == 0 { (0, self.lag) } else { (1, Duration::ZERO) };
        let more = self.rng.below(self.host_jitter.as_nanos() as u64 + 1);
        let last = self.late[host].back().map_or(now, |(due, ..)| *due);
        let due = last.max(now + lag + Duration::from_nanos(more));
        if due == now {
            return self.ends[whose].1.handle_packet(now, port, message);
        }
        self.late[host].push_back((due, whose, message));
    }

    fn poll_transmit(&mut self) -> Option<(Port, Vec<u8>)> {
        let now = self.now;
        let mut begun = self.ends.iter_mut().enumerate().filter(|(_, (begin, _))| *begin <= now);
        begun.find_map(|(n, (_, end))| {
            let (port, message) = end.poll_transmit()?;
            let mut packet = vec![0; HEADERS];
            packet[0] = n as u8;
            packet.extend(message);
            Some((port, packet))
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let due = |(begin, end): &(Instant, End)| {
            if self.now < *begin { Some(*begin) } else { end.poll_timeout() }
        };
        let late = self.late.iter().filter_map(|host| host.front()).map(|(due, ..)| *due);
        self.ends.iter().filter_map(due).chain(late).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.now = now;
        for host in &mut self.late {
            while let Some((_, whose, message)) = host.pop_front_if(|(due, ..)| *due <= now) {
                self.ends[whose].1.handle_packet(now, 0, message);
            }
        }
        for (begin, end) in &mut self.ends {
            if *begin <= now && end.poll_timeout().is_some_and(|due| due <= now) {
                end.handle_timeout(now);
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Trickles,
    Reno,
}

/// The link with jitter on acknowledgements.
const UNEVEN: &str = "rate=100M,delay=1ms,jitter=500us,queue=250kB";
/// All ends answer immediately.
const EVEN: World = World {
    up: LINK,
    burst: 1,
    lag: Duration::ZERO,
    renos: Duration::ZERO,
    host_jitter: Duration::ZERO,
};
/// Each answer has a random delay of up to many packet times, so that a late answer is no
/// advantage.
const RESTLESS: World = World { lag: LAG, host_jitter: Duration::from_millis(2), ..EVEN };
/// Wake-up time of the lab's server: about the time in which a packet leaves the queue.
const LAG: Duration = Duration::from_micros(150);

#[derive(Clone, Copy, Debug)]
struct World {
    /// The link of the acknowledgements.
    up: &'static str,
    /// Number of segments that a Reno sender sends in one burst.
    burst: u32,
    /// Wake-up time of Trickles' server.
    lag: Duration,
    /// Wake-up time of the Reno sender that takes the place of Trickles' server.
    renos: Duration,
    /// Maximum random delay of a packet in servers' hosts.
    host_jitter: Duration,
}

/// A first flow of kind `by`, among `others` Reno flows.
struct Contest {
    sim: Sim<Bundle>,
    data: Node,
    wants: Node,
    begin: Instant,
}

impl Contest {
    fn new(by: By, others: usize, world: World, seed: u64) -> Self {
        let World { up, burst, lag, renos, host_jitter } = world;
        let mut rng = Rng::from_seed(seed);
        let [up, down] = [up, LINK].map(|link| link.parse::<LinkConfig>().unwrap());
        let mut sim = Sim::new();
        let begin = Instant::ZERO + Duration::from_secs(TIMES[0]);
        let (mut data, mut wants) = (Vec::new(), Vec::new());
        let sender = || Sender::new(SEGMENT, 10).in_bursts(burst);
        let reno = || (End::Sender(sender()), End::Receiver(Receiver::default()));
        for n in 0..=others {
            let (sender, receiver) = match by {
                By::Trickles if n == 0 => (
                    End::server(Settings::default(), ENDLESS),
                    End::Client(Box::new(Fetch::new(ENDLESS, begin))),
                ),
                _ => reno(),
            };
            let early = Instant::ZERO + Duration::from_micros(rng.below(300_000));
            let at = if n == 0 { begin } else { early };
            data.push((at, sender));
            wants.push((at, receiver));
        }
        let now = Instant::ZERO;
        let lag = if by == By::Trickles { lag } else { renos };
        let bundle = |ends, lag, host_jitter| {
            let (rng, late) = (Rng::from_seed(seed + 2), Default::default());
            Bundle { now, lag, host_jitter, rng, late, ends }
        };
        let data = sim.add(bundle(data, lag, host_jitter));
        let wants = sim.add(bundle(wants, Duration::ZERO, Duration::ZERO));
        sim.connect((wants, 0), (data, 0), up, seed);
        sim.connect((data, 0), (wants, 0), down, seed + 1);
        Contest { sim, data, wants, begin }
    }

    /// Bytes that each flow has delivered.
    fn got(&self) -> Vec<u64> {
        let pairs = self.sim.node(self.data).ends.iter().zip(&self.sim.node(self.wants).ends);
        let bytes = |((_, sender), (_, receiver)): (&(Instant, End), &(Instant, End))| match sender
        {
            End::Sender(sender) => sender.acknowledged() * SEGMENT as u64,
            _ => receiver.as_fetch().position(),
        };
        pairs.map(bytes).collect()
    }

    /// Share of the first flow in the total.
    fn share(&mut self) -> f64 {
        let [_, warm_up, window] = TIMES.map(Duration::from_secs);
        self.sim.run_until(self.begin + warm_up);
        let before = self.got();
        self.sim.run_until(self.begin + warm_up + window);
        let got: Vec<u64> =
            self.got().iter().zip(before).map(|(got, before)| got - before).collect();
        got[0] as f64 / got.iter().sum::<u64>() as f64
    }
}

/// Throughput of Trickles among `others`, relative to that of one more Reno flow in its place.
fn of_renos(others: usize, world: World) -> f64 {
    let [ours, renos] = [By::Trickles, By::Reno].map(|by| {
        let shares = (0..SEEDS).map(|seed| Contest::new(by, others, world, 10 * seed).share());
        shares.sum::<f64>() / SEEDS as f64
    });
    println!(
        "among {others}, {world:?}: {ours:.3}, a flow of Reno {renos:.3}: {:.2}",
        ours / renos
    );
    ours / renos
}

#[test]
fn a_flow_takes_the_share_of_a_reno_flow() {
    for others in [4, 10] {
        for world in [EVEN, World { lag: LAG, up: UNEVEN, ..EVEN }, RESTLESS] {
            let share = of_renos(others, world);
            assert!((0.8..1.2).contains(&share), "among {others}, {world:?}: {share:.2}");
        }
    }
}

/// With the exact timing of a simulation, or of kernels on one machine, packets stay in phase with
/// the queue's departures. A sender that answers one packet time later than all others finds a slot
/// that has just become free, and loses fewer packets. Reno flows also lose less throughput to each
/// other than to flows that send in bursts.
#[test]
fn if_packets_stay_in_phase_a_late_or_unbursty_sender_takes_more() {
    for world in [World { lag: LAG, ..EVEN }, World { burst: 4, ..EVEN }] {
        assert!(of_renos(10, world) > 1.2, "{world:?}");
    }
}

/// The cause is the time of the answer, not the transport: a Reno sender that answers as late gains
/// as much.
#[test]
fn a_reno_sender_that_answers_as_late_takes_as_much() {
    let host_jitter = Duration::from_millis(1);
    for others in [4, 10] {
        for lag in [60, 150, 300].map(Duration::from_micros) {
            let share = of_renos(others, World { lag, renos: lag, host_jitter, ..EVEN });
            assert!((0.8..1.2).contains(&share), "among {others}, after {lag:?}: {share:.2}");
        }
    }
}

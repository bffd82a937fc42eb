//! Two gateways with the default code on a long link, and a steady stream of packets between
//! their sites.

use super::*;
use crate::link::{Link, LinkConfig};
use control::{Limits, Regime};

/// Item on the link.
enum Item {
    /// Packet of a host.
    Packet(Vec<u8>),
    /// Datagram of a gateway.
    Datagram(Vec<u8>),
}

struct Wan {
    now: Instant,
    planes: [Plane; 2],
    /// Links from A to B, and from B to A.
    links: [Link<Item>; 2],
    next: u32,
    /// Length of the packets that are sent, in bytes.
    len: usize,
    due: Instant,
    /// Packets that B's gateway has injected.
    injected: usize,
}

/// Results of a run.
#[derive(Debug)]
struct Seen {
    /// Bytes of repairs and names for each byte of packets.
    bytes: f64,
    /// Share of the lost packets that were recovered.
    recovered: f64,
    /// Share that was recovered within 10 ms.
    at_once: f64,
    /// Share that was recovered within 15 ms.
    quick: f64,
    /// Share that was recovered within 50 ms.
    soon: f64,
    control: control::State,
}

fn link(text: &str) -> LinkConfig {
    text.parse().unwrap()
}

impl Wan {
    fn new(text: &str) -> Wan {
        Wan::of(text, Limits { max_overhead: 0.3, max_rate: None }.into())
    }

    fn of(text: &str, settings: Settings) -> Wan {
        let coding = Coding::Auto(settings);
        let plane = |me, peer| {
            let config = PeerConfig { memory: 32 << 20, ..config_of(me, peer, coding.clone()) };
            Plane::new(local(me), vec![config], Instant::ZERO).unwrap()
        };
        let back = link("rate=200M,delay=50ms,queue=100ms");
        let links = [Link::new(link(text), 7, Instant::ZERO), Link::new(back, 8, Instant::ZERO)];
        let planes = [plane(1, 2), plane(2, 1)];
        let now = Instant::ZERO;
        let mut wan = Wan { now, planes, links, next: 0, len: MTU, due: now, injected: 0 };
        wan.run(Duration::from_secs(1), 1.0);
        wan
    }

    fn stats(&self) -> [stats::PeerStats; 2] {
        [0, 1].map(|n| self.planes[n].stats()[0].1)
    }

    /// Sends `pace` packets a second for a while.
    fn run(&mut self, time: Duration, pace: f64) -> Seen {
        let (before, end) = (self.stats(), self.now + time);
        self.due = self.now;
        while self.now < end {
            self.drain();
            let timers = [self.planes[0].poll_timeout(), self.planes[1].poll_timeout()];
            let links = [self.links[0].poll_timeout(), self.links[1].poll_timeout()];
            let timers = timers.into_iter().chain(links).flatten();
            self.now = self.now.max(timers.fold(self.due.min(end), Instant::min));
            if self.due <= self.now {
                self.due += Duration::from_secs_f64(1.0 / pace);
                self.send();
            }
            for plane in &mut self.planes {
                plane.handle_timeout(self.now);
            }
        }
        self.seen(&before)
    }

    fn seen(&self, [a0, b0]: &[stats::PeerStats; 2]) -> Seen {
        let [a, b] = self.stats();
        let (a, b, b0) = (a.sender, b.receiver, b0.receiver);
        let lost = (b.link.lost - b0.link.lost).max(1) as f64;
        let within = |bound: u64| {
            let buckets = stats::LATENCY_BOUNDS.iter().filter(|of| **of <= bound).count();
            (0..buckets).map(|n| b.latency[n] - b0.latency[n]).sum::<u64>() as f64 / lost
        };
        let bytes = (a.repair_bytes - a0.sender.repair_bytes) as f64;
        Seen {
            bytes: bytes / (a.bytes - a0.sender.bytes).max(1) as f64,
            recovered: (b.link.recovered - b0.link.recovered) as f64 / lost,
            at_once: within(10_000),
            quick: within(15_000),
            soon: within(50_000),
            control: self.planes[0].facts(self.now)["site-2"].control.unwrap(),
        }
    }

    fn send(&mut self) {
        self.next += 1;
        let mut packet = vec![0; self.len];
        packet[28..32].copy_from_slice(&self.next.to_be_bytes());
        udp_header(&mut packet);
        self.planes[0].handle_outgoing(self.now, self.now, &mut packet.clone());
        let _ = self.links[0].push(self.now, Item::Packet(packet), self.len);
    }

    fn drain(&mut self) {
        loop {
            let mut is_idle = true;
            for n in [0, 1] {
                let sent: Vec<_> = self.planes[n].transmits().map(|(_, of)| of.to_vec()).collect();
                self.planes[n].clear_transmits();
                for datagram in sent {
                    let len = datagram.len() + 28;
                    let _ = self.links[n].push(self.now, Item::Datagram(datagram), len);
                }
                while let Some(delivery) = self.links[n].poll(self.now) {
                    is_idle = false;
                    match delivery.item {
                        Item::Packet(mut packet) => {
                            self.planes[1].handle_incoming(self.now, self.now, &mut packet);
                        }
                        Item::Datagram(mut datagram) => {
                            let from = endpoint(n as u8 + 1);
                            self.planes[1 - n].handle_datagram(self.now, from, &mut datagram);
                        }
                    }
                }
            }
            if is_idle {
                break;
            }
        }
        self.injected += self.planes[1].injections().len();
        self.planes[1].injections().clear();
    }
}

/// Packets a second that fill 0.8 of the link.
const BULK: f64 = 16_700.0;
const CLEAN: &str = "rate=200M,delay=50ms,queue=100ms";

/// Results of ten seconds of bulk traffic with this loss, which began eight seconds earlier.
fn steady(loss: &str) -> Seen {
    let mut wan = Wan::new(CLEAN);
    wan.run(Duration::from_secs(2), BULK);
    wan.links[0].set_config(wan.now, link(&format!("{CLEAN},loss={loss}")));
    wan.run(Duration::from_secs(8), BULK);
    wan.run(Duration::from_secs(10), BULK)
}

#[test]
fn a_clean_link_costs_less_than_a_hundredth() {
    let seen = steady("0");
    assert!(seen.bytes < 0.004 && seen.control.regime == Regime::Clean, "{seen:?}");
}

#[test]
fn single_losses_are_recovered_within_15_ms_at_little_cost() {
    let seen = steady("1%");
    assert!(seen.recovered > 0.999 && seen.quick > 0.985 && seen.bytes < 0.05, "{seen:?}");
    let seen = steady("5%");
    assert!(seen.recovered > 0.999 && seen.quick > 0.985 && seen.bytes < 0.16, "{seen:?}");
}

#[test]
fn bursts_are_recovered_while_flows_can_wait() {
    let seen = steady("1%x8");
    assert!(seen.recovered > 0.99 && seen.soon > 0.9 && seen.bytes < 0.13, "{seen:?}");
    let seen = steady("1%x30");
    assert!(seen.recovered > 0.95 && seen.soon > 0.85 && seen.bytes < 0.17, "{seen:?}");
}

#[test]
fn a_full_queue_gets_no_repairs() {
    let mut wan = Wan::new(CLEAN);
    wan.run(Duration::from_secs(1), BULK);
    // A rate that exceeds the link's by about a tenth.
    let pace = 22_900.0;
    wan.run(Duration::from_secs(2), pace);
    let before = wan.stats();
    let dropped = wan.links[0].stats().queue_dropped;
    let seen = wan.run(Duration::from_secs(10), pace);
    let after = wan.stats();
    let dropped = wan.links[0].stats().queue_dropped - dropped;
    let [before, after] = [&before, &after].map(|stats| stats[1].receiver);
    let congested = after.congested - before.congested;
    assert!(seen.bytes < 0.005, "{seen:?}");
    // Half of the manifests are also dropped.
    assert!(congested as f64 > 0.3 * dropped as f64, "{congested} of {dropped}: {after:?}");
    assert_eq!(after.random, before.random, "{after:?}");
}

#[test]
fn a_longer_path_is_not_taken_for_a_queue() {
    let mut wan = Wan::new(&format!("{CLEAN},loss=1%"));
    wan.run(Duration::from_secs(5), BULK);
    wan.links[0].set_config(wan.now, link("rate=200M,delay=80ms,queue=100ms,loss=1%"));
    wan.run(Duration::from_secs(2), BULK);
    let before = wan.stats()[1].receiver;
    let seen = wan.run(Duration::from_secs(5), BULK);
    let congested = wan.stats()[1].receiver.congested - before.congested;
    assert!(seen.recovered > 0.999 && seen.bytes < 0.06 && congested == 0, "{congested} {seen:?}");
}

/// Results of small packets at this loss and rate, over `seconds` seconds after a warm-up of the
/// same length.
fn small(loss: &str, settings: Settings, pace: f64, seconds: u64) -> Seen {
    let mut wan = Wan::of(&format!("{CLEAN},loss={loss}"), settings);
    wan.len = 84;
    wan.run(Duration::from_secs(seconds), pace);
    wan.run(Duration::from_secs(seconds), pace)
}

#[test]
fn sparse_packets_are_recovered_immediately() {
    let settings = || Settings::from(Limits { max_overhead: 0.3, max_rate: None });
    let lone = small("5%", settings(), 50.0, 100);
    assert!(lone.at_once > 0.9 && lone.bytes < 2.2, "{lone:?}");
    // The second copy leaves after the burst.
    let bursts = small("5%x8", settings(), 1_000.0, 20);
    assert!(bursts.at_once > 0.85, "{bursts:?}");
}

#[test]
fn the_class_of_small_packets_determines_their_cost() {
    let settings = |repairs| Settings {
        classes: vec![Class {
            name: "all".to_owned(),
            repairs,
            deadline: Some(Duration::from_millis(100)),
            ..Class::default()
        }],
        ..Settings::from(Limits { max_overhead: 1.0, max_rate: None })
    };
    let interactive = small("1%", settings(Repairs::Copies), 5_000.0, 10);
    assert!(interactive.at_once > 0.97 && interactive.bytes < 1.2, "{interactive:?}");
    let bulk = small("1%", settings(Repairs::Window), 5_000.0, 10);
    assert!(bulk.recovered > 0.999 && bulk.bytes < 0.15, "{bulk:?}");
    let none = small("1%", settings(Repairs::None), 5_000.0, 10);
    assert!(none.recovered == 0.0 && none.bytes < 0.09, "{none:?}");
    assert!(none.control.report.random.bursts.iter().sum::<u64>() > 500, "{none:?}");
}

#[test]
fn the_maximum_rate_is_respected() {
    let limits = Limits { max_overhead: 0.3, max_rate: Some(125_000.0) };
    let mut wan = Wan::of(&format!("{CLEAN},loss=5%"), limits.into());
    wan.run(Duration::from_secs(5), BULK);
    let before = wan.stats()[0].sender;
    wan.run(Duration::from_secs(5), BULK);
    let sender = wan.stats()[0].sender;
    // A repair has 1,211 bytes, a manifest some 220 for 64 packets.
    let repairs = sender.repairs - before.repairs;
    assert!((400..530).contains(&repairs), "{repairs}");
}

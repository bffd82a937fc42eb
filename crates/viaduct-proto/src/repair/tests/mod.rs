//! Two gateways, a link between them whose losses the test sets, and a virtual clock.

mod auto;
mod change;
mod handover;
mod handshake;
mod lanes;
mod paths;
mod racks;
mod recovery;
mod state;
mod transport;
mod wan;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use super::*;
use crate::fec::layered::Parameters;
use crate::fec::{Code, reed_solomon, window};
use crate::keys::{Entropy, SecretKey};
use crate::repair::lanes::LaneCount;
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::wire::ip;

const MTU: usize = 1_200;

struct World {
    now: Instant,
    a: Plane,
    b: Plane,
    /// Plane of a new process that is to take over from B, and receives everything that B receives.
    successor: Option<Plane>,
    rng: Rng,
    /// Packets that reached hosts at B, each with its number of arrivals.
    delivered: HashMap<Vec<u8>, usize>,
    /// Datagrams from A to B, as seen by an eavesdropper.
    overheard: Vec<Vec<u8>>,
    next: u32,
}

fn endpoint(n: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], 7400))
}

fn secret(n: u8) -> SecretKey {
    SecretKey::from_bytes([n; 32])
}

fn local(n: u8) -> Local {
    let rng = Mutex::new(Rng::from_seed(u64::from(n)));
    let entropy: Entropy = Arc::new(move |out: &mut [u8]| rng.lock().unwrap().fill(out));
    let unix_nanos_at_zero = 1_700_000_000_000_000_000;
    Local { secret: secret(n), entropy, unix_nanos_at_zero, lanes: LaneCount::ONE }
}

fn layered() -> Code {
    Code::Layered(Parameters { r: 8, interleaves: vec![1, 19, 41], delay_xors: false })
}

fn config(me: u8, peer: u8, code: Code) -> PeerConfig {
    config_of(me, peer, Coding::Fixed(code))
}

fn config_of(me: u8, peer: u8, coding: Coding) -> PeerConfig {
    let site = |n: u8| {
        vec![format!("10.{n}.0.0/16").parse().unwrap(), format!("fd00:{n}::/32").parse().unwrap()]
    };
    PeerConfig {
        name: format!("site-{peer}"),
        key: secret(peer).public(),
        endpoint: Some(endpoint(peer)),
        paths: None,
        transport: TransportChoice::Only(Transport::Udp),
        sites: Sites { local: site(me), remote: site(peer) },
        coding: Some(coding),
        flush_after: Duration::from_millis(8),
        rekey_after: Duration::from_secs(120),
        longest: MTU,
        mtu: 1_500,
        memory: 8 << 20,
        rack: RackConfig::default(),
    }
}

impl World {
    fn new(code: &Code) -> World {
        World::of(&Coding::Fixed(code.clone()))
    }

    fn of(coding: &Coding) -> World {
        let plane = |me, peer| {
            let config = config_of(me, peer, coding.clone());
            Plane::new(local(me), vec![config], Instant::ZERO).unwrap()
        };
        let mut world = World {
            now: Instant::ZERO,
            a: plane(1, 2),
            b: plane(2, 1),
            successor: None,
            rng: Rng::from_seed(42),
            delivered: HashMap::new(),
            overheard: Vec::new(),
            next: 0,
        };
        world.run(Duration::from_millis(50), |_, _| false);
        assert!(world.a_stats().up && world.b_stats().up, "the handshake is done");
        world
    }

    fn a_stats(&self) -> stats::PeerStats {
        self.a.stats()[0].1
    }

    fn b_stats(&self) -> stats::PeerStats {
        self.b.stats()[0].1
    }

    /// Returns a unique UDP packet from a host at A to a host at B.
    fn packet(&mut self) -> Vec<u8> {
        self.next += 1;
        let len = 60 + self.rng.below((MTU - 60) as u64 + 1) as usize;
        let mut packet = vec![0; len];
        self.rng.fill(&mut packet[28..]);
        packet[28..32].copy_from_slice(&self.next.to_be_bytes());
        udp_header(&mut packet);
        packet
    }

    /// Sends `packet` from A's hosts; the link loses it if `lost`.
    fn send(&mut self, packet: &[u8], lost: bool) {
        self.a.handle_outgoing(self.now, self.now, &mut packet.to_vec());
        if !lost {
            self.arrive(packet);
        }
    }

    fn arrive(&mut self, packet: &[u8]) {
        *self.delivered.entry(packet.to_vec()).or_default() += 1;
        self.b.handle_incoming(self.now, self.now, &mut packet.to_vec());
        if let Some(successor) = &mut self.successor {
            successor.handle_incoming(self.now, self.now, &mut packet.to_vec());
        }
    }

    /// Delivers the gateways' datagrams, except those from A for which `lose` returns true.
    fn exchange(&mut self, lose: &mut impl FnMut(&mut Rng, &[u8]) -> bool) {
        loop {
            let from_a: Vec<Vec<u8>> = self.a.transmits().map(|(_, d)| d.to_vec()).collect();
            let from_b: Vec<Vec<u8>> = self.b.transmits().map(|(_, d)| d.to_vec()).collect();
            self.a.clear_transmits();
            self.b.clear_transmits();
            if from_a.is_empty() && from_b.is_empty() {
                break;
            }
            for mut datagram in from_a {
                self.overheard.push(datagram.clone());
                if !lose(&mut self.rng, &datagram) {
                    if let Some(successor) = &mut self.successor {
                        successor.handle_datagram(self.now, endpoint(1), &mut datagram.clone());
                    }
                    self.b.handle_datagram(self.now, endpoint(1), &mut datagram);
                }
            }
            for mut datagram in from_b {
                self.a.handle_datagram(self.now, endpoint(2), &mut datagram);
            }
        }
        for packet in self.b.injections().iter() {
            *self.delivered.entry(packet.to_vec()).or_default() += 1;
        }
        self.b.injections().clear();
    }

    fn run(&mut self, time: Duration, mut lose: impl FnMut(&mut Rng, &[u8]) -> bool) {
        let end = self.now + time;
        loop {
            self.exchange(&mut lose);
            let next = [self.a.poll_timeout(), self.b.poll_timeout()].into_iter().flatten().min();
            match next.filter(|&at| at <= end) {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
            self.a.handle_timeout(self.now);
            self.b.handle_timeout(self.now);
            if let Some(successor) = &mut self.successor {
                successor.handle_timeout(self.now);
                successor.clear_transmits();
                successor.injections().clear();
            }
        }
        self.now = end;
    }

    /// Sends `count` packets, one a millisecond; returns the number of packets that never arrived.
    fn stream(
        &mut self,
        count: usize,
        mut lost: impl FnMut(&mut Rng, usize) -> bool,
        repair_loss: f64,
    ) -> usize {
        let mut sent = Vec::new();
        for i in 0..count {
            let packet = self.packet();
            let drop = lost(&mut self.rng, i);
            self.send(&packet, drop);
            sent.push(packet);
            self.run(Duration::from_millis(1), |rng, _| rng.chance(repair_loss));
        }
        self.run(Duration::from_secs(3), |_, _| false);
        assert!(
            sent.iter().all(|p| self.delivered.get(p).is_none_or(|&n| n == 1)),
            "no packet arrives twice"
        );
        sent.iter().filter(|p| !self.delivered.contains_key(*p)).count()
    }
}

fn udp_header(packet: &mut [u8]) {
    let len = packet.len();
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[9] = 17;
    packet[12..16].copy_from_slice(&[10, 1, 0, 1]);
    packet[16..20].copy_from_slice(&[10, 2, 0, 1]);
    ip::restore(packet, ip::MutableFields { ttl: 63, tos: 0x2e });
}

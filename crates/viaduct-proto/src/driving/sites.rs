//! Machines of sites: gateways, ends of a tunnel and nodes of an overlay, in pairs; checks of
//! replicas.

use std::sync::{Arc, Mutex};

use super::{Driven, at, some_bytes};
use crate::fec::Code;
use crate::flow::Address;
use crate::health::{self, Checker, Probe};
use crate::keys::{Entropy, SecretKey};
use crate::overlay::{Config, Node, Peer, Policy, Timing};
use crate::repair::lanes::LaneCount;
use crate::repair::{Coding, Local, PeerConfig, Plane, RackConfig, Sites, TransportChoice};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::tunnel::{Carrier, Event, Settings, StreamId, Tunnel};

pub(super) fn entropy(seed: u64) -> Entropy {
    let rng = Mutex::new(Rng::from_seed(seed));
    Arc::new(move |out: &mut [u8]| rng.lock().unwrap().fill(out))
}

/// Two gateways that are peers. Either may be configured without the other's endpoint.
pub(super) struct Gateways {
    planes: [Plane; 2],
    loss: f64,
}

impl Gateways {
    pub(super) fn new(endpoints: [bool; 2], code: Option<&Code>, loss: f64) -> Gateways {
        let site = |n: u8| vec![format!("10.{n}.0.0/16").parse().unwrap()];
        let secret = |n: u8| SecretKey::from_bytes([n; 32]);
        let plane = |me: u8, peer: u8| {
            let local = Local {
                secret: secret(me),
                entropy: entropy(me.into()),
                unix_nanos_at_zero: 1_700_000_000_000_000_000,
                lanes: LaneCount::ONE,
            };
            let config = PeerConfig {
                name: "peer".to_owned(),
                key: secret(peer).public(),
                endpoint: endpoints[usize::from(me)].then(|| at(peer, 7400)),
                paths: None,
                transport: TransportChoice::Auto,
                sites: Sites { local: site(me), remote: site(peer) },
                coding: code.cloned().map(Coding::Fixed),
                flush_after: Duration::from_millis(8),
                rekey_after: Duration::from_secs(10),
                longest: 1_300,
                mtu: 1_500,
                memory: 1 << 20,
                rack: RackConfig::default(),
            };
            Plane::new(local, vec![config], Instant::ZERO).unwrap()
        };
        Gateways { planes: [plane(0, 1), plane(1, 0)], loss }
    }
}

impl Driven for Gateways {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        for _ in 0..rng.below(20) {
            let mut packet = vec![0x45, 0, 0, 100];
            packet.resize(100, rng.next_u64() as u8);
            packet[9] = 17;
            packet[12..20].copy_from_slice(&[10, 0, 0, 1, 10, 1, 0, rng.next_u64() as u8]);
            self.planes[0].handle_outgoing(now, now, &mut packet.clone());
            if !rng.chance(0.2) {
                self.planes[1].handle_incoming(now, now, &mut packet);
            }
        }
        let mut noise = some_bytes(rng, 200);
        self.planes[rng.below(2) as usize].handle_datagram(now, at(9, 9), &mut noise);
        self.loss = if rng.chance(0.1) { rng.unit() } else { self.loss };
    }

    fn drain(&mut self, now: Instant) {
        let mut rng = Rng::from_seed(now.as_nanos());
        for _ in 0..4 {
            for from in [0, 1] {
                let sent: Vec<Vec<u8>> =
                    self.planes[from].transmits().map(|(_, datagram)| datagram.to_vec()).collect();
                self.planes[from].clear_transmits();
                for mut datagram in sent {
                    if !rng.chance(self.loss) {
                        let source = at(from as u8, 7400);
                        self.planes[1 - from].handle_datagram(now, source, &mut datagram);
                    }
                }
                self.planes[from].injections().clear();
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.planes.iter().filter_map(Plane::poll_timeout).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.planes.iter_mut().for_each(|plane| plane.handle_timeout(now));
    }
}

pub(super) struct Tunnels {
    ends: [Tunnel; 2],
    streams: Vec<StreamId>,
    lossy: bool,
}

impl Tunnels {
    pub(super) fn new() -> Tunnels {
        let ends = [1, 2].map(|instance| Tunnel::new(Settings::default(), instance));
        Tunnels { ends, streams: Vec::new(), lossy: false }
    }
}

impl Driven for Tunnels {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        match rng.below(6) {
            0 => {
                let carrier = [Carrier::Stream, Carrier::Streams][rng.below(2) as usize];
                let number = self.ends[0].dial(now, carrier);
                self.ends[1].accept_link(now, number, carrier);
            }
            1 => {
                let to = Address::Name("there.example".into(), 80);
                self.streams.extend(self.ends[0].open(to, None));
            }
            2 => self.lossy = rng.chance(0.3),
            _ => {
                for &id in &self.streams {
                    let bytes = some_bytes(rng, 9_000).into();
                    self.ends[0].write(now, id, bytes);
                    if rng.chance(0.1) {
                        self.ends[0].shutdown(id);
                    }
                }
            }
        }
    }

    fn drain(&mut self, now: Instant) {
        for _ in 0..4 {
            for from in [0, 1] {
                let mut out = Vec::new();
                while let Some((link, lane)) = self.ends[from].poll_transmit(now, &mut out) {
                    if !self.lossy {
                        self.ends[1 - from].handle_bytes(now, link, lane, &out);
                    }
                    out.clear();
                }
                while let Some(event) = self.ends[from].poll_event() {
                    if let Event::Readable(id) = event {
                        while let Some(bytes) = self.ends[from].read(id) {
                            self.ends[from].consumed(now, id, bytes.len());
                        }
                    }
                }
                while self.ends[from].poll_forgotten().is_some() {}
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.ends.iter().filter_map(Tunnel::poll_timeout).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.ends.iter_mut().for_each(|end| end.handle_timeout(now));
    }
}

pub(super) struct Nodes([Node; 2], f64);

impl Nodes {
    pub(super) fn new() -> Nodes {
        let key = |n: u8| SecretKey::from_bytes([n + 1; 32]);
        let node = |n: u8| {
            let other = 1 - n;
            let peer = Peer {
                name: format!("n{other}"),
                key: key(other).public(),
                socks: Some(at(other, 1080)),
                hop: None,
                serves: Vec::new(),
            };
            let config = Config {
                name: format!("n{n}"),
                key: key(n),
                serves: Vec::new(),
                peers: vec![peer],
                policy: Policy::Latency,
                timing: Timing::default(),
            };
            Node::new(config, entropy(n.into()), Instant::ZERO).unwrap()
        };
        Nodes([node(0), node(1)], 0.0)
    }
}

impl Driven for Nodes {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        self.1 = if rng.chance(0.3) { rng.unit() } else { self.1 };
        let noise = some_bytes(rng, 100);
        self.0[0].handle_datagram(now, &noise);
    }

    fn drain(&mut self, now: Instant) {
        let mut rng = Rng::from_seed(now.as_nanos());
        for _ in 0..4 {
            for from in [0, 1] {
                while let Some((_, datagram)) = self.0[from].poll_transmit() {
                    if !rng.chance(self.1) {
                        self.0[1 - from].handle_datagram(now, &datagram);
                    }
                }
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().filter_map(Node::poll_timeout).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.iter_mut().for_each(|node| node.handle_timeout(now));
    }
}

/// Checks of three replicas, and the probes that may still be answered.
pub(super) struct Checks(Checker, Vec<Probe>);

impl Checks {
    pub(super) fn new() -> Checks {
        let timing = health::Timing { rise: 3, ..health::Timing::default() };
        Checks(Checker::new([timing; 3], Instant::ZERO), Vec::new())
    }
}

impl Driven for Checks {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        for probe in std::mem::take(&mut self.1) {
            let result = if rng.chance(0.5) { Ok(()) } else { Err("refused".to_owned()) };
            self.0.handle_result(now, probe, result);
        }
        self.0.handle_suspicion(now, rng.below(3) as usize);
    }

    fn drain(&mut self, now: Instant) {
        while let Some(probe) = self.0.poll_probe(now) {
            self.1.push(probe);
        }
        while self.0.poll_changed().is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }
}

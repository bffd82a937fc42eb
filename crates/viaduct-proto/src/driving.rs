//! Test of the driving contract for every machine of this crate: after `handle_timeout(now)`,
//! and every `poll_*` until `None`, no deadline lies at or before `now`, except for a few rounds
//! that make progress. A machine that violates it keeps a CPU core busy.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use proptest::prelude::*;

use crate::fec::layered::Parameters;
use crate::fec::{Code, reed_solomon, window};
use crate::flow::datagrams::{self, Direction, Ends, Passage};
use crate::flow::relays::{self, Relays};
use crate::flow::{Action, Address, Chain, Factory, Failure, Half};
use crate::handlers::testing::{factories, shell};
use crate::keys::{Entropy, SecretKey};
use crate::link::Link;
use crate::overlay::{Config, Node, Peer, Policy, Timing};
use crate::repair::{Coding, Local, PeerConfig, Plane, Sites};
use crate::rng::Rng;
use crate::split::early::{Early, Tuple};
use crate::time::{Duration, Instant};
use crate::trickles::client::{self, Client};
use crate::trickles::stream::{self, Stream};
use crate::tunnel::{Carrier, Event, Settings, StreamId, Tunnel};

/// Maximum number of rounds at one instant.
const MAX_ROUNDS: usize = 8;
/// Number of steps in one run.
const STEPS: usize = 120;

/// Machine as a shell drives it.
trait Driven {
    /// Applies a random event from its surroundings.
    fn perturb(&mut self, now: Instant, rng: &mut Rng);
    /// Takes all outputs of the machine.
    fn drain(&mut self, now: Instant);
    fn poll_timeout(&self) -> Option<Instant>;
    fn handle_timeout(&mut self, now: Instant);
}

/// Drives `machine` for a while, sometimes late.
fn assert_no_spin(machine: &mut dyn Driven, seed: u64) -> Result<(), TestCaseError> {
    let (mut now, mut rng) = (Instant::ZERO, Rng::from_seed(seed));
    for _ in 0..STEPS {
        if rng.chance(0.6) {
            machine.perturb(now, &mut rng);
            machine.drain(now);
        }
        let late = Duration::from_micros(rng.below(3) * rng.below(2_000_000));
        now = match machine.poll_timeout() {
            Some(due) => now.max(due) + late,
            None => now + Duration::from_millis(rng.below(500)),
        };
        let mut rounds = 0;
        while machine.poll_timeout().is_some_and(|due| due <= now) {
            prop_assert!(rounds < MAX_ROUNDS, "its deadline stays in the past at {now:?}");
            machine.handle_timeout(now);
            machine.drain(now);
            rounds += 1;
        }
    }
    Ok(())
}

fn entropy(seed: u64) -> Entropy {
    let rng = Mutex::new(Rng::from_seed(seed));
    Arc::new(move |out: &mut [u8]| rng.lock().unwrap().fill(out))
}

fn at(n: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], port))
}

fn some_bytes(rng: &mut Rng, most: u64) -> Vec<u8> {
    let mut bytes = vec![0; rng.below(most) as usize];
    rng.fill(&mut bytes);
    bytes
}

/// Gateway and one of its peers, which may not know each other's endpoint.
struct Gateways {
    planes: [Plane; 2],
    loss: f64,
}

impl Gateways {
    fn new(endpoints: [bool; 2], code: Option<&Code>, loss: f64) -> Gateways {
        let site = |n: u8| vec![format!("10.{n}.0.0/16").parse().unwrap()];
        let secret = |n: u8| SecretKey::from_bytes([n; 32]);
        let plane = |me: u8, peer: u8| {
            let local = Local {
                secret: secret(me),
                entropy: entropy(me.into()),
                unix_nanos_at_zero: 1_700_000_000_000_000_000,
            };
            let config = PeerConfig {
                name: "peer".to_owned(),
                key: secret(peer).public(),
                endpoint: endpoints[usize::from(me)].then(|| at(peer, 7400)),
                sites: Sites { local: site(me), remote: site(peer) },
                coding: code.cloned().map(Coding::Fixed),
                flush_after: Duration::from_millis(8),
                rekey_after: Duration::from_secs(10),
                longest: 1_300,
                mtu: 1_500,
                memory: 1 << 20,
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

/// Both ends of a tunnel.
struct Tunnels {
    ends: [Tunnel; 2],
    streams: Vec<StreamId>,
    lossy: bool,
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

/// Two nodes of an overlay.
struct Nodes([Node; 2], f64);

impl Nodes {
    fn new() -> Nodes {
        let key = |n: u8| SecretKey::from_bytes([n + 1; 32]);
        let node = |n: u8| {
            let other = 1 - n;
            let peer = Peer {
                name: format!("n{other}"),
                key: key(other).public(),
                socks: Some(at(other, 1080)),
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

struct SomeRelays(Relays, Vec<u64>);

impl Driven for SomeRelays {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        let ends = Ends { own: at(1, rng.below(5) as u16 + 1), peer: at(2, 53) };
        self.0.handle_out(now, ends, &Address::Ip(at(2, 53)), &some_bytes(rng, 50));
        if let Some(number) = self.1.pop() {
            match rng.below(3) {
                0 => self.0.handle_failed(now, number),
                1 => self.0.handle_ended(now, number),
                _ => drop(self.0.handle_open(number)),
            }
        }
    }

    fn drain(&mut self, _: Instant) {
        while let Some(action) = self.0.poll_action() {
            if let relays::Action::Open(number) = action {
                self.1.push(number);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }
}

struct DrivenPassage(Passage);

impl Driven for DrivenPassage {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        let ends = Ends { own: at(1, rng.below(5) as u16 + 1), peer: at(2, 53) };
        let direction = [Direction::Out, Direction::Back][rng.below(2) as usize];
        self.0.handle_datagram(now, ends, direction, rng.below(1_000) as usize, 0);
    }

    fn drain(&mut self, now: Instant) {
        while self.0.poll_ready(now).is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }
}

struct SomeSyns(Early<()>);

impl Driven for SomeSyns {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        let tuple = Tuple { client: at(1, rng.below(20) as u16), to: at(2, 80) };
        match rng.below(4) {
            0 => drop(self.0.handle_accept(&tuple)),
            1 => self.0.postpone(&tuple, now + Duration::from_millis(rng.below(900))),
            _ => self.0.handle_syn(now, tuple, || Some(())),
        }
    }

    fn drain(&mut self, now: Instant) {
        while self.0.poll_expired(now).is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, _: Instant) {}
}

struct DrivenLink(Link<()>);

impl Driven for DrivenLink {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        for _ in 0..rng.below(10) {
            let _ = self.0.push(now, (), rng.below(1_500) as usize + 1);
        }
    }

    fn drain(&mut self, now: Instant) {
        while self.0.poll(now).is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, _: Instant) {}
}

/// Chain of handlers whose network sends random bytes.
struct DrivenChain {
    chain: Chain,
    takes: bool,
}

impl DrivenChain {
    fn new(handler: &str) -> DrivenChain {
        let factories: Arc<[Arc<dyn Factory>]> = factories(&[handler], &shell());
        DrivenChain { chain: Chain::new(factories, 4_096, Instant::ZERO), takes: true }
    }
}

impl Driven for DrivenChain {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        let chain = &mut self.chain;
        let bottom = chain.bottom();
        match (rng.below(9), bottom) {
            (0, _) => chain.connect(now, Address::Name("there.example".into(), 80)),
            (1, Some(bottom)) => chain.connected(now, bottom, Ok(())),
            (2, Some(bottom)) => {
                let noise = Bytes::from(some_bytes(rng, 500));
                chain.avail(now, bottom, noise);
            }
            (3, Some(bottom)) if rng.chance(0.1) => chain.finished(now, bottom),
            (4, Some(bottom)) if rng.chance(0.1) => chain.failed(now, bottom, Failure::Reset),
            (5, _) if rng.chance(0.1) => chain.shutdown(now, Half::Write),
            (6, _) => self.takes = rng.chance(0.7),
            (7, _) if rng.chance(0.1) => chain.accepted(now),
            _ if chain.may_write() => {
                let data = Bytes::from(vec![rng.below(9) as u8; rng.below(3_000) as usize]);
                chain.write(now, data);
            }
            _ => {}
        }
    }

    fn drain(&mut self, now: Instant) {
        let Some(bottom) = self.chain.bottom() else { return };
        loop {
            let mut spawns = Vec::new();
            let actions: Vec<Action> =
                std::iter::from_fn(|| self.chain.poll_action()).take(10_000).collect();
            for action in &actions {
                match action {
                    Action::Spawn(spawn) => spawns.push(spawn.clone()),
                    Action::Give(_) => self.chain.unclaimed(now),
                    _ => {}
                }
            }
            spawns.iter().for_each(|spawn| self.chain.unspawned(spawn, now));
            let out = self.chain.outgoing(bottom).len() * usize::from(self.takes);
            let up = self.chain.incoming().len() * usize::from(self.takes);
            self.chain.sent(now, bottom, out);
            self.chain.consumed(now, up);
            if actions.is_empty() && out + up == 0 {
                return;
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.chain.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.chain.handle_timeout(now);
    }
}

/// Client of Trickles whose server sends nothing, or random bytes. (The simulator checks the
/// contract for a client with a server.)
struct DrivenClient(Client);

impl Driven for DrivenClient {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        self.0.want(rng.below(1 << 20), rng.below(9_000) + 1, Bytes::new());
        self.0.handle(now, &some_bytes(rng, 200));
    }

    fn drain(&mut self, now: Instant) {
        while self.0.poll_transmit(now, &mut Bytes::new()).is_some() {}
        while self.0.poll_arrived().is_some() {}
        while self.0.poll_settled().is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }
}

struct DrivenStream(Stream);

impl Driven for DrivenStream {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        self.0.write(0, &some_bytes(rng, 3_000));
        self.0.request(&some_bytes(rng, 100), 1_000);
        self.0.handle(now, &some_bytes(rng, 200));
    }

    fn drain(&mut self, now: Instant) {
        while self.0.poll_transmit(now).is_some() {}
        while self.0.poll_changed().is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }
}

/// All handlers of the registry, with the minimum of parameters.
const HANDLERS: [&str; 11] = [
    "compress",
    "congestion",
    "count",
    "latency:delay=20ms",
    "shape:rate=1M",
    "migrate",
    "mux",
    "stripe",
    "route:overlay=x",
    "socks:via=192.0.2.1:1080",
    "crypt:key=1.key",
];

#[test]
fn all_handlers_are_held_to_the_contract() {
    let held: Vec<&str> = HANDLERS.iter().map(|text| text.split(':').next().unwrap()).collect();
    let registry = crate::handlers::registry(&shell());
    for about in registry.about() {
        assert!(held.contains(&about.name), "{} is missing in HANDLERS", about.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn gateways_rest(seed: u64, endpoints: [bool; 2], loss in 0.0..0.9f64, code in 0..4usize) {
        let codes = [
            None,
            Some(Code::Layered(Parameters { r: 8, interleaves: vec![1, 19], delay_xors: false })),
            Some(Code::ReedSolomon(reed_solomon::Parameters { r: 8, c: 3, interleave: 2 })),
            Some(Code::Window(window::Parameters { window: 60, packets: 4, repairs: 1 })),
        ];
        assert_no_spin(&mut Gateways::new(endpoints, codes[code].as_ref(), loss), seed)?;
    }

    #[test]
    fn tunnels_rest(seed: u64) {
        let ends = [1, 2].map(|instance| Tunnel::new(Settings::default(), instance));
        assert_no_spin(&mut Tunnels { ends, streams: Vec::new(), lossy: false }, seed)?;
    }

    #[test]
    fn nodes_rest(seed: u64) {
        assert_no_spin(&mut Nodes::new(), seed)?;
    }

    #[test]
    fn datagrams_rest(seed: u64) {
        let relays = relays::Bounds {
            relays: 3,
            early: 100,
            idle: Duration::from_secs(2),
            pause: Duration::from_secs(1),
            leave: seed.is_multiple_of(2),
        };
        let words = factories(&["socks:via=192.0.2.1:1080"], &shell())[0].relay().unwrap();
        assert_no_spin(&mut SomeRelays(Relays::new(words, relays), Vec::new()), seed)?;
        let bounds = datagrams::Bounds { pairs: 3, idle: Duration::from_secs(2) };
        let chain = factories(&["latency:delay=30ms", "shape:rate=1M"], &shell());
        assert_no_spin(&mut DrivenPassage(Passage::new(chain, bounds).unwrap()), seed)?;
    }

    #[test]
    fn tables_and_links_rest(seed: u64) {
        assert_no_spin(&mut SomeSyns(Early::new(10, Duration::from_secs(1))), seed)?;
        for link in ["rate=1M,delay=5ms", "delay=9ms,jitter=5ms,reorder=20%:3ms", "loss=5%"] {
            let config = link.parse().unwrap();
            assert_no_spin(&mut DrivenLink(Link::new(config, seed, Instant::ZERO)), seed)?;
        }
    }

    #[test]
    fn chains_rest(seed: u64, handler in 0..HANDLERS.len()) {
        assert_no_spin(&mut DrivenChain::new(HANDLERS[handler]), seed)?;
    }

    #[test]
    fn trickles_rest(seed: u64) {
        let config = client::Config::default();
        assert_no_spin(&mut DrivenClient(Client::open(config, seed, Instant::ZERO)), seed)?;
        let config = stream::Config::default();
        assert_no_spin(&mut DrivenStream(Stream::open(config, seed, Instant::ZERO)), seed)?;
    }
}

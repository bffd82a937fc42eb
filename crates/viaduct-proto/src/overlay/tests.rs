//! Nodes in virtual time, over a network whose paths fail, lose packets and are repaired.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::flow::Address;
use crate::keys::SecretKey;
use crate::rng::Rng;
use crate::time::{Duration, Instant};

/// Maximum time to detect a failure: until the next probe, and four lost probes.
const KNOWN_BY: Duration = Duration::from_millis(1_600);

struct World {
    now: Instant,
    nodes: Vec<Node>,
    /// Datagrams in flight: time of arrival, source and destination.
    flying: BTreeMap<(Instant, u64), (usize, usize, Vec<u8>)>,
    sent: u64,
    down: BTreeSet<(usize, usize)>,
    delay: Box<dyn Fn(usize, usize) -> Duration>,
    loss: f64,
    rng: Rng,
    /// All datagrams that were ever received.
    heard: Vec<(usize, Vec<u8>)>,
}

fn key(n: usize) -> SecretKey {
    SecretKey::from_bytes([n as u8 + 1; 32])
}

fn config(n: usize, of: usize, policy: Policy) -> Config {
    let serves = |n: usize| vec![format!("10.{n}.0.0/16").parse().unwrap()];
    let peer = |n: usize| Peer {
        name: format!("n{n}"),
        key: key(n).public(),
        socks: Some(([10, n as u8, 0, 1], 1080).into()),
        hop: Some(([10, n as u8, 0, 1], 7000).into()),
        serves: serves(n),
    };
    Config {
        name: format!("n{n}"),
        key: key(n),
        serves: serves(n),
        peers: (0..of).filter(|other| *other != n).map(peer).collect(),
        policy,
        timing: Timing::default(),
    }
}

fn node(n: usize, of: usize, policy: Policy, seed: u64, now: Instant) -> Node {
    let rng = Mutex::new(Rng::from_seed(seed * 100 + n as u64));
    let entropy = Arc::new(move |out: &mut [u8]| rng.lock().unwrap().fill(out));
    Node::new(config(n, of, policy), entropy, now).unwrap()
}

impl World {
    fn new(of: usize, seed: u64) -> World {
        World {
            now: Instant::ZERO,
            nodes: (0..of).map(|n| node(n, of, Policy::Latency, seed, Instant::ZERO)).collect(),
            flying: BTreeMap::new(),
            sent: 0,
            down: BTreeSet::new(),
            delay: Box::new(|_, _| Duration::from_millis(20)),
            loss: 0.0,
            rng: Rng::from_seed(seed),
            heard: Vec::new(),
        }
    }

    /// Index of a peer of node `n` among all nodes.
    fn other(n: usize, peer: usize) -> usize {
        peer + usize::from(peer >= n)
    }

    fn number(n: usize, other: usize) -> usize {
        other - usize::from(other > n)
    }

    fn fail(&mut self, a: usize, b: usize) {
        self.down.extend([(a, b), (b, a)]);
    }

    fn repair(&mut self) {
        self.down.clear();
    }

    fn wait(&mut self, time: Duration) {
        self.wait_until(self.now + time, |_| false);
    }

    /// Waits until `happened` returns true. Returns false if this has not happened by `end`.
    fn wait_until(&mut self, end: Instant, happened: impl Fn(&World) -> bool) -> bool {
        loop {
            self.transmit();
            if happened(self) {
                return true;
            }
            let timers = self.nodes.iter().filter_map(Node::poll_timeout);
            let arrival = self.flying.first_key_value().map(|((at, _), _)| *at);
            let Some(next) = timers.chain(arrival).min().filter(|&next| next <= end) else {
                self.now = end;
                return false;
            };
            self.now = self.now.max(next);
            for node in &mut self.nodes {
                if node.poll_timeout().is_some_and(|at| at <= self.now) {
                    node.handle_timeout(self.now);
                }
            }
            while let Some(first) = self.flying.first_entry().filter(|at| at.key().0 <= self.now) {
                let (from, to, bytes) = first.remove();
                if !self.down.contains(&(from, to)) {
                    self.nodes[to].handle_datagram(self.now, &bytes);
                    self.heard.push((to, bytes));
                }
            }
        }
    }

    fn transmit(&mut self) {
        for from in 0..self.nodes.len() {
            while let Some((peer, bytes)) = self.nodes[from].poll_transmit() {
                let to = World::other(from, peer);
                assert!(bytes.len() < 1_200, "a probe fits into any datagram");
                self.sent += 1;
                if !self.rng.chance(self.loss) {
                    let at = self.now + (self.delay)(from, to);
                    self.flying.insert((at, self.sent), (from, to, bytes));
                }
            }
        }
    }

    /// Route that node `from` would use to `to` now.
    fn route(&self, from: usize, to: usize) -> OverlayRoute {
        self.nodes[from].table().routes(&host(to))[0]
    }
}

fn host(n: usize) -> Address {
    Address::Ip(([10, n as u8, 3, 4], 80).into())
}

#[test]
fn all_nodes_know_all_paths_and_the_shortest_route_is_direct() {
    let mut world = World::new(4, 1);
    world.wait(Duration::from_secs(3));
    for (n, node) in world.nodes.iter().enumerate() {
        let table = node.table();
        for place in &table.nodes {
            assert_eq!(place.path.up, Some(true), "{n} {place:?}");
            assert!((39.0..60.0).contains(&place.path.rtt_ms), "{place:?}");
            assert_eq!(place.others.len(), 2, "{place:?}");
            assert_eq!((place.routes[0], place.routes.len()), (OverlayRoute::Direct, 3));
        }
        let stats = node.stats();
        assert_eq!((stats.malformed, stats.forged, stats.replayed, stats.strangers), (0, 0, 0, 0));
    }
}

#[test]
fn a_path_that_fails_is_left_in_time_and_taken_again_when_it_is_back() {
    for seed in 0..20 {
        let mut world = World::new(3, seed);
        world.wait(Duration::from_secs(3) + Duration::from_millis(37 * seed));
        world.fail(0, 1);
        let by_two = OverlayRoute::By(World::number(0, 2));
        let end = world.now + KNOWN_BY;
        assert!(world.wait_until(end, |world| world.route(0, 1) == by_two), "seed {seed}");
        let table = world.nodes[0].table();
        assert!(
            table.has_failed(&host(1), OverlayRoute::Direct) && !table.has_failed(&host(1), by_two)
        );
        assert_eq!(table.node(by_two), Some(("n2", ([10, 2, 0, 1], 1080).into())));
        assert!(!table.has_failed(&host(2), OverlayRoute::Direct));
        world.repair();
        let end = world.now + Duration::from_secs(15);
        assert!(
            world.wait_until(end, |world| world.route(0, 1) == OverlayRoute::Direct),
            "seed {seed}"
        );
        // The node through which the flow is routed fails too. All nodes detect this in the same
        // time.
        world.fail(0, 1);
        world.wait(Duration::from_secs(4));
        world.fail(1, 2);
        let end = world.now + KNOWN_BY + Duration::from_millis(100);
        let failed = |world: &World| world.nodes[0].table().has_failed(&host(1), by_two);
        assert!(world.wait_until(end, failed), "seed {seed}");
    }
}

#[test]
fn a_path_with_a_long_delay_stays_up() {
    let mut world = World::new(3, 3);
    world.delay = Box::new(|_, _| Duration::from_millis(300));
    world.wait(Duration::from_secs(60));
    assert!(world.nodes.iter().all(|node| node.stats().failures == 0));
    assert!(world.nodes[0].table().nodes.iter().all(|place| place.path.up == Some(true)));
}

#[test]
fn a_path_that_fails_repeatedly_changes_routes_rarely() {
    let mut world = World::new(3, 5);
    world.wait(Duration::from_secs(3));
    let mut changes = Vec::new();
    for _ in 0..6 {
        let before = world.nodes[0].stats().changes;
        for _ in 0..10 {
            world.fail(0, 1);
            world.wait(Duration::from_secs(3));
            world.repair();
            world.wait(Duration::from_secs(3));
        }
        changes.push(world.nodes[0].stats().changes - before);
    }
    assert!(changes[1..].iter().sum::<u64>() <= 4, "{changes:?}");
}

#[test]
fn some_loss_changes_no_choice_of_path() {
    let mut world = World::new(5, 6);
    world.loss = 0.03;
    world.delay = Box::new(|a, b| Duration::from_millis(20 + (a + b) as u64 % 3));
    world.wait(Duration::from_secs(600));
    let changes: u64 = world.nodes.iter().map(|node| node.stats().changes).sum();
    assert!(changes <= 2, "{changes} changes");
    let table = world.nodes[0].table();
    let losses: Vec<f64> = table.nodes.iter().map(|place| place.path.loss).collect();
    assert!(losses.iter().all(|loss| (0.005..0.2).contains(loss)), "{losses:?}");
    // Each node sends two probes a second to each peer, and as many answers.
    let sent = world.sent as f64 / 600.0 / 5.0 / 4.0;
    assert!((3.5..5.5).contains(&sent), "{sent} messages a second and peer");
}

#[test]
fn replayed_and_forged_messages_change_nothing_and_are_counted() {
    let mut world = World::new(3, 7);
    world.wait(Duration::from_secs(2));
    world.fail(0, 1);
    world.wait(Duration::from_secs(3));
    // All messages to node 0, including those from the time when all paths were up.
    let heard = std::mem::take(&mut world.heard);
    let before = world.nodes[0].table();
    let said: Vec<_> = heard.into_iter().filter(|(to, _)| *to == 0).collect();
    for (_, bytes) in &said {
        world.nodes[0].handle_datagram(world.now, bytes);
        let mut forged = bytes.clone();
        forged[20] ^= 1;
        world.nodes[0].handle_datagram(world.now, &forged);
        world.nodes[0].handle_datagram(world.now, &bytes[1..]);
        let mut strange = bytes.clone();
        strange[5] ^= 1;
        world.nodes[0].handle_datagram(world.now, &strange);
    }
    let after = world.nodes[0].table();
    assert_eq!((&before.nodes, before.version), (&after.nodes, after.version));
    let count = said.len() as u64;
    let stats = after.stats;
    assert_eq!((stats.forged, stats.malformed, stats.strangers), (count, count, count));
    assert_eq!(stats.replayed, count, "each came once");
}

#[test]
fn a_restarted_node_is_known_again_and_its_old_messages_are_refused() {
    let mut world = World::new(3, 8);
    world.wait(Duration::from_secs(2));
    let past = std::mem::take(&mut world.heard);
    world.nodes[2] = node(2, 3, Policy::Latency, 99, world.now);
    world.wait(Duration::from_secs(2));
    let before = world.nodes[0].table();
    assert!(
        before.nodes.iter().all(|place| place.path.up == Some(true) && place.others.len() == 1)
    );
    for (_, bytes) in past.iter().filter(|(to, _)| *to == 0) {
        world.nodes[0].handle_datagram(world.now, bytes);
    }
    assert_eq!(world.nodes[0].table().nodes, before.nodes);
}

#[test]
fn a_change_of_peers_keeps_the_state_of_those_that_stay() {
    let mut world = World::new(3, 9);
    world.wait(Duration::from_secs(2));
    let mut less = config(0, 3, Policy::Loss);
    less.peers.remove(0);
    world.nodes[0].reload(less, world.now).unwrap();
    let table = world.nodes[0].table();
    assert_eq!((table.nodes.len(), &table.nodes[0].name[..]), (1, "n2"));
    assert_eq!(table.nodes[0].path.up, Some(true));
    let mut twice = config(0, 3, Policy::Loss);
    twice.peers[1].key = twice.peers[0].key;
    let error = world.nodes[0].reload(twice, world.now).unwrap_err().to_string();
    assert!(error.contains("peer n2"), "{error}");
}

#[test]
fn names_take_the_nearest_node_and_unserved_addresses_go_directly_first() {
    let mut world = World::new(3, 10);
    let far = |a: usize, b: usize| Duration::from_millis(if a + b == 1 { 50 } else { 10 });
    world.delay = Box::new(far);
    world.wait(Duration::from_secs(2));
    let table = world.nodes[0].table();
    let name = Address::Name("example.org".into(), 80);
    assert_eq!(table.routes(&name), [OverlayRoute::By(1), OverlayRoute::By(0)]);
    let elsewhere = Address::Ip(([192, 0, 2, 1], 80).into());
    assert_eq!(
        table.routes(&elsewhere),
        [OverlayRoute::Direct, OverlayRoute::By(1), OverlayRoute::By(0)]
    );
    assert!(!table.has_failed(&elsewhere, OverlayRoute::Direct));
    assert_eq!(table.routes(&host(0)), [OverlayRoute::Direct]);
    // 20 ms through n2 beat 100 ms directly.
    assert_eq!(table.routes(&host(1)), [OverlayRoute::By(1), OverlayRoute::Direct]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whichever paths fail: after the maximum detection time, no node uses a path that is down if
    /// there is another route.
    #[test]
    fn no_node_stays_on_a_path_that_is_down(
        seed in 0u64..1_000,
        of in 3usize..6,
        rounds in prop::collection::vec(prop::collection::vec((0usize..6, 0usize..6), 0..5), 1..5),
    ) {
        let mut world = World::new(of, seed);
        world.wait(Duration::from_secs(2));
        for fails in rounds {
            world.repair();
            world.wait(Duration::from_secs(40));
            for (a, b) in fails {
                if a < of && b < of && a != b {
                    world.fail(a, b);
                }
            }
            world.wait(KNOWN_BY + Duration::from_millis(200));
            let up = |a: usize, b: usize| !world.down.contains(&(a, b));
            for from in 0..of {
                for to in (0..of).filter(|&to| to != from) {
                    let others = || (0..of).filter(|&n| n != from && n != to);
                    let route = world.route(from, to);
                    match route {
                        OverlayRoute::Direct if up(from, to) => {}
                        OverlayRoute::Direct => {
                            prop_assert!(!others().any(|n| up(from, n) && up(n, to)));
                        }
                        OverlayRoute::By(n) => {
                            let n = World::other(from, n);
                            prop_assert!(up(from, n) && up(n, to), "{from} by {n} to {to}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn hostile_bytes_are_counted_and_change_nothing(
        all in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..120), 1..20),
        head in any::<bool>(),
    ) {
        let mut node = node(0, 3, Policy::Latency, 1, Instant::ZERO);
        let before = node.table();
        for bytes in &all {
            let id = &key(1).public().as_bytes()[..4].to_vec();
            let like = [&[0x4f, 1, 0, 0][..], id, bytes].concat();
            node.handle_datagram(Instant::ZERO, if head { &like } else { bytes });
        }
        let (stats, after) = (node.stats(), node.table());
        prop_assert_eq!(stats.malformed + stats.forged + stats.strangers, all.len() as u64);
        prop_assert_eq!(before.nodes, after.nodes);
        prop_assert!(node.poll_transmit().is_none());
    }
}

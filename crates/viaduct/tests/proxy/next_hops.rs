//! Lists of next hops: flows leave a hop that dies, even while they are being connected to it, and
//! use it again when it answers.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::{Chain, Node};
use viaduct_proto::split::proxy::{Addresses, emit};

use super::hops::{SERVER, assert_refused, chain, check, echo, hop, proxy, say, socket};
use super::rules::status;

/// Addresses of the two hops.
const HOPS: [&str; 2] = ["10.2.0.2:7001", "10.2.0.2:7002"];
/// Time limit for a change of a hop's state.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time within which flows should leave a silent hop: two seconds, plus one for a busy machine.
const LEFT_WITHIN: Duration = Duration::from_secs(3);

/// Client, near proxy, two hops on one node, server.
struct World {
    near: Proxy,
    hops: [Option<Proxy>; 2],
    chain: Chain,
}

impl World {
    /// Starts a near proxy at `10.1.0.2:7000` with these options.
    fn new(options: &str) -> World {
        let chain = chain("delay=1ms");
        let [first, second] = chain.hops() else { panic!("two hops") };
        let hops = HOPS.map(|at| Some(hop(second, at, "--expect proxy")));
        let to = SocketAddr::new(chain.server().v4().into(), SERVER);
        let near = proxy(first, &format!("--listen 10.1.0.2:7000 --to {to} {options}"));
        World { near, hops, chain }
    }

    /// Node of the near proxy.
    fn node(&self) -> &Node {
        &self.chain.hops()[0]
    }

    /// Exchanges some bytes with the server. Returns the time that it took, and the address from
    /// which the connection to the server came.
    fn exchange(&self) -> (Duration, IpAddr) {
        let peer = echo(self.chain.server(), self.chain.server().v4().into());
        let begun = Instant::now();
        let said = say(self.chain.client(), socket("10.1.0.2:7000"), b"to the server").unwrap();
        assert_eq!(said, b"to the server");
        (begun.elapsed(), peer.join().unwrap())
    }

    /// Number of connections that each hop has received from the near proxy.
    fn connected(&self) -> [u64; 2] {
        let status = status(&self.near);
        let hops = status["counters"]["hops"].as_array().unwrap().clone();
        HOPS.map(|at| {
            let entry = hops.iter().find(|hop| hop["by"]["hop"] == at);
            let buckets = entry.and_then(|hop| hop["connected"].as_array());
            buckets.map_or(0, |all| all.iter().filter_map(serde_json::Value::as_u64).sum())
        })
    }

    /// Waits until the near proxy considers the hop down, or up if `is_down` is false.
    fn wait_until_down(&self, hop: usize, is_down: bool) {
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        loop {
            let status = status(&self.near);
            let hops = status["next_hops"].as_array().unwrap();
            let known = hops.iter().find(|of| of["hop"] == HOPS[hop]).unwrap();
            if known["is_down"] == is_down {
                return;
            }
            assert!(Instant::now() < deadline, "{known}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Makes the hop silent, as if its machine had lost power. Packets to it are dropped where they
    /// are sent, because the hop's tap would see them before the hop's firewall drops them.
    fn silence(&self, hop: usize) {
        let port = socket(HOPS[hop]).port();
        let rules = format!(
            "table inet silent {{ chain output {{ type filter hook output priority 0; \
             tcp dport {port} drop; }}; }}"
        );
        self.node().run("nft", &[rules.as_str()]).unwrap();
    }

    fn end_silence(&self) {
        self.node().run("nft", &["delete table inet silent"]).unwrap();
    }
}

#[test]
fn a_silent_hop_is_left_within_two_seconds_and_used_again() {
    let world = World::new(&format!("--next {} --next {}", HOPS[0], HOPS[1]));
    let from_hop = IpAddr::from([10, 3, 0, 1]);
    assert_eq!(world.exchange().1, from_hop);
    assert_eq!(world.connected(), [1, 0]);

    world.silence(0);
    // This flow is being connected to the first hop when that hop is found to be down.
    let (took, peer) = world.exchange();
    assert!(took < LEFT_WITHIN, "{took:?}");
    assert_eq!((peer, world.connected()), (from_hop, [1, 1]));
    let (took, _) = world.exchange();
    assert!(took < Duration::from_millis(500), "a later flow knows that the hop is down: {took:?}");
    let log = world.near.log();
    assert!(log.contains("next hop down: no answer within 450 ms"), "{log}");

    world.end_silence();
    world.wait_until_down(0, false);
    world.exchange();
    assert_eq!(world.connected(), [2, 2]);
}

#[test]
fn without_any_hop_flows_go_directly_or_are_refused() {
    let next = format!("--next {} --next {}", HOPS[0], HOPS[1]);
    let mut world = World::new(&next);
    world.hops = [None, None];
    // Both hops refuse this flow before they are known to be down.
    let (_, peer) = world.exchange();
    assert_eq!(peer, IpAddr::from([10, 2, 0, 1]), "directly");
    world.wait_until_down(0, true);
    world.wait_until_down(1, true);
    let log = world.near.log();
    assert!(log.contains("flows go directly to their servers"), "{log}");
    assert_eq!(world.exchange().1, IpAddr::from([10, 2, 0, 1]), "directly");

    let mut strict = World::new(&format!("{next} --next-fallback refuse"));
    strict.hops = [None, None];
    strict.wait_until_down(0, true);
    strict.wait_until_down(1, true);
    let _server = echo(strict.chain.server(), strict.chain.server().v4().into());
    let refused = say(strict.chain.client(), socket("10.1.0.2:7000"), b"to the server");
    assert!(refused.is_err(), "{refused:?}");
}

#[test]
fn bytes_that_follow_the_clients_request_reach_the_server_by_the_next_hop() {
    let chain = chain("delay=1ms");
    let [first, second] = chain.hops() else { panic!("two hops") };
    let _second = hop(second, HOPS[1], "--expect proxy");
    let server: IpAddr = chain.server().v4().into();
    let to = SocketAddr::new(server, SERVER);
    for tell in ["proxy", "proxy-tfo", "option"] {
        // Nothing listens at the first address, and it is not checked, so each flow tries it.
        let next = format!("--next {} --next {} --next-check none", HOPS[0], HOPS[1]);
        let _near = hop(first, "10.1.0.2:7000", &format!("--expect proxy --tell {tell} {next}"));
        let peer = echo(chain.server(), server);
        let source = SocketAddr::new(chain.client().v4().into(), 4000);
        let mut words = emit(&Addresses::new(source, to));
        words.extend(b"right after the header");
        let said = say(chain.client(), socket("10.1.0.2:7000"), &words).unwrap();
        assert_eq!(said, b"right after the header", "{tell}");
        assert_eq!(peer.join().unwrap(), IpAddr::from([10, 3, 0, 1]), "{tell}");
    }
}

#[test]
fn a_policys_list_is_changed_by_a_reload() {
    let chain = chain("delay=1ms");
    let [first, second] = chain.hops() else { panic!("two hops") };
    let server: IpAddr = chain.server().v4().into();
    let lines = |next: &str| {
        format!(
            "listen = '10.1.0.2:7000'\nto = '{server}:{SERVER}'\n\
             [[policy]]\nname = 'far'\nto = ['10.3.0.0/16']\nnext = [{next}]\n\
             next-check = 'interval=50ms,timeout=500ms'\n"
        )
    };
    let hops = HOPS.map(|at| hop(second, at, "--expect proxy"));
    let both = |order: [usize; 2]| order.map(|n| format!("'{}'", HOPS[n])).join(", ");
    let near = Proxy::configured(first, &lines(&both([0, 1]))).unwrap();
    let mut world = World { near, hops: hops.map(Some), chain };
    world.exchange();
    world.near.reload(&lines(&both([1, 0]))).unwrap();
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    while world.connected()[1] == 0 {
        assert!(Instant::now() < deadline, "the new order has no effect");
        world.exchange();
    }
    world.hops[1] = None;
    world.wait_until_down(1, true);
    let before = world.connected();
    world.exchange();
    assert_eq!(world.connected(), [before[0] + 1, before[1]]);
    world.near.reload(&lines(&format!("'{}'", HOPS[0]))).unwrap();
    let gone = |world: &World| status(&world.near)["next_hops"].as_array().unwrap().len() == 1;
    while !gone(&world) {
        assert!(Instant::now() < deadline + CHANGE_TIMEOUT, "the hop is still checked");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn checks_are_neither_refusals_nor_lines_of_the_hops_access_log() {
    let chain = chain("delay=1ms");
    let [first, second] = chain.hops() else { panic!("two hops") };
    let checked = hop(second, HOPS[0], "--expect proxy --access-log stderr");
    let check = "--next-check interval=20ms,timeout=500ms";
    let _near = proxy(
        first,
        &format!("--listen 10.1.0.2:7000 --to 10.3.0.2:9000 --next {} {check}", HOPS[0]),
    );
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    while status(&checked)["counters"]["accepted"].as_u64().unwrap() < 5 {
        assert!(Instant::now() < deadline, "no check has arrived");
        thread::sleep(Duration::from_millis(20));
    }
    thread::sleep(Duration::from_millis(100));
    assert_eq!(status(&checked)["counters"]["refused"]["unclear"], 0);
    assert!(!checked.log().contains("10.1.0.2"), "{}", checked.log());
}

#[test]
fn invalid_lists_of_next_hops_are_refused() {
    let said = check("--next 10.2.0.2:1 --next 10.2.0.2:2").unwrap();
    let means = "by the first of 10.2.0.2:1, 10.2.0.2:2 that is up, else directly";
    assert!(said.contains(means), "{said}");
    assert_refused([
        ("--next-check none", "next-check: no hop is given"),
        ("--next-fallback refuse", "next-fallback: no hop is given"),
        ("--next 10.2.0.2:1 --next 10.2.0.2:1", "is given twice"),
        ("--next 10.2.0.2:1 --next 10.1.0.2:7000", "is this proxy itself"),
        ("--next 10.2.0.2:1 --next-check every=1s", "interval=TIME"),
    ]);
}

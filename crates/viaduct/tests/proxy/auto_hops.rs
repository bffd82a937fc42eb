//! Hops that are chosen by measurements (`next = "auto"`), with real proxies and overlay nodes in a
//! row: client, n0, n1, n2, server.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use viaduct_lab::binary::use_binary;
use viaduct_lab::overlays::{HOP, Overlays};
use viaduct_lab::proxies::Proxy;
use viaduct_lab::topology::{Chain, Journal};
use viaduct_proto::link::LinkConfig;
use viaduct_proto::split::extension::Onward;
use viaduct_proto::split::proxy::{Addresses, emit};

use super::hops::{SERVER, assert_refused, check, echo, say};
use super::rules::status;

/// Addresses of the nodes.
const NODES: [[u8; 4]; 3] = [[10, 2, 0, 1], [10, 2, 0, 2], [10, 3, 0, 2]];
/// Addresses from which the nodes connect to the server.
const SEEN: [[u8; 4]; 3] = [[10, 2, 0, 1], [10, 3, 0, 1], [10, 4, 0, 1]];
/// Time limit for a change, on a busy machine.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

struct World {
    proxies: Vec<Option<Proxy>>,
    overlays: Overlays,
    chain: Chain,
}

impl World {
    fn new() -> World {
        use_binary(env!("CARGO_BIN_EXE_viaduct"));
        let link: LinkConfig = "delay=15ms".parse().unwrap();
        let chain = Chain::build(&vec![link; 4], 1, &Journal::new()).unwrap();
        let nodes: Vec<_> = chain.hops().iter().zip(NODES.map(IpAddr::from)).collect();
        // Generous times, so that a busy machine is not taken for a failure.
        let overlays = Overlays::start(&nodes, "timeout = \"1s\"").unwrap();
        let mut world = World { proxies: Vec::new(), overlays, chain };
        for n in 0..NODES.len() {
            world.proxies.push(None);
            world.start(n);
        }
        world
    }

    /// Lines of the config of proxy `n`.
    fn lines(&self, n: usize) -> String {
        format!(
            "listen = '{}'\nexpect = 'proxy'\nallow-from = ['10.0.0.0/8']\n\
             allow-to = ['10.0.0.0/8']\nnext = 'auto'\nnext-overlay = '{}'\n\
             next-check = 'timeout=2s'\n",
            at(n),
            self.overlays.socket(n).display()
        )
    }

    fn start(&mut self, n: usize) {
        let proxy = Proxy::configured(&self.chain.hops()[n], &self.lines(n)).unwrap();
        self.proxies[n] = Some(proxy);
    }

    fn server(&self) -> IpAddr {
        self.chain.server().v4().into()
    }

    /// Exchanges some bytes with the server through proxy `n`, with `onward` in the header to the
    /// proxy. Returns the number of the proxy whose address the server has seen.
    fn exchange(&self, n: usize, onward: Onward) -> usize {
        let peer = echo(self.chain.server(), self.server());
        let source = SocketAddr::new(self.chain.client().v4().into(), 4000);
        let addresses = Addresses::new(source, SocketAddr::new(self.server(), SERVER));
        let mut words = emit(&Addresses { onward, ..addresses });
        words.extend(b"to the server");
        let said = say(self.chain.client(), at(n), &words).unwrap();
        assert_eq!(said, b"to the server");
        let peer = peer.join().unwrap();
        SEEN.iter().position(|seen| IpAddr::from(*seen) == peer).unwrap()
    }

    fn status(&self, n: usize) -> Value {
        status(self.proxies[n].as_ref().unwrap())
    }

    /// Choice of proxy 0 for the server.
    fn choice(&self) -> Value {
        self.status(0)["auto"]["choices"][0].clone()
    }

    /// Exchanges bytes through proxy 0 until its choice is `hops`. No exchange may fail.
    fn wait_for(&self, hops: &[&str]) {
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        loop {
            self.exchange(0, Onward::Open);
            let choice = self.choice();
            if choice["hops"] == serde_json::json!(hops) {
                return;
            }
            assert!(Instant::now() < deadline, "{choice} instead of {hops:?}");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Exchanges bytes through proxy `by` until the server sees the address of proxy `n`.
    fn wait_until_seen(&self, by: usize, onward: Onward, n: usize) {
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        while self.exchange(by, onward) != n {
            assert!(Instant::now() < deadline, "{}", self.status(by));
            thread::sleep(Duration::from_millis(100));
        }
    }
}

/// Address of proxy `n`.
fn at(n: usize) -> SocketAddr {
    SocketAddr::new(NODES[n].into(), HOP)
}

#[test]
fn two_hops_are_chosen_dead_ones_avoided_and_none_is_used_without_an_overlay() {
    let mut world = World::new();
    assert_eq!(world.exchange(0, Onward::Open), 0, "nothing is known of the server yet");
    // The hops' own flows measure their round trips to the server.
    (1..3).for_each(|n| assert_eq!(world.exchange(n, Onward::Direct), n));
    world.wait_for(&["n1", "n2"]);
    assert_eq!(world.exchange(0, Onward::Open), 2);
    let why = world.choice()["why"].as_str().unwrap().to_owned();
    assert!(why.starts_with("first byte ") && why.contains(" ms, directly "), "{why}");
    // n1 has not chosen a hop itself for any of these flows: n0 has chosen n2 as the second hop.
    let second = world.status(1);
    assert_eq!(second["auto"]["flows"], serde_json::json!([0, 0, 0]), "{second}");
    assert_eq!(second["counters"]["hops"][1]["by"]["hop"], at(2).to_string(), "{second}");

    world.proxies[2] = None;
    world.wait_for(&["n1"]);
    assert_eq!(world.exchange(0, Onward::Open), 1);

    world.overlays.restart(0).unwrap();
    assert_eq!(world.exchange(0, Onward::Open), 1, "the last measurements are kept");
    world.overlays.wait_until_known().unwrap();
    assert_eq!(world.exchange(0, Onward::Open), 1);
    world.overlays.stop(0);
    world.wait_until_seen(0, Onward::Open, 0);
    assert_eq!(world.status(0)["auto"]["is_measured"], false);
    world.overlays.restart(0).unwrap();
    world.wait_until_seen(0, Onward::Open, 1);
}

#[test]
fn a_hop_follows_a_route_to_hops_that_it_knows_and_a_reload_changes_the_choice() {
    let world = World::new();
    let elsewhere = "10.9.9.9:7000".parse().unwrap();
    world.wait_until_seen(1, Onward::Hop(at(2)), 2);
    assert_eq!(world.exchange(1, Onward::Hop(elsewhere)), 1, "no hop of its overlay");
    assert_eq!(world.exchange(1, Onward::Direct), 1);

    let proxy = world.proxies[0].as_ref().unwrap();
    let lines = world.lines(0);
    let (head, _) = lines.split_once("next = ").unwrap();
    proxy.reload(&format!("{head}next = '{}'\n", at(1))).unwrap();
    world.wait_until_seen(0, Onward::Open, 1);
    assert_eq!(world.status(0)["auto"], Value::Null);
    proxy.reload(&lines).unwrap();
    world.wait_until_seen(0, Onward::Open, 0);
}

#[test]
fn invalid_options_with_auto_are_refused() {
    let said = check("--next auto --next-overlay /run/o.sock --next-for bulk").unwrap();
    let means = "by none, one or two hops of the overlay at /run/o.sock, for bulk";
    assert!(said.contains(means), "{said}");
    assert_refused([
        ("--next auto", "auto needs next-overlay"),
        ("--next auto --next 10.2.0.2:1 --next-overlay /o", "no address is possible next to auto"),
        ("--next 10.2.0.2:1 --next-overlay /o", "next-overlay: it needs next auto"),
        ("--next 10.2.0.2:1 --next-for bulk", "next-for: it needs next auto"),
        ("--next auto --next-overlay /o --next-fallback refuse", "next-fallback: with next auto"),
        ("--next auto --next-overlay /o --tell option", "proxy-tfo or proxy is expected"),
        ("--next automatic", "address"),
    ]);
}

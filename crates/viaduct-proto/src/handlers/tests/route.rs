use std::sync::{Arc, Mutex};

use super::super::testing::{factories, shell};
use crate::flow::{Action, Address, BottomId, Chain, Failure, Half, SocketOption};
use crate::overlay::{NodeEntry, OverlayRoute, PathQuality, Policy, Stats, Table};
use crate::split::socks;
use crate::time::{Duration, Instant};

const UP: PathQuality = PathQuality { up: Some(true), rtt_ms: 10.0, loss: 0.0 };
const DOWN: PathQuality = PathQuality { up: Some(false), rtt_ms: 0.0, loss: 1.0 };

fn at(ip: &str) -> Address {
    Address::Ip(ip.parse().unwrap())
}

/// Server behind node b; node c is not on the path.
fn server() -> Address {
    at("10.2.0.9:80")
}

fn node_c() -> Address {
    at("10.3.0.1:1080")
}

/// Table of the node of 10.1.0.0/16; `direct` is the path to b.
fn table(version: u64, direct: PathQuality, routes: &[OverlayRoute]) -> Table {
    let place = |name: &str, n: u8, path, routes: &[OverlayRoute], others: &[usize]| NodeEntry {
        name: name.to_owned(),
        socks: Some(([10, n, 0, 1], 1080).into()),
        hop: None,
        serves: vec![format!("10.{n}.0.0/16").parse().unwrap()],
        path,
        others: others.iter().map(|n| (*n, UP)).collect(),
        routes: routes.to_vec(),
    };
    Table {
        overlay: "a".to_owned(),
        policy: Policy::Latency,
        version,
        serves: vec!["10.1.0.0/16".parse().unwrap()],
        nodes: vec![
            place("b", 2, direct, routes, &[1]),
            place("c", 3, UP, &[OverlayRoute::Direct], &[0]),
        ],
        states: Vec::new(),
        stats: Stats::default(),
    }
}

/// Flow, and the actions for its driver.
struct Driver {
    chain: Chain,
    now: Instant,
    said: Vec<Action>,
    knows: Arc<Mutex<Option<Table>>>,
}

impl Driver {
    fn new(chain: &[&str], knows: Option<Table>, to: &Address) -> Driver {
        let knows = Arc::new(Mutex::new(knows));
        let known = knows.clone();
        let mut shell = shell();
        shell.overlays = Arc::new(move |_| {
            let known = known.clone();
            Arc::new(move || known.lock().unwrap().clone().map(Arc::new))
        });
        let now = Instant::ZERO;
        let mut chain = Chain::new(factories(chain, &shell), 4_096, now);
        chain.connect(now, to.clone());
        let mut driver = Driver { chain, now, said: Vec::new(), knows };
        driver.act();
        driver
    }

    fn overlay(direct: PathQuality, routes: &[OverlayRoute], to: &Address) -> Driver {
        Driver::new(&["route:overlay=x", "count"], Some(table(1, direct, routes)), to)
    }

    fn act(&mut self) {
        self.said.extend(std::iter::from_fn(|| self.chain.poll_action()));
    }

    fn wait(&mut self, millis: u64) {
        let end = self.now + Duration::from_millis(millis);
        while let Some(next) = self.chain.poll_timeout().filter(|&next| next <= end) {
            self.now = self.now.max(next);
            self.chain.handle_timeout(self.now);
        }
        self.now = end;
        self.act();
    }

    /// Destinations of the connects, in order.
    fn dialled(&self) -> Vec<(usize, Address)> {
        let connect = |action: &Action| match action {
            Action::Connect(id, to) => Some((id.0, to.clone())),
            _ => None,
        };
        self.said.iter().filter_map(connect).collect()
    }

    fn connected(&mut self, n: usize, result: Result<(), Failure>) {
        self.chain.connected(self.now, BottomId(n), result);
        self.act();
    }

    fn say(&mut self, n: usize, bytes: &[u8]) {
        for &byte in bytes {
            self.chain.avail(self.now, BottomId(n), vec![byte].into());
        }
        self.act();
    }

    fn heard(&mut self, n: usize) -> Vec<u8> {
        let all = self.chain.outgoing(BottomId(n)).pieces().flatten().copied().collect::<Vec<_>>();
        self.chain.sent(self.now, BottomId(n), all.len());
        all
    }

    /// Acts as the node at the far end of connection `n`, which connects to `to`.
    fn goes_by(&mut self, n: usize, to: &Address) {
        self.connected(n, Ok(()));
        assert_eq!(self.heard(n), [5, 1, 0]);
        self.say(n, &socks::choice(Some(socks::Method::None)));
        let request = self.heard(n);
        assert_eq!(
            socks::request(&request),
            crate::split::Parsed::Whole(to.clone(), request.len())
        );
        self.say(n, &socks::reply(Ok(())));
    }

    fn answer(&self) -> Option<Result<(), Failure>> {
        let answer = |action: &Action| match action {
            Action::Connected(result) => Some(*result),
            _ => None,
        };
        self.said.iter().find_map(answer)
    }

    fn has(&self, action: &Action) -> bool {
        self.said.contains(action)
    }
}

#[test]
fn a_flow_is_direct_while_that_is_the_best_path() {
    let mut flow = Driver::overlay(UP, &[OverlayRoute::Direct, OverlayRoute::By(1)], &server());
    assert_eq!(flow.dialled(), [(0, server())]);
    assert!(flow.chain.write(flow.now, "early".into()));
    flow.connected(0, Ok(()));
    assert_eq!(flow.answer(), Some(Ok(())));
    assert_eq!(flow.heard(0), b"early");
    flow.wait(5_000);
    assert_eq!(flow.dialled().len(), 1, "no other path is tried");
    assert_eq!(flow.chain.control(flow.now, "route", b"").unwrap(), b"directly");
    // Without a handler above that survives the loss of its connection, the flow keeps its path.
    *flow.knows.lock().unwrap() = Some(table(2, DOWN, &[OverlayRoute::By(1)]));
    flow.wait(5_000);
    assert!(!flow.said.iter().any(|action| matches!(action, Action::Failed(_))));
}

#[test]
fn a_flow_goes_by_a_node_when_the_direct_path_has_failed() {
    let mut flow = Driver::overlay(DOWN, &[OverlayRoute::By(1)], &server());
    assert_eq!(flow.dialled(), [(0, node_c())]);
    assert!(flow.chain.write(flow.now, "early".into()));
    flow.chain.shutdown(flow.now, Half::Write);
    flow.goes_by(0, &server());
    assert_eq!(flow.answer(), Some(Ok(())));
    assert_eq!(flow.heard(0), b"early");
    flow.act();
    assert!(flow.has(&Action::Shutdown(BottomId(0), Half::Write)));
    assert_eq!(flow.chain.getpeername(flow.now), Some(server()));
    let way = flow.chain.control(flow.now, "route", b"").unwrap();
    assert_eq!(way, b"by 10.3.0.1:1080");
    flow.say(0, b"late");
    assert_eq!(flow.chain.incoming().pieces().flatten().copied().collect::<Vec<_>>(), b"late");
}

#[test]
fn unknown_destinations_are_tried_directly_and_then_by_a_node_as_well() {
    let elsewhere = at("192.0.2.1:80");
    for knows in ["route:node=10.3.0.1:1080+10.4.0.1:1080", "route:overlay=x"] {
        let known = Some(table(1, UP, &[OverlayRoute::Direct]));
        let mut flow = Driver::new(&[knows], known, &elsewhere);
        assert_eq!(flow.dialled(), [(0, elsewhere.clone())]);
        flow.wait(299);
        assert_eq!(flow.dialled().len(), 1);
        flow.wait(2);
        let second = flow.dialled()[1].clone();
        assert_eq!(second.0, 1);
        // Two attempts run: the first that succeeds carries the flow, and the other is dropped.
        flow.goes_by(1, &elsewhere);
        assert_eq!(flow.answer(), Some(Ok(())));
        assert!(flow.has(&Action::Close(BottomId(0))));
        flow.wait(10_000);
        assert_eq!(flow.dialled().len(), 2);
    }
}

#[test]
fn a_further_attempt_has_the_socket_options_before_it_connects() {
    let option = SocketOption { level: 0, name: 1, value: 16 };
    let mut flow = Driver::new(&["route:node=10.3.0.1:1080"], None, &server());
    flow.chain.setsockopt(flow.now, SocketOption { value: 8, ..option });
    flow.chain.setsockopt(flow.now, option);
    flow.wait(301);
    assert_eq!(flow.dialled().len(), 2);
    let second: Vec<_> = flow.said[flow.said.len() - 2..].to_vec();
    assert_eq!(second[0], Action::SetOption(BottomId(1), option));
    assert!(matches!(second[1], Action::Connect(BottomId(1), _)), "{second:?}");
    assert_eq!(flow.chain.options(BottomId(0)).collect::<Vec<_>>(), [option]);
    assert_eq!(flow.chain.getsockopt(flow.now, 0, 1), Some(16));
}

#[test]
fn other_routes_are_tried_unless_the_destination_refuses() {
    let nodes = "route:node=10.3.0.1:1080+10.4.0.1:1080";
    let mut flow = Driver::new(&[nodes], None, &server());
    flow.connected(0, Err(Failure::Refused));
    assert_eq!((flow.answer(), flow.dialled().len()), (Some(Err(Failure::Refused)), 1));

    let mut flow = Driver::new(&[nodes], None, &server());
    flow.connected(0, Err(Failure::TimedOut));
    assert_eq!(flow.dialled()[1].1, node_c());
    // An unreachable node does not mean that the destination refuses.
    flow.connected(1, Err(Failure::Refused));
    assert_eq!(flow.dialled()[2].1, at("10.4.0.1:1080"));
    flow.connected(2, Ok(()));
    flow.say(2, &socks::choice(Some(socks::Method::None)));
    flow.say(2, &socks::reply(Err(Failure::Refused)));
    assert_eq!(flow.answer(), Some(Err(Failure::Refused)), "the far end has refused");

    let mut flow = Driver::new(&[nodes], None, &server());
    flow.connected(0, Err(Failure::Unreachable));
    flow.connected(1, Ok(()));
    flow.say(1, b"HTTP/1.1 400 Bad");
    flow.connected(2, Err(Failure::TimedOut));
    assert_eq!(flow.answer(), Some(Err(Failure::Unreachable)), "the reason of the direct attempt");

    let mut flow = Driver::new(&[nodes], None, &server());
    flow.wait(200_000);
    assert_eq!(flow.answer(), Some(Err(Failure::TimedOut)));
    assert_eq!(flow.dialled().len(), 3);
}

#[test]
fn without_an_overlay_flows_go_directly_and_names_go_by_nodes() {
    let flow = Driver::new(&["route:overlay=x"], None, &server());
    assert_eq!(flow.dialled(), [(0, server())]);
    let name = Address::Name("example.org".into(), 80);
    let mut flow = Driver::overlay(UP, &[OverlayRoute::Direct], &name);
    assert_eq!(flow.dialled()[0].1, at("10.2.0.1:1080"));
    flow.goes_by(0, &name);
    assert_eq!(flow.answer(), Some(Ok(())));
}

#[test]
fn a_movable_flow_moves_when_its_path_fails_and_another_is_up() {
    let move_it = |flow: &mut Driver| flow.chain.control(flow.now, "route", b"move");
    let failed = Action::Failed(Failure::TimedOut);
    let mut flow = Driver::overlay(UP, &[OverlayRoute::Direct, OverlayRoute::By(1)], &server());
    move_it(&mut flow);
    flow.connected(0, Ok(()));
    let tell = |flow: &Driver, table| *flow.knows.lock().unwrap() = Some(table);
    tell(&flow, table(2, DOWN, &[]));
    flow.wait(1_000);
    assert!(!flow.has(&failed), "there is no other path");
    tell(&flow, table(3, DOWN, &[OverlayRoute::By(1)]));
    flow.wait(101);
    assert!(flow.has(&failed) && flow.has(&Action::Close(BottomId(0))));

    // The flow is routed through a node, and the path to that node then fails.
    let mut flow = Driver::overlay(DOWN, &[OverlayRoute::By(1)], &server());
    move_it(&mut flow);
    flow.goes_by(0, &server());
    tell(&flow, table(2, UP, &[OverlayRoute::Direct, OverlayRoute::By(1)]));
    flow.wait(1_000);
    assert!(!flow.has(&failed), "a path that works is kept");
    let mut gone = table(3, UP, &[OverlayRoute::Direct]);
    gone.nodes[1].path = DOWN;
    tell(&flow, gone);
    flow.wait(101);
    assert!(flow.has(&failed));
}

#[test]
fn migrate_reports_that_its_flows_can_move() {
    let mut flow = Driver::new(
        &["migrate", "route:overlay=x"],
        Some(table(1, UP, &[OverlayRoute::Direct])),
        &server(),
    );
    flow.connected(0, Ok(()));
    *flow.knows.lock().unwrap() = Some(table(2, DOWN, &[OverlayRoute::By(1)]));
    flow.wait(150);
    assert!(flow.has(&Action::Close(BottomId(0))), "its connection is given up");
    assert!(flow.said.iter().any(|action| format!("{action:?}").contains("has failed")));
}

#[test]
fn settings_are_checked() {
    let error = |text: &str| {
        let spec = [text.parse().unwrap()];
        super::registry(&shell()).chain(&spec).unwrap_err().to_string()
    };
    assert!(error("route").contains("overlay= or node="));
    assert!(error("route:node=here").contains("192.0.2.1:1080"));
    assert!(error("route:node=10.0.0.1:1,overlay=x").contains("overlay= or node="));
    assert!(error("route:overlay=x,wait=1").contains("300ms"));
}

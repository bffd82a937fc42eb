//! Relays for datagrams with the headers of SOCKS, without a proxy.

use proptest::prelude::*;

use super::super::testing::{factories, shell};
use super::at;
use crate::flow::Address;
use crate::flow::datagrams::Ends;
use crate::flow::relays::{Action, Bounds, RelayStats, Relays};
use crate::split::socks_datagram;
use crate::time::{Duration, Instant};

const BOUNDS: Bounds = Bounds {
    relays: 3,
    early: 100,
    idle: Duration::from_secs(60),
    pause: Duration::from_secs(1),
    leave: false,
};

fn relays() -> Relays {
    relays_of(BOUNDS)
}

fn relays_of(bounds: Bounds) -> Relays {
    let words = factories(&["socks:via=192.0.2.1:1080"], &shell())[0].relay().unwrap();
    Relays::new(words, bounds)
}

fn ends(port: u16, peer: &str) -> Ends {
    Ends { own: ([10, 0, 0, 1], port).into(), peer: peer.parse().unwrap() }
}

fn ip(at: &str) -> Address {
    Address::Ip(at.parse().unwrap())
}

/// Sends to an address; returns the actions that follow.
fn send(relays: &mut Relays, now: Instant, port: u16, to: &str, data: &[u8]) -> Vec<Action> {
    relays.handle_out(now, ends(port, to), &ip(to), data);
    actions(relays)
}

fn actions(relays: &mut Relays) -> Vec<Action> {
    std::iter::from_fn(|| relays.poll_action()).collect()
}

fn wrapped(to: &Address, data: &[u8]) -> Vec<u8> {
    socks_datagram::emit(to, data).unwrap()
}

#[test]
fn a_socket_has_one_relay_for_all_addresses_and_early_datagrams_wait() {
    let mut relays = relays();
    assert_eq!(send(&mut relays, at(0), 1, "192.0.2.7:53", b"a"), [Action::Open(1)]);
    assert_eq!(send(&mut relays, at(1), 1, "192.0.2.8:53", b"b"), []);
    assert!(relays.handle_open(1));
    let [a, b] = [("192.0.2.7:53", b"a"), ("192.0.2.8:53", b"b")]
        .map(|(to, data)| Action::Send(1, wrapped(&ip(to), data)));
    assert_eq!(actions(&mut relays), [a.clone(), b]);
    assert_eq!(send(&mut relays, at(2), 1, "192.0.2.7:53", b"a"), [a]);
    let come = wrapped(&ip("192.0.2.8:53"), b"answer");
    let (whose, data) = relays.handle_in(at(3), 1, &come).unwrap();
    assert_eq!((whose, data), (ends(1, "192.0.2.8:53"), &b"answer"[..]));
    let stats = RelayStats { sent: 3, received: 1, ..RelayStats::default() };
    assert_eq!((relays.stats(), relays.len()), (stats, 1));
}

#[test]
fn each_name_has_a_relay_of_its_own() {
    let mut relays = relays();
    let mars = Address::Name("mars.example".into(), 443);
    let to = ends(1, "198.18.0.7:443");
    relays.handle_out(at(0), to, &mars, b"x");
    assert_eq!(actions(&mut relays), [Action::Open(1)]);
    assert!(relays.handle_open(1));
    assert_eq!(actions(&mut relays), [Action::Send(1, wrapped(&mars, b"x"))]);
    for from in [ip("203.0.113.5:443"), mars.clone()] {
        let come = wrapped(&from, b"y");
        assert_eq!(relays.handle_in(at(1), 1, &come), Some((to, &b"y"[..])));
    }
    assert_eq!(relays.handle_in(at(1), 1, &wrapped(&ip("203.0.113.5:80"), b"y")), None);
    let [Action::Open(other)] = send(&mut relays, at(2), 1, "192.0.2.7:53", b"")[..] else {
        panic!("another relay for addresses");
    };
    assert!(relays.handle_open(other));
    assert_eq!(
        relays.handle_in(at(3), other, &wrapped(&mars, b"y")),
        None,
        "this relay is not for names"
    );
    assert_eq!(relays.stats().strangers, 2);
}

#[test]
fn useless_datagrams_are_dropped_and_counted() {
    let mut relays = relays();
    for to in ["255.255.255.255:9", "224.0.0.1:9", "0.0.0.0:9", "192.0.2.7:0"] {
        assert_eq!(send(&mut relays, at(0), 1, to, b"x"), []);
    }
    assert_eq!(send(&mut relays, at(0), 1, "192.0.2.7:53", b"x"), [Action::Open(1)]);
    assert!(relays.handle_open(1));
    let good = wrapped(&ip("192.0.2.7:53"), b"y");
    let mut piece = good.clone();
    piece[2] = 1;
    for (bytes, come) in [
        (piece, false),
        (vec![0; 3], false),
        (wrapped(&ip("224.0.0.1:53"), b"y"), false),
        (wrapped(&ip("[2001:db8::7]:53"), b"y"), false),
        (wrapped(&ip("[::ffff:192.0.2.7]:53"), b"y"), true),
        (good, true),
    ] {
        assert_eq!(relays.handle_in(at(1), 1, &bytes).is_some(), come, "{bytes:?}");
    }
    let stats = relays.stats();
    let counted = (stats.nowhere, stats.fragments, stats.garbage, stats.strangers);
    assert_eq!((counted, stats.received, stats.dropped()), ((4, 1, 1, 2), 2, 8));
}

#[test]
fn without_a_relay_datagrams_are_dropped_for_a_moment() {
    let mut relays = relays();
    assert_eq!(send(&mut relays, at(0), 1, "192.0.2.7:53", &[0; 80]), [Action::Open(1)]);
    assert_eq!(send(&mut relays, at(1), 1, "192.0.2.7:53", &[0; 80]), [], "no room to wait");
    relays.handle_failed(at(100), 1);
    assert_eq!(relays.stats().without, 2);
    assert_eq!(send(&mut relays, at(1_099), 1, "192.0.2.7:53", b"x"), []);
    assert_eq!(send(&mut relays, at(1_100), 1, "192.0.2.7:53", b"x").len(), 1);
    assert!(!relays.handle_open(1), "the relay is no longer needed");
}

#[test]
fn without_a_relay_datagrams_to_addresses_are_sent_directly_if_allowed() {
    let mut relays = relays_of(Bounds { leave: true, ..BOUNDS });
    let to = ends(1, "192.0.2.7:53");
    assert_eq!(send(&mut relays, at(0), 1, "192.0.2.7:53", b"early"), [Action::Open(1)]);
    relays.handle_failed(at(1), 1);
    assert_eq!(actions(&mut relays), [Action::Leave(to, b"early".to_vec())]);
    let left = send(&mut relays, at(2), 1, "192.0.2.7:53", b"late");
    assert_eq!(left, [Action::Leave(to, b"late".to_vec())]);
    let mars = Address::Name("mars.example".into(), 443);
    relays.handle_out(at(3), ends(1, "198.18.0.7:443"), &mars, b"x");
    let [Action::Open(number)] = actions(&mut relays)[..] else {
        panic!("a name has its own relay")
    };
    relays.handle_failed(at(4), number);
    relays.handle_out(at(5), ends(1, "198.18.0.7:443"), &mars, b"x");
    assert_eq!((actions(&mut relays), relays.stats().without), (vec![], 2));
}

#[test]
fn after_a_relays_connection_has_ended_the_next_datagram_opens_another() {
    let mut relays = relays();
    send(&mut relays, at(0), 1, "192.0.2.7:53", b"x");
    assert!(relays.handle_open(1));
    relays.handle_ended(at(10), 1);
    assert_eq!(relays.handle_in(at(11), 1, &wrapped(&ip("192.0.2.7:53"), b"y")), None);
    actions(&mut relays);
    let again = send(&mut relays, at(12), 1, "192.0.2.7:53", b"x");
    assert!(matches!(again[..], [Action::Open(number)] if number != 1), "{again:?}");
}

#[test]
fn relays_are_closed_if_idle_or_oldest_or_if_their_socket_is_closed() {
    let mut relays = relays();
    let mut numbers = Vec::new();
    for (now, port) in [(0, 1), (10, 2), (20, 3)] {
        let [Action::Open(number)] = send(&mut relays, at(now), port, "192.0.2.7:53", b"x")[..]
        else {
            panic!("each source has its own relay");
        };
        assert!(relays.handle_open(number));
        actions(&mut relays);
        numbers.push(number);
    }
    relays.handle_in(at(30), numbers[0], &wrapped(&ip("192.0.2.7:53"), b"y")).unwrap();
    let fourth = send(&mut relays, at(40), 4, "192.0.2.7:53", b"x");
    assert_eq!(fourth[0], Action::Close(numbers[1]), "the second was silent longest");
    relays.retain(|own| own.port() != 3);
    assert_eq!(actions(&mut relays), [Action::Close(numbers[2])]);
    assert_eq!(relays.poll_timeout(), Some(at(60_030)));
    relays.handle_timeout(at(60_030));
    assert_eq!(actions(&mut relays), [Action::Close(numbers[0])]);
    relays.handle_timeout(at(60_040));
    assert!(relays.is_empty() && relays.poll_timeout().is_none());
    assert_eq!(relays.stats().without, 1, "the datagram that waited for the fourth");
}

/// Event: a socket sends, a negotiation succeeds or fails, or a datagram arrives.
#[derive(Clone, Debug)]
enum Step {
    Out(u16, bool, usize),
    Opens(bool),
    Ends(u64),
    In(u64, Vec<u8>),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        (0..6u16, any::<bool>(), 0..60usize).prop_map(|(port, name, n)| Step::Out(port, name, n)),
        any::<bool>().prop_map(Step::Opens),
        (0..9u64).prop_map(Step::Ends),
        (0..9u64, prop::collection::vec(0..4u8, 0..14)).prop_map(|(n, bytes)| Step::In(n, bytes)),
        (0..30_000u64).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Each datagram is either sent or dropped, exactly once. The open relays are those that were
    /// opened and not closed, and their number is within the bound.
    #[test]
    fn every_datagram_is_accounted_for(steps in steps()) {
        let (mut relays, mut now) = (relays(), at(0));
        let (mut given, mut opening, mut open) = (0, Vec::new(), Vec::new());
        for step in steps {
            match step {
                Step::Out(port, name, length) => {
                    let to = if name {
                        Address::Name("a.example".into(), 9)
                    } else {
                        ip("192.0.2.7:9")
                    };
                    let peer = if name { "198.18.0.1:9" } else { "192.0.2.7:9" };
                    relays.handle_out(now, ends(port, peer), &to, &vec![0; length]);
                    given += 1;
                }
                Step::Opens(well) => if let Some(number) = opening.pop() {
                    match well {
                        true if relays.handle_open(number) => open.push(number),
                        true => {}
                        false => relays.handle_failed(now, number),
                    }
                },
                Step::Ends(n) => if !open.is_empty() {
                    let number = open.remove(n as usize % open.len());
                    relays.handle_ended(now, number);
                },
                Step::In(number, bytes) => {
                    let come = relays.handle_in(now, number, &bytes).is_some();
                    prop_assert!(!come || open.contains(&number) || opening.contains(&number));
                }
                Step::Wait(millis) => {
                    now += Duration::from_millis(millis);
                    relays.handle_timeout(now);
                }
            }
            for action in actions(&mut relays) {
                match action {
                    Action::Open(number) => opening.push(number),
                    Action::Send(number, _) => prop_assert!(open.contains(&number)),
                    Action::Close(number) => open.retain(|of| *of != number),
                    Action::Leave(..) => prop_assert!(false, "none is sent directly"),
                }
            }
            prop_assert!(relays.len() <= BOUNDS.relays && open.len() <= relays.len());
        }
        now += Duration::from_secs(3_600);
        relays.handle_timeout(now);
        let stats = relays.stats();
        prop_assert_eq!(stats.sent + stats.without, given);
        prop_assert!(relays.is_empty());
    }
}

#[test]
fn a_proxy_without_udp_is_reported() {
    let mut relay = factories(&["socks:via=192.0.2.1:1080"], &shell())[0].relay().unwrap();
    relay.begin();
    assert!(relay.handle_bytes(&[5, 0]).is_ok(), "the request is sent");
    let answer = [5, 7, 0, 1, 0, 0, 0, 0, 0, 0];
    assert_eq!(
        relay.handle_bytes(&answer).err().unwrap(),
        "the proxy does not support UDP ASSOCIATE"
    );
}

use viaduct_proto::repair::stats::PeerStats;
use viaduct_proto::tunnel::stats::LinkStats;

use super::*;

/// Tunnels of a gateway with one peer, `b`.
fn tunnels(choice: TransportChoice, endpoint: bool) -> TlsTunnels {
    let peer = TlsPeer {
        choice,
        key: "beef".to_owned(),
        endpoint: endpoint.then_some(([192, 0, 2, 2], 443).into()),
        has_fake_tcp: true,
        is_dialled: choice == TransportChoice::None,
        is_up: false,
        down: None,
    };
    TlsTunnels([("b".to_owned(), peer)].into())
}

/// Lets a second pass in which the session with the peer and the link of the tunnel are up or down,
/// and the last `unanswered` handshakes had no answer. Returns whether the tunnel is dialled, and
/// the state of the peer.
fn second(of: &mut TlsTunnels, up: bool, unanswered: u32, link: bool) -> (bool, State) {
    let stats = PeerStats { up, ..PeerStats::default() };
    let seen = Snapshot { peers: vec![("b".to_owned(), stats)], ..Snapshot::default() };
    let facts = PeerFacts { unanswered, ..PeerFacts::default() };
    let details = Details { facts: [("b".to_owned(), facts.clone())].into(), ..Details::default() };
    let links = vec![LinkStats { up: link, ..LinkStats::default() }];
    let counters = TunnelCounters { name: "b".to_owned(), links, ..TunnelCounters::default() };
    of.update(&seen, &details, &[counters]);
    let state = if up { State::Up } else { State::Down("no answer".to_owned()) };
    (of.0["b"].is_dialled, of.judge("b", state, &facts))
}

#[test]
fn a_tunnel_is_dialled_after_six_unanswered_handshakes_until_one_is_answered() {
    let mut auto = tunnels(TransportChoice::Auto, true);
    assert_eq!(second(&mut auto, false, 5, false), (false, State::Down("no answer".to_owned())));
    let (dialled, state) = second(&mut auto, false, 6, false);
    let says = state.to_string();
    assert!(dialled && says.starts_with("down: repairs are off") && says.ends_with("no answer"));
    let (dialled, state) = second(&mut auto, false, 7, true);
    assert!(dialled && state.to_string().starts_with("degraded: only TCP passes"), "{state}");
    assert_eq!(second(&mut auto, true, 0, true), (false, State::Up));
}

#[test]
fn without_an_endpoint_the_state_says_what_to_do() {
    let (dialled, state) = second(&mut tunnels(TransportChoice::Auto, false), false, 6, false);
    assert!(!dialled && state.to_string().contains("use mode = \"split\" with tls_endpoint"));
}

#[test]
fn without_fake_tcp_the_state_says_why() {
    let mut tunnels = tunnels(TransportChoice::Auto, false);
    tunnels.0.get_mut("b").unwrap().has_fake_tcp = false;
    let (_, state) = second(&mut tunnels, false, 6, false);
    assert!(state.to_string().contains("fake TCP needs a single worker"), "{state}");
}

#[test]
fn a_forced_tunnel_alone_decides_the_state() {
    let mut forced = tunnels(TransportChoice::None, true);
    let (dialled, state) = second(&mut forced, false, 0, false);
    assert!(dialled && state.to_string().starts_with("down: its tunnel over TLS is down"));
    assert_eq!(second(&mut forced, false, 0, true), (true, State::Up));
}

//! Paths that alter packets, and the state that a gateway reports for such paths.

use super::*;
use crate::health::State;

#[test]
fn differing_prefixes_are_reported_in_both_directions() {
    let mut world = World::new(&layered());
    let facts = |plane: &Plane, now| plane.facts(now).into_values().next().unwrap();
    world.run(Duration::from_secs(2), |_, _| false);
    assert_eq!(facts(&world.a, world.now).disagreement, None);
    let terms = facts(&world.a, world.now).terms.expect("the peer has sent its terms");
    assert!(terms.code.contains("(8,3)") || terms.code.contains("layered"), "{}", terms.code);
    let mut narrow = config(2, 1, layered());
    narrow.sites.local = vec!["10.2.0.0/24".parse().unwrap()];
    world.b.change(vec![narrow], world.now).unwrap();
    world.run(Duration::from_secs(2), |_, _| false);
    for plane in [&world.a, &world.b] {
        let said = facts(plane, world.now).disagreement.unwrap();
        assert!(said.contains("prefixes disagree") && said.contains("10.2.0.0/24"), "{said}");
    }
}

#[test]
fn a_syn_that_the_path_alters_is_neither_lost_nor_injected() {
    let mut world = World::new(&layered());
    let syn = |port: u16, mss: u16| {
        let mut packet = vec![0; 44];
        packet[20..22].copy_from_slice(&port.to_be_bytes());
        packet[32..34].copy_from_slice(&[0x60, 2]);
        packet[40..44].copy_from_slice(&[2, 4, (mss >> 8) as u8, mss as u8]);
        udp_header(&mut packet);
        packet[9] = 6;
        ip::restore(&mut packet, ip::MutableFields { ttl: 63, tos: 0 });
        packet
    };
    for port in 0..200 {
        let sent = syn(port, 1460);
        world.send(&sent, true);
        if port % 10 != 7 {
            world.arrive(&syn(port, 1000));
        }
        for _ in 0..4 {
            let other = world.packet();
            world.send(&other, false);
        }
        // Pauses keep the first losses out of step with the interleaves: otherwise these losses
        // would prevent each other's recovery.
        world.run(Duration::from_millis(if port < 5 { 50 } else { 2 }), |_, _| false);
    }
    world.run(Duration::from_secs(3), |_, _| false);
    for port in 0..200 {
        assert!(!world.delivered.contains_key(&syn(port, 1460)), "{port}");
    }
    let stats = world.b_stats().receiver;
    assert_eq!((stats.recovered, stats.link.lost), (20, 20), "{stats:?}");
    assert!(stats.altered >= 175, "{stats:?}");
    assert_eq!(
        world.b.facts(world.now).into_values().next().unwrap().lowered_mss,
        [Some(1000), None]
    );
}

/// State of peer A at gateway B after some seconds in which `path` alters each packet, and returns
/// whether the packet arrives.
fn state_with_path(path: impl Fn(&mut Vec<u8>) -> bool) -> State {
    let mut world = World::new(&layered());
    let mut health = health::Health::default();
    let mut state = State::Up;
    for second in 0..6 {
        for _ in 0..100 {
            let packet = world.packet();
            world.send(&packet, true);
            let mut arrives = packet.clone();
            if path(&mut arrives) {
                world.arrive(&arrives);
            }
            world.run(Duration::from_millis(1), |_, _| false);
        }
        world.run(Duration::from_millis(900), |_, _| false);
        let (stats, facts) =
            (world.b_stats(), world.b.facts(world.now).into_values().next().unwrap());
        state = health.look(world.now, &stats, &facts, None);
        assert!(second < 3 || stats.up, "the session is up");
    }
    state
}

#[test]
fn the_state_explains_how_a_path_alters_or_drops_all_packets() {
    assert_eq!(state_with_path(|_| true), State::Up);
    let nat = state_with_path(|packet| {
        packet[12..16].copy_from_slice(&[192, 0, 2, 1]);
        ip::restore(packet, ip::MutableFields { ttl: 60, tos: 0 });
        true
    });
    let said = nat.to_string();
    assert!(said.contains("every packet") && said.contains("NAT"), "{said}");
    let altered = state_with_path(|packet| {
        packet[27] ^= 1;
        true
    });
    assert!(altered.reason().is_some_and(|why| why.contains("alter")), "{altered}");
    let one_way = state_with_path(|_| false);
    assert!(one_way.reason().is_some_and(|why| why.contains("another route")), "{one_way}");
}

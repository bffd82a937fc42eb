//! Forged, replayed and malicious messages, none of which has an effect.

use super::*;

/// Returns the initiation that A sends when its session is too old.
fn overhear_initiation(world: &mut World) -> Vec<u8> {
    world.overheard.clear();
    world.run(Duration::from_secs(200), |_, _| false);
    let is_initiation = |datagram: &&Vec<u8>| datagram[0] == 1;
    world.overheard.iter().rev().find(is_initiation).expect("sessions are replaced").clone()
}

#[test]
fn a_gateways_own_messages_sent_back_cost_its_peer_no_handshake() {
    let mut world = World::new(&layered());
    let own = overhear_initiation(&mut world);
    let before = world.a_stats().session;
    for _ in 0..1_000 {
        world.a.handle_datagram(world.now, endpoint(2), &mut own.clone());
    }
    let after = world.a_stats().session;
    assert_eq!((after.limited, after.handshakes), (before.limited, before.handshakes));
    assert!(world.a.transmits().next().is_none(), "an own initiation is not answered");
    let fresh = Plane::new(local(2), vec![config(2, 1, layered())], world.now);
    world.b = fresh.unwrap();
    world.run(Duration::from_millis(50), |_, _| false);
    assert!(world.b_stats().up, "the peer's handshake is answered in the same second");
}

#[test]
fn invalid_initiations_affect_no_peer() {
    let mut world = World::new(&layered());
    let own = overhear_initiation(&mut world);
    let (before, strays) = (world.b_stats().session, world.b.plane_stats().stray);
    let mut noise = own.clone();
    world.rng.fill(&mut noise[4..]);
    for wrong in [noise, [own.clone(), vec![0]].concat(), own[..own.len() - 1].to_vec()] {
        world.b.handle_datagram(world.now, endpoint(9), &mut wrong.clone());
    }
    assert_eq!(world.b_stats().session, before);
    assert_eq!(world.b.plane_stats().stray, strays + 3);
}

#[test]
fn a_recorded_initiation_is_refused_after_a_restart() {
    let mut world = World::new(&layered());
    let mut recorded = overhear_initiation(&mut world);
    let clocks = world.b.clocks();
    world.b = Plane::new(local(2), vec![config(2, 1, layered())], world.now).unwrap();
    world.b.remember(clocks);
    world.b.handle_datagram(world.now, endpoint(9), &mut recorded);
    let session = world.b_stats().session;
    assert_eq!((session.replayed, session.limited, session.handshakes), (1, 0, 0));
    world.run(Duration::from_secs(1), |_, _| false);
    assert!(world.b_stats().up, "the peer's own messages are accepted");
}

#[test]
fn a_gateway_whose_clock_was_set_back_can_connect() {
    let mut world = World::new(&layered());
    let clocks = world.a.clocks();
    let mut back = local(1);
    back.unix_nanos_at_zero /= 2;
    world.a = Plane::new(back, vec![config(1, 2, layered())], world.now).unwrap();
    world.a.remember(clocks);
    world.a.handle_timeout(world.now);
    world.exchange(&mut |_, _| false);
    let answered = world.b_stats().session;
    assert_eq!(answered.replayed, 0, "the timestamps of initiations increase");
    assert!(world.a_stats().up);
}

#[test]
fn a_handshake_message_does_not_change_the_endpoint() {
    let mut world = World::new(&layered());
    world.run(Duration::from_secs(110), |_, _| false);
    // The next initiation is overtaken by a copy of itself from another address.
    let mut initiation = loop {
        let at = world.a.poll_timeout().unwrap();
        world.now = world.now.max(at);
        world.a.handle_timeout(world.now);
        let sent: Vec<Vec<u8>> = world.a.transmits().map(|(_, d)| d.to_vec()).collect();
        world.a.clear_transmits();
        if let Some(initiation) = sent.into_iter().find(|datagram| datagram[0] == 1) {
            break initiation;
        }
    };
    world.b.handle_datagram(world.now, endpoint(9), &mut initiation);
    let to: Vec<SocketAddr> = world.b.transmits().map(|(to, _)| to.address).collect();
    assert_eq!(to, [endpoint(9)], "the answer goes to the source of the initiation");
    world.b.clear_transmits();
    world.b.handle_timeout(world.now + Duration::from_secs(2));
    assert!(
        world.b.transmits().all(|(to, _)| to.address == endpoint(1)),
        "all other datagrams go to the endpoint"
    );
}

#[test]
fn forged_and_replayed_datagrams_cause_no_injection() {
    let mut world = World::new(&layered());
    world.stream(200, |_, i| i % 20 == 3, 0.0);
    let before = world.b_stats();
    let overheard = world.overheard.clone();
    for datagram in &overheard {
        world.b.handle_datagram(world.now, endpoint(9), &mut datagram.clone());
        for cut in [0, 1, 15, 16, 40, datagram.len() - 1] {
            world.b.handle_datagram(world.now, endpoint(9), &mut datagram[..cut].to_vec());
        }
        let mut flipped = datagram.clone();
        let bit = world.rng.below(datagram.len() as u64 * 8) as usize;
        flipped[bit / 8] ^= 1 << (bit % 8);
        world.b.handle_datagram(world.now, endpoint(9), &mut flipped);
    }
    assert!(world.b.injections().is_empty());
    let after = world.b_stats();
    assert_eq!(before.receiver.repairs, after.receiver.repairs);
    assert!(after.session.replayed > 0 && after.session.forged > 0);
    assert_eq!(world.stream(500, |_, i| i % 50 == 9, 0.0), 0, "recovery continues");
}

#[test]
fn packets_outside_the_two_sites_are_never_injected() {
    let mut world = World::new(&layered());
    // A's gateway has the right keys, but lies about its prefixes.
    let mut wide = config(1, 2, layered());
    wide.sites.local = vec!["0.0.0.0/0".parse().unwrap()];
    world.a.change(vec![wide], world.now).unwrap();
    let mut packet = world.packet();
    packet[12] = 172;
    ip::restore(&mut packet, ip::MutableFields { ttl: 9, tos: 0 });
    world.send(&packet, true);
    world.run(Duration::from_millis(100), |_, _| false);
    assert!(!world.delivered.contains_key(&packet));
    assert_eq!(world.b_stats().receiver.foreign, 1);
}

//! Replacement of sessions, programs and configs while packets flow.

use super::*;

#[test]
fn sessions_are_replaced_while_repairs_flow() {
    let mut world = World::new(&layered());
    for _ in 0..4 {
        assert_eq!(world.stream(20, |_, i| i == 7, 0.0), 0);
        world.run(Duration::from_secs(100), |_, _| false);
    }
    let session = world.b_stats().session;
    assert!((4..=6).contains(&session.handshakes), "{session:?}");
    assert_eq!((session.forged, session.unknown), (0, 0));
}

#[test]
fn a_gateway_that_restarts_is_protected_again() {
    for restart_sender in [true, false] {
        let mut world = World::new(&layered());
        world.stream(100, |_, i| i % 20 == 3, 0.0);
        let mut fresh = local(if restart_sender { 1 } else { 2 });
        fresh.unix_nanos_at_zero += 5;
        if restart_sender {
            world.a = Plane::new(fresh, vec![config(1, 2, layered())], world.now).unwrap();
        } else {
            world.b = Plane::new(fresh, vec![config(2, 1, layered())], world.now).unwrap();
        }
        world.run(Duration::from_millis(500), |_, _| false);
        assert_eq!(world.stream(100, |_, i| i % 20 == 3, 0.0), 0, "sender: {restart_sender}");
    }
}

#[test]
fn a_gateway_that_restarts_with_a_clock_set_back_is_protected_again() {
    let mut world = World::new(&layered());
    world.stream(100, |_, i| i % 20 == 3, 0.0);
    let mut fresh = local(1);
    fresh.unix_nanos_at_zero -= 3_600_000_000_000;
    world.a = Plane::new(fresh, vec![config(1, 2, layered())], world.now).unwrap();
    // A's initiations are taken for old ones; B begins a new session once the old session is dead.
    world.run(Duration::from_secs(60), |_, _| false);
    let before = world.b_stats().receiver;
    assert_eq!(world.stream(200, |_, i| i % 20 == 3, 0.0), 0);
    let lost = world.b_stats().receiver.link.lost - before.link.lost;
    assert!(lost <= 20, "{lost} of 200 packets are taken for lost, of which 10 are");
}

#[test]
fn a_restarted_receiver_counts_no_earlier_packets_as_lost() {
    let mut world = World::new(&layered());
    for i in 0..2_500 {
        if i == 2_000 {
            let plane = Plane::new(local(2), vec![config(2, 1, layered())], world.now);
            world.b = plane.unwrap();
            world.b.handle_timeout(world.now);
            // The handshake arrives, but the first report does not.
            let mut datagrams = 0;
            world.exchange(&mut |_, _| {
                datagrams += 1;
                datagrams > 1
            });
        }
        let packet = world.packet();
        world.send(&packet, false);
        world.run(Duration::from_millis(1), |_, _| false);
    }
    world.run(Duration::from_secs(2), |_, _| false);
    assert!(world.delivered.values().all(|&times| times == 1));
    let stats = world.b_stats().receiver;
    assert_eq!((stats.link.lost, stats.recovered), (0, 0), "{stats:?}");
}

#[test]
fn the_code_changes_without_a_new_session() {
    let mut world = World::new(&layered());
    let handshakes = world.a_stats().session.handshakes;
    for code in [
        Code::ReedSolomon(reed_solomon::Parameters { r: 10, c: 3, interleave: 2 }),
        Code::Window(window::Parameters { window: 60, packets: 4, repairs: 1 }),
        layered(),
    ] {
        assert_eq!(world.stream(200, |_, i| i % 25 == 3, 0.0), 0);
        world.a.change(vec![config(1, 2, code)], world.now).unwrap();
    }
    assert_eq!(world.stream(200, |_, i| i % 25 == 3, 0.0), 0);
    assert_eq!(world.a_stats().session.handshakes, handshakes, "the session stays");
}

#[test]
fn peers_that_stay_keep_their_sessions_when_other_peers_change() {
    let mut world = World::new(&layered());
    let before = world.a_stats().session.handshakes;
    let mut third = config(1, 3, layered());
    third.endpoint = None;
    let kept = PeerConfig { memory: 4 << 20, ..config(1, 2, layered()) };
    world.a.change(vec![third, kept.clone()], world.now).unwrap();
    world.a.change(vec![kept], world.now).unwrap();
    assert_eq!(world.stream(200, |_, i| i % 25 == 3, 0.0), 0);
    assert_eq!(world.a_stats().session.handshakes, before);
}

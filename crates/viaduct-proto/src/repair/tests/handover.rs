//! Handover of sessions to a new process, which the peer does not notice.

use super::*;
use crate::upgrade::{Message, PeerRecord};

/// Returns the records after they were sent and received in messages.
fn sent(records: Vec<PeerRecord>) -> Vec<PeerRecord> {
    let pass = |record| {
        let bytes = Message::Peer(Box::new(record)).emit().unwrap();
        let Message::Peer(record) = Message::parse(&bytes, 0).unwrap() else { panic!("a peer") };
        *record
    };
    records.into_iter().map(pass).collect()
}

/// New process of the gateway `me`, without any state of the old one.
fn fresh(me: u8, peer: u8, coding: &Coding, now: Instant) -> Plane {
    let mut local = local(me);
    // Keys that differ from those of the old process.
    let rng = Mutex::new(Rng::from_seed(99));
    local.entropy = Arc::new(move |out: &mut [u8]| rng.lock().unwrap().fill(out));
    let mut plane = Plane::new(local, vec![config_of(me, peer, coding.clone())], now).unwrap();
    plane.set_passive(true);
    plane
}

impl World {
    /// Starts a new process, which receives everything that B receives.
    fn begin_handover_of_b(&mut self, coding: &Coding) {
        let mut plane = fresh(2, 1, coding, self.now);
        plane.resume(self.now, &sent(self.b.records())).unwrap();
        plane.clear_transmits();
        self.successor = Some(plane);
    }

    fn hand_b_over(&mut self) {
        self.b.finish(self.now);
        self.run(Duration::ZERO, |_, _| false);
        let mut plane = self.successor.take().unwrap();
        plane.resume(self.now, &sent(self.b.records())).unwrap();
        plane.set_passive(false);
        self.b = plane;
    }

    fn hand_a_over(&mut self, coding: &Coding) {
        self.a.finish(self.now);
        self.run(Duration::ZERO, |_, _| false);
        let mut plane = fresh(1, 2, coding, self.now);
        plane.resume(self.now, &sent(self.a.records())).unwrap();
        plane.set_passive(false);
        self.a = plane;
    }
}

fn codings() -> [Coding; 2] {
    let limits = control::Limits { max_overhead: 0.25, max_rate: None };
    [Coding::Fixed(layered()), Coding::Auto(limits.into())]
}

#[test]
fn sessions_numbers_and_repairs_continue_in_a_new_process() {
    for coding in codings() {
        let mut world = World::of(&coding);
        world.stream(2_000, |_, i| i % 40 == 3, 0.0);
        let handshakes = world.a_stats().session.handshakes;
        for _ in 0..3 {
            // Every fortieth packet is lost, whichever process is active.
            let mut sent = Vec::new();
            for i in 0..3_000 {
                match i {
                    500 => world.begin_handover_of_b(&coding),
                    1_500 => world.hand_b_over(),
                    2_000 => world.hand_a_over(&coding),
                    _ => {}
                }
                let packet = world.packet();
                world.send(&packet, i % 40 == 7);
                sent.push(packet);
                world.run(Duration::from_millis(1), |_, _| false);
            }
            world.run(Duration::from_secs(3), |_, _| false);
            let lost = sent.iter().filter(|packet| !world.delivered.contains_key(*packet)).count();
            assert_eq!(lost, 0, "{coding:?}");
            assert!(world.delivered.values().all(|times| *times == 1), "no packet arrives twice");
        }
        let (a, b) = (world.a_stats().session, world.b_stats().session);
        assert_eq!(a.handshakes + b.handshakes, 0, "the new processes need no handshake");
        assert!(handshakes > 0);
        assert_eq!(
            (a.replayed + b.replayed, a.forged + b.forged, a.unknown + b.unknown),
            (0, 0, 0)
        );
    }
}

#[test]
fn a_process_that_reclaims_its_sessions_uses_no_counter_twice() {
    let mut world = World::new(&layered());
    world.stream(100, |_, i| i == 7, 0.0);
    let before = world.a.records()[0].session.live[0].counter;
    world.a.reclaim();
    let after = world.a.records()[0].session.live[0].counter;
    assert!(after >= before + (1 << 32));
    assert_eq!(world.stream(100, |_, i| i % 20 == 3, 0.0), 0);
    assert_eq!(world.b_stats().session.replayed, 0);
}

#[test]
fn a_passive_process_answers_no_handshake_and_replays_are_still_refused() {
    let mut world = World::new(&layered());
    world.begin_handover_of_b(&Coding::Fixed(layered()));
    world.stream(50, |_, i| i == 7, 0.0);
    world.hand_b_over();
    for mut datagram in world.overheard.clone() {
        world.b.handle_datagram(world.now, endpoint(1), &mut datagram);
    }
    assert!(world.b.transmits().all(|(_, datagram)| datagram.len() < 1_000), "only reports");
    let session = world.b_stats().session;
    assert_eq!(session.handshakes, 0, "the recorded initiation is refused");
    assert!(session.replayed > 0);
    assert_eq!(world.stream(100, |_, i| i % 20 == 3, 0.0), 0);
}

#[test]
fn a_record_of_an_unknown_peer_is_refused() {
    let world = World::new(&layered());
    let mut plane = fresh(2, 3, &Coding::Fixed(layered()), world.now);
    let error = plane.resume(world.now, &world.b.records()).unwrap_err();
    assert!(error.to_string().contains("not in the config"), "{error}");
}

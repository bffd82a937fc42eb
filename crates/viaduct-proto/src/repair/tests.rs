//! Two gateways, a link between them that loses what the test says, and a virtual clock.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use super::*;
use crate::fec::layered::Parameters;
use crate::fec::{Code, reed_solomon, window};
use crate::keys::{Entropy, SecretKey};
use crate::rng::Rng;
use crate::time::{Duration, Instant};
use crate::wire::ip;

const MTU: usize = 1_200;

struct World {
    now: Instant,
    a: Plane,
    b: Plane,
    rng: Rng,
    /// What reached hosts at B, by its bytes, and how often.
    delivered: HashMap<Vec<u8>, usize>,
    /// Datagrams from A to B, as an eavesdropper has them.
    overheard: Vec<Vec<u8>>,
    next: u32,
}

fn endpoint(n: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], 7400))
}

fn secret(n: u8) -> SecretKey {
    SecretKey::from_bytes([n; 32])
}

fn local(n: u8) -> Local {
    let rng = Mutex::new(Rng::from_seed(u64::from(n)));
    let entropy: Entropy = Arc::new(move |out: &mut [u8]| rng.lock().unwrap().fill(out));
    Local { secret: secret(n), entropy, unix_nanos_at_zero: 1_700_000_000_000_000_000 }
}

fn layered() -> Code {
    Code::Layered(Parameters { r: 8, interleaves: vec![1, 19, 41], delay_xors: false })
}

fn config(me: u8, peer: u8, code: Code) -> PeerConfig {
    let site = |n: u8| {
        vec![format!("10.{n}.0.0/16").parse().unwrap(), format!("fd00:{n}::/32").parse().unwrap()]
    };
    PeerConfig {
        name: format!("site-{peer}"),
        key: secret(peer).public(),
        endpoint: Some(endpoint(peer)),
        sites: Sites { local: site(me), remote: site(peer) },
        code: Some(code),
        flush_after: Duration::from_millis(8),
        rekey_after: Duration::from_secs(120),
        longest: MTU,
        memory: 8 << 20,
    }
}

impl World {
    fn new(code: &Code) -> World {
        let plane = |me, peer| {
            Plane::new(local(me), vec![config(me, peer, code.clone())], Instant::ZERO).unwrap()
        };
        let mut world = World {
            now: Instant::ZERO,
            a: plane(1, 2),
            b: plane(2, 1),
            rng: Rng::from_seed(42),
            delivered: HashMap::new(),
            overheard: Vec::new(),
            next: 0,
        };
        world.run(Duration::from_millis(50), |_, _| false);
        assert!(world.a_stats().up && world.b_stats().up, "the handshake is done");
        world
    }

    fn a_stats(&self) -> stats::PeerStats {
        self.a.stats()[0].1
    }

    fn b_stats(&self) -> stats::PeerStats {
        self.b.stats()[0].1
    }

    /// A UDP packet from a host of A to one of B that is like no other.
    fn packet(&mut self) -> Vec<u8> {
        self.next += 1;
        let len = 60 + self.rng.below((MTU - 60) as u64 + 1) as usize;
        let mut packet = vec![0; len];
        self.rng.fill(&mut packet[28..]);
        packet[28..32].copy_from_slice(&self.next.to_be_bytes());
        udp_header(&mut packet);
        packet
    }

    /// Sends `packet` from A's hosts; the link loses it if `lost`.
    fn send(&mut self, packet: &[u8], lost: bool) {
        self.a.handle_outgoing(self.now, &mut packet.to_vec());
        if !lost {
            self.arrive(packet);
        }
    }

    fn arrive(&mut self, packet: &[u8]) {
        *self.delivered.entry(packet.to_vec()).or_default() += 1;
        self.b.handle_incoming(self.now, &mut packet.to_vec());
    }

    /// Carries the gateways' datagrams; those from A for which `lose` says so are lost.
    fn exchange(&mut self, lose: &mut impl FnMut(&mut Rng, &[u8]) -> bool) {
        loop {
            let from_a: Vec<Vec<u8>> = self.a.transmits().map(|(_, d)| d.to_vec()).collect();
            let from_b: Vec<Vec<u8>> = self.b.transmits().map(|(_, d)| d.to_vec()).collect();
            self.a.clear_transmits();
            self.b.clear_transmits();
            if from_a.is_empty() && from_b.is_empty() {
                break;
            }
            for mut datagram in from_a {
                self.overheard.push(datagram.clone());
                if !lose(&mut self.rng, &datagram) {
                    self.b.handle_datagram(self.now, endpoint(1), &mut datagram);
                }
            }
            for mut datagram in from_b {
                self.a.handle_datagram(self.now, endpoint(2), &mut datagram);
            }
        }
        for packet in self.b.injections().iter() {
            *self.delivered.entry(packet.to_vec()).or_default() += 1;
        }
        self.b.injections().clear();
    }

    fn run(&mut self, time: Duration, mut lose: impl FnMut(&mut Rng, &[u8]) -> bool) {
        let end = self.now + time;
        loop {
            self.exchange(&mut lose);
            let next = [self.a.poll_timeout(), self.b.poll_timeout()].into_iter().flatten().min();
            match next.filter(|&at| at <= end) {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
            self.a.handle_timeout(self.now);
            self.b.handle_timeout(self.now);
        }
        self.now = end;
    }

    /// Sends `count` packets, one a millisecond; returns those that never arrived.
    fn stream(
        &mut self,
        count: usize,
        mut lost: impl FnMut(&mut Rng, usize) -> bool,
        repair_loss: f64,
    ) -> usize {
        let mut sent = Vec::new();
        for i in 0..count {
            let packet = self.packet();
            let drop = lost(&mut self.rng, i);
            self.send(&packet, drop);
            sent.push(packet);
            self.run(Duration::from_millis(1), |rng, _| rng.chance(repair_loss));
        }
        self.run(Duration::from_secs(3), |_, _| false);
        assert!(sent.iter().all(|p| self.delivered.get(p).is_none_or(|&n| n == 1)), "no repeats");
        sent.iter().filter(|p| !self.delivered.contains_key(*p)).count()
    }
}

fn udp_header(packet: &mut [u8]) {
    let len = packet.len();
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[9] = 17;
    packet[12..16].copy_from_slice(&[10, 1, 0, 1]);
    packet[16..20].copy_from_slice(&[10, 2, 0, 1]);
    ip::restore(packet, ip::Hop { ttl: 63, tos: 0x2e });
}

#[test]
fn single_losses_are_recovered_byte_for_byte() {
    let mut world = World::new(&layered());
    let missing = world.stream(2_000, |_, i| i % 50 == 7, 0.0);
    assert_eq!(missing, 0);
    let stats = world.b_stats().receiver;
    assert_eq!((stats.recovered, stats.link.lost, stats.link.bursts[0]), (40, 40, 40));
    assert_eq!((stats.garbled, stats.foreign, stats.unrecoverable), (0, 0, 0));
    assert!(stats.latency_sum / 40 < 8_000, "within a recipe of eight at one a millisecond");
}

#[test]
fn every_code_masks_two_percent() {
    let codes = [
        layered(),
        Code::ReedSolomon(reed_solomon::Parameters { r: 8, c: 3, interleave: 5 }),
        Code::ReedSolomon(reed_solomon::Parameters { r: 100, c: 30, interleave: 1 }),
        Code::Window(window::Parameters { window: 100, packets: 10, repairs: 3 }),
    ];
    for code in codes {
        let mut world = World::new(&code);
        let missing = world.stream(3_000, |rng, _| rng.chance(0.02), 0.02);
        let stats = world.b_stats().receiver;
        // Where a repair names a share of its packets alone, one may be lost with the repair that names
        // it, and be rebuilt before another does: that is refused until it has a name.
        let covered = match &code {
            Code::Layered(layered) => usize::from(layered.r),
            Code::ReedSolomon(block) => usize::from(block.r),
            Code::Window(window) => usize::from(window.window),
        };
        let names_all = names_per_repair(&code) == covered;
        let garbled = stats.garbled;
        assert!(
            missing <= 2 && (garbled == 0 || !names_all),
            "{code:?}: {missing} of {}, garbled {garbled}",
            stats.link.lost
        );
        assert_eq!(missing as u64, stats.unrecoverable, "{code:?}");
    }
}

#[test]
fn bursts_are_recovered_and_measured() {
    let mut world = World::new(&layered());
    let missing = world.stream(3_000, |_, i| (300..320).contains(&(i % 600)), 0.0);
    let link = world.b_stats().receiver.link;
    assert_eq!((missing, link.lost, link.bursts[5]), (0, 100, 5));
    assert_eq!(world.a_stats().reported, link, "the sender is told");
}

#[test]
fn identical_packets_are_counted_one_by_one() {
    let mut world = World::new(&layered());
    let twin = world.packet();
    for i in 0..40 {
        world.send(&twin, i % 5 == 2);
        world.run(Duration::from_millis(1), |_, _| false);
    }
    world.run(Duration::from_millis(100), |_, _| false);
    assert_eq!(world.delivered[&twin], 40);
}

#[test]
fn the_tail_of_a_transfer_is_protected_by_the_idle_timer() {
    let mut world = World::new(&layered());
    let packet = world.packet();
    world.send(&packet, true);
    world.run(Duration::from_millis(40), |_, _| false);
    assert_eq!(world.delivered[&packet], 1);
    assert!(world.a_stats().sender.flushed >= 1);
}

#[test]
fn packets_that_come_a_little_late_are_delivered_once() {
    let one_layer = Parameters { r: 8, interleaves: vec![1], delay_xors: false };
    let mut world = World::new(&Code::Layered(one_layer));
    let packets: Vec<_> = (0..64).map(|_| world.packet()).collect();
    for (i, packet) in packets.iter().enumerate() {
        // Two packets of one recipe are late together, so that neither can be recovered.
        world.a.handle_outgoing(world.now, &mut packet.clone());
        match i {
            10 | 11 => {}
            16 => {
                world.exchange(&mut |_, _| false);
                world.arrive(&packets[10]);
                world.arrive(&packets[11]);
                world.arrive(packet);
            }
            _ => world.arrive(packet),
        }
        world.exchange(&mut |_, _| false);
    }
    world.run(Duration::from_millis(50), |_, _| false);
    // The first of them to come makes the other recoverable, which then comes by itself.
    assert!(packets.iter().all(|packet| world.delivered[packet] == 1));
    let stats = world.b_stats().receiver;
    assert_eq!((stats.late, stats.recovered, stats.link.lost), (2, 0, 0));
}

#[test]
fn nothing_hostile_opens_or_leads_to_an_injection() {
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
    assert_eq!(world.stream(500, |_, i| i % 50 == 9, 0.0), 0, "recovery goes on");
}

/// The initiation that A sends when its session has become too old.
fn overhear_initiation(world: &mut World) -> Vec<u8> {
    world.overheard.clear();
    world.run(Duration::from_secs(200), |_, _| false);
    let is_initiation = |datagram: &&Vec<u8>| datagram[0] == 1;
    world.overheard.iter().rev().find(is_initiation).expect("sessions are replaced").clone()
}

#[test]
fn what_a_gateway_sent_itself_costs_its_peer_no_handshake() {
    let mut world = World::new(&layered());
    let own = overhear_initiation(&mut world);
    let before = world.a_stats().session;
    for _ in 0..1_000 {
        world.a.handle_datagram(world.now, endpoint(2), &mut own.clone());
    }
    let after = world.a_stats().session;
    assert_eq!((after.limited, after.handshakes), (before.limited, before.handshakes));
    assert!(world.a.transmits().next().is_none(), "and is not answered");
    let fresh = Plane::new(local(2), vec![config(2, 1, layered())], world.now);
    world.b = fresh.unwrap();
    world.run(Duration::from_millis(50), |_, _| false);
    assert!(world.b_stats().up, "whose handshakes are answered in the same second");
}

#[test]
fn initiations_of_strangers_concern_no_peer() {
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
    assert!(world.b_stats().up, "the peer's own are taken");
}

#[test]
fn a_clock_that_was_set_back_shuts_nobody_out() {
    let mut world = World::new(&layered());
    let clocks = world.a.clocks();
    let mut back = local(1);
    back.unix_nanos_at_zero /= 2;
    world.a = Plane::new(back, vec![config(1, 2, layered())], world.now).unwrap();
    world.a.remember(clocks);
    world.a.handle_timeout(world.now);
    world.exchange(&mut |_, _| false);
    let answered = world.b_stats().session;
    assert_eq!(answered.replayed, 0, "its next initiation is later than its last one");
    assert!(world.a_stats().up);
}

#[test]
fn a_handshake_message_moves_no_endpoint() {
    let mut world = World::new(&layered());
    world.run(Duration::from_secs(110), |_, _| false);
    // The next initiation is overtaken by its own copy from elsewhere.
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
    let to: Vec<SocketAddr> = world.b.transmits().map(|(to, _)| to).collect();
    assert_eq!(to, [endpoint(9)], "the answer goes where the question came from");
    world.b.clear_transmits();
    world.b.handle_timeout(world.now + Duration::from_secs(2));
    assert!(world.b.transmits().all(|(to, _)| to == endpoint(1)), "and all else where it went");
}

#[test]
fn prefixes_that_disagree_are_told_in_both_directions() {
    let mut world = World::new(&layered());
    let facts = |plane: &Plane, now| plane.facts(now).into_values().next().unwrap();
    world.run(Duration::from_secs(2), |_, _| false);
    assert_eq!(facts(&world.a, world.now).disagreement, None);
    let terms = facts(&world.a, world.now).terms.expect("the peer has told");
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
        ip::restore(&mut packet, ip::Hop { ttl: 63, tos: 0 });
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
        // Not in step with the interleaves, where the first ones would hide each other.
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

/// The state of A's site at B after some seconds in which each packet becomes what `path` makes of it.
fn state_behind(path: impl Fn(&mut Vec<u8>) -> bool) -> health::State {
    let mut world = World::new(&layered());
    let mut health = health::Health::default();
    let mut state = health::State::Up;
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
        assert!(second < 3 || stats.up, "the session stands");
    }
    state
}

#[test]
fn the_state_says_what_a_path_does_to_all_packets() {
    assert_eq!(state_behind(|_| true), health::State::Up);
    let nat = state_behind(|packet| {
        packet[12..16].copy_from_slice(&[192, 0, 2, 1]);
        ip::restore(packet, ip::Hop { ttl: 60, tos: 0 });
        true
    });
    let said = nat.to_string();
    assert!(said.contains("every packet") && said.contains("NAT"), "{said}");
    let altered = state_behind(|packet| {
        packet[27] ^= 1;
        true
    });
    assert!(altered.reason().is_some_and(|why| why.contains("alter")), "{altered}");
    let one_way = state_behind(|_| false);
    assert!(one_way.reason().is_some_and(|why| why.contains("another way")), "{one_way}");
}

#[test]
fn packets_outside_the_two_sites_are_never_injected() {
    let mut world = World::new(&layered());
    // A's gateway is honest about keys, not about its prefixes.
    let mut wide = config(1, 2, layered());
    wide.sites.local = vec!["0.0.0.0/0".parse().unwrap()];
    world.a.change(vec![wide], world.now).unwrap();
    let mut packet = world.packet();
    packet[12] = 172;
    ip::restore(&mut packet, ip::Hop { ttl: 9, tos: 0 });
    world.send(&packet, true);
    world.run(Duration::from_millis(100), |_, _| false);
    assert!(!world.delivered.contains_key(&packet));
    assert_eq!(world.b_stats().receiver.foreign, 1);
}

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
fn a_receiver_that_restarts_takes_nothing_of_before_for_lost() {
    let mut world = World::new(&layered());
    for i in 0..2_500 {
        if i == 2_000 {
            let plane = Plane::new(local(2), vec![config(2, 1, layered())], world.now);
            world.b = plane.unwrap();
            world.b.handle_timeout(world.now);
            // The handshake comes through, the first report does not.
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
fn the_code_changes_while_it_runs() {
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
fn peers_that_stay_keep_their_sessions_when_others_come_and_go() {
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

#[test]
fn what_was_missed_by_ourselves_is_not_taken_for_lost() {
    let mut world = World::new(&layered());
    world.stream(100, |_, _| false, 0.0);
    for i in 0..200 {
        let packet = world.packet();
        world.a.handle_outgoing(world.now, &mut packet.clone());
        // The hosts got it; the gateway's tap did not.
        if !(50..80).contains(&i) {
            world.b.handle_incoming(world.now, &mut packet.clone());
        } else {
            world.b.miss_incoming();
        }
        world.run(Duration::from_millis(1), |_, _| false);
    }
    assert_eq!(world.b_stats().receiver.recovered, 0);
    world.run(Duration::from_secs(3), |_, _| false);
    assert_eq!(world.stream(400, |_, i| i % 25 == 3, 0.0), 0, "sight returns");
}

#[test]
fn memory_is_bounded_whatever_comes() {
    let mut world = World::new(&layered());
    for _ in 0..30_000 {
        let packet = world.packet();
        let lost = world.rng.chance(0.3);
        world.send(&packet, lost);
        world.exchange(&mut |rng, _| rng.chance(0.3));
        world.now += Duration::from_micros(100);
        world.a.handle_timeout(world.now);
        world.b.handle_timeout(world.now);
    }
    assert!(world.b.memory() < 9 << 20, "{}", world.b.memory());
}

//! Two gateways, a path between them that drops, duplicates and delays segments, a strict firewall
//! on this path, and a virtual clock.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::rng::Rng;
use crate::trickles::packet::conntrack::{Conntrack, Tracked};
use crate::trickles::packet::tcp;

const AUTHENTIC: u8 = 0xa5;

struct World {
    now: Instant,
    ends: [FakeTcp; 2],
    /// Sequence number of each connection's SYN, and the firewall's state of the connection, by the
    /// opener's address.
    tracks: HashMap<SocketAddr, (u32, Conntrack)>,
    /// Packets on their way to each end, each with its time of arrival.
    flights: [Vec<(Instant, Vec<u8>)>; 2],
    /// Datagrams that arrived at each end, with their senders.
    arrived: [Vec<(SocketAddr, Vec<u8>)>; 2],
    rng: Rng,
    loss: f64,
    blocked: bool,
    /// True if the firewall drops SYNs.
    blocks_syns: bool,
}

fn ip(v6: bool, end: usize) -> IpAddr {
    match v6 {
        true => format!("fd00::{}", end + 1).parse().unwrap(),
        false => IpAddr::from([192, 0, 2, end as u8 + 1]),
    }
}

fn listen(v6: bool, end: usize) -> SocketAddr {
    SocketAddr::new(ip(v6, end), 7400)
}

fn machine(v6: bool, end: usize) -> FakeTcp {
    let rng = Mutex::new(Rng::from_seed(end as u64 + 7));
    let entropy: Entropy = Arc::new(move |out: &mut [u8]| rng.lock().unwrap().fill(out));
    let sources = vec![50_000, 50_001, 50_002];
    let ports = Ports { listen: listen(v6, end), sources, mtu: 1_500 };
    FakeTcp::new(ports, entropy, Instant::ZERO)
}

impl World {
    fn new(seed: u64, v6: bool, loss: f64) -> World {
        World {
            now: Instant::ZERO,
            ends: [machine(v6, 0), machine(v6, 1)],
            tracks: HashMap::new(),
            flights: Default::default(),
            arrived: Default::default(),
            rng: Rng::from_seed(seed),
            loss,
            blocked: false,
            blocks_syns: false,
        }
    }

    /// Sends an authentic datagram of `bytes` bytes. With `opens`, the datagram may open a
    /// connection.
    fn send(&mut self, end: usize, to: SocketAddr, opens: bool, bytes: usize) {
        let source = opens.then(|| ip(to.is_ipv6(), end));
        self.ends[end].send(self.now, to, source, &vec![AUTHENTIC; bytes]);
        self.depart(end);
    }

    /// Sends the packets that an end has queued, through the firewall.
    fn depart(&mut self, end: usize) {
        let packets: Vec<Vec<u8>> = self.ends[end].transmits().map(<[u8]>::to_vec).collect();
        self.ends[end].clear_transmits();
        for packet in packets {
            let is_syn = parse(&packet).unwrap().0.kind == Kind::Syn;
            let is_dropped = self.blocked || self.blocks_syns && is_syn;
            if is_dropped || self.rng.chance(self.loss / 2.0) {
                continue;
            }
            self.track(&packet);
            if self.rng.chance(self.loss / 2.0) {
                continue;
            }
            let copies = 1 + usize::from(self.rng.chance(self.loss / 4.0));
            for _ in 0..copies {
                let late = if self.rng.chance(self.loss) { self.rng.below(30) } else { 0 };
                let at = self.now + Duration::from_millis(10 + late);
                self.flights[1 - end].push((at, packet.clone()));
            }
        }
    }

    /// Passes a packet through the firewall, which must accept it.
    fn track(&mut self, packet: &[u8]) {
        let (segment, _) = parse(packet).unwrap();
        let is_opener = segment.destination.port() == 7400;
        let opener = if is_opener { segment.source } else { segment.destination };
        let kind = match segment.kind {
            Kind::Syn => tcp::Kind::Syn,
            Kind::SynAck => tcp::Kind::SynAck,
            Kind::Data => tcp::Kind::Data,
            Kind::End => panic!("a reset or FIN was sent"),
        };
        let Segment { seq, ack, length, .. } = segment;
        let is_other = |(isn, _): &(u32, Conntrack)| kind == tcp::Kind::Syn && *isn != seq;
        if self.tracks.get(&opener).is_none_or(is_other) {
            self.tracks.insert(opener, (seq, Conntrack::new(true)));
        }
        let (_, track) = self.tracks.get_mut(&opener).unwrap();
        let verdict = track.pass(usize::from(!is_opener), Tracked { kind, seq, ack, length });
        assert_eq!(verdict, Ok(()), "{segment:?}");
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            let flights = self.flights.iter().flatten().map(|(at, _)| *at);
            let timers = self.ends.iter().filter_map(FakeTcp::poll_timeout);
            let Some(next) = flights.chain(timers).min().filter(|at| *at <= end) else { break };
            self.now = self.now.max(next);
            for end in [0, 1] {
                self.ends[end].handle_timeout(self.now);
                let (due, later): (Vec<_>, Vec<_>) =
                    self.flights[end].drain(..).partition(|(at, _)| *at <= self.now);
                self.flights[end] = later;
                for (_, mut packet) in due {
                    assert!(self.arrive(end, &mut packet));
                }
                self.depart(end);
            }
        }
        self.now = end;
    }

    fn arrive(&mut self, end: usize, packet: &mut [u8]) -> bool {
        let arrived = &mut self.arrived[end];
        self.ends[end].handle_packet(self.now, packet, |from, datagram| {
            arrived.push((from, datagram.to_vec()));
            datagram[0] == AUTHENTIC
        })
    }

    /// Address of end 0 as end 1 sees it.
    fn opener(&self) -> SocketAddr {
        self.arrived[1].last().expect("a datagram has arrived").0
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_connection_is_opened_and_carries_datagrams_both_ways() {
    for v6 in [false, true] {
        let mut world = World::new(1, v6, 0.0);
        world.send(0, listen(v6, 1), true, 100);
        assert_eq!(world.ends[1].stats().connections, 0);
        world.run(SECOND);
        let opener = world.opener();
        assert_eq!((opener.ip(), world.ends[1].stats().accepted), (ip(v6, 0), 1));
        world.send(1, opener, false, 900);
        world.run(SECOND / 10);
        assert_eq!(world.arrived[0], [(listen(v6, 1), vec![AUTHENTIC; 900])]);
        world.send(1, listen(v6, 0), false, 900);
        assert_eq!(world.ends[1].stats().unsent, 1, "no source, no connection");
    }
}

#[test]
fn only_an_authentic_datagram_creates_a_connection() {
    let mut world = World::new(2, false, 0.0);
    world.ends[0].send(world.now, listen(false, 1), Some(ip(false, 0)), b"forged");
    world.depart(0);
    world.run(SECOND);
    let stats = world.ends[1].stats();
    assert_eq!((stats.received, stats.accepted, stats.connections), (1, 0, 0));
}

#[test]
fn one_host_does_not_evict_the_connections_of_others() {
    let mut world = World::new(2, false, 0.0);
    world.send(0, listen(false, 1), true, 100);
    world.run(SECOND);
    let opener = world.opener();
    // Datagrams of an authenticated peer, each from another port.
    for port in 1_000..20_000 {
        let source = SocketAddr::from(([198, 51, 100, 1], port));
        let destination = listen(false, 1);
        let (kind, scaled) = (Kind::Data, true);
        let segment = Segment { source, destination, kind, seq: 1, ack: 1, scaled, length: 0 };
        let mut packet = Vec::new();
        emit(&segment, 1_460, Some(&[AUTHENTIC; 9]), &mut packet).unwrap();
        world.now += Duration::from_micros(50);
        world.arrive(1, &mut packet);
    }
    assert_eq!(world.ends[1].stats().connections, 1 + MAX_PER_HOST as u64);
    assert!(world.ends[1].connections.contains_key(&opener));
}

#[test]
fn a_silent_connection_is_replaced_by_one_from_another_port() {
    let mut world = World::new(3, false, 0.0);
    world.send(0, listen(false, 1), true, 100);
    world.run(SECOND);
    let before = world.opener();
    world.blocked = true;
    world.send(0, listen(false, 1), false, 100);
    world.run(2 * SECOND);
    world.blocked = false;
    world.send(0, listen(false, 1), true, 100);
    world.run(SECOND);
    assert_ne!(world.opener(), before);
    assert_eq!(world.ends[1].stats().accepted, 2);
}

#[test]
fn the_next_datagram_replaces_a_stale_connection() {
    let mut world = World::new(3, false, 0.0);
    let to = listen(false, 1);
    world.send(0, to, true, 100);
    world.run(SECOND);
    let before = world.opener();
    world.send(1, before, false, 100);
    world.run(SECOND);
    assert!(!world.ends[0].is_stale(world.now, to), "a datagram arrived a second ago");
    world.run(SECOND);
    let stale = [(0, to), (1, before)].map(|(end, to)| world.ends[end].is_stale(world.now, to));
    assert_eq!(stale, [true, false], "only its opener can replace it");
    world.send(0, to, true, 100);
    assert!(!world.ends[0].is_stale(world.now, to), "a replacement is being opened");
    world.run(SECOND);
    assert_ne!(world.opener(), before);
}

#[test]
fn a_stale_connection_is_used_until_its_replacement_is_open() {
    let mut world = World::new(3, false, 0.0);
    let to = listen(false, 1);
    world.send(0, to, true, 100);
    world.run(2 * SECOND);
    let before = world.opener();
    world.blocks_syns = true;
    for _ in 0..20 {
        world.send(0, to, true, 100);
        world.run(SECOND / 4);
    }
    assert!(
        world.arrived[1].len() > 20 && world.arrived[1].iter().all(|(from, _)| *from == before)
    );
    assert!(world.ends[0].stats().opened > 2, "SYNs were sent in the meantime");
    world.send(1, before, false, 100);
    world.run(SECOND / 10);
    assert!(!world.ends[0].is_stale(world.now, to));
    assert_eq!(world.ends[0].records().count(), 1);
}

#[test]
fn an_accepting_gateway_continues_connections_after_a_restart() {
    let mut world = World::new(4, false, 0.0);
    world.send(0, listen(false, 1), true, 100);
    world.run(SECOND);
    let opener = world.opener();
    world.send(1, opener, false, 1_000);
    world.run(SECOND / 10);
    world.send(0, listen(false, 1), false, 100);
    world.run(SECOND / 10);
    world.ends[1] = machine(false, 1);
    world.send(1, opener, false, 100);
    assert_eq!(world.ends[1].stats().unsent, 1);
    world.send(0, listen(false, 1), false, 100);
    world.run(SECOND / 10);
    world.arrived[0].clear();
    world.send(1, opener, false, 100);
    world.run(SECOND / 10);
    assert_eq!(world.arrived[0].len(), 1);
}

#[test]
fn syns_keep_no_state_and_are_answered_at_a_limited_rate() {
    let mut world = World::new(5, false, 0.0);
    let mut answers = Vec::new();
    for n in 0..10_000_u32 {
        let segment = Segment {
            source: SocketAddr::new(IpAddr::from((0x0a00_0000 | n).to_be_bytes()), 1_024),
            destination: listen(false, 1),
            kind: Kind::Syn,
            seq: n,
            ack: 0,
            scaled: true,
            length: 0,
        };
        for _ in 0..2 {
            let mut packet = Vec::new();
            emit(&segment, 1_460, None, &mut packet).unwrap();
            assert!(world.arrive(1, &mut packet));
        }
        answers.extend(world.ends[1].transmits().map(|of| parse(of).unwrap().0.seq));
        world.ends[1].clear_transmits();
    }
    let stats = world.ends[1].stats();
    assert_eq!((stats.connections, stats.syns, answers.len()), (0, 20_000, 2_000));
    let numbers: std::collections::HashSet<_> = answers.iter().collect();
    assert!(numbers.len() >= 999, "answers to different SYNs must differ");
    assert!(answers.chunks(2).all(|pair| pair[0] == pair[1]));
}

/// Segment that an attacker might send to `end`, with the other end's source address.
fn forged(rng: &mut Rng, world: &World, end: usize) -> Vec<u8> {
    let opener = world.opener();
    let (source, destination) =
        if end == 1 { (opener, listen(false, 1)) } else { (listen(false, 1), opener) };
    let kind = [Kind::Syn, Kind::SynAck, Kind::Data, Kind::End][rng.below(4) as usize];
    let (seq, ack) = (rng.next_u64() as u32, rng.next_u64() as u32);
    let segment = Segment { source, destination, kind, seq, ack, scaled: true, length: 0 };
    let mut packet = Vec::new();
    let datagram = (kind == Kind::Data).then_some(&b"forged"[..]);
    emit(&segment, 1_460, datagram, &mut packet).unwrap();
    packet
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The firewall in [`World::track`] accepts every packet, and forged segments have no effect.
    #[test]
    fn strict_firewalls_accept_all_segments(seed: u64, loss in 0.0..0.4f64, hostile: bool) {
        let mut world = World::new(seed, false, loss);
        let mut rng = Rng::from_seed(seed ^ 1);
        for step in 0..400 {
            // About once a second a datagram may open or replace the connection, as a handshake
            // does.
            let handshake = step % 20 == 0;
            world.send(0, listen(false, 1), handshake, 100 + step);
            if !world.arrived[1].is_empty() {
                let opener = world.opener();
                world.send(1, opener, false, 1 + rng.below(1_400) as usize);
                if hostile {
                    let end = rng.below(2) as usize;
                    let mut packet = forged(&mut rng, &world, end);
                    let length = world.arrived[end].len();
                    world.arrive(end, &mut packet);
                    world.arrived[end].truncate(length);
                    let answered = world.ends[end].transmits().len() > 0;
                    prop_assert!(!answered, "a forged segment was answered");
                }
            }
            world.run(Duration::from_millis(50));
        }
        let most = if loss < 0.2 { 100 } else { 10 };
        prop_assert!(world.arrived.iter().all(|of| of.len() > most), "{:?}", world.ends[0].stats());
    }
}

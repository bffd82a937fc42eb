//! Two gateways with two paths between them: losses by path, repairs over the other path, a path
//! that dies, and duplicates.

use super::*;

enum Item {
    Packet(Vec<u8>),
    Datagram(SocketAddr, Vec<u8>),
}

impl Item {
    /// Bytes on the wire.
    fn len(&self) -> usize {
        /// Length of the IP and UDP headers.
        const HEADERS: usize = 28;
        match self {
            Item::Packet(packet) => packet.len(),
            Item::Datagram(_, datagram) => HEADERS + datagram.len(),
        }
    }
}

struct Flying {
    due: Instant,
    to: usize,
    path: u8,
    item: Item,
}

/// Rate of a link, if it is limited, in bytes a second (100 Mb/s).
const RATE: u64 = 12_500_000;
/// Longest delay of the queue of such a link.
const QUEUE: Duration = Duration::from_millis(100);
/// Destination port of bulk traffic.
const BULK: u16 = 5_201;
/// Length of the packets of bulk traffic, in bytes.
const BULK_LEN: usize = 1_200;
/// Packets of bulk traffic in a millisecond: 48 Mb/s.
const BULK_EACH: usize = 5;

/// Two sites, and two paths between them.
struct Paths {
    now: Instant,
    sites: [Plane; 2],
    /// Delay of each path in one direction, in milliseconds.
    delays: [u64; 2],
    /// Time at which the link of each direction and path has sent everything; `None` if the rate is
    /// unlimited.
    sent_by: Option<[[Instant; 2]; 2]>,
    /// Share of packets and datagrams that each path loses.
    loss: [f64; 2],
    flying: Vec<Flying>,
    /// Send time of each packet, and the times at which it has reached its destination.
    packets: Vec<(Instant, Vec<Instant>)>,
    /// Number of bulk packets sent.
    bulk: u32,
    /// Changes of paths at site A.
    changes: Vec<(Instant, PathChange)>,
    rng: Rng,
}

/// Address of a site's gateway on a path.
fn end(site: usize, path: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2 + path, site as u8 + 1], 7_400))
}

impl Paths {
    /// Creates two sites. Packets other than bulk traffic have the protection `repairs`.
    fn new(delays: [u64; 2], policy: RepairPath, repairs: Repairs) -> Paths {
        let plane = |site: usize| {
            let limits = control::Limits { max_overhead: 0.3, max_rate: None };
            let mut settings = Settings::from(limits);
            let bulk = Match { ports: vec![BULK..=BULK], ..Match::default() };
            settings.classes = vec![
                Class { matches: bulk, ..Class::default() },
                Class { repairs, ..Class::default() },
            ];
            let endpoints = [0, 1].map(|path| end(1 - site, path));
            let paths = Some(PathsConfig { endpoints, repairs: policy });
            let (me, peer) = (site as u8 + 1, 2 - site as u8);
            let config = PeerConfig { paths, ..config_of(me, peer, Coding::Auto(settings)) };
            Plane::new(local(me), vec![config], Instant::ZERO).unwrap()
        };
        let mut world = Paths {
            now: Instant::ZERO,
            sites: [plane(0), plane(1)],
            delays,
            sent_by: None,
            loss: [0.0; 2],
            flying: Vec::new(),
            packets: Vec::new(),
            bulk: 0,
            changes: Vec::new(),
            rng: Rng::from_seed(5),
        };
        world.run(2_000, |_| None);
        let ups = |facts: &PeerFacts| facts.paths.iter().all(|path| path.is_up);
        assert!(world.facts().iter().all(|of| of.paths.len() == 2 && ups(of)));
        world.changes.clear();
        world
    }

    fn facts(&self) -> [PeerFacts; 2] {
        let facts = |site: &Plane| site.facts(self.now).into_values().next().unwrap();
        [0, 1].map(|site: usize| facts(&self.sites[site]))
    }

    fn fly(&mut self, to: usize, path: u8, item: Item) {
        let at = usize::from(path);
        let Some(sent) = self.cross(to, at, item.len()) else { return };
        if !self.rng.chance(self.loss[at]) {
            let due = sent + Duration::from_millis(self.delays[at]);
            self.flying.push(Flying { due, to, path, item });
        }
    }

    /// Time at which the link has sent an item of `len` bytes; `None` if its queue is full.
    fn cross(&mut self, to: usize, path: usize, len: usize) -> Option<Instant> {
        let Some(sent_by) = &mut self.sent_by else { return Some(self.now) };
        let sent_by = &mut sent_by[to][path];
        let begins = self.now.max(*sent_by);
        if begins.since(self.now) > QUEUE {
            return None;
        }
        *sent_by = begins + Duration::from_nanos(len as u64 * 1_000_000_000 / RATE);
        Some(*sent_by)
    }

    /// Sends a small packet from A to B.
    fn send(&mut self, path: u8) {
        let mut packet = vec![0x5a; 200];
        packet[28..32].copy_from_slice(&(self.packets.len() as u32).to_be_bytes());
        self.packets.push((self.now, Vec::new()));
        self.leave(path, packet);
    }

    /// Sends a packet of bulk traffic from A to B.
    fn send_bulk(&mut self, path: u8) {
        self.bulk += 1;
        let mut packet = vec![0; BULK_LEN];
        packet[22..24].copy_from_slice(&BULK.to_be_bytes());
        packet[28..32].copy_from_slice(&self.bulk.to_be_bytes());
        self.leave(path, packet);
    }

    fn leave(&mut self, path: u8, mut packet: Vec<u8>) {
        udp_header(&mut packet);
        self.sites[0].set_path(path);
        self.sites[0].handle_outgoing(self.now, self.now, &mut packet.clone());
        self.fly(1, path, Item::Packet(packet));
    }

    fn reached(&mut self, packet: &[u8]) {
        if packet.len() == BULK_LEN {
            return;
        }
        let number = u32::from_be_bytes(*packet[28..].first_chunk().unwrap());
        self.packets[number as usize].1.push(self.now);
    }

    fn step(&mut self) {
        let now = self.now;
        let (due, later) = std::mem::take(&mut self.flying).into_iter().partition(|f| f.due <= now);
        self.flying = later;
        let due: Vec<Flying> = due;
        for Flying { to, path, item, .. } in due {
            self.sites[to].set_path(path);
            match item {
                Item::Packet(mut packet) => {
                    self.reached(&packet);
                    self.sites[to].handle_incoming(now, now, &mut packet);
                }
                Item::Datagram(from, mut datagram) => {
                    self.sites[to].handle_datagram(now, from, &mut datagram);
                }
            }
        }
        for site in 0..2 {
            self.sites[site].handle_timeout(now);
            let sent: Vec<_> =
                self.sites[site].transmits().map(|(to, d)| (to.address, d.to_vec())).collect();
            self.sites[site].clear_transmits();
            for (to, datagram) in sent {
                let path = (0..2).find(|path| end(1 - site, *path) == to).unwrap();
                self.fly(1 - site, path, Item::Datagram(end(site, path), datagram));
            }
        }
        let recovered: Vec<_> = self.sites[1].injections().iter().map(<[u8]>::to_vec).collect();
        self.sites[1].injections().clear();
        recovered.iter().for_each(|packet| self.reached(packet));
        let changes = self.sites[0].take_path_changes();
        self.changes.extend(changes.into_iter().map(|change| (now, change)));
    }

    /// Runs for some milliseconds; `path` returns the path of the packet that is sent at a given
    /// time, if any.
    fn run(&mut self, millis: u64, path: impl Fn(u64) -> Option<u8>) {
        for at in 0..millis {
            path(at).into_iter().for_each(|path| self.send(path));
            self.step();
            self.now += Duration::from_millis(1);
        }
    }

    /// Runs for some milliseconds under bulk traffic, with a small packet every five milliseconds,
    /// over the first path while that path is up.
    fn run_loaded(&mut self, millis: u64) {
        for at in 0..millis {
            let path = u8::from(self.changes.last().is_some_and(|(_, change)| !change.is_up));
            (0..BULK_EACH).for_each(|_| self.send_bulk(path));
            if at.is_multiple_of(5) {
                self.send(path);
            }
            self.step();
            self.now += Duration::from_millis(1);
        }
    }

    /// Latencies in milliseconds of the small packets from number `first` on; `u64::MAX` for a lost
    /// packet. Panics if a packet has arrived twice.
    fn latencies(&self, first: usize) -> Vec<u64> {
        let latency = |(sent, reached): &(Instant, Vec<Instant>)| match reached[..] {
            [] => u64::MAX,
            [at] => at.since(*sent).as_millis() as u64,
            ref all => panic!("{all:?}"),
        };
        self.packets[first..].iter().map(latency).collect()
    }
}

/// Schedule of one packet every ten milliseconds, over this path.
fn sparse(path: u8) -> impl Fn(u64) -> Option<u8> {
    move |at| at.is_multiple_of(10).then_some(path)
}

#[test]
fn losses_are_measured_for_each_path_and_repairs_take_the_other_path() {
    let mut world = Paths::new([20, 20], RepairPath::Auto, Repairs::Window);
    world.loss = [0.0, 0.05];
    world.run(6_000, |at| Some((at % 2) as u8));
    world.loss = [0.0; 2];
    world.run(2_000, |_| None);
    let [a, b] = world.facts();
    let of = |facts: &PeerFacts| {
        facts.paths.iter().map(|of| (of.via, of.incoming.covered, of.incoming.lost)).collect()
    };
    let found: Vec<(u8, u64, u64)> = of(&b);
    let [(1, clean, 0), (0, lossy, lost)] = found[..] else { panic!("{found:?}") };
    assert!(clean > 2_900 && lossy > 2_900 && (100..200).contains(&lost), "{found:?}");
    assert_eq!(a.paths[1].outgoing.lost, lost, "as reported");
    let rtts: Vec<_> = a.paths.iter().map(|path| path.rtt.unwrap().as_millis()).collect();
    assert!(rtts.iter().all(|rtt| (39..43).contains(rtt)), "{rtts:?}");
    let missing = world.latencies(0).iter().filter(|latency| **latency == u64::MAX).count();
    assert!(missing <= 2, "{missing}");
}

#[test]
fn with_repairs_over_a_shorter_path_no_packet_counts_as_late() {
    for delays in [[60, 20], [20, 60], [20, 21]] {
        let mut world = Paths::new(delays, RepairPath::Other, Repairs::Window);
        world.run(3_000, |at| Some((at % 2) as u8));
        world.run(1_000, |_| None);
        let latest = *world.latencies(0).iter().max().unwrap();
        assert_eq!(latest, delays[0].max(delays[1]));
        let receiver = world.sites[1].stats()[0].1.receiver;
        assert_eq!((receiver.late, receiver.asked, receiver.recovered), (0, 0, 0), "{delays:?}");
    }
}

#[test]
fn packets_of_a_path_that_dies_are_recovered_over_the_other_path() {
    let mut world = Paths::new([50, 50], RepairPath::Auto, Repairs::Copies);
    world.run(3_000, sparse(0));
    let (first, died) = (world.packets.len(), world.now);
    world.loss[0] = 1.0;
    world.run(1_500, sparse(0));
    let [(at, change)] = &world.changes[..] else { panic!("{:?}", world.changes) };
    assert!(change.path == 0 && !change.is_up && at.since(died).as_millis() < 500, "{at:?}");
    world.run(1_000, |_| None);
    let latencies = world.latencies(first);
    let late = latencies.iter().filter(|latency| **latency > 200).count();
    assert!(late == 0, "more than two round trips: {latencies:?}");
    world.loss[0] = 0.0;
    world.run(2_000, |_| None);
    assert!(world.changes.len() == 2 && world.changes[1].1.is_up, "{:?}", world.changes);
    assert!(world.facts()[0].paths.iter().all(|path| path.is_up));
}

#[test]
fn with_duplicates_no_packet_of_a_path_that_dies_is_late() {
    for delays in [[50, 50], [50, 20], [20, 50]] {
        let mut world = Paths::new(delays, RepairPath::Other, Repairs::Duplicate);
        world.run(3_000, sparse(0));
        let first = world.packets.len();
        world.loss[0] = 1.0;
        world.run(400, sparse(0));
        world.loss[0] = 0.0;
        world.run(2_000, |_| None);
        let latest = *world.latencies(first).iter().max().unwrap();
        assert!(latest <= delays[0].max(delays[1]) + 3, "{delays:?}: {latest}");
        assert_eq!(world.latencies(0).iter().max(), Some(&latest));
    }
}

/// Latencies of the small packets in the second after the first path has died under bulk traffic.
fn death_under_load(repairs: Repairs) -> Vec<u64> {
    let mut world = Paths::new([50, 50], RepairPath::Other, repairs);
    world.sent_by = Some([[world.now; 2]; 2]);
    world.run_loaded(3_000);
    let (first, died) = (world.packets.len(), world.now);
    world.loss[0] = 1.0;
    world.run_loaded(1_000);
    let last = world.packets.len();
    world.run_loaded(1_000);
    let [(at, change)] = &world.changes[..] else { panic!("{:?}", world.changes) };
    assert!(change.path == 0 && !change.is_up && at.since(died).as_millis() < 500, "{at:?}");
    world.latencies(first)[..last - first].to_vec()
}

#[test]
fn small_packets_during_bulk_traffic_on_a_path_that_dies_are_recovered() {
    let latencies = death_under_load(Repairs::Copies);
    let requested = latencies.iter().filter(|latency| **latency > 75).count();
    assert!(requested < 30, "copied after the first request: {latencies:?}");
    assert!(latencies.iter().all(|latency| *latency <= 200), "two round trips: {latencies:?}");
}

#[test]
fn duplicates_during_bulk_traffic_on_a_path_that_dies_are_in_time() {
    let latencies = death_under_load(Repairs::Duplicate);
    let latest = *latencies.iter().max().unwrap();
    assert!(latest <= 75, "more than the delay and a quarter of a round trip: {latencies:?}");
}

#[test]
fn a_session_survives_the_loss_of_its_own_path() {
    let mut world = Paths::new([20, 20], RepairPath::Auto, Repairs::Window);
    world.loss[1] = 1.0;
    // Keys are replaced after two minutes, and older keys expire after four.
    world.run(300_000, |_| None);
    let facts = &world.facts()[0];
    assert_eq!((facts.lanes, facts.lanes_down), (2, 0));
    assert!(facts.paths[0].is_up && !facts.paths[1].is_up);
}

#[test]
fn gateways_that_divide_lanes_differently_have_no_session() {
    let mut world = Paths::new([20, 20], RepairPath::Auto, Repairs::Window);
    let limits = control::Limits { max_overhead: 0.3, max_rate: None };
    let config =
        PeerConfig { endpoint: Some(end(0, 0)), ..config_of(2, 1, Coding::Auto(limits.into())) };
    world.sites[1].change(vec![config], world.now).unwrap();
    world.run(10_000, |_| None);
    assert!(world.sites.iter().all(|site| !site.stats()[0].1.up));
}

//! Gateways with several lanes, and with several workers that own them.

use super::*;
use crate::repair::lanes::{Shares, lane_hash};
use crate::wire::ip::Header;

/// Number of pairs of hosts that exchange packets.
const PAIRS: u32 = 256;

/// Gateway whose workers each own some shares.
struct Site {
    number: u8,
    lanes: LaneCount,
    /// Planes of the workers; `None` for a worker that has died.
    workers: Vec<Option<Plane>>,
    /// Worker of each share.
    owners: Vec<usize>,
}

impl Site {
    fn new(number: u8, lanes: usize, workers: usize, now: Instant) -> Site {
        let lanes = LaneCount::new(lanes).unwrap();
        let owners: Vec<_> = (0..lanes.get()).map(|share| share % workers).collect();
        let mut site = Site { number, lanes, workers: Vec::new(), owners };
        for worker in 0..workers {
            let mut local = local(number);
            let seed = u64::from(number) << 16 | now.as_nanos() << 20 | worker as u64;
            let rng = Mutex::new(Rng::from_seed(seed));
            local.entropy = Arc::new(move |out: &mut [u8]| rng.lock().unwrap().fill(out));
            local.lanes = lanes;
            let limits = control::Limits { max_overhead: 0.3, max_rate: None };
            let config = config_of(number, 3 - number, Coding::Auto(limits.into()));
            let plane = Plane::with_shares(local, vec![config], site.shares(worker), now);
            site.workers.push(Some(plane.unwrap()));
        }
        site
    }

    fn shares(&self, worker: usize) -> Shares {
        let owned = self.owners.iter().zip(0..).filter(|(owner, _)| **owner == worker);
        owned.map(|(_, share)| share).collect()
    }

    /// Worker to which the kernel gives this lane's packets.
    fn worker(&mut self, lane: u8) -> Option<&mut Plane> {
        let owner = self.owners[usize::from(self.lanes.lane(lane))];
        self.workers[owner].as_mut()
    }

    fn worker_of(&mut self, packet: &[u8]) -> Option<&mut Plane> {
        let lane = lane_hash(&Header::parse(packet).unwrap());
        self.worker(lane)
    }

    fn planes(&mut self) -> impl Iterator<Item = &mut Plane> {
        self.workers.iter_mut().flatten()
    }

    fn stats(&self) -> stats::PeerStats {
        let mut all = stats::PeerStats::none();
        self.workers.iter().flatten().for_each(|plane| all.merge(&plane.stats()[0].1));
        all
    }

    fn facts(&self, now: Instant) -> PeerFacts {
        let mut all = PeerFacts::default();
        for plane in self.workers.iter().flatten() {
            all.merge(
                plane.facts(now).remove("site-2").or(plane.facts(now).remove("site-1")).unwrap(),
            );
        }
        all
    }
}

/// Two sites, and a link without delay.
struct Link {
    now: Instant,
    sites: [Site; 2],
    delivered: HashMap<Vec<u8>, usize>,
    rng: Rng,
    next: u32,
}

impl Link {
    fn new(wants: [(usize, usize); 2]) -> Link {
        let site = |number, (lanes, workers)| Site::new(number, lanes, workers, Instant::ZERO);
        let mut link = Link {
            now: Instant::ZERO,
            sites: [site(1, wants[0]), site(2, wants[1])],
            delivered: HashMap::new(),
            rng: Rng::from_seed(7),
            next: 0,
        };
        link.run(Duration::from_millis(50));
        link
    }

    /// Unique packet of the host pair `pair`, from site `from` + 1 to the other site.
    fn packet(&mut self, from: usize, pair: u32) -> Vec<u8> {
        self.next += 1;
        let mut packet = vec![0; 200 + self.rng.below(800) as usize];
        self.rng.fill(&mut packet[28..]);
        packet[28..32].copy_from_slice(&self.next.to_be_bytes());
        udp_header(&mut packet);
        let hosts = [pair % 16 + 1, pair / 16 + 1];
        for (at, side) in [(12, from), (16, 1 - from)] {
            let address = [10, side as u8 + 1, 0, hosts[side] as u8];
            packet[at..at + 4].copy_from_slice(&address);
        }
        ip::restore(&mut packet, ip::MutableFields { ttl: 63, tos: 0 });
        packet
    }

    fn send(&mut self, from: usize, packet: &[u8], is_lost: bool) {
        let now = self.now;
        if let Some(worker) = self.sites[from].worker_of(packet) {
            worker.handle_outgoing(now, now, &mut packet.to_vec());
        }
        if !is_lost {
            *self.delivered.entry(packet.to_vec()).or_default() += 1;
            if let Some(worker) = self.sites[1 - from].worker_of(packet) {
                worker.handle_incoming(now, now, &mut packet.to_vec());
            }
        }
    }

    fn exchange(&mut self) {
        loop {
            let mut is_idle = true;
            for from in [0, 1] {
                let mut sent = Vec::new();
                for plane in self.sites[from].planes() {
                    sent.extend(plane.transmits().map(|(_, datagram)| datagram.to_vec()));
                    plane.clear_transmits();
                    for packet in plane.injections().iter() {
                        *self.delivered.entry(packet.to_vec()).or_default() += 1;
                    }
                    plane.injections().clear();
                }
                for mut datagram in sent {
                    is_idle = false;
                    let source = endpoint(self.sites[from].number);
                    if let Some(worker) = self.sites[1 - from].worker(datagram[2]) {
                        worker.handle_datagram(self.now, source, &mut datagram);
                    }
                }
            }
            if is_idle {
                return;
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.exchange();
            let planes = self.sites.iter_mut().flat_map(Site::planes);
            let next = planes.filter_map(|plane| plane.poll_timeout()).min();
            match next.filter(|&at| at <= end) {
                Some(at) => self.now = self.now.max(at),
                None => break,
            }
            let now = self.now;
            self.sites
                .iter_mut()
                .flat_map(Site::planes)
                .for_each(|plane| plane.handle_timeout(now));
        }
        self.now = end;
    }

    /// Sends `count` packets each way, one a millisecond, of all pairs in turn; one in twenty is
    /// lost at random. Returns the packets that never arrived.
    fn stream(&mut self, count: u32) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        for i in 0..count {
            for from in [0, 1] {
                let packet = self.packet(from, i % PAIRS);
                let is_lost = self.rng.chance(0.05);
                self.send(from, &packet, is_lost);
                sent.push(packet);
            }
            self.run(Duration::from_millis(1));
        }
        self.run(Duration::from_secs(3));
        assert!(self.delivered.values().all(|times| *times == 1), "no packet arrives twice");
        sent.retain(|packet| !self.delivered.contains_key(packet));
        sent
    }
}

#[test]
fn losses_are_recovered_in_all_lanes_for_any_wanted_numbers() {
    for wants in [[(16, 4), (1, 1)], [(4, 2), (8, 8)], [(2, 1), (2, 2)], [(1, 1), (1, 1)]] {
        let mut link = Link::new(wants);
        let count = wants[0].0.max(wants[1].0);
        for site in &link.sites {
            assert_eq!((site.facts(link.now).lanes, site.facts(link.now).lanes_down), (count, 0));
        }
        // Repairs begin with the first losses.
        link.stream(20_000);
        let before = link.sites.each_ref().map(|site| site.stats().receiver.recovered);
        let missing = link.stream(20_000);
        assert!(missing.len() <= 8, "{wants:?}: {} of 2,000 losses", missing.len());
        for (site, before) in link.sites.iter().zip(before) {
            let stats = site.stats();
            assert!(stats.receiver.recovered > before + 900, "{wants:?}: {stats:?}");
            assert_eq!((stats.receiver.garbled, stats.session.forged), (0, 0), "{wants:?}");
            let none_is_idle = site.workers.iter().flatten().all(|plane| {
                let sent = plane.stats()[0].1.sender.packets;
                sent > 0
            });
            assert!(none_is_idle, "{wants:?}");
        }
    }
}

#[test]
fn other_workers_take_over_a_dead_workers_lanes_without_effect_on_their_own() {
    let mut link = Link::new([(8, 4), (1, 1)]);
    link.stream(20_000);
    let dead = 2;
    link.sites[0].workers[dead] = None;
    // The other lanes continue in the meantime.
    let lost_lanes: Vec<_> = (0..8).filter(|lane| lane % 4 == dead).collect();
    let mut sent = Vec::new();
    for i in 0..1_000 {
        if i == 300 {
            let now = link.now;
            let site = &mut link.sites[0];
            site.owners = vec![0, 1, 3, 3, 0, 1, 0, 3];
            for worker in [0, 1, 3] {
                let shares = site.shares(worker);
                site.workers[worker].as_mut().unwrap().own(shares, now).unwrap();
            }
        }
        let packet = link.packet(0, i % PAIRS);
        let is_lost = i % 10 == 3;
        link.send(0, &packet, is_lost);
        sent.push((i, packet));
        link.run(Duration::from_millis(1));
    }
    link.run(Duration::from_secs(3));
    for (i, packet) in &sent {
        let lane = lane_hash(&Header::parse(packet).unwrap()) % 8;
        let is_of_dead = lost_lanes.contains(&usize::from(lane));
        assert!(
            link.delivered.contains_key(packet) || is_of_dead && *i < 400,
            "packet {i} of lane {lane}"
        );
    }
    assert_eq!(link.sites.each_ref().map(|site| site.facts(link.now).lanes_down), [0, 0]);
    let missing = link.stream(10_000);
    assert!(missing.len() <= 8, "{} of 1,000 losses", missing.len());
}

#[test]
fn the_number_of_lanes_follows_a_restarted_peer() {
    let mut link = Link::new([(1, 1), (16, 2)]);
    let lanes = |link: &Link| link.sites.each_ref().map(|site| site.facts(link.now).lanes);
    assert_eq!(lanes(&link), [16, 16]);
    link.stream(2_000);
    let before = link.sites[0].stats().sender.packets;
    for wanted in [1, 4] {
        link.sites[1] = Site::new(2, wanted, 1, link.now);
        link.run(Duration::from_millis(50));
        assert_eq!(lanes(&link), [wanted, wanted]);
        assert!(link.sites[0].stats().sender.packets >= before, "counters never decrease");
        link.stream(20_000);
        let missing = link.stream(20_000);
        assert!(missing.len() <= 8, "{} of 2,000 losses", missing.len());
    }
}

#[test]
fn lanes_are_handed_over_with_their_sessions() {
    let mut link = Link::new([(1, 1), (4, 1)]);
    link.stream(5_000);
    let now = link.now;
    let old = link.sites[1].workers[0].as_mut().unwrap();
    old.finish(now);
    let records = old.records();
    assert_eq!(records.len(), 4);
    link.exchange();
    let records = link.sites[1].workers[0].as_ref().unwrap().records();
    // The new process and its peer want one lane, but the records have four.
    let mut site = Site::new(2, 1, 1, now);
    site.workers[0].as_mut().unwrap().resume(now, &records).unwrap();
    link.sites[1] = site;
    let before = link.sites[0].stats().session.handshakes;
    link.stream(5_000);
    assert_eq!(link.sites[0].stats().session.handshakes, before, "the sessions continue");
    assert_eq!(link.sites[1].facts(link.now).lanes, 4);
}

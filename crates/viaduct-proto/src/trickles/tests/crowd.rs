//! Total throughput and fairness of many clients that repeatedly fetch 500 kB over one link, each
//! time over a new connection (Trickles, Figure 9).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::Bytes;

use crate::link::LinkConfig;
use crate::rng::Rng;
use crate::sim::trickles::world::{address, serve, server};
use crate::sim::{Machine, Port, Sim};
use crate::time::{Duration, Instant};
use crate::trickles::client::{Client, Config, Reassembly, Stats};
use crate::trickles::server::{Server, Settings};
use crate::trickles::wire::{Kind, Request, Response};

const OBJECT: u64 = 500_000;
/// Bytes of headers per packet.
const HEADERS: usize = 52;

/// All clients on one host.
struct Crowd {
    now: Instant,
    rng: Rng,
    clients: Vec<Member>,
    by_tag: BTreeMap<u32, usize>,
    timers: BTreeSet<(Instant, usize)>,
    touched: BTreeSet<usize>,
    whole: u64,
    past: Stats,
}

struct Member {
    client: Client,
    tag: u32,
    due: Option<Instant>,
    stream: Reassembly,
    got: u64,
}

impl Crowd {
    fn new(clients: usize, over: Duration, seed: u64) -> Self {
        let mut crowd = Crowd {
            now: Instant::ZERO,
            rng: Rng::from_seed(seed),
            clients: Vec::new(),
            by_tag: BTreeMap::new(),
            timers: BTreeSet::new(),
            touched: BTreeSet::new(),
            whole: 0,
            past: Stats::default(),
        };
        for n in 0..clients {
            let begin = Instant::ZERO + over * n as u32 / clients as u32;
            let client = Client::open(Config::default(), 0, begin);
            let stream = Reassembly::default();
            crowd.clients.push(Member { client, tag: 0, due: Some(begin), stream, got: 0 });
            crowd.timers.insert((begin, n));
        }
        crowd
    }

    fn begin(&mut self, n: usize) {
        let token = self.rng.next_u64();
        let member = &mut self.clients[n];
        self.by_tag.remove(&member.tag);
        add(&mut self.past, member.client.stats());
        member.client = Client::open(Config::default(), token, self.now);
        (member.tag, member.stream) = (token as u32, Reassembly::default());
        self.by_tag.insert(member.tag, n);
    }

    fn take(&mut self, n: usize) {
        let member = &mut self.clients[n];
        while let Some(arrived) = member.client.poll_arrived() {
            if !arrived.user.is_empty() {
                member.client.want(0, OBJECT, arrived.user);
            }
            let before = member.stream.position();
            member.stream.insert(arrived.position, arrived.data);
            while member.stream.read().is_some() {}
            member.got += member.stream.position() - before;
        }
        if member.stream.position() == OBJECT {
            self.whole += 1;
            self.begin(n);
        }
        self.touched.insert(n);
    }

    fn stats(&self) -> Stats {
        let mut sum = self.past;
        self.clients.iter().for_each(|member| add(&mut sum, member.client.stats()));
        sum
    }
}

fn add(sum: &mut Stats, more: Stats) {
    sum.requests += more.requests;
    sum.received += more.received;
    sum.lost += more.lost;
    sum.recoveries += more.recoveries;
    sum.restarts += more.restarts;
    sum.probes += more.probes;
    sum.refused += more.refused;
}

enum End {
    Crowd(Box<Crowd>),
    /// With outages, all answers are lost for 5 ms when the server begins to send the end of an
    /// object.
    Server {
        server: Box<Server>,
        out: VecDeque<Vec<u8>>,
        outage: Option<Option<Instant>>,
    },
}

impl Machine for End {
    fn handle_packet(&mut self, now: Instant, _port: Port, packet: Vec<u8>) {
        let message = &packet[HEADERS..];
        match self {
            End::Server { server, out, outage } => {
                let answers = serve(server, now, address(), OBJECT, message);
                let Some(until) = outage else { return out.extend(answers) };
                if let Ok(Kind::Open { .. }) = Request::parse(message).map(|request| request.kind) {
                    *until = None;
                }
                for answer in answers {
                    let at = Response::parse(&answer).map_or(0, |answer| answer.payload.position);
                    if until.is_none() && at + 5_000 > OBJECT {
                        *until = Some(now + Duration::from_millis(5));
                    }
                    if until.is_none_or(|until| now > until) {
                        out.push_back(answer);
                    }
                }
            }
            End::Crowd(crowd) => {
                crowd.now = now;
                let tag = u32::from_be_bytes(message[1..5].try_into().unwrap());
                let Some(&n) = crowd.by_tag.get(&tag) else { return };
                crowd.clients[n].client.handle(now, message);
                crowd.take(n);
            }
        }
    }

    fn poll_transmit(&mut self) -> Option<(Port, Vec<u8>)> {
        let message = match self {
            End::Server { out, .. } => out.pop_front(),
            End::Crowd(crowd) => loop {
                let Some(&n) = crowd.touched.first() else { break None };
                let member = &mut crowd.clients[n];
                let mut get = Bytes::from_static(b"GET");
                if let Some(message) = member.client.poll_transmit(crowd.now, &mut get) {
                    break Some(message);
                }
                let due = member.client.poll_timeout();
                if due != member.due {
                    member.due.map(|due| crowd.timers.remove(&(due, n)));
                    due.map(|due| crowd.timers.insert((due, n)));
                    member.due = due;
                }
                crowd.touched.remove(&n);
            },
        };
        Some((0, [vec![0; HEADERS], message?].concat()))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            End::Crowd(crowd) => crowd.timers.first().map(|(due, _)| *due),
            End::Server { .. } => None,
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        let End::Crowd(crowd) = self else { return };
        crowd.now = now;
        while let Some(&(due, n)) = crowd.timers.first().filter(|(due, _)| *due <= now) {
            crowd.timers.remove(&(due, n));
            crowd.clients[n].due = None;
            if crowd.clients[n].tag == 0 {
                crowd.begin(n);
            } else {
                crowd.clients[n].client.handle_timeout(now);
            }
            crowd.touched.insert(n);
        }
    }
}

/// Throughput of the clients in a period after a warm-up.
struct Got {
    bytes: Vec<f64>,
    whole: u64,
    stats: Stats,
    seconds: f64,
}

impl Got {
    fn mbps(&self) -> f64 {
        self.bytes.iter().sum::<f64>() * 8.0 / 1e6 / self.seconds
    }

    fn jain(&self) -> f64 {
        let (sum, squares) = self.bytes.iter().fold((0.0, 0.0), |(s, q), b| (s + b, q + b * b));
        sum * sum / squares / self.bytes.len() as f64
    }

    fn starved(&self) -> usize {
        self.bytes.iter().filter(|bytes| **bytes == 0.0).count()
    }
}

fn measure(link: &str, clients: usize, [warm_up, window]: [u64; 2], outages: bool) -> Got {
    let [warm_up, window] = [warm_up, window].map(Duration::from_secs);
    let config: LinkConfig = link.parse().unwrap();
    let mut sim = Sim::new();
    let crowd = sim.add(End::Crowd(Box::new(Crowd::new(clients, warm_up / 2, 7))));
    let of_files = Box::new(server(Settings::default(), Instant::ZERO));
    let outage = outages.then_some(None);
    let server = sim.add(End::Server { server: of_files, out: VecDeque::new(), outage });
    sim.connect((crowd, 0), (server, 0), config.clone(), 1);
    sim.connect((server, 0), (crowd, 0), config, 2);
    let got = |sim: &Sim<End>| {
        let End::Crowd(crowd) = sim.node(crowd) else { panic!("no crowd") };
        let each: Vec<u64> = crowd.clients.iter().map(|member| member.got).collect();
        (each, crowd.whole, crowd.stats())
    };
    sim.run_until(Instant::ZERO + warm_up);
    let before = got(&sim);
    sim.run_until(Instant::ZERO + warm_up + window);
    let after = got(&sim);
    let bytes = after.0.iter().zip(&before.0).map(|(after, before)| (after - before) as f64);
    let got = Got {
        bytes: bytes.collect(),
        whole: after.1 - before.1,
        stats: after.2,
        seconds: window.as_secs_f64(),
    };
    println!(
        "{link}, {clients} clients: {:.1} Mb/s, Jain's index {:.3}, {} got nothing; {:?}",
        got.mbps(),
        got.jain(),
        got.starved(),
        got.stats
    );
    got
}

/// A full packet has 1,452 bytes, of which 1,345 are data, so the maximum is 92.6 Mb/s.
#[test]
fn a_crowd_fills_a_link_and_shares_it() {
    let link = "rate=100M,delay=500us,queue=250kB";
    for (clients, least, fair) in [(1, 85.0, 1.0), (10, 88.0, 0.8), (100, 85.0, 0.9)] {
        let got = measure(link, clients, [2, 4], false);
        assert!(got.mbps() > least && got.jain() >= fair && got.starved() == 0);
    }
}

#[test]
#[ignore = "takes a minute: up to 6,000 clients, as in the paper's figure"]
fn thousands_share_a_link() {
    for clients in [1, 10, 100, 1_000, 3_000, 6_000] {
        measure("rate=100M,delay=500us,queue=250kB", clients, [4, 8], false);
    }
}

/// No packets follow the last packets of an object, so without a probe the loss of one of them
/// would cost a timeout of 200 ms.
#[test]
fn a_lost_end_is_requested_again_before_a_timeout() {
    let got = measure("rate=100M,delay=5ms,queue=10MB", 1, [1, 4], true);
    assert!(got.stats.probes > 0 && got.stats.restarts == 0, "{:?}", got.stats);
    assert!(got.whole >= 4 * 6, "{} objects in four seconds", got.whole);
}

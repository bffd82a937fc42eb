//! Figure 17: two clients and two servers. Trickles packets are distributed round robin; TCP
//! connections are assigned to the server with the fewest connections.
//!
//! ```text
//!   Trickles   ─▶ 10.2.200.1:80 ─ viaduct spray: per packet ─────────────┬─ 100 Mb/s ─ b1 serve
//!   TCP, reno  ─▶ 10.2.200.1:80 ─ NAT per connection: fewest connections ┴─ 100 Mb/s ─ b2 serve
//! ```
//!
//! Traffic beyond the capacity of a server's link is dropped at the switch's port. The server's own
//! interface would not drop packets of the kernel's TCP: TCP small queues hold packets back until
//! there is room, which a network does not do.
//!
//! Second part, anycast: the route to the service flips between replicas while curl downloads.

use std::net::SocketAddrV4;

use super::download::{By, Download};
use super::least::LeastConnections;
use super::replicas::{Replicas, SERVICE, Service};
use super::served::{CONGESTION_CONTROL, PORT, get};
use crate::experiment::student_95;
use crate::experiments::prelude::*;
use crate::load::{Fetched, Fetches, Trickles};
use crate::sprays::{Spray, named};

const CONNECTIONS: [usize; 6] = [1, 2, 3, 5, 10, 20];
const QUICK: [usize; 2] = [1, 5];
/// Size of an object in bytes; each is fetched over a connection of its own.
const OBJECT: usize = 500_000;
/// A server's link, and its queue of 50 ms.
const LINK: (&str, &str) = ("htb rate 100mbit", "bfifo limit 625000");
const WARM_UP: Duration = Duration::from_secs(2);
const ROUNDS: usize = 6;
const QUICK_ROUNDS: usize = 3;
/// Maximum amounts by which Jain's index may be below that of TCP: over the two clients, and over
/// single connections, which the paper does not cover. The half-width of the confidence interval
/// replaces a smaller amount. Without contention, TCP's index is 1: with one connection per client,
/// because each client has a server to itself; with few connections, because the initial receive
/// windows are smaller than the queues, so that no packet is lost. The index of flows that share a
/// link is lower: by 0.001 if a client gets 3 % more than the mean.
const APART: (f64, f64) = (0.001, 0.005);
/// Minimum total throughput by Trickles relative to TCP's. The paper states no such bound, but
/// fairness alone is easy to achieve at low throughput.
const MIN_SHARE: f64 = 0.85;
/// Interval between route flips.
const FLIP: Duration = Duration::from_millis(100);
/// Bytes of the download during which the route flips.
const ANYCAST: usize = 30_000_000;

const WAYS: [By; 2] = [By::Trickles, By::Tcp];

pub(in crate::experiments) const ABOUT: About = About {
    name: "trickles/balance",
    title: "Packets distributed over two servers, compared with connections",
    figure: "Trickles, Figure 17",
    finding: "Round robin per packet divides the servers more fairly among clients than least \
              connections, for most numbers of connections.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let connections: &[usize] = run.choose(&CONNECTIONS, &QUICK);
    let rounds = run.choose(ROUNDS, QUICK_ROUNDS);
    let window = Duration::from_secs(run.choose(8, 3));
    run.param("link_of_each_server", format!("{}, {}", LINK.0, LINK.1));
    run.param("object_bytes", OBJECT);
    run.param("rounds", rounds);
    run.param("tcp", "NAT, by least connections");
    run.congestion_control(CONGESTION_CONTROL);
    run.steps(connections.len() * WAYS.len() + 1);
    let cluster = Cluster::build(run, window)?;
    let mut found = [Vec::new(), Vec::new()];
    for (by, found) in WAYS.into_iter().zip(&mut found) {
        let balancer = cluster.balancer(by)?;
        for &each in connections {
            run.step(&format!("{}, {each} connections a client", by.name()))?;
            let seed = run.seed() + each as u64;
            let many: Vec<_> =
                (0..rounds).map(|_| cluster.fetch(by, each, seed)).collect::<Result<_>>()?;
            draw(run, by, each, &many);
            found.push(many);
        }
        drop(balancer);
    }
    let [ours, theirs] = found;
    for ((each, ours), theirs) in connections.iter().zip(&ours).zip(&theirs) {
        check(run, *each, ours, theirs);
    }
    run.step("anycast")?;
    cluster.anycast(run)
}

struct Round {
    /// Jain's index of the two clients.
    clients: f64,
    /// Jain's index of all connections.
    connections: f64,
    /// Bits per second of all connections together.
    bits: f64,
    /// Failed fetches.
    failed: u64,
}

impl Round {
    /// Computes the result from the bytes of each connection, which alternate between the clients.
    fn of(fetched: &Fetched) -> Round {
        let all: Vec<f64> = fetched.bytes.iter().map(|bytes| *bytes as f64).collect();
        let client = |which: usize| all.iter().skip(which).step_by(2).sum::<f64>();
        Round {
            clients: jain(&[client(0), client(1)]),
            connections: jain(&all),
            bits: all.iter().sum::<f64>() * 8.0 / fetched.seconds,
            failed: fetched.failed,
        }
    }
}

fn draw(run: &mut Run, by: By, each: usize, rounds: &[Round]) {
    type Figure = (&'static str, (&'static str, &'static str), fn(&Round) -> f64);
    let figures: [Figure; 3] = [
        ("Fairness to two clients", ("Jain's index", ""), |round| round.clients),
        ("Fairness to all connections", ("Jain's index", ""), |round| round.connections),
        ("Total throughput", ("throughput", "Mb/s"), |round| round.bits / 1e6),
    ];
    for (title, y, value) in figures {
        let plot = Plot::line(title, ("connections of each client", ""), y).log_x();
        run.plot_points(&plot, by.name(), rounds.iter().map(|one| (each as f64, value(one))));
    }
}

fn check(run: &mut Run, each: usize, ours: &[Round], theirs: &[Round]) {
    let of = |rounds: &[Round], what: fn(&Round) -> f64| -> Vec<f64> {
        rounds.iter().map(what).collect()
    };
    for (name, what, apart) in [
        ("clients", (|round| round.clients) as fn(&Round) -> f64, APART.0),
        ("connections", |round| round.connections, APART.1),
    ] {
        let (ours, theirs) = (of(ours, what), of(theirs, what));
        let interval = student_95(&ours).hypot(student_95(&theirs));
        let name =
            format!("{each} connections a client: Jain's index of {name}, minus that of TCP");
        run.at_least(&name, mean(&ours) - mean(&theirs), -interval.max(apart));
    }
    let bits = |rounds: &[Round]| mean_of(rounds, |round| round.bits);
    let name = format!("{each} connections a client: total throughput, relative to TCP");
    run.at_least(&name, bits(ours) / bits(theirs), MIN_SHARE);
    let name = format!("{each} connections a client: failed fetches by Trickles");
    let failed = ours.iter().map(|round| round.failed).sum::<u64>() as f64;
    run.at_most(&name, failed, 0.0);
}

/// Servers, whose links are the bottleneck.
struct Cluster {
    world: Replicas,
    _servers: Vec<Service>,
    content: Vec<u8>,
    /// Measured time.
    window: Duration,
}

/// Balancer in front of the servers; removed when this value is dropped.
enum Balancer<'a> {
    Packets { _spray: Spray },
    Least { _nat: LeastConnections<'a> },
}

impl Cluster {
    fn build(run: &Run, window: Duration) -> Result<Cluster> {
        let world = Replicas::build(2, Wan::Veth, run.journal())?;
        world.file("object", OBJECT, run.seed())?;
        let content = world.file("big", ANYCAST, run.seed())?;
        let balanced: &[&str] = &["--balanced"];
        let servers = (0..2).map(|n| world.serve(n, balanced)).collect::<Result<_>>()?;
        for host in world.net.hosts_b() {
            host.set_offloads("eth0", false)?;
        }
        let switch = world.net.gateway_b();
        switch.run("nft", &[PORTS])?;
        for words in links() {
            switch.run("tc", &words.split(' ').collect::<Vec<_>>())?;
        }
        Ok(Cluster { world, _servers: servers, content, window })
    }

    fn balancer(&self, by: By) -> Result<Balancer<'_>> {
        let gateway = self.world.net.gateway_b();
        let [b1, b2] = self.world.net.hosts_b() else { bail!("two servers are expected") };
        let (b1, b2) = (b1.v4(), b2.v4());
        if by == By::Trickles {
            let to = SocketAddrV4::new(SERVICE, PORT);
            let _spray = Spray::start(gateway, "wan0", to, &named(self.world.net.hosts_b()))?;
            return Ok(Balancer::Packets { _spray });
        }
        Ok(Balancer::Least { _nat: LeastConnections::start(gateway, [b1, b2])? })
    }

    /// Fetches with `each` connections of each client for the measured time.
    fn fetch(&self, by: By, each: usize, seed: u64) -> Result<Round> {
        let (clients, warm_up) = (2 * each, WARM_UP);
        let fetches = Fetches { request: &get("object"), clients, warm_up, window: self.window };
        let to = SocketAddr::new(SERVICE.into(), PORT);
        let fetched = match by {
            By::Tcp => fetches.by_tcp(self.client(), to)?,
            By::Trickles => {
                let mut clients = Trickles::open(&self.world.net, to, seed)?;
                fetches.by_trickles(&mut clients)?
            }
        };
        Ok(Round::of(&fetched))
    }

    fn client(&self) -> &Host {
        self.world.net.a1()
    }

    /// Flips the route during a download.
    fn anycast(&self, run: &mut Run) -> Result<()> {
        let begun = Instant::now();
        let url = Replicas::url("big");
        let run_dir = self.world.scratch().path();
        let download = Download {
            host: self.client(),
            by: By::Trickles,
            pause: Duration::ZERO,
            url: &url,
            content: &self.content,
            run_dir,
            limit: Duration::from_secs(30),
        };
        let (mut flips, found) = thread::scope(|scope| -> Result<_> {
            let client = scope.spawn(|| download.run(begun));
            let mut flips = 0;
            while !client.is_finished() {
                thread::sleep(FLIP);
                flips += 1;
                self.world.lead_to(flips % 2)?;
            }
            Ok((flips, join(client)?))
        })?;
        flips = flips.min((found.end() / FLIP.as_secs_f64()) as usize);
        run.param("anycast_flips", flips);
        run.at_least("anycast: flips during the download", flips as f64, 5.0);
        run.at_least("anycast: complete downloads", f64::from(found.whole), 1.0);
        let name = "anycast: throughput, Mb/s";
        let bits = found.bytes() as f64 * 8.0 / found.end();
        run.at_least(name, bits / 1e6, 20.0);
        Ok(())
    }
}

/// Classifies a server's packets by the switch port that they enter.
const PORTS: &str = "table ip ports {
    chain forward {
        type filter hook forward priority 0; policy accept;
        iifname b1 meta priority set 1:1
        iifname b2 meta priority set 1:2
    }
}";

/// Returns the `tc` commands that create a link per port.
fn links() -> Vec<String> {
    let port = |n: usize| {
        [
            format!("class add dev wan0 parent 1: classid 1:{n} {}", LINK.0),
            format!("qdisc add dev wan0 parent 1:{n} {}", LINK.1),
        ]
    };
    let root = "qdisc replace dev wan0 root handle 1: htb r2q 100".to_owned();
    [root].into_iter().chain((1..=2).flat_map(port)).collect()
}

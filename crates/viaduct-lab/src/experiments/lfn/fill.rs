//! One bulk session through the tunnel fills the link, and an echo beside it hardly notices: on
//! clean links, and at 1 % loss with FEC gateways below, with senders held below the line and without.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use super::link;
use crate::example_tunnel::{Links, Tunnel};
use crate::experiment::{About, Bound, Experiment, Plot, Run};
use crate::experiments::statistics::quantile;
use crate::gateways::GatewaySpec;
use crate::topology::programs::sessions::{SessionServer, echo, fill};
use crate::topology::{DumbbellSpec, Wan};
use crate::world::World;

/// The experiment.
pub(in crate::experiments) struct Fill;

const PORT: u16 = 6200;
/// The share of a link's bits that are payload: 1448 of each 1500 bytes.
const PAYLOAD: f64 = 1448.0 / 1500.0;
/// Of the hosts where packets are lost, so that repairs fit; QUIC needs 1228.
const LOSSY_MTU: u32 = 1240;
/// Below the tunnel where packets are lost: the code that `maelstrom/throughput-burst` holds to its
/// bar.
const CODE: &str = "code = \"window\"\nwindow = 240\nr = 10\nc = 3";

/// What an operator does who knows the line: senders are held below it, so that repairs find room and
/// no queue stands. (Three repairs for ten packets make 175 of 130 Mb/s.)
const SHAPED: [&str; 12] = [
    "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "130mbit", "burst", "32kb", "latency",
    "100ms",
];

/// A path.
struct Path {
    name: &'static str,
    /// Mb/s, and milliseconds there and back.
    rate: u32,
    rtt: u32,
    loss: &'static str,
}

const PATHS: [Path; 4] = [
    Path { name: "200 Mb/s, 100 ms", rate: 200, rtt: 100, loss: "none" },
    Path { name: "1 Gb/s, 60 ms", rate: 1000, rtt: 60, loss: "none" },
    Path { name: "200 Mb/s, 100 ms, 1 %, FEC", rate: 200, rtt: 100, loss: "1%" },
    Path { name: "200 Mb/s, 100 ms, 1 % in bursts of 8, FEC", rate: 200, rtt: 100, loss: "1%x8" },
];

/// What an operator would set for the path, in all hosts. BBR keeps a queue short and a rate through
/// loss, but takes some 3 % of a clean link for its probes, with a tunnel and without.
fn congestion(path: &Path) -> &'static str {
    if path.loss == "none" { "cubic" } else { "bbr" }
}

impl Experiment for Fill {
    fn about(&self) -> About {
        About {
            name: "lfn/fill",
            title: "One bulk session through the tunnel, and an echo beside it",
            figure: "beyond the slides: against today's tunnels",
            finding: "Today's tunnels: yamux's fixed window carries 33 Mb/s at 60 ms; kcptun's \
                      echo has a median of 3.5 to 4.6 round trips, hysteria's a 99th percentile \
                      of 2 to 6.5.",
        }
    }

    fn run(&self, run: &mut Run) -> Result<()> {
        let seconds = run.choose((6, 20), (4, 6));
        // Without a tunnel: what a flow and an echo do by themselves on the same path.
        let single = Links::tcp(1);
        let links = [Links::tcp(2), Links::quic(), single];
        let links = links.into_iter().take(run.choose(3, 2)).map(Some);
        let ways: Vec<_> = std::iter::once(None).chain(links).collect();
        run.param("link_queue_ms", 100);
        run.param("code_where_packets_are_lost", CODE.replace('\n', ", "));
        run.param("warm_up_and_seconds", vec![seconds.0, seconds.1]);
        run.congestion_control("cubic on clean paths, bbr where packets are lost");
        run.param("senders_held_where_packets_are_lost", "tbf, 130 Mb/s");
        run.param("hosts_mtu_where_packets_are_lost", LOSSY_MTU);
        let lossy = PATHS.iter().filter(|path| path.is_lossy()).count();
        run.steps((PATHS.len() + lossy) * ways.len());
        for (x, path) in PATHS.iter().enumerate() {
            // Where packets are lost, once with senders held below the line and once as they are.
            let holds: &[bool] = if path.is_lossy() { &[true, false] } else { &[false] };
            for &held in holds {
                for &links in &ways {
                    let name = links.map_or("plain connections".into(), Links::name);
                    let free = if path.is_lossy() && !held { ", senders not held" } else { "" };
                    let name = format!("{name}{free}");
                    run.step(&format!("{}, {name}", path.name))?;
                    let found = path.measure(run, links, held, seconds)?;
                    found.tell(run, (x, path), &name);
                    // One TCP link is not what a tunnel has unless told so: an echo waits for all that
                    // stops the bulk session. It is there to be compared.
                    if links.is_some_and(|links| links != single) {
                        found.check(run, path, &name);
                    }
                }
            }
        }
        Ok(())
    }
}

/// What came of a path.
struct Found {
    /// Mb/s of the bulk session.
    rate: f64,
    /// Times of echoes, ms; endless where none came back.
    echoes: Vec<f64>,
}

impl Path {
    fn is_lossy(&self) -> bool {
        self.loss != "none"
    }

    /// `held`: senders are kept below the line.
    fn measure(
        &self,
        run: &Run,
        links: Option<Links>,
        held: bool,
        seconds: (u64, u64),
    ) -> Result<Found> {
        let text =
            format!("rate={}M,delay={}ms,queue=100ms,loss={}", self.rate, self.rtt / 2, self.loss);
        let wan = Wan::emulated(link(&text), run.seed());
        let lossy = self.is_lossy();
        let host_mtu = if lossy { LOSSY_MTU } else { 1500 };
        let spec = DumbbellSpec { hosts: 2, host_mtu, wan, ..DumbbellSpec::default() };
        let mut world = World::build(&spec, run.journal())?;
        if lossy {
            world.protect(&GatewaySpec::fec(CODE).host_mtu(LOSSY_MTU))?;
        }
        let (near, far) = (&world.dumbbell.hosts_a()[1], &world.dumbbell.hosts_b()[1]);
        for host in [near, far, world.a1(), world.b1()] {
            host.set_congestion_control(congestion(self))?;
        }
        if held {
            // Who sends by the link: in front of a tunnel no operator holds servers.
            let sender = if links.is_some() { far } else { world.b1() };
            sender.run("tc", &SHAPED)?;
        }
        let server = SessionServer::start(world.b1(), PORT)?;
        let links = links.map(|links| links.congestion(congestion(self)));
        let tunnel = links.map(|links| Tunnel::start(near, far, server.address(), links));
        let tunnel = tunnel.transpose()?;
        let (a1, to) = (world.a1(), tunnel.as_ref().map_or(server.address(), Tunnel::entrance));
        let [warm_up, duration] = [seconds.0, seconds.1].map(Duration::from_secs);
        thread::scope(|scope| {
            let bulk = scope.spawn(move || fill(a1, to, (warm_up, duration)));
            thread::sleep(warm_up);
            let echoes = echo(a1, to, Duration::from_millis(10), duration)?;
            let rate = bulk.join().ok().context("the bulk session's thread panicked")??;
            let ms = |t: Option<Duration>| t.map_or(f64::INFINITY, |t| t.as_secs_f64() * 1e3);
            Ok(Found { rate: rate / 1e6, echoes: echoes.into_iter().map(ms).collect() })
        })
    }
}

impl Found {
    /// Median and 99th percentile of echoes, in round trips of the path.
    fn echo(&self, path: &Path) -> [f64; 2] {
        [0.5, 0.99].map(|q| quantile(&self.echoes, q) / f64::from(path.rtt))
    }

    /// The share of the link's payload.
    fn share(&self, path: &Path) -> f64 {
        self.rate / f64::from(path.rate) / PAYLOAD
    }

    fn tell(&self, run: &mut Run, (x, path): (usize, &Path), name: &str) {
        let [median, p99] = self.echo(path);
        let figures = [
            ("Bulk session", "Mb/s", self.rate),
            ("Bulk session, of the link's payload", "%", 100.0 * self.share(path)),
            ("Echo of 100 bytes beside it, median", "RTT", median),
            ("Echo of 100 bytes beside it, 99th percentile", "RTT", p99),
        ];
        for (title, unit, value) in figures {
            let plot = Plot::histogram(title, ("path", ""), ("value", unit));
            let series = run.series(&plot, name);
            run.labelled_point(series, x as f64, value, path.name);
        }
    }

    fn check(&self, run: &mut Run, path: &Path, name: &str) {
        if !path.is_lossy() {
            let check = format!("{}, {name}: share of the link's payload", path.name);
            return run.check(&check, self.share(path), Bound::AtLeast(0.95));
        }
        let [median, p99] = self.echo(path);
        let check = format!("{}, {name}: echo beside bulk, median, RTT", path.name);
        run.check(&check, median, Bound::AtMost(1.1));
        let check = format!("{}, {name}: echo beside bulk, 99th percentile, RTT", path.name);
        run.check(&check, p99, Bound::AtMost(2.0));
    }
}

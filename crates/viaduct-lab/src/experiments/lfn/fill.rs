//! Bulk session through a tunnel, and a concurrent echo: on clean links, and on links with 1 % loss
//! and FEC gateways, with and without shaping of the sender below the link's rate. The checks: on
//! clean links the session fills the link; at 1 % loss the echo is hardly delayed.

use crate::example_tunnel::{Links, Tunnel};
use crate::experiments::prelude::*;
use crate::topology::programs::sessions::{SessionServer, echo, fill};

const PORT: u16 = 6200;
/// Payload share of a link's bits: 1448 of each 1500 bytes.
const PAYLOAD: f64 = 1448.0 / 1500.0;
/// MTU of the hosts on lossy paths, so that repairs fit; QUIC needs 1228.
const LOSSY_MTU: u32 = 1240;
/// FEC code of the gateways on lossy paths: `maelstrom/throughput-burst` checks its throughput.
const CODE: &str = "code = \"window\"\nwindow = 240\nr = 10\nc = 3";

/// Shaping by an operator who knows the link's rate: the sender stays below this rate, so that
/// there is room for repairs and no standing queue forms. (With three repairs per ten packets, and
/// the repairs' headers, 130 Mb/s of data use 175 Mb/s of the link.)
const SHAPED: [&str; 12] = [
    "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "130mbit", "burst", "32kb", "latency",
    "100ms",
];

struct Path {
    name: &'static str,
    /// Rate in Mb/s.
    rate: u32,
    /// Round trip in milliseconds.
    rtt: u32,
    loss: &'static str,
}

const PATHS: [Path; 4] = [
    Path { name: "200 Mb/s, 100 ms", rate: 200, rtt: 100, loss: "none" },
    Path { name: "1 Gb/s, 60 ms", rate: 1000, rtt: 60, loss: "none" },
    Path { name: "200 Mb/s, 100 ms, 1 %, FEC", rate: 200, rtt: 100, loss: "1%" },
    Path { name: "200 Mb/s, 100 ms, 1 % in bursts of 8, FEC", rate: 200, rtt: 100, loss: "1%x8" },
];

/// Returns the congestion control that an operator would choose for the path; all hosts use it.
/// Under loss, BBR keeps the queue short and the rate high. On a clean link, its probing costs
/// about 3 % of the rate, with a tunnel and without.
fn congestion(path: &Path) -> &'static str {
    if path.loss == "none" { "cubic" } else { "bbr" }
}

pub(in crate::experiments) const ABOUT: About = About {
    name: "lfn/fill",
    title: "One bulk session through the tunnel, and a concurrent echo",
    figure: "beyond Taming the LFN: comparison with today's tunnels",
    finding: "yamux's fixed window limits a session to 33 Mb/s at 60 ms. During a bulk session an \
              echo takes a median of 3.5 to 4.6 round trips through kcptun, and a 99th percentile \
              of 2 to 6.5 through hysteria.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let seconds = run.choose((6, 20), (4, 6));
    // The first configuration has no tunnel: a flow and an echo on their own connections.
    let single = Links::tcp(1);
    let links = [Links::tcp(2), Links::quic(), single];
    let links = links.into_iter().take(run.choose(3, 2)).map(Some);
    let setups: Vec<_> = std::iter::once(None).chain(links).collect();
    run.param("link_queue_ms", 100);
    run.param("code_where_packets_are_lost", CODE.replace('\n', ", "));
    run.param("warm_up_and_seconds", vec![seconds.0, seconds.1]);
    run.congestion_control("cubic on clean paths, bbr where packets are lost");
    run.param("senders_shaped_where_packets_are_lost", "tbf, 130 Mb/s");
    run.param("hosts_mtu_where_packets_are_lost", LOSSY_MTU);
    let lossy = PATHS.iter().filter(|path| path.is_lossy()).count();
    run.steps((PATHS.len() + lossy) * setups.len());
    for (x, path) in PATHS.iter().enumerate() {
        // Lossy paths are measured twice: with a shaped sender, and with one that is not shaped.
        let shapings: &[bool] = if path.is_lossy() { &[true, false] } else { &[false] };
        for &shaped in shapings {
            for &links in &setups {
                let name = links.map_or("plain connections".into(), Links::name);
                let free = if path.is_lossy() && !shaped { ", senders not shaped" } else { "" };
                let name = format!("{name}{free}");
                run.step(&format!("{}, {name}", path.name))?;
                let found = path.measure(run, links, shaped, seconds)?;
                found.plot_results(run, (x, path), &name);
                // A single TCP link is measured for comparison only. It is not the default of a
                // tunnel: whatever stalls the bulk session stalls the echo as well.
                if links.is_some_and(|links| links != single) {
                    found.check(run, path, &name);
                }
            }
        }
    }
    Ok(())
}

struct Found {
    /// Rate of the bulk session in Mb/s.
    rate: f64,
    /// Round-trip times of the echoes in ms; infinity for a lost echo.
    echoes: Vec<f64>,
}

impl Path {
    fn is_lossy(&self) -> bool {
        self.loss != "none"
    }

    /// Measures the path; if `shaped`, the sender is limited to less than the path's rate.
    fn measure(
        &self,
        run: &Run,
        links: Option<Links>,
        shaped: bool,
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
        if shaped {
            // The host that sends over the link: the tunnel's far end, or the server if there is no
            // tunnel. An operator does not shape the servers behind a tunnel.
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
            let rate = join(bulk)?;
            let ms = |t: Option<Duration>| t.map_or(f64::INFINITY, |t| t.as_secs_f64() * 1e3);
            Ok(Found { rate: rate / 1e6, echoes: echoes.into_iter().map(ms).collect() })
        })
    }
}

impl Found {
    /// Returns the median and 99th percentile of the echo times, in round trips of the path.
    fn echo(&self, path: &Path) -> [f64; 2] {
        [0.5, 0.99].map(|q| quantile(&self.echoes, q) / f64::from(path.rtt))
    }

    /// Returns the rate as a share of the link's payload rate.
    fn share(&self, path: &Path) -> f64 {
        self.rate / f64::from(path.rate) / PAYLOAD
    }

    fn plot_results(&self, run: &mut Run, (x, path): (usize, &Path), name: &str) {
        let [median, p99] = self.echo(path);
        let figures = [
            ("Bulk session", "Mb/s", self.rate),
            ("Bulk session, share of the link's payload rate", "%", 100.0 * self.share(path)),
            ("Echo of 100 bytes during the bulk session, median", "RTT", median),
            ("Echo of 100 bytes during the bulk session, 99th percentile", "RTT", p99),
        ];
        for (title, unit, value) in figures {
            let plot = Plot::histogram(title, ("path", ""), ("value", unit));
            run.plot_bar(&plot, name, (x, path.name), value);
        }
    }

    fn check(&self, run: &mut Run, path: &Path, name: &str) {
        if !path.is_lossy() {
            let check = format!("{}, {name}: share of the link's payload", path.name);
            return run.at_least(&check, self.share(path), 0.95);
        }
        let [median, p99] = self.echo(path);
        run.at_most(&format!("{}, {name}: echo during bulk, median, RTT", path.name), median, 1.1);
        let check = format!("{}, {name}: echo during bulk, 99th percentile, RTT", path.name);
        run.at_most(&check, p99, 2.0);
    }
}

//! FEC below a tunnel: a bulk flow and small documents at 1 % loss, with neither FEC nor tunnel,
//! with each alone, and with both.
//!
//! ```text
//!   a1 ──▶ (a2 near end) ──▶ (gwa) ══ 1 % lost ══ (gwb) ──▶ (far end b2) ──▶ b1
//!             tunnel           └──── FEC ────────┘
//! ```

use crate::example_tunnel::{Links, Tunnel};
use crate::experiments::prelude::*;
use crate::topology::programs::sessions::{SessionServer, fetch, fill};

/// Congestion control of every host, for plain flows and the tunnel's link.
const CONGESTION: &str = "cubic";
const CODE: &str = "code = \"window\"\nwindow = 240\nr = 10\nc = 3";
const PORT: u16 = 6200;
/// Bytes per document.
const DOCUMENT: u64 = 10_000;
/// Number of clients, each of which fetches one document at a time.
const CLIENTS: usize = 8;

const LOSSES: [(&str, &str); 2] = [("single packets", "1%"), ("bursts of 8", "1%x8")];

/// Systems between the sites.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Planes {
    fec: bool,
    tunnel: bool,
}

const ALL: [Planes; 4] = [
    Planes { fec: false, tunnel: false },
    Planes { fec: false, tunnel: true },
    Planes { fec: true, tunnel: false },
    Planes { fec: true, tunnel: true },
];

impl Planes {
    fn name(self) -> &'static str {
        match (self.fec, self.tunnel) {
            (false, false) => "neither",
            (false, true) => "tunnel",
            (true, false) => "FEC",
            (true, true) => "FEC and tunnel",
        }
    }
}

#[derive(Clone, Copy)]
struct Found {
    /// Rate of a bulk flow in Mb/s.
    bulk: f64,
    /// Median of the times of small documents in ms.
    median: f64,
    /// 95th percentile of the times of small documents in ms.
    p95: f64,
}

pub(in crate::experiments) const ABOUT: About = About {
    name: "site/all",
    title: "FEC under the tunnel: both planes, each alone, neither",
    figure: "both planes: Maelstrom below, Taming the LFN above",
    finding: "Neither paper discusses the combined effect.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (documents, warm_up, bulk) = run.choose((20, 8, 20), (5, 6, 8));
    let losses = run.choose(&LOSSES[..], &LOSSES[1..]);
    run.param("link", "200 Mb/s, 100 ms round trip, queue 100 ms, 1 % lost");
    run.param("mtu", "hosts 1200, WAN 1500");
    run.param("code", CODE.replace('\n', ", "));
    run.param("links", "1, TCP");
    run.param("documents", format!("{DOCUMENT} bytes, {CLIENTS} clients"));
    run.param("seconds", vec![documents, warm_up, bulk]);
    run.congestion_control(CONGESTION);
    run.steps(losses.len() * ALL.len());
    let seconds = [documents, warm_up, bulk].map(Duration::from_secs);
    for (x, (name, loss)) in losses.iter().enumerate() {
        let mut found = Vec::new();
        for planes in ALL {
            run.step(&format!("{name}, {}", planes.name()))?;
            let this = measure(run, planes, loss, seconds)?;
            plot_results(run, planes, (x, name), &this);
            found.push(this);
        }
        checks(run, name, &found);
    }
    Ok(())
}

fn measure(
    run: &Run,
    planes: Planes,
    loss: &str,
    [documents, warm_up, bulk]: [Duration; 3],
) -> Result<Found> {
    let link = link(&format!("rate=200M,delay=50ms,queue=100ms,loss={loss}"));
    let wan = Wan::emulated(link, run.seed());
    let spec = DumbbellSpec { hosts: 2, host_mtu: 1200, wan, ..DumbbellSpec::default() };
    let mut world = World::build(&spec, run.journal())?;
    if planes.fec {
        world.protect(&GatewaySpec::fec(CODE).host_mtu(1200))?;
    }
    let sites = &world.dumbbell;
    sites.set_congestion_control(CONGESTION)?;
    let server = SessionServer::start(sites.b1(), PORT)?;
    let (near, far) = (&sites.hosts_a()[1], &sites.hosts_b()[1]);
    let tunnel = planes.tunnel.then(|| Tunnel::start(near, far, server.address(), Links::tcp(1)));
    let tunnel = tunnel.transpose()?;
    let to = tunnel.as_ref().map_or(server.address(), Tunnel::entrance);
    let times = browse(sites.a1(), to, documents)?;
    let bulk = fill(sites.a1(), to, (warm_up, bulk))? / 1e6;
    Ok(Found { bulk, median: quantile(&times, 0.5), p95: quantile(&times, 0.95) })
}

/// Returns the times of documents in ms, fetched one at a time by each client.
fn browse(from: &Host, to: SocketAddr, duration: Duration) -> Result<Vec<f64>> {
    let begin = Instant::now();
    let client = |_| -> Result<Vec<f64>> {
        let mut times = Vec::new();
        while begin.elapsed() < duration {
            times.push(fetch(from, to, DOCUMENT)?.as_secs_f64() * 1e3);
        }
        Ok(times)
    };
    Ok(parallel(0..CLIENTS, client)?.concat())
}

fn plot_results(run: &mut Run, planes: Planes, (x, label): (usize, &str), found: &Found) {
    let figures = [
        ("Bulk flow", "Mb/s", found.bulk),
        ("Documents of 10 KB, median", "ms", found.median),
        ("Documents of 10 KB, 95th percentile", "ms", found.p95),
    ];
    for (title, unit, value) in figures {
        let plot = Plot::histogram(title, ("loss", ""), ("value", unit));
        run.plot_bar(&plot, planes.name(), (x, label), value);
    }
}

fn checks(run: &mut Run, name: &str, found: &[Found]) {
    let [_, tunnel, fec, both] = found else { return };
    let mut check = |what: &str, value, bound| run.check(&format!("{name}: {what}"), value, bound);
    check("bulk, both relative to the tunnel alone", both.bulk / tunnel.bulk, Bound::AtLeast(2.0));
    check("bulk, both relative to FEC alone", both.bulk / fec.bulk, Bound::AtLeast(0.95));
    check(
        "median document, both relative to FEC alone",
        both.median / fec.median,
        Bound::AtMost(0.8),
    );
    check(
        "median document, both relative to the tunnel alone",
        both.median / tunnel.median,
        Bound::AtMost(1.02),
    );
    check("late documents, both relative to FEC alone", both.p95 / fec.p95, Bound::AtMost(1.0));
    check(
        "late documents, both relative to the tunnel alone",
        both.p95 / tunnel.p95,
        Bound::AtMost(1.0),
    );
}

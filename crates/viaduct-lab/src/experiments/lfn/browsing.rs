//! Web browsing by the users of an office over a long link: the load of requests, and the
//! configurations between client and server.
//!
//! ```text
//!   a1 requests ─────────────────────────────────────────────────────────▶ b1 web server   Plain
//!   a1 requests ─▶ a2 near end ═════════ links ═════════▶ b2 far end ────▶ b1              Tunnel
//!   a1 requests ─▶ a2 child ──────────────────────────▶ b2 parent Squid ─▶ b1              Squid
//!   a1 requests ─▶ a2 child ─▶ near end ═══ links ═══▶ far end ─▶ parent ─▶ b1   SquidTunnel
//!                                10 Mb/s
//!   b1 ─── iperf3, one TCP flow ─────────────────────────▶ a1          concurrent traffic
//! ```

use crate::example_tunnel::{Links, Tunnel};
use crate::experiments::prelude::*;
use crate::topology::programs::{Connections, Documents, Request, Requests, Squid, WebServer};

/// Congestion control of all hosts, and so of the tunnel's and Squid's connections and of the
/// concurrent flow.
pub(super) const CONGESTION: &str = "cubic";
/// Requests per second, as in the slides on "Taming the LFN".
const RATE: f64 = 20.0;
/// Size in KB below which a document is small.
const SMALL: usize = 10;
/// Maximum number of concurrent loads.
const AT_ONCE: usize = 4;
const LOAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Configuration between the client and the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    /// A connection per document, from client to server.
    Plain,
    /// A connection per document, into a tunnel at the site's edge.
    Tunnel(Links),
    /// A child Squid and its parent.
    Squid(Windows, Connections),
    /// A child Squid whose parent is reached through a tunnel.
    SquidTunnel(Links),
    /// Like `SquidTunnel`, with one TCP link in the first half of the load, and this number of
    /// links in the second half.
    SquidGrowing(usize),
}

/// Limit of the TCP window between Squids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Windows {
    /// At most 64 KB, as without window scaling.
    Plain,
    /// Autotuned by the kernel, up to 64 MB.
    Large,
}

impl Setup {
    /// Returns whether this is a pair of Squids that are connected without a tunnel, by persistent
    /// connections.
    pub(super) fn keeps_connections(self) -> bool {
        matches!(self, Setup::Squid(_, Connections::Kept))
    }

    /// Returns the initial links of the tunnel.
    pub(super) fn links(self) -> Links {
        match self {
            Setup::Tunnel(links) | Setup::SquidTunnel(links) => links,
            _ => Links::tcp(1),
        }
    }

    /// Returns the display name.
    pub(super) fn name(self) -> String {
        match self {
            Setup::Plain => "plain connections".into(),
            Setup::Tunnel(links) | Setup::SquidTunnel(links) => links.name(),
            Setup::SquidGrowing(count) => format!("tunnel, 1 growing to {count}"),
            Setup::Squid(windows, connections) => {
                let windows = match windows {
                    Windows::Plain => "plain Squid",
                    Windows::Large => "Squid, large windows",
                };
                let kept = if connections == Connections::Kept { ", persistent" } else { "" };
                format!("{windows}{kept}")
            }
        }
    }
}

/// Load over one configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct Browsing {
    /// Configuration of the requests' path.
    pub(super) setup: Setup,
    /// Round trip in milliseconds.
    pub(super) rtt: u32,
    /// True if a bulk TCP flow runs during the load.
    pub(super) concurrent: bool,
    /// Duration of the load.
    pub(super) duration: Duration,
}

/// Results of a load.
pub(super) struct Browsed {
    /// All requests.
    pub(super) requests: Vec<Request>,
    /// Throughput of the concurrent flow in Mb/s.
    pub(super) concurrent: Option<f64>,
}

impl Browsing {
    /// Records the settings.
    pub(super) fn describe(run: &mut Run, seconds: u64) {
        run.param("link", "10 Mb/s, queue 100 ms");
        run.param("requests_per_second", RATE);
        run.param("arrivals", "Poisson");
        run.param("documents", "1 to 1000 KB by Zipf's law, exponent 1.7");
        run.param("seconds", seconds);
        run.congestion_control(CONGESTION);
    }

    /// Runs all `loads`, four at a time, each in a world of its own. Traffic over four links of 10
    /// Mb/s needs so little CPU time that the loads do not disturb each other.
    pub(super) fn all(run: &Run, loads: &[Browsing]) -> Result<Vec<Browsed>> {
        let (seed, journal, mut found) = (run.seed(), run.journal(), Vec::new());
        for some in loads.chunks(AT_ONCE) {
            stop::check()?;
            found.extend(parallel(some, |load| load.run(seed, journal))?);
        }
        Ok(found)
    }

    /// Runs the load in a world of its own.
    fn run(&self, seed: u64, journal: &Journal) -> Result<Browsed> {
        let config = link(&format!("rate=10M,delay={}ms,queue=100ms", self.rtt / 2));
        let world = Dumbbell::over(config, 2, seed, journal)?;
        world.set_congestion_control(CONGESTION)?;
        let documents = Documents::new(seed);
        let server = WebServer::with_documents(world.b1(), &documents)?;
        let path = Path::build(self.setup, &world, &server)?;
        let load = Requests {
            rate: RATE,
            duration: self.duration,
            timeout: LOAD_TIMEOUT,
            to: path.to,
            server: server.address(),
            proxied: path.child.is_some(),
            seed,
        };
        thread::scope(|scope| {
            let (from, to) = (world.b1(), world.a1());
            let concurrent = self.concurrent.then(|| scope.spawn(|| self.bulk_flow(from, to)));
            let growing = scope.spawn(|| self.grow(path.tunnel.as_ref()));
            let requests = load.run(world.a1(), &documents)?;
            join(growing)?;
            Ok(Browsed { requests, concurrent: concurrent.map(join).transpose()? })
        })
    }

    /// Adds links to a growing tunnel in the middle of the load.
    fn grow(&self, tunnel: Option<&Tunnel>) -> Result<()> {
        if let (Some(tunnel), Setup::SquidGrowing(count)) = (tunnel, self.setup) {
            thread::sleep(self.duration / 2);
            tunnel.set_links(count)?;
        }
        Ok(())
    }

    fn bulk_flow(&self, from: &Host, to: &Host) -> Result<f64> {
        let seconds = self.duration.as_secs() as u32;
        Ok(Iperf::tcp(CONGESTION, seconds, 0).run(from, to)?.received / 1e6)
    }
}

/// Programs between client and server.
struct Path {
    /// Address that the client connects to.
    to: SocketAddr,
    child: Option<Squid>,
    _parent: Option<Squid>,
    tunnel: Option<Tunnel>,
}

impl Path {
    fn build(setup: Setup, world: &Dumbbell, server: &WebServer) -> Result<Path> {
        let (near, far) = (&world.hosts_a()[1], &world.hosts_b()[1]);
        let (mut child, mut parent, mut tunnel) = (None, None, None);
        match setup {
            Setup::Plain => {}
            Setup::Tunnel(links) => {
                tunnel = Some(Tunnel::start(near, far, server.address(), links)?);
            }
            Setup::Squid(windows, connections) => {
                for host in [near, far].into_iter().filter(|_| windows == Windows::Plain) {
                    host.set_sysctls(&WINDOWS_OF_64_KB)?;
                }
                let squid = parent.insert(Squid::parent(far, connections)?);
                child = Some(Squid::child(near, Some(squid.address()), connections)?);
            }
            Setup::SquidTunnel(_) | Setup::SquidGrowing(_) => {
                let squid = parent.insert(Squid::parent(far, Connections::Kept)?);
                let from_its_host = (Ipv4Addr::LOCALHOST, squid.address().port()).into();
                tunnel = Some(Tunnel::start(near, far, from_its_host, setup.links())?);
                child = Some(Squid::child(near, None, Connections::Kept)?);
            }
        }
        let entrance = tunnel.as_ref().map_or(server.address(), Tunnel::entrance);
        let to = child.as_ref().map_or(entrance, Squid::address);
        Ok(Path { to, child, _parent: parent, tunnel })
    }
}

const WINDOWS_OF_64_KB: [(&str, &str); 2] =
    [("net/ipv4/tcp_rmem", "4096 65536 65536"), ("net/ipv4/tcp_wmem", "4096 65536 65536")];

impl Browsed {
    /// Returns the quantile `q` of the response times of the documents whose size `which` selects,
    /// in ms. The time of a document that never arrived is infinite.
    pub(super) fn quantile(&self, q: f64, which: impl Fn(usize) -> bool) -> f64 {
        let ms = |r: &Request| r.time.map_or(f64::INFINITY, |time| time.as_secs_f64() * 1e3);
        let times = self.requests.iter().filter(|r| which(r.kb)).map(ms);
        quantile(&times.collect::<Vec<_>>(), q)
    }

    /// Returns the quantile `q` of the response times of documents below 10 KB, in ms.
    pub(super) fn small(&self, q: f64) -> f64 {
        self.quantile(q, |kb| kb < SMALL)
    }

    /// Counts the documents that never arrived.
    pub(super) fn never(&self) -> usize {
        self.requests.iter().filter(|request| request.time.is_none()).count()
    }

    /// Returns the total size in KB of the documents whose transfer completed in each second.
    pub(super) fn kb_by_second(&self) -> Vec<f64> {
        let mut seconds: Vec<f64> = Vec::new();
        for request in &self.requests {
            let Some(time) = request.time else { continue };
            let second = (request.sent + time).as_secs() as usize;
            seconds.resize(seconds.len().max(second + 1), 0.0);
            seconds[second] += request.kb as f64;
        }
        seconds
    }
}

//! Choice of hops by real programs: eight nodes in namespaces, each with `viaduct overlay` and
//! `viaduct proxy --next auto`, and a client at the first one.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream};

use rustix::net::{Shutdown, shutdown};
use viaduct_proto::placement::Route;
use viaduct_proto::placement::status::AutoStatus;
use viaduct_proto::placement::world::World as Places;
use viaduct_proto::split::extension::Onward;
use viaduct_proto::split::proxy::{Addresses, emit};

use crate::experiments::prelude::*;
use crate::overlays::{HOP, Overlays};
use crate::topology::Mesh;

const NODES: u8 = 8;
const SERVERS: u8 = 5;
/// Minimum number of servers in a measured matrix that benefit from hops.
const MIN_HELPED: usize = 2;
/// A server benefits from hops if the best route takes less than this share of the direct route's
/// time.
const CLEARLY: f64 = 0.9;
/// Port of the servers.
const SERVICE: u16 = 8080;
/// Interval between flows to one server.
const EVERY: Duration = Duration::from_millis(500);
/// Time for the first proxy to learn all round trips and to choose.
const WARM_UP: Duration = Duration::from_secs(15);
/// Interval at which flows begin around the failure of a hop.
const EVERY_AT_DEATH: Duration = Duration::from_millis(100);
/// Time in which these flows begin.
const WATCHED: Duration = Duration::from_secs(5);
/// Time limit of a flow.
const FLOW_TIMEOUT: Duration = Duration::from_secs(15);
/// A flow is late if it takes this much longer than the direct route.
const LATE: Duration = Duration::from_millis(100);

/// Measurements of one matrix.
#[derive(Default)]
pub(super) struct Found {
    /// Times to the first byte, relative to that of the best route according to the model.
    pub(super) over_best: Vec<f64>,
    /// Times to the first byte, relative to that of the direct route.
    pub(super) over_direct: Vec<f64>,
    /// Seconds from the failure of a hop to the beginning of the last late flow; `None` if no flow
    /// used a hop.
    pub(super) avoided_after: Option<f64>,
    /// Number of failed flows, without those that began before the hop was completely down.
    pub(super) failed: usize,
}

/// Network, overlay and proxies of one matrix.
struct Real {
    places: Places,
    _servers: Vec<Server>,
    proxies: Vec<Option<Proxy>>,
    overlays: Overlays,
    mesh: Mesh,
}

/// Server that answers the first byte of each connection with a byte.
struct Server {
    listener: TcpListener,
    thread: Option<thread::JoinHandle<()>>,
}

/// Flow: its beginning, and the time to its first byte or the reason for its failure.
struct Flow {
    begun: Instant,
    took: Result<Duration>,
}

/// Period in which a hop was killed: its links go down one after the other.
struct Death {
    begun: Instant,
    done: Instant,
}

/// Returns whether hops are useful in the matrix of this seed: the best routes to at least
/// [`MIN_HELPED`] servers lead through hops and are clearly shorter than the direct ones.
pub(super) fn is_useful(seed: u64) -> bool {
    let places = places(seed);
    let is_helped = |server: &usize| {
        places.best_ms(*server) < CLEARLY * places.first_byte_ms(Route::Direct, *server)
    };
    (0..SERVERS.into()).filter(is_helped).count() >= MIN_HELPED
}

fn places(seed: u64) -> Places {
    Places::new(seed, NODES.into(), SERVERS.into()).symmetric()
}

/// Measures `rounds` flows to each server of the matrix of this seed, and the failure of a hop.
pub(super) fn measure(seed: u64, rounds: usize, journal: &Journal) -> Result<Found> {
    let mut real = Real::start(seed, journal)?;
    real.warm_up()?;
    let mut found = Found::default();
    let flows = parallel(0..usize::from(SERVERS), |server| real.flows(server, rounds, EVERY))?;
    for (server, flows) in flows.into_iter().enumerate() {
        found.failed += failures(&flows);
        for took in flows.iter().filter_map(|flow| flow.took.as_ref().ok()) {
            let ms = took.as_secs_f64() * 1e3;
            found.over_best.push(ms / real.places.best_ms(server));
            found.over_direct.push(ms / real.places.first_byte_ms(Route::Direct, server));
        }
    }
    if let Some((hop, server)) = real.hop_in_use()? {
        let (flows, death) = real.kill(hop, server)?;
        // Flows that were already connected through the hop fail together with the hop.
        found.failed += failures(flows.iter().filter(|flow| flow.begun >= death.done));
        let direct = real.places.first_byte_ms(Route::Direct, server);
        let limit = Duration::from_secs_f64(direct / 1e3) + LATE;
        let in_time = |flow: &Flow| flow.took.as_ref().is_ok_and(|took| *took <= limit);
        let late = flows.iter().filter(|flow| flow.begun >= death.begun && !in_time(flow));
        let after = late.map(|flow| flow.begun.duration_since(death.begun).as_secs_f64());
        found.avoided_after = Some(after.fold(0.0, f64::max));
    }
    Ok(found)
}

impl Real {
    fn start(seed: u64, journal: &Journal) -> Result<Real> {
        let places = places(seed);
        let time = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        let mesh = Mesh::build(
            (NODES, SERVERS),
            |from, to| time(places.path_ms(from, to)),
            |node, server| time(places.last_rtt_ms(only(node), server)),
            journal,
        )?;
        let nodes: Vec<(&Node, IpAddr)> =
            mesh.nodes().iter().map(|host| (&**host, host.v4().into())).collect();
        let overlays = Overlays::start(&nodes, "")?;
        let proxies = mesh.nodes().iter().enumerate();
        let proxies = proxies.map(|(n, node)| start_proxy(n, node, &overlays).map(Some));
        let proxies = proxies.collect::<Result<_>>()?;
        let servers = mesh.servers().iter().map(Server::start).collect::<Result<_>>()?;
        Ok(Real { places, _servers: servers, proxies, overlays, mesh })
    }

    /// Makes each hop measure its round trips to all servers by flows of its own, and gives the
    /// first node time to choose.
    fn warm_up(&self) -> Result<()> {
        parallel(1..usize::from(NODES), |node| {
            (0..usize::from(SERVERS)).try_for_each(|server| self.own_flow(node, server))
        })?;
        let until = Instant::now() + WARM_UP;
        while Instant::now() < until {
            stop::check()?;
            parallel(0..usize::from(SERVERS), |server| self.flows(server, 1, EVERY).map(drop))?;
        }
        Ok(())
    }

    /// Sends a flow from a node to a server, through the node's own proxy.
    fn own_flow(&self, node: usize, server: usize) -> Result<()> {
        let host = &self.mesh.nodes()[node];
        let at = SocketAddr::new(host.v4().into(), HOP);
        let to = SocketAddr::new(self.mesh.servers()[server].v4().into(), SERVICE);
        let header = emit(&Addresses { onward: Onward::Direct, ..Addresses::new(at, to) });
        first_byte(host, at, &header).context("a hop's own flow failed")?;
        Ok(())
    }

    /// Runs `count` flows from the client to a server, which begin at intervals of `every`.
    fn flows(&self, server: usize, count: usize, every: Duration) -> Result<Vec<Flow>> {
        let to = SocketAddr::new(self.mesh.servers()[server].v4().into(), SERVICE);
        let start = Instant::now();
        thread::scope(|scope| {
            let begin = |n: usize| -> Result<_> {
                thread::sleep((start + every * n as u32).saturating_duration_since(Instant::now()));
                stop::check()?;
                Ok(scope.spawn(move || {
                    let begun = Instant::now();
                    Flow { begun, took: first_byte(self.mesh.client(), to, b"") }
                }))
            };
            let flows = (0..count).map(begin).collect::<Result<Vec<_>>>()?;
            thread::sleep((start + every * count as u32).saturating_duration_since(Instant::now()));
            let join = |flow: thread::ScopedJoinHandle<'_, Flow>| {
                flow.join().map_err(|_| anyhow::anyhow!("a flow's thread panicked"))
            };
            flows.into_iter().map(join).collect()
        })
    }

    /// Finds a hop that the first proxy has chosen, and the server to which the hop leads.
    fn hop_in_use(&self) -> Result<Option<(usize, usize)>> {
        let proxy = self.proxies[0].as_ref().context("the first proxy runs")?;
        let status: Value = daemon::status(&proxy.directory().join(format!("proxy-{HOP}.sock")))?;
        let auto: AutoStatus = serde_json::from_value(status["auto"].clone())?;
        let server = |address: IpAddr| {
            self.mesh.servers().iter().position(|host| IpAddr::from(host.v4()) == address)
        };
        Ok(auto.choices.iter().find_map(|choice| {
            let hop = choice.hops.last()?.strip_prefix('n')?.parse().ok()?;
            let mut servers = choice.network.hosts();
            Some((hop, server(servers.next()?)?))
        }))
    }

    /// Kills a hop while flows go to a server.
    fn kill(&mut self, hop: usize, server: usize) -> Result<(Vec<Flow>, Death)> {
        let count = (WATCHED.as_millis() / EVERY_AT_DEATH.as_millis()) as usize;
        let (flows, death) = thread::scope(|scope| -> Result<_> {
            let flows = scope.spawn(|| self.flows(server, count, EVERY_AT_DEATH));
            thread::sleep(5 * EVERY_AT_DEATH);
            let begun = Instant::now();
            self.mesh.kill(hop)?;
            let done = Instant::now();
            let flows = flows.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
            Ok((flows, Death { begun, done }))
        })?;
        self.proxies[hop] = None;
        self.overlays.stop(hop);
        Ok((flows, death))
    }
}

/// Counts the flows that failed, and prints the reasons.
fn failures<'a>(flows: impl IntoIterator<Item = &'a Flow>) -> usize {
    let errors = flows.into_iter().filter_map(|flow| flow.took.as_ref().err());
    errors.inspect(|why| eprintln!("a flow failed: {why:#}")).count()
}

/// Returns the route whose last node is `node`.
fn only(node: usize) -> Route {
    if node == 0 { Route::Direct } else { Route::One(node) }
}

/// Starts the proxy of node `n`. The first one intercepts its clients' connections.
fn start_proxy(n: usize, node: &Host, overlays: &Overlays) -> Result<Proxy> {
    let (overlay, at) = (overlays.socket(n).display().to_string(), node.v4());
    let clients = match n {
        0 => format!("--listen 0.0.0.0:{HOP} --intercept 10.2.0.0/16"),
        _ => format!(
            "--listen {at}:{HOP} --expect proxy --allow-from 10.1.0.0/24 --allow-to 10.2.0.0/16"
        ),
    };
    let words = clients.split(' ').chain(["--next", "auto", "--next-overlay", &overlay]);
    Proxy::start(node, &words.collect::<Vec<_>>())
}

/// Connects from `host`, sends `words` and a byte, and returns the time to the first byte.
fn first_byte(host: &Host, to: SocketAddr, words: &[u8]) -> Result<Duration> {
    let words = [words, b"?"].concat();
    host.netns().enter(|| -> Result<Duration> {
        let begun = Instant::now();
        let mut stream = TcpStream::connect_timeout(&to, FLOW_TIMEOUT)?;
        stream.set_read_timeout(Some(FLOW_TIMEOUT))?;
        stream.write_all(&words)?;
        stream.read_exact(&mut [0])?;
        Ok(begun.elapsed())
    })?
}

impl Server {
    fn start(host: &Host) -> Result<Server> {
        let bind = || TcpListener::bind((host.v4(), SERVICE));
        let listener = host.netns().enter(bind)??;
        let accepting = listener.try_clone()?;
        let serve = |mut stream: TcpStream| -> std::io::Result<()> {
            stream.read_exact(&mut [0])?;
            stream.write_all(b"!")
        };
        let thread = thread::spawn(move || {
            // The listener is shut down at the end.
            while let Ok((stream, _)) = accepting.accept() {
                thread::spawn(move || serve(stream));
            }
        });
        Ok(Server { listener, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ends `accept`; otherwise the thread would not end.
        if shutdown(&self.listener, Shutdown::Both).is_ok() {
            self.thread.take().map(thread::JoinHandle::join);
        }
    }
}

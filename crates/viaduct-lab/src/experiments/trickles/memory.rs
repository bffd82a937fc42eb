//! Figure 11: memory of the server, by the number of connected clients.
//!
//! ```text
//!   1 … 100,000 clients that have each fetched something and are then silent
//!   up to a million clients in total: the others disappear without notice to the server
//!   6,000 concurrent downloads
//!   a further fetch by each silent client
//! ```

use viaduct_proto::trickles::stream::{Config, State};
use viaduct_sys::poll::{Waker, wait};
use viaduct_sys::process::raise_fd_limit;

use super::served::{CONGESTION_CONTROL, Served, at, get};
use crate::experiments::prelude::*;
use crate::load::{Continuations, Crowd, Fetched, Fetches, Trickles};
use crate::topology::{Usage, socket_memory};

/// Connected and silent clients at each reading of the server's memory.
const CLIENTS: [usize; 4] = [1, 1_000, 10_000, 100_000];
const QUICK: [usize; 3] = [1, 1_000, 5_000];
/// Total number of clients that have connected by the end.
const MILLION: usize = 1_000_000;
const QUICK_MILLION: usize = 40_000;
/// Connections of TCP. Many machines allow a process 20,000 descriptors, and the server uses
/// two per connection.
const CONNECTIONS: [usize; 4] = [1, 1_000, 5_000, 9_000];
const AT_ONCE: usize = 1_000;
/// File that nine of ten silent clients have fetched: its name and its bytes.
const SMALL: (&str, usize) = ("stay", 300);
/// File that every tenth client has fetched, which takes more than one packet.
const LARGE: (&str, usize) = ("page", 5_000);
/// Bytes reserved for the response to a request.
const RESERVE: u64 = 64 << 10;
const OBJECT: usize = 500_000;
/// Maximum ratio of the server's memory to its memory with one client. TCP's ratio must be higher.
const ALIKE: f64 = 1.05;
/// Maximum bytes of a continuation, not counting its list of losses: the paper's 75.
const WHOLE: f64 = 75.0;
/// Maximum bytes of a delta-encoded continuation.
const DELTA: f64 = 27.0;
/// Time limit for a set of requests, to which [`EACH`] is added for each request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const EACH: Duration = Duration::from_millis(2);

pub(in crate::experiments) const ABOUT: About = About {
    name: "trickles/memory",
    title: "Memory of a server by number of connected clients",
    figure: "Trickles, Figure 11",
    finding: "TCP's memory grows with the number of clients; Trickles uses a constant, small \
              amount.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    run.congestion_control(CONGESTION_CONTROL);
    let counts = run.choose(CLIENTS.len() + CONNECTIONS.len(), QUICK.len() + 2);
    run.steps(counts + 3);
    by_trickles(run)?;
    by_tcp(run)
}

fn by_trickles(run: &mut Run) -> Result<()> {
    let counts: &[usize] = run.choose(&CLIENTS, &QUICK);
    let downloads = run.choose(6_000, 200);
    let world = Dumbbell::build(&DumbbellSpec::default(), run.journal())?;
    let served = serve(&world, run)?;
    let mut clients = Trickles::open(&world, at(world.b1()), run.seed())?;
    let (mut idle, mut found, before) = (Vec::new(), Vec::new(), lab_memory());
    for &count in counts {
        run.step(&format!("{count} clients"))?;
        let more = count - idle.len();
        idle.extend(each_fetches(&mut clients, &[], more, AfterFetch::Silent)?);
        found.push(resident(&served));
        draw(run, "Trickles", count, resident(&served));
    }
    run.param("client_bytes_each", ((lab_memory() - before) / idle.len() as f64).round());
    let million = run.choose(MILLION, QUICK_MILLION);
    run.step(&format!("until {million} clients have connected"))?;
    each_fetches(&mut clients, &[], million - idle.len(), AfterFetch::Gone)?;
    found.push(resident(&served));
    draw(run, "Trickles", million, resident(&served));
    run.step(&format!("{downloads} concurrent downloads"))?;
    let request = get("file");
    let (warm_up, window) = (Duration::from_secs(1), Duration::from_secs(run.choose(6, 1)));
    let fetches = Fetches { request: &request, clients: downloads, warm_up, window };
    let watched = watched(&served, world.b1(), || Ok(fetches.by_trickles(&mut clients)?))?;
    run.param("downloads", downloads);
    run.param("downloads_mbps", watched.fetched.mbps().round());
    run.param("downloads_packets_that_waited_bytes", watched.waiting);
    let active = watched.resident;
    found.push(active);
    run.step("a further fetch by each silent client")?;
    each_fetches(&mut clients, &idle, 0, AfterFetch::Silent)?;
    found.push(resident(&served));
    thread::sleep(Duration::from_millis(500));
    run.param("server", served.status()?);
    check(run, &found, idle.len(), &clients.counted().continuations);
    Ok(())
}

fn check(run: &mut Run, found: &[f64], idle: usize, seen: &Continuations) {
    let (first, most) = (found[0], found.iter().copied().fold(0.0, f64::max));
    run.at_most("maximum memory, relative to one client", most / first, ALIKE);
    // A failed client would have ended the experiment, so this is a parameter, not a check.
    run.param("silent_clients_that_went_on", idle);
    run.param("continuations_whole", seen.whole);
    run.param("continuations_deltas", seen.deltas);
    let name = "bytes of a continuation, without 12 per loss, maximum";
    run.within(name, seen.longest_whole as f64, 1.0, WHOLE);
    run.within("bytes of a delta, maximum", seen.longest_delta as f64, 1.0, DELTA);
}

/// Measures the same with TCP: memory of the server process, plus the kernel's memory for its
/// sockets.
fn by_tcp(run: &mut Run) -> Result<()> {
    let counts: &[usize] = run.choose(&CONNECTIONS, &CONNECTIONS[..2]);
    let most = counts.iter().copied().max().unwrap_or(0) as u64;
    let allowed = raise_fd_limit();
    ensure!(
        allowed > 2 * most + 600,
        "{most} connections take twice as many open files; {allowed} are allowed"
    );
    let world = Dumbbell::build(&DumbbellSpec::default(), run.journal())?;
    let served = serve(&world, run)?;
    let (before, mut found) = (socket_memory(), Vec::new());
    for &count in counts {
        run.step(&format!("{count} connections of TCP"))?;
        let crowd =
            Crowd::open(world.a1(), at(world.b1()), count, 250.min(count), REQUEST_TIMEOUT)?;
        // Each connection has two sockets on this machine, one of them the server's.
        let kernel = socket_memory().saturating_sub(before) as f64 / 2.0;
        found.push((count, resident(&served) + kernel));
        draw(run, "TCP reno, with its sockets", count, resident(&served) + kernel);
        drop(crowd);
        thread::sleep(Duration::from_millis(200));
    }
    let [(few, least), .., (many, last)] = found[..] else { bail!("fewer than two points") };
    let each = (last - least) / (many - few) as f64;
    run.param("tcp_bytes_a_connection", each.round());
    run.at_least("TCP: memory, relative to one client", last / least, ALIKE);
    Ok(())
}

fn serve(world: &Dumbbell, run: &Run) -> Result<Served> {
    let served = Served::start(world.b1(), &[])?;
    for (name, bytes) in [SMALL, LARGE, ("file", OBJECT)] {
        served.file(name, bytes, run.seed())?;
    }
    Ok(served)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterFetch {
    Silent,
    Gone,
}

/// Runs a fetch for each `known` client and for `more` new ones, a thousand at a time, and returns
/// all these clients.
fn each_fetches(
    clients: &mut Trickles,
    known: &[u32],
    more: usize,
    then: AfterFetch,
) -> Result<Vec<u32>> {
    let (mut these, all) = (known.to_vec(), known.len() + more);
    let (waker, mut changed) = (Waker::new()?, Vec::new());
    let deadline = Instant::now() + REQUEST_TIMEOUT + EACH * all as u32;
    let (mut begun, mut done) = (0, 0);
    let mut pending: Vec<Option<PendingRequest>> = Vec::with_capacity(all);
    while done < all {
        while begun < all && begun - done < AT_ONCE {
            if begun == these.len() {
                these.push(clients.connect(Config::default()));
            }
            pending.push(Some(ask(clients, these[begun])?));
            begun += 1;
        }
        let came = clients.turn(&mut changed)?;
        for client in std::mem::take(&mut changed) {
            let Ok(n) = these.binary_search(&client) else { continue };
            let Some(Some(request)) = pending.get_mut(n) else { continue };
            if is_answered(clients, client, request)? {
                (pending[n], done) = (None, done + 1);
                if then == AfterFetch::Gone {
                    clients.forget(client);
                }
            }
        }
        stop::check()?;
        ensure!(Instant::now() < deadline, "only {done} of {all} requests were answered");
        if !came {
            let most = Duration::from_millis(5);
            wait(&[&*clients], &waker, clients.poll_timeout().unwrap_or(most).min(most));
        }
    }
    Ok(these)
}

/// Request on a stream other than the main one.
struct PendingRequest {
    stream: u32,
    /// Bytes received.
    came: usize,
}

fn ask(clients: &mut Trickles, client: u32) -> Result<PendingRequest> {
    let (name, _) = wanted(client);
    let stream = clients.stream(client).context("no such connection")?;
    let stream = stream.request(&get(name), RESERVE).context("no stream numbers left")?;
    Ok(PendingRequest { stream, came: 0 })
}

/// Returns the wanted file; for every tenth client it exceeds one packet.
fn wanted(client: u32) -> (&'static str, usize) {
    if client.is_multiple_of(10) { LARGE } else { SMALL }
}

/// Returns whether a request is completely answered; its stream is then released.
fn is_answered(clients: &mut Trickles, client: u32, pending: &mut PendingRequest) -> Result<bool> {
    let stream = clients.stream(client).context("no such connection")?;
    while let Some(data) = stream.read(pending.stream) {
        pending.came += data.len();
    }
    match stream.state(pending.stream) {
        State::Failed(why) => bail!("client {client}: {why}"),
        State::Open => Ok(false),
        State::Finished => {
            let (name, least) = wanted(client);
            ensure!(pending.came >= least, "{name}: only {} bytes arrived", pending.came);
            stream.forget(pending.stream);
            Ok(true)
        }
    }
}

/// Returns the anonymous memory of this process in bytes; it contains the clients.
fn lab_memory() -> f64 {
    Usage::of(std::process::id()).anonymous as f64
}

/// Returns the resident memory of the server's process in bytes.
fn resident(served: &Served) -> f64 {
    Usage::of(served.pid()).resident as f64
}

fn draw(run: &mut Run, name: &str, clients: usize, bytes: f64) {
    let plot = Plot::line("Memory of the server", ("clients", ""), ("memory", "MB")).log_x();
    run.plot_point(&plot, name, (clients as f64, bytes / 1e6));
}

/// Observations while `load` ran.
struct Watched {
    fetched: Fetched,
    /// Maximum of the server's resident memory.
    resident: f64,
    /// Maximum bytes of packets queued in the kernel for the server's tap.
    waiting: u64,
}

fn watched(
    served: &Served,
    node: &Node,
    load: impl FnOnce() -> Result<Fetched>,
) -> Result<Watched> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let (mut most, mut waiting) = (0.0_f64, 0);
            while !over.load(Ordering::Relaxed) {
                most = most.max(resident(served));
                waiting = waiting.max(waiting_packets(node).unwrap_or(0));
                thread::sleep(Duration::from_millis(50));
            }
            (most, waiting)
        });
        let fetched = load();
        over.store(true, Ordering::Relaxed);
        let (resident, waiting) = watch.join().ok().context("the watch panicked")?;
        Ok(Watched { fetched: fetched?, resident, waiting })
    })
}

/// Returns the bytes queued in the packet sockets of a node.
fn waiting_packets(node: &Node) -> Option<u64> {
    let read = || fs::read_to_string("/proc/thread-self/net/packet").ok();
    let table = node.netns().enter(read).ok()??;
    // Columns: sk, references, type, protocol, interface, running, queued bytes, …
    let rows = table.lines().skip(1);
    Some(rows.filter_map(|row| row.split_whitespace().nth(6)?.parse::<u64>().ok()).sum())
}

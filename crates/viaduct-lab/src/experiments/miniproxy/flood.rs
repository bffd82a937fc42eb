//! Effect of a flood of SYNs from spoofed addresses on a proxy that forwards SYNs early, on the
//! servers behind it, and on its real clients.

use std::io::Read as _;
use std::net::{SocketAddrV4, TcpListener, TcpStream};

use crate::experiments::prelude::*;
use crate::flood::Flood;
use crate::topology::{Chain, Usage, user_and_system};

/// SYNs per second.
const RATE: u64 = 20_000;
const PORT: u16 = 9000;
/// Delay of each of the two links in milliseconds, one way.
const DELAY: f64 = 5.0;
/// Default of the proxy's `--max-early`.
const MAX_EARLY: f64 = 1024.0;
/// Default of the proxy's `--early-wait`.
const EARLY_WAIT: Duration = Duration::from_secs(3);
/// Maximum memory of the proxy per early connection: a page.
const EARLY_BYTES: f64 = 4096.0;
/// Number of concurrent clients.
const CLIENTS: usize = 4;
/// Pause of a client between two connections.
const PAUSE: Duration = Duration::from_millis(20);
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a lost SYN is retransmitted; at most one in twenty SYNs of real clients may be
/// lost.
const RETRANSMITTED_MS: f64 = 1000.0;

const WHEN: [&str; 3] = ["before", "during", "after"];

pub(in crate::experiments) const ABOUT: About = About {
    name: "miniproxy/flood",
    title: "A flood of 20,000 SYNs a second from spoofed addresses",
    figure: "Miniproxy, section 3 (early SYN forwarding)",
    finding: "The paper does not discuss floods; a proxy that forwards every SYN would pass a \
              flood on to its servers.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let seconds = run.choose(12, 5);
    run.param("syns_per_second", RATE);
    run.param("flood_s", seconds);
    run.param("max_early", MAX_EARLY);
    run.param("early_wait_s", EARLY_WAIT.as_secs());
    run.param("link", format!("two, {DELAY} ms each way"));
    let modes = [("early", &[][..]), ("after-connect", &["--accept", "after-connect"])];
    run.steps(modes.len() * WHEN.len());
    for (mode, more) in modes {
        let world = World::new(run, more)?;
        let found = world.measure(run, mode, Duration::from_secs(seconds))?;
        report(run, mode, &found);
        check(run, mode, &found);
    }
    Ok(())
}

struct Found {
    /// Results of the clients before, during and after the flood.
    clients: [Clients; 3],
    /// SYNs per second that the flood has tried to send.
    rate: f64,
    /// SYNs that the server received during the flood, apart from those of real clients.
    forwarded: f64,
    /// Resident bytes of the proxy: before the flood, and the maximum during it.
    resident: [f64; 2],
    /// Processors used by the proxy during the flood.
    processors: f64,
    /// The proxy's counters of early connections at the end.
    early: Value,
}

#[derive(Default)]
struct Clients {
    /// Milliseconds to the first byte, for successful connections.
    times: Vec<f64>,
    failed: usize,
}

fn report(run: &mut Run, mode: &str, found: &Found) {
    let plot = Plot::line("Time to the first byte of real clients", ("when", ""), ("time", "ms"));
    for (name, q) in [("median", 0.5), ("99 of 100", 0.99)] {
        let bars = WHEN.iter().zip(&found.clients);
        let bars = bars.map(|(when, clients)| (when, quantile(&clients.times, q)));
        run.plot_bars(&plot, &format!("{mode}, {name}"), bars);
    }
    let tried = |clients: &Clients| (clients.times.len() + clients.failed) as f64;
    let counts = [
        ("SYNs a second", found.rate),
        ("SYNs forwarded", found.forwarded),
        ("clients before", tried(&found.clients[0])),
        ("clients during", tried(&found.clients[1])),
        ("resident before, KB", found.resident[0] / 1024.0),
        ("resident at most, KB", found.resident[1] / 1024.0),
        ("processor of the proxy, %", 100.0 * found.processors),
    ];
    let plot = Plot::histogram("The flood, the server, the proxy", ("what", ""), ("count", ""));
    run.plot_bars(&plot, mode, counts);
    let plot = Plot::histogram("Early connections", ("what", ""), ("count", ""));
    let counts = ["started", "matched", "expired", "refused", "bounded"]
        .map(|what| (what, found.early[what].as_u64().unwrap_or(0) as f64));
    run.plot_bars(&plot, mode, counts);
}

fn check(run: &mut Run, mode: &str, found: &Found) {
    let flooded = 0.9 * RATE as f64;
    run.at_least(&format!("{mode}: SYNs a second"), found.rate, flooded);
    // The table of early connections fills once and its entries expire; by then the flood is
    // detected. The additional quarter allows for SYNs that arrive while the entries expire.
    let forwarded = Bound::AtMost(1.25 * MAX_EARLY);
    run.check(&format!("{mode}: SYNs forwarded for the flood"), found.forwarded, forwarded);
    let grown = (found.resident[1] - found.resident[0]) / (1 << 20) as f64;
    // When the proxy starts to work, its own pages become resident: at most 6 MB, which is also
    // the bound of an idle proxy.
    let most = 6.0 + MAX_EARLY * EARLY_BYTES / (1 << 20) as f64;
    run.at_most(&format!("{mode}: growth of memory, MB"), grown, most);
    let [before, during, _] = &found.clients;
    let served = during.times.len() as f64 / (during.times.len() + during.failed) as f64;
    run.at_least(&format!("{mode}: real clients served, %"), 100.0 * served, 99.0);
    // Without an early SYN, the first byte is later by a round trip between the proxy and the
    // server.
    let late = quantile(&before.times, 0.5) + 2.0 * DELAY + 10.0;
    let name = format!("{mode}: median first byte during the flood, ms");
    run.at_most(&name, quantile(&during.times, 0.5), late);
    let name = format!("{mode}: p95 of the first byte during the flood (SYN not lost), ms");
    run.at_most(&name, quantile(&during.times, 0.95), RETRANSMITTED_MS);
}

/// Client, router with the proxy, and server.
struct World {
    // Dropped before the node it runs in.
    proxy: Proxy,
    chain: Chain,
}

impl World {
    fn new(run: &Run, more: &[&str]) -> Result<World> {
        let link: LinkConfig = format!("delay={DELAY}ms").parse().context("invalid link config")?;
        let chain = Chain::build(&[link.clone(), link], run.seed(), run.journal())?;
        chain.server().run("nft", &["add table inet count"])?;
        for line in [
            "add chain inet count input { type filter hook input priority 0; }",
            "add rule inet count input tcp flags & (syn | ack) == syn counter",
        ] {
            chain.server().run("nft", &[line])?;
        }
        let path = ["--listen", "[::]:7000", "--intercept", "10.0.0.0/8", "--flows", "4000"];
        let proxy = Proxy::start(&chain.hops()[0], &[&path, more].concat())?;
        Ok(World { proxy, chain })
    }

    fn server(&self) -> SocketAddrV4 {
        SocketAddrV4::new(self.chain.server().v4(), PORT)
    }

    fn measure(mut self, run: &mut Run, mode: &str, time: Duration) -> Result<Found> {
        let server = self.server();
        let listener = self.chain.server().netns().enter(|| TcpListener::bind(server))??;
        let pid = self.proxy.process().id();
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| serve(&listener));
            let found = self.phases(run, mode, time, pid);
            done.store(true, Ordering::Relaxed);
            let _ = rustix::net::shutdown(&listener, rustix::net::Shutdown::Both);
            found
        })
    }

    fn phases(&self, run: &mut Run, mode: &str, time: Duration, pid: u32) -> Result<Found> {
        let client = self.chain.client();
        run.step(&format!("{mode}, before"))?;
        let before = clients(client, self.server(), time / 3)?;
        let resident = Usage::of(pid).resident as f64;
        let (forwarded, used) = (self.syns()?, used(pid)?);
        run.step(&format!("{mode}, during"))?;
        let flood = Flood::start(&self.chain.hops()[0], self.server(), RATE, 2 * time, run.seed())?;
        let begun = Instant::now();
        let watch = thread::spawn(move || Usage::most_resident(pid, time));
        let during = clients(client, self.server(), time)?;
        let (rate, took) = (flood.rate(), begun.elapsed().as_secs_f64());
        let processors = (self::used(pid)? - used) / took;
        let seen = self.syns()? - forwarded;
        drop(flood);
        let most = watch.join().map_or(f64::NAN, |most| most as f64);
        run.step(&format!("{mode}, after"))?;
        thread::sleep(EARLY_WAIT + Duration::from_secs(1));
        let after = clients(client, self.server(), time / 3)?;
        let own = (during.times.len() + during.failed) as f64;
        Ok(Found {
            rate,
            forwarded: (seen - own).max(0.0),
            resident: [resident, most],
            processors,
            early: self.early()?,
            clients: [before, during, after],
        })
    }

    fn syns(&self) -> Result<f64> {
        let text = self.chain.server().run("nft", &["list table inet count"])?;
        let count = text.split("packets ").nth(1).and_then(|rest| rest.split(' ').next());
        count.and_then(|count| count.parse().ok()).context("no counter of SYNs")
    }

    /// Reads the proxy's counters of early connections.
    fn early(&self) -> Result<Value> {
        let path = self.proxy.directory().join("proxy-7000.sock");
        let status: Value = daemon::status(&path).context("the proxy's status")?;
        Ok(status["counters"]["early"].clone())
    }
}

/// Sends a byte on each connection, until the listener is shut down.
fn serve(listener: &TcpListener) {
    while let Ok((mut stream, _)) = listener.accept() {
        // A client that has closed the connection needs no byte.
        let _ = std::io::Write::write_all(&mut stream, b"!");
    }
}

fn clients(host: &Host, to: SocketAddrV4, time: Duration) -> Result<Clients> {
    let end = Instant::now() + time;
    let one = || {
        let mut found = Clients::default();
        while Instant::now() < end && stop::check().is_ok() {
            match first_byte(to.into()) {
                Ok(took) => found.times.push(took.as_secs_f64() * 1e3),
                Err(_) => found.failed += 1,
            }
            thread::sleep(PAUSE);
        }
        found
    };
    let all = || {
        thread::scope(|scope| {
            let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(one)).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>()
        })
    };
    let mut sum = Clients::default();
    for found in host.netns().enter(all)? {
        sum.times.extend(found.times);
        sum.failed += found.failed;
    }
    stop::check()?;
    Ok(sum)
}

fn first_byte(to: SocketAddr) -> std::io::Result<Duration> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect_timeout(&to, CLIENT_TIMEOUT)?;
    stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    stream.read_exact(&mut [0])?;
    Ok(begun.elapsed())
}

/// Returns the processor seconds used by a process.
fn used(process: u32) -> Result<f64> {
    Ok(user_and_system(process).context("the proxy has ended")?.iter().sum())
}

//! Garbage at a server's port, as fast as the machine can send it. The server keeps no state for
//! the garbage, and transfers of real clients continue.
//!
//! ```text
//!   load: clients ─┐
//!         flood ───┴─ 10.1.0.1 eth0 ═══ wire ═══ eth0 10.1.0.2 ─ box: viaduct serve
//!                                       ◀── 100 Mb/s ──
//! ```
//!
//! The path to the server is unlimited, so the flood fills none of its queues; the return path
//! has the rate of the paper's network. The flood consists of all forms in [`packets`], at the
//! rate that one core can send.

mod packets;

use std::net::SocketAddrV4;
use std::process::Stdio;

use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::socket::mmsg::Outbox;

use crate::experiments::prelude::*;
use crate::flood::Flood;
use crate::topology::{Pair, Usage};

/// Rate of the return path.
const RATE: &str = "100mbit";
const CLIENTS: usize = 4;
/// Number of the server's secret; complete requests of other servers carry the same number.
const SECRET: u8 = 7;
/// Number of distinct packets of the flood, of all forms.
const PACKETS: usize = 4096;
/// Maximum growth of the server's own memory in MB: pages of code that are executed for the first
/// time.
const GROWTH_MB: f64 = 1.0;

pub(in crate::experiments) const ABOUT: About = About {
    name: "trickles/garbage",
    title: "Garbage at the port of a Trickles server, at the maximum send rate",
    figure: "Trickles, section 2.2 (attacks on the server)",
    finding: "A flood cannot fill the state of a stateless server; it can only use the server's \
              processor and queues.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let time = Duration::from_secs(run.choose(10, 3));
    run.param("flood_s", time.as_secs());
    run.param("clients", CLIENTS);
    run.param("way_back", RATE);
    run.steps(3);
    let world = World::new(run)?;
    let packets = packets::of_all_forms(world.to_v4()?, SECRET, PACKETS, run.seed())?;
    run.step("before")?;
    let before = world.transfer(time)?;
    let (at_rest, counted) = (world.resident(), world.counted()?);
    run.step("during")?;
    let flood = flood(&world, packets, 2 * time)?;
    let pid = world.server.id();
    let most = thread::spawn(move || Usage::most_resident(pid, time));
    let during = world.transfer(time)?;
    let (rate, most) = (flood.rate(), most.join().map_or(f64::NAN, |most| most as f64 / 1e6));
    drop(flood);
    let refused = (world.counted()? - counted) / time.as_secs_f64();
    run.step("after")?;
    let after = world.transfer(time)?;

    let plot = Plot::histogram("Goodput of the clients", ("when", ""), ("goodput", "Mb/s"));
    let bars = [("before", before), ("during", during), ("after", after)];
    run.plot_bars(&plot, "all clients", bars);
    let plot = Plot::histogram("The flood", ("what", ""), ("packets a second", ""));
    let bars = [("sent", rate), ("read by the server, and refused", refused)];
    run.plot_bars(&plot, "packets a second", bars);
    let plot = Plot::histogram("The server's memory", ("when", ""), ("resident", "MB"));
    run.plot_bars(&plot, "resident", [("before", at_rest), ("maximum", most)]);
    run.at_least("packets of the flood a second", rate, 20_000.0);
    run.at_least("packets that the server refused a second", refused, 5_000.0);
    run.at_most("growth of memory, MB", most - at_rest, GROWTH_MB);
    run.at_least("goodput during the flood, relative to before", during / before, 0.5);
    run.at_least("goodput after the flood, relative to before", after / before, 0.9);
    Ok(())
}

/// Two machines, with a server on one.
struct World {
    // Dropped before the node it runs in.
    server: Process,
    scratch: Scratch,
    pair: Pair,
    to: SocketAddr,
}

impl World {
    fn new(run: &Run) -> Result<World> {
        let pair = Pair::build(run.journal())?;
        let (node, scratch) = (&pair.middle, Scratch::new()?);
        let limit = format!("tc qdisc add dev eth0 root tbf rate {RATE} burst 32k latency 50ms");
        node.run("sh", &["-ec", &limit])?;
        scratch.write("big", vec![b'x'; 64 << 20])?;
        let key = scratch.write_secret("key", format!("{SECRET} {}\n", "3c".repeat(32)))?;
        let to = SocketAddr::new(node.v4().into(), 80);
        let mut command = node.command(&binary()?.to_string_lossy());
        command.arg("serve").arg(scratch.path()).args(["--listen", &to.to_string(), "--key"]);
        command.arg(key).arg("--run-dir").arg(scratch.path());
        let log = scratch.path().join("log");
        let server = daemon::start(node, command, &log, || Ok(status(&scratch).is_ok()))?;
        Ok(World { server, scratch, pair, to })
    }

    fn to_v4(&self) -> Result<SocketAddrV4> {
        match self.to {
            SocketAddr::V4(v4) => Ok(v4),
            SocketAddr::V6(v6) => bail!("{v6} is not an IPv4 address"),
        }
    }

    /// Runs all clients for `time`; returns the throughput in Mb/s.
    fn transfer(&self, time: Duration) -> Result<f64> {
        let url = format!("http://{}/big", self.to);
        let clients = (0..CLIENTS).map(|_| {
            let mut command = self.pair.load.command(&binary()?.to_string_lossy());
            command.args(["run", "+trickles:way=tcp", "--", "curl", "--silent", "--output"]);
            command.args(["/dev/null", "--write-out", "%{size_download}", "--max-time"]);
            command.arg(time.as_secs().to_string()).arg(&url);
            command.env("VIADUCT_RUN_DIR", self.scratch.path());
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
            Ok(command.spawn()?)
        });
        let clients = clients.collect::<Result<Vec<_>>>()?;
        let mut bytes = 0.0;
        for client in clients {
            let said = client.wait_with_output()?;
            let said = String::from_utf8_lossy(&said.stdout).into_owned();
            bytes +=
                said.trim().parse::<f64>().with_context(|| format!("curl printed `{said}`"))?;
            stop::check()?;
        }
        Ok(bytes * 8.0 / 1e6 / time.as_secs_f64())
    }

    fn counted(&self) -> Result<f64> {
        let status = &status(&self.scratch)?["trickles"];
        let refused = status["refused"].as_array().context("no list of refusals")?;
        let messages = refused.iter().filter_map(|pair| pair[1].as_f64()).sum::<f64>();
        Ok(messages + status["packets_refused"].as_f64().context("no count of packets")?)
    }

    /// Returns the server's resident memory in MB.
    fn resident(&self) -> f64 {
        Usage::of(self.server.id()).resident as f64 / 1e6
    }
}

fn status(scratch: &Scratch) -> Result<Value> {
    daemon::status(&scratch.path().join("serve-80.sock"))
}

/// Sends `packets` repeatedly from the clients' machine, for `longest` at most.
fn flood(world: &World, packets: Vec<Vec<u8>>, longest: Duration) -> Result<Flood> {
    let raw = world.pair.load.netns().enter(RawSockets::open)??;
    raw.set_buffers(16 << 20)?;
    let to = SocketAddr::new(world.to.ip(), 0);
    let (mut outbox, mut next) = (Outbox::default(), 0);
    Ok(Flood::of(longest, move |_| {
        while !outbox.is_full() {
            outbox.push(&packets[next % packets.len()], to, None);
            next += 1;
        }
        raw.socket(true).map_or(0, |socket| outbox.flush(socket).sent)
    }))
}

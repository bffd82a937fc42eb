//! Section 4.2: flows are rerouted around a failed path, and back when the alternative fails.
//!
//! ```text
//!                    aside: overlay node, SOCKS5
//!                       ║
//!   client ════════════ fork ════════════ server     20 Mb/s, 5 ms each way; overlay nodes at each
//!   fetch, +migrate      ┆      serve, +migrate
//!   +route               ┆ drops packets between client and server; later those to aside
//! ```

use std::io::{BufRead as _, BufReader};
use std::os::unix::net::UnixStream;

use viaduct_proto::keys::SecretKey;
use viaduct_proto::overlay::Table;

use super::migrate::{Traced, draw, traced};
use super::programs::{CommandPrefix, Server, bench_anywhere, output, run as under, serve};
use super::undisturbed::undisturbed;
use crate::experiments::prelude::*;
use crate::topology::Detour;

const LINK: &str = "rate=20M,delay=5ms,queue=50ms";
const CONGESTION_CONTROL: &str = "cubic";
const PROBES: u16 = 7420;
const SOCKS: u16 = 1080;
/// Port of the server for migrating flows, and port of the server for plain flows.
const PORTS: [u16; 2] = [9000, 9001];
/// Maximum seconds between a path's failure and the flow's first bytes on another path.
const WITHIN: f64 = 3.0;
/// Interval between lines of a trace, in seconds.
const TICK: f64 = 0.1;

pub(in crate::experiments) const ABOUT: About = About {
    name: "tesla/route",
    title: "An open flow whose path fails, and later the path around the failure",
    figure: "TESLA, section 4.2",
    finding: "RON routes around failures of paths, under unmodified programs; migrating open flows \
              between its paths was left to future work.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let _undisturbed = undisturbed(run);
    let times: u32 = run.choose(3, 1);
    run.congestion_control(CONGESTION_CONTROL);
    run.steps(times as usize);
    for round in 0..times {
        run.step(&format!("round {}", round + 1))?;
        once(run, u64::from(round))?;
    }
    Ok(())
}

/// Runs a rerouted flow and a concurrent plain one.
fn once(run: &mut Run, round: u64) -> Result<()> {
    let link = link(LINK);
    let world = Detour::build(&link, &link, run.seed() + round, run.journal())?;
    let (client, server) = (&world.client, &world.server);
    for host in [client, server, &world.aside] {
        host.set_congestion_control(CONGESTION_CONTROL)?;
    }
    let overlay = Overlay::start(&world)?;
    let route = format!("+route:overlay={}", overlay.socket("client"));
    let setups = [under(&["+migrate", &route])?, Vec::new()];
    let serves = [under(&["+migrate"])?, Vec::new()];
    let servers = serves.iter().zip(PORTS).map(|(under, port)| serve(server, port, under));
    let _servers = servers.collect::<Result<Vec<_>>>()?;
    let (opened, found) = thread::scope(|scope| {
        let fetches = [(20_000_000, 0), (10_000_000, 1)].map(|(bytes, n)| {
            let (world, under) = (&world, &setups[n]);
            scope.spawn(move || fetch(world, PORTS[n], under, bytes, 60))
        });
        cut(&world).map(|opened| (opened, fetches.map(join)))
    })?;
    stop::check()?;
    let traces = found.map(|output| output.ok().map(|output| traced(&output)));
    report(run, &traces);
    let name = "a small transfer that begins during the outage, with only `node=`, s";
    run.at_most(name, opened, WITHIN);
    Ok(())
}

/// Changes the network over time, in seconds from the start: at 3 the direct path fails; at 7 it
/// recovers; at 11 the path to the node aside fails. Returns the duration of a transfer that begins
/// while the direct path is down.
fn cut(world: &Detour) -> Result<f64> {
    let drop_between = |a: &Host, b: &Host| -> Result<()> {
        let (a, b) = (a.v4(), b.v4());
        world.fork.run("nft", &["add", "table", "ip", "cut"])?;
        let chain = "{ type filter hook forward priority 0; }";
        world.fork.run("nft", &["add", "chain", "ip", "cut", "gap", chain])?;
        for (from, to) in [(a, b), (b, a)] {
            let rule = format!("add rule ip cut gap ip saddr {from} ip daddr {to} drop");
            world.fork.run("nft", &rule.split(' ').collect::<Vec<_>>())?;
        }
        Ok(())
    };
    thread::sleep(Duration::from_secs(3));
    drop_between(&world.client, &world.server)?;
    let healed = Instant::now() + Duration::from_secs(4);
    thread::sleep(Duration::from_secs(1));
    let opened = open_during_outage(world);
    thread::sleep(healed.saturating_duration_since(Instant::now()));
    world.fork.run("nft", &["delete", "table", "ip", "cut"])?;
    thread::sleep(Duration::from_secs(4));
    drop_between(&world.client, &world.aside)?;
    opened
}

/// Runs a small transfer that begins while the direct path is down. The program knows only the
/// address of an overlay node. Returns the duration of the transfer in seconds.
fn open_during_outage(world: &Detour) -> Result<f64> {
    let node = format!("+route:node={}:{SOCKS}", world.aside.v4());
    let (under, begun) = (under(&[&node])?, Instant::now());
    fetch(world, PORTS[1], &under, 500_000, 10)?;
    Ok(begun.elapsed().as_secs_f64())
}

/// Fetches `bytes` from the server's port within `limit` seconds; returns the trace.
fn fetch(
    world: &Detour,
    port: u16,
    under: &CommandPrefix,
    bytes: u64,
    limit: u64,
) -> Result<String> {
    let (at, bytes) = (format!("{}:{port}", world.server.v4()), bytes.to_string());
    let fetch = bench_anywhere(&world.client, under, &["fetch", &at, "--bytes", &bytes])?;
    output(&world.client, fetch, Duration::from_secs(limit))
}

fn report(run: &mut Run, traces: &[Option<Traced>; 2]) {
    for (name, traced) in ["migrate and route", "plain"].into_iter().zip(traces) {
        if let Some(traced) = traced {
            draw(run, name, &traced.trace);
        }
    }
    let stalls = |traced: &Option<Traced>| traced.as_ref().map(stalls).unwrap_or_default();
    let (moving, plain) = (stalls(&traces[0]), stalls(&traces[1]));
    let longest = |from: f64, to: f64| {
        let within = moving.iter().filter(|(at, _)| (from..to).contains(at));
        within.map(|(_, length)| *length).fold(0.0, f64::max)
    };
    let whole = f64::from(traces[0].is_some());
    run.at_least("migrate and route: all bytes arrived unaltered", whole, 1.0);
    for (name, stall) in
        [("the direct path", longest(0.0, 7.0)), ("the detour", longest(9.0, 60.0))]
    {
        let name = format!("from the failure of {name} until bytes flow elsewhere, s");
        run.within(&name, stall, TICK, WITHIN);
    }
    let plain = plain.iter().map(|(_, length)| *length).fold(0.0, f64::max);
    run.at_least("plain: stall during the outage, s", plain, 4.0);
}

/// Returns the periods without data that are longer than two intervals of a trace: the end and the
/// length of each.
fn stalls(traced: &Traced) -> Vec<(f64, f64)> {
    let mut stalls = Vec::new();
    let mut still = 0.0;
    for pair in traced.all.windows(2) {
        let [(from, before), (to, after)] = *pair else { continue };
        if after > before {
            if still > 2.0 * TICK {
                // The period may begin and end up to one interval of the trace further out.
                stalls.push((from, still + TICK));
            }
            still = 0.0;
        } else {
            still += to - from;
        }
    }
    stalls
}

struct Overlay {
    scratch: Scratch,
    _nodes: Vec<Server>,
}

impl Overlay {
    fn start(world: &Detour) -> Result<Overlay> {
        let scratch = Scratch::new()?;
        let hosts = [("client", &world.client), ("server", &world.server), ("aside", &world.aside)];
        let keys = [1, 2, 3].map(|n| SecretKey::from_bytes([n; 32]));
        let mut nodes = Vec::new();
        for (n, (name, host)) in hosts.iter().enumerate() {
            let key = scratch.write_secret(&format!("{name}.key"), keys[n].to_text())?;
            let run_dir = scratch.path().display();
            let mut config = format!(
                "[overlay]\nname = {name:?}\nkey = {key:?}\nlisten = \"{}:{PROBES}\"\nrun_dir \
                    = \"{run_dir}\"\n",
                host.v4()
            );
            if *name == "aside" {
                let rest = "allow-from = [\"10.1.0.0/16\"]\nallow-to = [\"10.2.0.0/16\"]";
                config += &format!("[socks]\nlisten = \"{}:{SOCKS}\"\n{rest}\n", host.v4());
            }
            for (m, (peer, at)) in hosts.iter().enumerate().filter(|(m, _)| *m != n) {
                let key = keys[m].public();
                config += &format!(
                    "[[peer]]\nname = {peer:?}\nkey = \"{key}\"\nendpoint = \"{}:{PROBES}\"\n",
                    at.v4()
                );
                if *peer == "aside" {
                    config += &format!("socks = \"{}:{SOCKS}\"\n", at.v4());
                }
            }
            let config = scratch.write(&format!("{name}.toml"), config)?;
            let mut command = host.command(&binary()?.display().to_string());
            command.args(["overlay", "--config"]).arg(config);
            let socket = scratch.path().join(format!("overlay-{name}.sock"));
            nodes.push(Server::start(host, command, || Ok(table(&socket).is_ok()))?);
        }
        let overlay = Overlay { scratch, _nodes: nodes };
        for (name, _) in hosts {
            overlay.wait_for(name)?;
        }
        Ok(overlay)
    }

    fn socket(&self, name: &str) -> String {
        self.scratch.path().join(format!("overlay-{name}.sock")).display().to_string()
    }

    /// Waits until a node knows all paths.
    fn wait_for(&self, name: &str) -> Result<()> {
        let socket = self.socket(name);
        for _ in 0..1_000 {
            let table = table(Path::new(&socket))?;
            let knows =
                |n: usize| table.nodes[n].path.up == Some(true) && table.nodes[n].others.len() == 1;
            if (0..table.nodes.len()).all(knows) {
                return Ok(());
            }
            stop::check()?;
            thread::sleep(Duration::from_millis(20));
        }
        bail!("overlay node {name} does not learn of the other nodes")
    }
}

/// Reads a node's path table from its socket.
fn table(socket: &Path) -> Result<Table> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

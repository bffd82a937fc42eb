//! Configurations of section 5.2 and of Viaduct.
//!
//! ```text
//!   plain     client ════════════════════════════════════════ server
//!   proxies   client ── TCP or UNIX ── relay ════ relay ── TCP or UNIX ── server
//!   viaduct   client ── its own socket ── master ════ master ── its own socket ── server
//!   offloaded client ══ its own socket ═══════════════════ its own socket ══ server
//!             └────── a core ─────────────┘     └─────────── a core ───────────┘
//! ```

use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::programs::{CommandPrefix, Server, bench, measure_watched, run};
use super::world::{Side, World};
use crate::bench::Content;
use crate::experiments::prelude::*;
use crate::gateways::random_key;
use crate::topology::programs::is_listening;
use crate::topology::{cpu_time, times_scheduled};

/// Measured seconds of the client of [`Testbed::cost`].
const COUNTED: f64 = 0.5;
/// Idle seconds of that client before and after [`COUNTED`].
const HOLD: f64 = 1.0;

/// Configuration between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Setup {
    /// Programs without any proxy.
    Plain,
    /// A relay in each host, connected by TCP.
    TcpProxies,
    /// A relay in each host, connected by UNIX-domain sockets.
    UnixProxies,
    /// `viaduct run` at both ends, with these handlers.
    Viaduct(&'static str, &'static [&'static str]),
    /// `viaduct run` at both ends, with `crypt`.
    Crypt,
    /// A pair of stunnel processes, connected by TCP.
    Stunnel,
}

/// Chain that is offloaded to the kernel.
pub(super) const OFFLOADED: Setup = Setup::Viaduct("viaduct, offloaded", &["+count"]);
/// The same chain without offload: data goes through Viaduct.
pub(super) const PASSING: Setup = Setup::Viaduct("viaduct", &["+count", "--no-offload"]);

impl Setup {
    pub(super) fn name(self) -> &'static str {
        match self {
            Setup::Plain => "plain",
            Setup::TcpProxies => "TCP proxies",
            Setup::UnixProxies => "UNIX proxies",
            Setup::Viaduct(name, _) => name,
            Setup::Crypt => "viaduct, crypt",
            Setup::Stunnel => "stunnel",
        }
    }
}

/// Running configuration, whose servers wait for clients.
pub(super) struct Testbed<'a> {
    world: &'a World,
    under: CommandPrefix,
    to: String,
    servers: Vec<Server>,
    _scratch: Scratch,
}

/// Cost of a one-byte round trip, or of another unit that a client counts, over all processes of
/// both ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Times that a thread was scheduled onto a processor.
    pub(super) scheduled: f64,
    /// Processor time in microseconds.
    pub(super) micros: f64,
    /// Instructions of the whole machine; NaN without hardware counters.
    pub(super) instructions: f64,
}

/// Work of a client.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Benchmark program: `read`, `write` or `volley`.
    pub(super) program: &'static str,
    pub(super) block: usize,
    pub(super) content: Content,
    pub(super) seconds: f64,
    pub(super) warm_up: f64,
}

impl<'a> Testbed<'a> {
    /// Starts the servers; `n` selects the range of ports.
    pub(super) fn build(world: &'a World, setup: Setup, n: u16) -> Result<Testbed<'a>> {
        let mut builder =
            Builder { world, scratch: Scratch::new()?, servers: Vec::new(), ports: 8 * n };
        let (under, to) = match setup {
            Setup::Plain => (Vec::new(), builder.serve(&Vec::new())?),
            Setup::Viaduct(_, words) => (run(words)?, builder.serve(&run(words)?)?),
            Setup::Crypt => {
                let key = random_key()?.to_text();
                let key = builder.scratch.write_secret("crypt.key", key)?;
                let under = run(&[&format!("+crypt:key={}", key.display())])?;
                (under.clone(), builder.serve(&under)?)
            }
            Setup::TcpProxies => {
                let server = builder.serve(&Vec::new())?;
                let far = builder.relay(Side::Server, None, &server)?;
                (Vec::new(), builder.relay(Side::Client, None, &far)?)
            }
            Setup::UnixProxies => {
                let server = builder.serve_at("server")?;
                let far = builder.relay(Side::Server, None, &server)?;
                (Vec::new(), builder.relay(Side::Client, Some("near"), &far)?)
            }
            Setup::Stunnel => {
                let server = builder.serve(&Vec::new())?;
                let far = builder.stunnel(Side::Server, &server)?;
                (Vec::new(), builder.stunnel(Side::Client, &far)?)
            }
        };
        let Builder { servers, scratch, .. } = builder;
        Ok(Testbed { world, under, to, servers, _scratch: scratch })
    }

    /// Runs a client once; returns its count per second.
    pub(super) fn measure(&self, load: &Load) -> Result<f64> {
        self.measured(&self.under, load)
    }

    /// Runs a client with these arguments of `viaduct run`.
    pub(super) fn measure_under(&self, words: &[&str], load: &Load) -> Result<f64> {
        self.measured(&run(words)?, load)
    }

    /// Measures the cost per count: reads the counters in the idle times before and after the
    /// client's measurement.
    pub(super) fn cost(&self, load: &Load) -> Result<Cost> {
        let load = Load { seconds: COUNTED, ..*load };
        let look = |client: u32| {
            let pids = self.servers.iter().map(Server::pid).chain([client]);
            let mut seen = (0, Duration::ZERO);
            for pid in pids {
                seen = (seen.0 + times_scheduled(pid), seen.1 + cpu_time(pid));
            }
            seen
        };
        let mut seen = None;
        let rate = self.measured_watched(&self.under, &load, HOLD, |client| {
            // Reads the counters in the middle of each idle time, assuming that the client takes
            // about 0.4 s to start.
            thread::sleep(Duration::from_secs_f64(0.4 + HOLD / 2.0));
            let before = look(client);
            let instructions = count_instructions(Duration::from_secs_f64(HOLD + COUNTED));
            seen = Some((before, look(client), instructions));
        })?;
        let (before, after, instructions) = seen.context("the client was not watched")?;
        let count = rate * COUNTED;
        Ok(Cost {
            scheduled: (after.0 - before.0) as f64 / count,
            micros: after.1.saturating_sub(before.1).as_secs_f64() * 1e6 / count,
            instructions: instructions / count,
        })
    }

    fn measured(&self, under: &CommandPrefix, load: &Load) -> Result<f64> {
        self.measured_watched(under, load, 0.0, |_| ())
    }

    /// Runs a client with `hold` idle seconds before and after the measurement.
    fn measured_watched(
        &self,
        under: &CommandPrefix,
        load: &Load,
        hold: f64,
        watch: impl FnOnce(u32),
    ) -> Result<f64> {
        let node = self.world.node(Side::Client);
        let numbers = [load.block as f64, load.seconds, load.warm_up, hold].map(|n| n.to_string());
        let [block, seconds, warm_up, hold_text] = &numbers;
        let words = [load.program, &self.to, "--block", block, "--content", load.content.name()];
        let times = ["--seconds", seconds, "--warm-up", warm_up, "--hold", hold_text];
        let command = bench(node, Side::Client, under, &[&words[..], &times].concat())?;
        measure_watched(node, command, load.seconds + load.warm_up + 2.0 * hold, watch)
            .with_context(|| self.to.clone())
    }
}

/// Counts the instructions of the whole machine for `time` with `perf`, if it is available.
fn count_instructions(time: Duration) -> f64 {
    let begin = Instant::now();
    let mut perf = Command::new("perf");
    perf.args(["stat", "-a", "-x", ",", "-e", "instructions", "sleep"]);
    let output = perf.arg(time.as_secs_f64().to_string()).stdin(Stdio::null()).output();
    thread::sleep(time.saturating_sub(begin.elapsed()));
    let text = output
        .map(|output| String::from_utf8_lossy(&output.stderr).into_owned())
        .unwrap_or_default();
    let mut counts = text.lines().filter_map(|line| line.split(',').next()?.parse().ok());
    counts.next().unwrap_or(f64::NAN)
}

/// Builder of a configuration: the servers that were started so far.
struct Builder<'a> {
    world: &'a World,
    scratch: Scratch,
    servers: Vec<Server>,
    ports: u16,
}

impl Builder<'_> {
    /// Starts the benchmark server on its own port; returns its address.
    fn serve(&mut self, under: &CommandPrefix) -> Result<String> {
        let at = self.place(Side::Server);
        let command = bench(self.world.node(Side::Server), Side::Server, under, &["serve", &at])?;
        self.start(Side::Server, command, &at)?;
        Ok(at)
    }

    /// Starts the benchmark server on a UNIX-domain socket.
    fn serve_at(&mut self, name: &str) -> Result<String> {
        let at = format!("unix:{}", self.path(name).display());
        let node = self.world.node(Side::Server);
        let command = bench(node, Side::Server, &Vec::new(), &["serve", &at])?;
        self.start(Side::Server, command, &at)?;
        Ok(at)
    }

    /// Starts a plain relay on a UNIX-domain socket of this name, or on a port.
    fn relay(&mut self, side: Side, name: Option<&str>, to: &str) -> Result<String> {
        let at = match name {
            Some(name) => format!("unix:{}", self.path(name).display()),
            None => self.place(side),
        };
        let command = bench(self.world.node(side), side, &Vec::new(), &["relay", &at, to])?;
        self.start(side, command, &at)?;
        Ok(at)
    }

    /// Starts one end of a stunnel tunnel; the far end terminates the encryption.
    fn stunnel(&mut self, side: Side, to: &str) -> Result<String> {
        let at = self.place(side);
        let secret = self.scratch.write_secret("psk", format!("lab:{}\n", "5a".repeat(32)))?;
        let client = if side == Side::Client { "yes" } else { "no" };
        let text = format!(
            "foreground = yes\npid =\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n[lab]\n\
             client = {client}\naccept = {at}\nconnect = {to}\nPSKsecrets = {}\n",
            secret.display()
        );
        let file = self.scratch.write(&format!("stunnel-{client}"), text)?;
        let core = World::core(side)?.to_string();
        let mut command = self.world.node(side).command("taskset");
        command.args(["--cpu-list", &core, "stunnel4"]).arg(file);
        self.start(side, command, &at)?;
        Ok(at)
    }

    fn start(&mut self, side: Side, command: Command, at: &str) -> Result<()> {
        let node = self.world.node(side);
        let ready = || match at.strip_prefix("unix:") {
            Some(path) => Ok(PathBuf::from(path).exists()),
            None => {
                let port = at.rsplit(':').next().and_then(|port| port.parse().ok());
                Ok(is_listening(node, port.context("the server has no port")?)?)
            }
        };
        self.servers.push(Server::start(node, command, ready)?);
        Ok(())
    }

    fn place(&mut self, side: Side) -> String {
        self.ports += 1;
        self.world.at(side, self.ports).to_string()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}

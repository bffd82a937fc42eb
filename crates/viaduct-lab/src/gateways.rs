//! Pair of real `viaduct gateway` processes in a dumbbell or beside a middlebox, set up as an
//! operator would: with keys, a `site.toml` each, and the status socket.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use viaduct_proto::fake_tcp::FakeTcpStats;
use viaduct_proto::keys::SecretKey;
use viaduct_proto::repair::stats::PeerStats;
use viaduct_proto::repair::status::{PeerStatus, TrialStatus};
use viaduct_sys::process::Process;

use crate::binary::binary;
use crate::topology::{Dumbbell, Middlebox, Node, Scratch};
use crate::{daemon, stop};

/// Configuration of a pair of gateways.
#[derive(Clone, Debug, Default)]
pub struct GatewaySpec {
    /// Lines of the `[peer.fec]` table, such as `r = 8`.
    pub fec: String,
    /// MTU of the hosts, if below the WAN's.
    pub host_mtu: Option<u32>,
    /// Further lines of the `[site]` table.
    pub site: String,
    /// Further lines of the `[[peer]]` table, such as `mode = "split"`.
    pub peer: String,
    /// Further tables of the file; `{own}` becomes the site's number, 1 or 2.
    pub tables: String,
    /// Tables of further peers of gateway A.
    pub others: String,
    /// Two WANs, `first` on `wan0` and `second` on `wan1` ([`Dumbbell::add_wan`]).
    pub two_wans: bool,
    /// Directory of the status sockets; `None` for the directory of the other files.
    pub run_dir: Option<PathBuf>,
}

impl GatewaySpec {
    /// Sets the lines of `[peer.fec]`.
    pub fn fec(lines: &str) -> Self {
        GatewaySpec { fec: lines.to_owned(), ..Self::default() }
    }

    /// Configures layers (r, c = I.len()) with interleaves I, in the paper's notation.
    pub fn layered(r: u8, interleaves: &[u16], delay_xors: bool) -> Self {
        Self::fec(&format!(
            "code = \"layered\"\nr = {r}\ninterleave = {interleaves:?}\ndelay_xors = {delay_xors}\n"
        ))
    }

    /// Splits TCP connections at both gateways.
    pub fn split(self) -> Self {
        GatewaySpec { peer: "mode = \"split\"\n".to_owned(), ..self }
    }

    /// Configures the hosts' MTU.
    pub fn host_mtu(self, mtu: u32) -> Self {
        GatewaySpec { host_mtu: Some(mtu), ..self }
    }
}

/// Both running gateways; they end when dropped.
#[derive(Debug)]
pub struct Gateways {
    /// Gateway of site A.
    pub a: Gateway,
    /// Gateway of site B.
    pub b: Gateway,
    scratch: Scratch,
}

/// Gateway process.
#[derive(Debug)]
pub struct Gateway {
    node: Node,
    process: Option<Process>,
    config: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    variables: Vec<(String, String)>,
}

/// Status of a gateway.
#[derive(Clone, Debug, Deserialize)]
pub struct GatewayStatus {
    /// Process ID.
    #[serde(default)]
    pub pid: u32,
    /// State of each peer.
    #[serde(default)]
    pub peers: Vec<PeerStatus>,
    /// Maximum length of packets to each peer; `None` if it need not be lowered for repairs to fit.
    pub kept_below: Vec<Option<usize>>,
    /// Reason why repairs do not fit the WAN, if any.
    pub trouble: Option<String>,
    /// Number of packet threads.
    #[serde(default)]
    pub workers: usize,
    /// Packet threads that have panicked.
    #[serde(default)]
    pub workers_dead: usize,
    counters: Counters,
}

#[derive(Clone, Debug, Deserialize)]
struct Counters {
    peers: Vec<(String, PeerStats)>,
    shell: ShellCounters,
    #[serde(default)]
    fake_tcp: FakeTcpStats,
    memory: usize,
}

/// Counters of the I/O shell around a gateway's packet plane.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ShellCounters {
    /// Copies of outgoing packets that were dropped because the tap was full.
    pub tap_drops_out: u64,
    /// Outgoing packets whose copies were processed too late.
    pub tap_late_out: u64,
    /// Copies of incoming packets that were dropped because the tap was full.
    pub tap_drops_in: u64,
    /// Copies longer than the tap's snapshot length.
    pub truncated: u64,
    /// Copies whose checksum was missing.
    pub unfinished: u64,
    /// Datagrams that the kernel rejected.
    pub send_failed: u64,
    /// Recovered packets delivered to the kernel.
    pub injected: u64,
    /// Packets dropped by the WAN interface's own queue.
    pub wan_drops: u64,
}

impl GatewayStatus {
    /// Returns the counters of the peer `name`.
    pub fn counters_of(&self, name: &str) -> PeerStats {
        let found = self.counters.peers.iter().find(|(other, _)| other == name);
        found.map(|(_, stats)| *stats).unwrap_or_default()
    }

    /// Returns the counters of the only peer.
    pub fn peer(&self) -> PeerStats {
        self.counters.peers.first().map(|(_, stats)| *stats).unwrap_or_default()
    }

    /// Returns the prediction for the code named `code` towards the only peer.
    pub fn trial(&self, code: &str) -> Option<&TrialStatus> {
        self.peers.first()?.link.as_ref()?.trials.iter().find(|trial| trial.code == code)
    }

    /// Returns the counters of the shell.
    pub fn shell(&self) -> ShellCounters {
        self.counters.shell
    }

    /// Returns the counters of fake TCP.
    pub fn fake_tcp(&self) -> FakeTcpStats {
        self.counters.fake_tcp
    }

    /// Returns the bytes held by the packet plane.
    pub fn memory(&self) -> usize {
        self.counters.memory
    }
}

impl Gateways {
    /// Starts both gateways of a dumbbell and waits until they can exchange repairs.
    pub fn start(world: &Dumbbell, spec: &GatewaySpec) -> Result<Gateways> {
        let mut gateways = Self::prepare(world, spec)?;
        gateways.start_both()?;
        Ok(gateways)
    }

    /// Prepares both gateways of a dumbbell, without starting them.
    pub fn prepare(world: &Dumbbell, spec: &GatewaySpec) -> Result<Gateways> {
        let [a, b] = ["192.0.2.1:7400", "192.0.2.2:7400"];
        let places = [(world.gateway_a(), a, Some(b)), (world.gateway_b(), b, Some(a))];
        Self::new(places, spec)
    }

    /// Prepares both gateways beside a middlebox, without starting them. They reach each other by
    /// IPv6 if `v6`; gateway B learns the address of gateway A.
    pub fn beside(world: &Middlebox, v6: bool, spec: &GatewaySpec) -> Result<Gateways> {
        let [a, b] = &world.gateways;
        let b_listens = if v6 { "[2001:db8:b::2]:7400" } else { "0.0.0.0:7400" };
        let [a_listens, to_b] = match v6 {
            true => ["[2001:db8:a::1]:7400", b_listens],
            false => ["192.0.2.1:7400", "198.51.100.2:7400"],
        };
        Self::new([(a, a_listens, Some(to_b)), (b, b_listens, None)], spec)
    }

    /// Prepares both gateways. `places` contains, for each, its node, its `listen`, and the
    /// `endpoint` of its peer.
    fn new(places: [(&Node, &str, Option<&str>); 2], spec: &GatewaySpec) -> Result<Gateways> {
        let scratch = Scratch::new()?;
        let keys = [random_key()?, random_key()?];
        let run_dir = spec.run_dir.clone().unwrap_or_else(|| scratch.path().to_owned());
        let prepare = |n: usize| {
            let (letter, (node, listen, endpoint)) = (LETTERS[n], places[n]);
            scratch.write_secret(&format!("{letter}.key"), keys[n].to_text())?;
            let file = site_toml(&run_dir, spec, n, (listen, endpoint), &keys[1 - n]);
            Gateway::new(node, (&scratch, &run_dir), letter, &file)
        };
        let (a, b) = (prepare(0)?, prepare(1)?);
        Ok(Gateways { a, b, scratch })
    }

    /// Starts both gateways and waits until they can exchange repairs. Returns the time that
    /// this took.
    pub fn start_both(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        // B starts first: beside a middlebox it only listens.
        self.b.start()?;
        self.a.start()?;
        self.wait_until_up()?;
        Ok(begun.elapsed())
    }

    /// Waits until both gateways can exchange repairs.
    pub fn wait_until_up(&mut self) -> Result<()> {
        self.a.wait_until_up()?;
        self.b.wait_until_up()
    }

    /// Waits until both gateways report that all of their paths are up or, unless `all_up`, that
    /// one is down.
    pub fn wait_for_paths(&mut self, all_up: bool) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(15);
        let are = |gateway: &Gateway| {
            let peers = gateway.status().map(|status| status.peers).unwrap_or_default();
            let paths: Vec<_> = peers.iter().flat_map(|peer| &peer.paths).collect();
            !paths.is_empty() && paths.iter().all(|path| path.up) == all_up
        };
        while !(are(&self.a) && are(&self.b)) {
            stop::check()?;
            if Instant::now() > deadline {
                bail!("the paths are not all up, or down: {}{}", self.a.log(), self.b.log());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Returns the directory of the gateways' files.
    pub fn directory(&self) -> &Path {
        self.scratch.path()
    }
}

impl Gateway {
    /// Creates the gateway of the site `site-LETTER` without starting it. `file` is its config, and
    /// `run_dir` the directory that the config names.
    pub fn new(
        node: &Node,
        (scratch, run_dir): (&Scratch, &Path),
        letter: char,
        file: &str,
    ) -> Result<Gateway> {
        Ok(Gateway {
            node: node.clone(),
            process: None,
            config: scratch.write(&format!("{letter}.toml"), file)?,
            socket: run_dir.join(format!("site-{letter}.sock")),
            log: scratch.path().join(format!("{letter}.log")),
            variables: Vec::new(),
        })
    }

    /// Sets a variable in the environment of processes that are started from now on.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    /// Starts the process. After [`Gateway::kill`], this simulates the restart after a crash.
    pub fn start(&mut self) -> Result<()> {
        let mut command = self.node.command(&binary()?.to_string_lossy());
        let log = File::options().create(true).append(true).open(&self.log)?;
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.arg("gateway").arg("-c").arg(&self.config).stdout(log.try_clone()?).stderr(log);
        self.process = Some(self.node.spawn(command)?);
        Ok(())
    }

    /// Waits until repairs can be exchanged with the peer.
    pub fn wait_until_up(&mut self) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(15);
        while !self.status().is_ok_and(|status| status.peer().up) {
            stop::check()?;
            let ended = self.process.as_mut().is_some_and(|p| matches!(p.try_wait(), Ok(Some(_))));
            if ended || Instant::now() > deadline {
                bail!("the gateway of {} is not up; its log: {}", self.node.name(), self.log());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Reads the current status.
    pub fn status(&self) -> Result<GatewayStatus> {
        daemon::status(&self.socket)
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns the path of the configuration.
    pub fn config(&self) -> &Path {
        &self.config
    }

    /// Returns the process ID while the gateway runs.
    pub fn pid(&self) -> Option<Pid> {
        self.process.as_ref().and_then(|p| Pid::from_raw(p.id().cast_signed()))
    }

    /// Sends a signal to the process.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().context("the gateway does not run")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Kills the process without a chance to clean up.
    pub fn kill(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.wait()
    }

    /// Stops the process with SIGTERM, as an operator would.
    pub fn stop(&mut self) -> Result<()> {
        self.signal(Signal::TERM)?;
        self.wait()
    }

    fn wait(&mut self) -> Result<()> {
        if let Some(mut process) = self.process.take() {
            process.wait()?;
        }
        Ok(())
    }
}

/// Generates a random key.
pub(crate) fn random_key() -> Result<SecretKey> {
    let mut bytes = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(SecretKey::from_bytes(bytes))
}

const LETTERS: [char; 2] = ['a', 'b'];

/// Returns the config of gateway `n`, 0 or 1.
fn site_toml(
    run_dir: &Path,
    spec: &GatewaySpec,
    n: usize,
    (listen, endpoint): (&str, Option<&str>),
    their: &SecretKey,
) -> String {
    let (own, other) = (n + 1, 2 - n);
    let [wan, wans, endpoint] = match spec.two_wans {
        true => two_wans(own, other),
        false => [
            format!("wan = \"wan0\"\nlisten = \"{listen}\"\n"),
            String::new(),
            endpoint.map_or(String::new(), |at| format!("endpoint = \"{at}\"\n")),
        ],
    };
    let host_mtu = spec.host_mtu.map_or(String::new(), |mtu| format!("host_mtu = {mtu}\n"));
    format!(
        r#"[site]
name = "site-{letter}"
key = "{letter}.key"
prefixes = ["10.{own}.0.0/16", "fd00:{own}::/48"]
{wan}run_dir = "{run_dir}"
{host_mtu}{site}
{wans}{tables}
[[peer]]
name = "site-{other_letter}"
key = "{their_key}"
prefixes = ["10.{other}.0.0/16", "fd00:{other}::/48"]
{endpoint}{peer}
[peer.fec]
{fec}
{others}
"#,
        letter = LETTERS[n],
        other_letter = LETTERS[1 - n],
        run_dir = run_dir.display(),
        site = spec.site,
        tables = spec.tables.replace("{own}", &own.to_string()),
        their_key = their.public(),
        peer = spec.peer,
        fec = spec.fec,
        others = if n == 0 { &spec.others } else { "" },
    )
}

/// Returns the lines of a site with two WANs: keys of `[site]`, further tables, and keys
/// of `[[peer]]`.
fn two_wans(own: usize, other: usize) -> [String; 3] {
    let wan = |name: &str, n: usize, v4: &str, v6: &str| {
        format!(
            "[[site.wan]]\nname = \"{name}\"\ninterface = \"wan{n}\"\n\
             listen = \"{v4}.{own}:7400\"\nvia = [\"{v4}.{other}\", \"{v6}::{other}\"]\n"
        )
    };
    let first = wan("first", 0, "192.0.2", "2001:db8");
    let second = wan("second", 1, "198.51.100", "2001:db8:1");
    let endpoints = format!("[\"192.0.2.{other}:7400\", \"198.51.100.{other}:7400\"]");
    [String::new(), first + &second, format!("endpoints = {endpoints}\n")]
}

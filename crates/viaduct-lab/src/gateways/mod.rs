//! Pair of real `viaduct gateway` processes in a dumbbell, or on the two sides of a middlebox, set
//! up as by an operator: with keys, a `site.toml` each, and the status socket.

mod spec;
mod status;

pub use spec::GatewaySpec;
pub use status::{GatewayStatus, ShellCounters};

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use viaduct_proto::keys::SecretKey;
use viaduct_sys::process::Process;

use crate::binary::binary;
use crate::topology::{Dumbbell, Middlebox, Node, Scratch};
use crate::{daemon, stop};
use spec::LETTERS;

/// Both running gateways; stopped when dropped.
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

    /// Prepares gateways on the two sides of a middlebox, without starting them. They reach each
    /// other over IPv6 if `v6`; gateway B learns the address of gateway A.
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
            let file = spec.site_toml(&run_dir, n, (listen, endpoint), &keys[1 - n]);
            Gateway::new(node, (&scratch, &run_dir), letter, &file)
        };
        let (a, b) = (prepare(0)?, prepare(1)?);
        Ok(Gateways { a, b, scratch })
    }

    /// Starts both gateways and waits until they can exchange repairs. Returns the time from the
    /// start until then.
    pub fn start_both(&mut self) -> Result<Duration> {
        let begun = Instant::now();
        // B starts first: with a middlebox, B only listens.
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

    /// Waits until both gateways report that all of their paths are up if `all_up`, otherwise that
    /// at least one is down.
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
                bail!(
                    "paths did not reach the expected state in time: {}{}",
                    self.a.log(),
                    self.b.log()
                );
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

    /// Sets a variable in the environment of processes that are started later.
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

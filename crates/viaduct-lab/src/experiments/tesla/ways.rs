//! The configurations of section 5.2, and ours.
//!
//! ```text
//!   plain     client ════════════════════════════════════════ server
//!   proxies   client ── TCP or UNIX ── relay ════ relay ── TCP or UNIX ── server
//!   viaduct   client ── its own socket ── master ════ master ── its own socket ── server
//!   offloaded client ══ its own socket ═══════════════════ its own socket ══ server
//!             └────── a core ─────────────┘     └─────────── a core ───────────┘
//! ```

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::programs::{Server, Under, bench, measure, run};
use super::world::{Who, World};
use crate::bench::Content;
use crate::example_tunnel::random_key;
use crate::topology::Scratch;
use crate::topology::programs::is_listening;

/// Which.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The programs alone.
    Plain,
    /// A relay in each host, spoken to by TCP.
    TcpProxies,
    /// A relay in each host, spoken to by UNIX-domain sockets.
    UnixProxies,
    /// `viaduct run` at both ends, with these handlers.
    Viaduct(&'static str, &'static [&'static str]),
    /// The same with `crypt`.
    Crypt,
    /// A pair of stunnel, spoken to by TCP.
    Stunnel,
}

/// The chain that the kernel works off by itself.
pub(super) const OFFLOADED: Way = Way::Viaduct("viaduct, offloaded", &["+count"]);
/// The same, passing Viaduct.
pub(super) const PASSING: Way = Way::Viaduct("viaduct", &["+count", "--no-offload"]);

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Way::Plain => "plain",
            Way::TcpProxies => "TCP proxies",
            Way::UnixProxies => "UNIX proxies",
            Way::Viaduct(name, _) => name,
            Way::Crypt => "viaduct, crypt",
            Way::Stunnel => "stunnel",
        }
    }
}

/// One of them at work: its servers wait for clients.
pub(super) struct Stall<'a> {
    world: &'a World,
    under: Under,
    /// Where a client goes.
    to: String,
    _servers: Vec<Server>,
    _scratch: Scratch,
}

/// What a client does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// `read`, `write` or `volley`.
    pub(super) program: &'static str,
    pub(super) block: usize,
    pub(super) content: Content,
    pub(super) seconds: f64,
    pub(super) warm_up: f64,
}

impl<'a> Stall<'a> {
    /// Starts all that stays; way `n` of a world has ports of its own.
    pub(super) fn build(world: &'a World, way: Way, n: u16) -> Result<Stall<'a>> {
        let mut parts =
            Parts { world, scratch: Scratch::new()?, servers: Vec::new(), ports: 8 * n };
        let (under, to) = match way {
            Way::Plain => (Vec::new(), parts.serve(&Vec::new())?),
            Way::Viaduct(_, words) => (run(words)?, parts.serve(&run(words)?)?),
            Way::Crypt => {
                let key = random_key()?.to_text();
                let key = parts.scratch.write_secret("crypt.key", key)?;
                let under = run(&[&format!("+crypt:key={}", key.display())])?;
                (under.clone(), parts.serve(&under)?)
            }
            Way::TcpProxies => {
                let server = parts.serve(&Vec::new())?;
                let far = parts.relay(Who::Server, None, &server)?;
                (Vec::new(), parts.relay(Who::Client, None, &far)?)
            }
            Way::UnixProxies => {
                let server = parts.serve_at("server")?;
                let far = parts.relay(Who::Server, None, &server)?;
                (Vec::new(), parts.relay(Who::Client, Some("near"), &far)?)
            }
            Way::Stunnel => {
                let server = parts.serve(&Vec::new())?;
                let far = parts.stunnel(Who::Server, &server)?;
                (Vec::new(), parts.stunnel(Who::Client, &far)?)
            }
        };
        let Parts { servers, scratch, .. } = parts;
        Ok(Stall { world, under, to, _servers: servers, _scratch: scratch })
    }

    /// Has a client do that once: what it counts a second.
    pub(super) fn measure(&self, load: &Load) -> Result<f64> {
        self.measured(&self.under, load)
    }

    /// The same with these words for `viaduct run`.
    pub(super) fn measure_under(&self, words: &[&str], load: &Load) -> Result<f64> {
        self.measured(&run(words)?, load)
    }

    fn measured(&self, under: &Under, load: &Load) -> Result<f64> {
        let node = self.world.node(Who::Client);
        let numbers = [load.block.to_string(), load.seconds.to_string(), load.warm_up.to_string()];
        let [block, seconds, warm_up] = &numbers;
        let words = [load.program, &self.to, "--block", block, "--content", load.content.name()];
        let words = [&words[..], &["--seconds", seconds, "--warm-up", warm_up]].concat();
        let command = bench(node, Who::Client, under, &words)?;
        measure(node, command, load.seconds + load.warm_up).with_context(|| self.to.clone())
    }
}

/// What stays, in the making.
struct Parts<'a> {
    world: &'a World,
    scratch: Scratch,
    servers: Vec<Server>,
    ports: u16,
}

impl Parts<'_> {
    /// The benchmarks' server, at a port of its own.
    fn serve(&mut self, under: &Under) -> Result<String> {
        let at = self.place(Who::Server);
        let command = bench(self.world.node(Who::Server), Who::Server, under, &["serve", &at])?;
        self.start(Who::Server, command, &at)?;
        Ok(at)
    }

    /// The same at a path.
    fn serve_at(&mut self, name: &str) -> Result<String> {
        let at = format!("unix:{}", self.path(name).display());
        let node = self.world.node(Who::Server);
        let command = bench(node, Who::Server, &Vec::new(), &["serve", &at])?;
        self.start(Who::Server, command, &at)?;
        Ok(at)
    }

    /// A plain relay, at a path of this name or at a port.
    fn relay(&mut self, who: Who, name: Option<&str>, to: &str) -> Result<String> {
        let at = match name {
            Some(name) => format!("unix:{}", self.path(name).display()),
            None => self.place(who),
        };
        let command = bench(self.world.node(who), who, &Vec::new(), &["relay", &at, to])?;
        self.start(who, command, &at)?;
        Ok(at)
    }

    /// One end of a tunnel of stunnel's: the far one ends the encryption.
    fn stunnel(&mut self, who: Who, to: &str) -> Result<String> {
        let at = self.place(who);
        let secret = self.scratch.write_secret("psk", format!("lab:{}\n", "5a".repeat(32)))?;
        let client = if who == Who::Client { "yes" } else { "no" };
        let text = format!(
            "foreground = yes\npid =\nsocket = l:TCP_NODELAY=1\nsocket = r:TCP_NODELAY=1\n[lab]\n\
             client = {client}\naccept = {at}\nconnect = {to}\nPSKsecrets = {}\n",
            secret.display()
        );
        let file = self.scratch.write(&format!("stunnel-{client}"), text)?;
        let core = World::core(who)?.to_string();
        let mut command = self.world.node(who).command("taskset");
        command.args(["--cpu-list", &core, "stunnel4"]).arg(file);
        self.start(who, command, &at)?;
        Ok(at)
    }

    fn start(&mut self, who: Who, command: Command, at: &str) -> Result<()> {
        let node = self.world.node(who);
        let ready = || match at.strip_prefix("unix:") {
            Some(path) => Ok(PathBuf::from(path).exists()),
            None => {
                let port = at.rsplit(':').next().and_then(|port| port.parse().ok());
                Ok(is_listening(node, port.context("a place has a port")?)?)
            }
        };
        self.servers.push(Server::start(node, command, ready)?);
        Ok(())
    }

    fn place(&mut self, who: Who) -> String {
        self.ports += 1;
        self.world.at(who, self.ports).to_string()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }
}

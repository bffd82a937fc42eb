//! Real `viaduct overlay` processes, one in each of several nodes, which all probe each other.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::overlay::Table;
use viaduct_sys::process::Process;

use crate::binary::binary;
use crate::topology::{Node, Scratch};
use crate::{daemon, stop};

/// Port for probes.
const PROBES: u16 = 7420;
/// Port at which the nodes' hops listen.
pub const HOP: u16 = 7000;
/// Time limit for all nodes to know all paths.
const KNOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// Running overlay, whose nodes are named `n0`, `n1` and so on; stopped when dropped.
#[derive(Debug)]
pub struct Overlays {
    scratch: Scratch,
    nodes: Vec<(Node, Option<Process>)>,
}

impl Overlays {
    /// Starts a node of the overlay in each of `nodes`, at the address given with it, and waits
    /// until all know all paths. The configs name port [`HOP`] of each address as the node's hop.
    /// `lines` are added to the table `[overlay]` of all configs.
    pub fn start(nodes: &[(&Node, IpAddr)], lines: &str) -> Result<Overlays> {
        let scratch = Scratch::new()?;
        let keys: Vec<_> =
            (1..).take(nodes.len()).map(|n| SecretKey::from_bytes([n; 32])).collect();
        for (n, (_, at)) in nodes.iter().enumerate() {
            let key = scratch.write_secret(&format!("n{n}.key"), keys[n].to_text())?;
            let mut config = format!(
                "[overlay]\nname = \"n{n}\"\nkey = {key:?}\nlisten = \"{}\"\nrun_dir = {:?}\n\
                 {lines}\n",
                SocketAddr::new(*at, PROBES),
                scratch.path()
            );
            for (m, (_, at)) in nodes.iter().enumerate().filter(|(m, _)| *m != n) {
                let [endpoint, hop] = [PROBES, HOP].map(|port| SocketAddr::new(*at, port));
                let key = keys[m].public();
                writeln!(
                    config,
                    "[[peer]]\nname = \"n{m}\"\nkey = \"{key}\"\nendpoint = \"{endpoint}\"\n\
                     hop = \"{hop}\""
                )?;
            }
            scratch.write(&format!("n{n}.toml"), config)?;
        }
        let nodes = nodes.iter().map(|(node, _)| ((*node).clone(), None)).collect();
        let mut overlays = Overlays { scratch, nodes };
        (0..overlays.nodes.len()).try_for_each(|n| overlays.restart(n))?;
        overlays.wait_until_known()?;
        Ok(overlays)
    }

    /// Starts node `n`; stops it first if it is running.
    pub fn restart(&mut self, n: usize) -> Result<()> {
        self.stop(n);
        let node = &self.nodes[n].0;
        let mut command = node.command(&binary()?.to_string_lossy());
        command.args(["overlay", "--config"]);
        command.arg(self.scratch.path().join(format!("n{n}.toml")));
        let log = self.scratch.path().join(format!("n{n}.log"));
        let socket = self.socket(n);
        let process = daemon::start(node, command, &log, || Ok(table(&socket).is_ok()))?;
        self.nodes[n].1 = Some(process);
        Ok(())
    }

    /// Stops node `n`.
    pub fn stop(&mut self, n: usize) {
        self.nodes[n].1 = None;
    }

    /// Returns the status socket of node `n`.
    pub fn socket(&self, n: usize) -> PathBuf {
        self.scratch.path().join(format!("overlay-n{n}.sock"))
    }

    /// Waits until all nodes know all paths.
    pub fn wait_until_known(&self) -> Result<()> {
        let deadline = Instant::now() + KNOWN_TIMEOUT;
        let others = self.nodes.len() - 2;
        for n in 0..self.nodes.len() {
            let knows = |table: Table| {
                let mut nodes = table.nodes.iter();
                nodes.all(|node| node.path.up == Some(true) && node.others.len() == others)
            };
            while !knows(table(&self.socket(n))?) {
                if Instant::now() > deadline {
                    bail!("node n{n} of the overlay does not know all paths");
                }
                stop::check()?;
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
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

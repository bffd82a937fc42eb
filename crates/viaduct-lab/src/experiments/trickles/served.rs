//! `viaduct serve` in a node: files over Trickles, and over TCP on the same port.

use std::path::PathBuf;
use std::process::Command;

use viaduct_proto::trickles::packet::Format;

use crate::experiments::prelude::*;
use crate::topology::programs::is_listening;

/// Listening port.
pub(super) const PORT: u16 = 80;
/// Congestion control of all TCP connections in the comparison: the one that Trickles emulates.
pub(super) const CONGESTION_CONTROL: &str = "reno";
/// Maximum concurrent TCP connections: more than any experiment opens.
const MAX_CONNECTIONS: &str = "15000";
/// `tc` command for a link of 1 Gb/s with 8 ms of queue.
const GIGABIT: &str = "qdisc replace dev wan0 root tbf rate 1gbit burst 128k limit 1000000";
/// Number and bytes of the secret for continuations.
pub(super) const SECRET: (u8, [u8; 32]) = (1, [0xa1; 32]);

/// Records the settings of fetches by many clients.
pub(super) fn describe(run: &mut Run, rounds: usize) {
    let clients = "client cores in the lab's process, on the host of TCP's clients";
    run.param("trickles_clients", clients);
    run.param("rounds", rounds);
    run.congestion_control(CONGESTION_CONTROL);
}

/// Server; stopped when dropped.
pub(super) struct Served {
    scratch: Scratch,
    process: Process,
}

impl Served {
    /// Starts the server in `host`, without files yet; `options` are additional arguments for
    /// `viaduct serve`. Sets the host's congestion control to [`CONGESTION_CONTROL`].
    pub(super) fn start(host: &Host, options: &[&str]) -> Result<Served> {
        Served::by(Format::Tcp, host, options)
    }

    /// Starts the server with packets of this format.
    pub(super) fn by(format: Format, host: &Host, options: &[&str]) -> Result<Served> {
        host.set_congestion_control(CONGESTION_CONTROL)?;
        host.set_sysctls(&[
            ("net/core/somaxconn", "16384"),
            ("net/ipv4/tcp_max_syn_backlog", "16384"),
        ])?;
        let scratch = prepare()?;
        let way = if format == Format::Tcp { "tcp" } else { "udp" };
        let options = [&["--trickles", way], options].concat();
        let process = spawn(host, &scratch, "run", &options)?;
        Ok(Served { scratch, process })
    }

    /// Creates a file of `bytes` random bytes, served as `/name`; returns the bytes.
    pub(super) fn file(&self, name: &str, bytes: usize, seed: u64) -> Result<Vec<u8>> {
        file(&self.scratch, name, bytes, seed)
    }

    /// Returns the path of the file served as `/name`.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join("site").join(name)
    }

    /// Returns the server's process ID.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Reads the server's status, as `viaduct status --json` prints it; it is up to 0.4 s old.
    pub(super) fn status(&self) -> Result<Value> {
        status(&self.scratch.path().join("run"))
    }
}

/// Reads the status of the server with this run directory.
pub(super) fn status(run_dir: &Path) -> Result<Value> {
    let mut status = Command::new(binary()?);
    status.args(["status", "--json", "--run-dir"]).arg(run_dir);
    let said = status.args(["--name", &format!("serve-{PORT}")]).output()?;
    let text = String::from_utf8_lossy(&said.stderr).into_owned();
    serde_json::from_slice(&said.stdout).with_context(|| format!("invalid status: {text}"))
}

/// Creates a directory with an empty site and the secret.
pub(super) fn prepare() -> Result<Scratch> {
    let scratch = Scratch::new()?;
    fs::create_dir(scratch.path().join("site"))?;
    let digits = SECRET.1.map(|byte| format!("{byte:02x}")).concat();
    scratch.write_secret("key", format!("{} {digits}\n", SECRET.0))?;
    Ok(scratch)
}

/// Creates a file of random bytes in the site; returns the bytes.
pub(super) fn file(scratch: &Scratch, name: &str, bytes: usize, seed: u64) -> Result<Vec<u8>> {
    let mut content = vec![0; bytes];
    Rng::from_seed(seed).fill(&mut content);
    scratch.write(&format!("site/{name}"), &content)?;
    Ok(content)
}

/// Builds two sites with a 1 Gb/s link that the kernel itself limits, so that the cost of the link
/// is not counted as the server's.
pub(super) fn gigabit(run: &Run) -> Result<Dumbbell> {
    let world = Dumbbell::build(&DumbbellSpec::default(), run.journal())?;
    for gateway in [world.gateway_a(), world.gateway_b()] {
        gateway.run("tc", &GIGABIT.split(' ').collect::<Vec<_>>())?;
    }
    Ok(world)
}

/// Returns the address of a host's server.
pub(super) fn at(host: &Host) -> SocketAddr {
    SocketAddr::new(host.v4().into(), PORT)
}

/// Returns a request for a file; the server closes the connection after its response.
pub(super) fn get(name: &str) -> Vec<u8> {
    format!("GET /{name} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").into_bytes()
}

/// Starts a server on the directory from [`prepare`], with a run directory of this name.
pub(super) fn spawn(
    node: &Node,
    scratch: &Scratch,
    run_dir: &str,
    options: &[&str],
) -> Result<Process> {
    let mut command = node.command(&binary()?.display().to_string());
    command.arg("serve").arg(scratch.path().join("site"));
    command.args(["--listen", &format!("[::]:{PORT}"), "--max-connections", MAX_CONNECTIONS]);
    // All clients share a host.
    command.args(["--max-per-source", MAX_CONNECTIONS]);
    command.arg("--key").arg(scratch.path().join("key"));
    command.arg("--run-dir").arg(scratch.path().join(run_dir)).args(options);
    let log = scratch.path().join(format!("{run_dir}.log"));
    daemon::start(node, command, &log, || Ok(is_listening(node, PORT)?))
}

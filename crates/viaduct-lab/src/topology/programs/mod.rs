//! Real, unmodified programs in hosts. Each is started, awaited with a timeout (or until
//! Ctrl-C), and its output is parsed.
//!
//! ```text
//!   Iperf          iperf3, TCP or UDP                    -> IperfReport
//!   WebServer      nginx (or python3) with one file      -> download() with curl -> Download
//!                  or a library of Documents            <- Requests, as by Web Polygraph
//!   Squid          squid, one of a pair of caches
//!   Bird           bird, a routing daemon
//!   Ping           ping                                  -> PingReport
//!   PeerTunnel     sing-box, kcptun                     over the link, by their own protocols
//!   Relay          HAProxy, nginx stream, Varnish      between a client and a server
//!   Capture        own: the segments of a connection      -> Vec<Segment>
//!   sessions       own: endless data, fetches, echoes, on one port
//!   TimedMessages  own: messages at a constant rate      -> Vec<Message>, one-way latencies
//! ```

mod bird;
mod capture;
mod documents;
mod iperf;
mod messages;
mod peers;
mod ping;
mod relays;
mod requests;
pub mod sessions;
mod squid;
mod web;

pub use bird::Bird;
pub use capture::{Capture, Segment};
pub use documents::Documents;
pub use iperf::{Iperf, IperfReport, Load};
pub use messages::{Carrier, Message, TimedMessages};
pub use peers::{Peer, PeerTunnel};
pub use ping::{Ping, PingReport};
pub use relays::{Relay, Software};
pub use requests::{Request, Requests};
pub use squid::{Connections, Squid, SquidCache};
pub use web::{Download, WebServer};

use std::fs;
use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use viaduct_sys::process::Process;

use super::{Node, TopologyError};
use crate::stop;

/// Time limit for a server to listen.
const READY: Duration = Duration::from_secs(10);

struct ProgramOutput {
    success: bool,
    stdout: String,
    stderr: String,
}

/// Runs `command` to its end; kills it after `limit` or on Ctrl-C.
fn run(node: &Node, mut command: Command, limit: Duration) -> Result<ProgramOutput, TopologyError> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = node.spawn(command)?;
    let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
    thread::scope(|scope| {
        // The pipes are read concurrently, because a full pipe would block the program.
        let stdout = scope.spawn(|| text_of(stdout));
        let stderr = scope.spawn(|| text_of(stderr));
        let status = process
            .wait_for(limit, stop::is_requested)
            .map_err(|e| node.io(format!("wait for {name}"), e))?;
        let Some(status) = status else {
            drop(process);
            stop::check()?;
            return Err(TopologyError::TimedOut {
                node: node.name().into(),
                what: name,
                after: limit,
            });
        };
        let read = |thread: thread::ScopedJoinHandle<'_, String>| thread.join().unwrap_or_default();
        Ok(ProgramOutput { success: status.success(), stdout: read(stdout), stderr: read(stderr) })
    })
}

/// Starts a server and waits until it listens on TCP `port`.
fn serve(node: &Node, mut command: Command, port: u16) -> Result<Process, TopologyError> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = node.spawn(command)?;
    let deadline = Instant::now() + READY;
    while !is_listening(node, port)? {
        stop::check()?;
        let ended = process
            .wait_for(Duration::from_millis(5), stop::is_requested)
            .map_err(|e| node.io(format!("wait for {name}"), e))?;
        if let Some(status) = ended {
            let stderr = text_of(process.stderr.take());
            return Err(answer(node, format!("{name} ended ({status}): {}", stderr.trim())));
        }
        if Instant::now() > deadline {
            let (node, what) = (node.name().into(), format!("{name} listening on port {port}"));
            return Err(TopologyError::TimedOut { node, what, after: READY });
        }
    }
    Ok(process)
}

/// Returns whether a socket in `node` listens on TCP `port`. Reads the kernel's tables instead
/// of connecting, since a server for a single connection would mistake the probe for its client.
pub(crate) fn is_listening(node: &Node, port: u16) -> Result<bool, TopologyError> {
    let tables = node.netns().enter(|| {
        let read = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
        read("tcp").map(|v4| v4 + &read("tcp6").unwrap_or_default())
    })?;
    let tables = tables.map_err(|e| node.io("read the table of sockets".into(), e))?;
    // Row format "0: 00000000:1451 00000000:0000 0A …", with 0A for LISTEN.
    let port = format!(":{port:04X}");
    Ok(tables.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        let local = words.next().is_some_and(|local| local.ends_with(&port));
        local && words.nth(1) == Some("0A")
    }))
}

/// Creates a command in `node` whose PATH includes the administrators' directories.
fn admin_command(node: &Node, program: &str) -> Command {
    let mut command = node.command(program);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

/// Creates a command like [`admin_command`], pinned to `core`.
fn on_core(node: &Node, core: usize, program: &str) -> Command {
    let mut command = admin_command(node, "taskset");
    command.args(["--cpu-list", &core.to_string(), program]);
    command
}

fn answer(node: &Node, what: String) -> TopologyError {
    TopologyError::Answer { node: node.name().into(), what }
}

fn text_of(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        // After an error, the bytes read so far are used.
        let _: io::Result<usize> = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

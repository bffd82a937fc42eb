//! Worlds of network namespaces: hosts, gateways and the wires between them.
//!
//! A world is built from a description, exists until its value is dropped, and leaves nothing
//! behind. The namespaces have no names (see [`viaduct_sys::netns`]), so that a drop, a panic,
//! Ctrl-C and even `kill -9` remove the world completely. Several worlds can exist at the same
//! time; they use the same addresses without conflict.
//!
//! ```text
//!    [Dumbbell]   a1 ─┐                                     ┌─ b1
//!                 a2 ─┤ gwa ═════════ wan0 ═════════ gwb ├─ b2
//!                  … ─┘        veth, or two TUNs            └─ …
//!                              and an emulator
//!
//!    [Chain]      client ═══ hop1 ═══ hop2 ═══ … ═══ server
//!
//!    [Detour]     client ═══ fork ═══ server, and aside ═══ fork
//!
//!    [Middlebox]  a1 ─── gwa ═══ middlebox ─── gwb ─── b1
//!
//!    [Mesh]       nodes and servers, with a link between any two; a client at the first node
//!
//!    [Pair]       load ─── box
//!
//!    [Rack]       router ─── segment of boxes in front and replicas
//!
//!    [Racks]      a ─── ain ═ a1 … aN ═ aout ═══ bout ═ b1 … bN ═ bin ─── b
//!
//!    [Node]       one namespace: its name, its commands, programs that end with the lab
//!    [Journal]    every command that was run, for --verbose
//!    [programs]   iperf3, curl, ping, timed messages: run in hosts, with time-outs
//!    [Usage]      a program's processor time, memory and descriptors
//!    [Scratch]    temporary files of programs, removed with the world or by the next run
//! ```

mod chain;
mod detour;
mod dumbbell;
mod journal;
mod mesh;
mod middlebox;
mod node;
mod pair;
pub mod programs;
mod rack;
pub mod racks;
pub(crate) mod scratch;
mod site;
mod tun;
mod usage;

pub use chain::Chain;
pub use detour::Detour;
pub use dumbbell::{Dumbbell, DumbbellSpec, Wan};
pub use journal::Journal;
pub use mesh::Mesh;
pub use middlebox::{Counted, Middlebox};
pub use node::{Host, Node};
pub use pair::Pair;
pub use rack::Rack;
pub use racks::Racks;
pub use scratch::Scratch;
pub(crate) use tun::open as open_tun;
pub use usage::{Usage, cpu_time, machine_time, socket_memory, times_scheduled, user_and_system};

use std::io;
use std::time::Duration;

use viaduct_sys::netns::NetnsError;

/// Errors of a world.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A namespace could not be created, entered or configured.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The TUN device of an emulated link could not be created.
    #[error("in {node}")]
    Tun {
        /// Name of the node.
        node: String,
        /// Error of the kernel.
        source: viaduct_sys::route::tun::TunError,
    },
    /// The link between the gateways could not be started.
    #[error("cannot emulate the link between the gateways")]
    Emulator(#[from] crate::emulator::EmulatorError),
    /// A value in the description is out of range.
    #[error("{what} is {value}, but must be {range}")]
    Spec {
        /// The field, as in `hosts`.
        what: &'static str,
        /// Given value.
        value: u64,
        /// Allowed range.
        range: &'static str,
    },
    /// A command in a node failed.
    #[error("in {node}: `{command}` failed: {output}")]
    Command {
        /// Name of the node.
        node: String,
        /// Command line.
        command: String,
        /// Output of the command.
        output: String,
    },
    /// A program could not be started, or communication with it failed.
    #[error("in {node}: cannot {what}")]
    Io {
        /// Name of the node.
        node: String,
        /// Attempted operation, as in "start iperf3".
        what: String,
        /// Error of the system.
        source: io::Error,
    },
    /// A program did not end or become ready in time.
    #[error("in {node}: {what} not done after {:.1} s", .after.as_secs_f64())]
    TimedOut {
        /// Name of the node.
        node: String,
        /// Awaited program, as in "iperf3".
        what: String,
        /// Time waited.
        after: Duration,
    },
    /// A program gave an unexpected answer.
    #[error("in {node}: {what}")]
    Answer {
        /// Name of the node.
        node: String,
        /// Description of the error.
        what: String,
    },
    /// The user pressed Ctrl-C.
    #[error(transparent)]
    Stopped(#[from] crate::stop::Stopped),
}

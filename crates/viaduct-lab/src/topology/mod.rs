//! Worlds made of network namespaces: hosts, gateways and the wires between them.
//!
//! A world is built from a description, lives as long as its value, and leaves nothing behind: its
//! namespaces have no names (see [`viaduct_sys::netns`]), so that a drop, a panic, Ctrl-C and even
//! `kill -9` end it wholly. Several worlds stand side by side; their addresses are the same and
//! never meet.
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
//!    [Pair]       load ─── box
//!
//!    [Node]       one namespace: its name, commands in it, programs that die with us
//!    [Journal]    every command that was run, for --verbose
//!    [programs]   iperf3, curl, ping, timed messages: run in hosts, with time-outs
//!    [Usage]      a program's processor time, memory and descriptors
//!    [Scratch]    files that programs need, gone with the world or by the next run
//! ```

mod chain;
mod detour;
mod dumbbell;
mod journal;
mod node;
mod pair;
pub mod programs;
pub(crate) mod scratch;
mod site;
mod tun;
mod usage;

pub use chain::Chain;
pub use detour::Detour;
pub use dumbbell::{Dumbbell, DumbbellSpec, Wan};
pub use journal::Journal;
pub use node::{Host, Node};
pub use pair::Pair;
pub use scratch::Scratch;
pub(crate) use tun::open as open_tun;
pub use usage::{Usage, cpu_time, machine_time, socket_memory, times_scheduled};

use std::io;
use std::time::Duration;

use viaduct_sys::netns::NetnsError;

/// What can go wrong in a world.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A namespace could not be made, entered or set.
    #[error(transparent)]
    Netns(#[from] NetnsError),
    /// The TUN of an emulated link could not be made.
    #[error("in {node}")]
    Tun {
        /// The node's name.
        node: String,
        /// What the kernel refused.
        source: viaduct_sys::tun::TunError,
    },
    /// The link between the gateways could not be started.
    #[error("cannot emulate the link between the gateways")]
    Emulator(#[from] crate::emulator::EmulatorError),
    /// The description asks for something that cannot be.
    #[error("{what} is {value}, but must be {range}")]
    Spec {
        /// The field, as in `hosts`.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        range: &'static str,
    },
    /// A command in a node failed.
    #[error("in {node}: `{command}` failed: {output}")]
    Command {
        /// The node's name.
        node: String,
        /// The command line.
        command: String,
        /// What it said.
        output: String,
    },
    /// A program could not be started or spoken to.
    #[error("in {node}: cannot {what}")]
    Io {
        /// The node's name.
        node: String,
        /// As in "start iperf3".
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A program did not end or get ready in time.
    #[error("in {node}: {what} not done after {}", humantime(*.after))]
    TimedOut {
        /// The node's name.
        node: String,
        /// As in "iperf3".
        what: String,
        /// How long was waited.
        after: Duration,
    },
    /// A program's answer is not what it should be.
    #[error("in {node}: {what}")]
    Answer {
        /// The node's name.
        node: String,
        /// What was wrong with it.
        what: String,
    },
    /// Ctrl-C.
    #[error(transparent)]
    Stopped(#[from] crate::stop::Stopped),
}

fn humantime(duration: Duration) -> String {
    format!("{:.1} s", duration.as_secs_f64())
}

//! BPF programs on the sockets of a cgroup: they write a TCP option into SYNs, and redirect
//! programs' connections.
//!
//! ```text
//!   connect(2) ──▶ Steer: another destination ──▶ SynOption: the option ──▶ SYN on the wire
//!                    └──────── map: socket's cookie to 16 bytes ────┘
//!
//!   asm      instructions          kernel   map, program, link: bpf(2)
//!   idioms   common sequences      events   ring buffer        sock_ops   context of sock_ops
//!   cgroup   which sockets         option, steer   the programs
//! ```
//!
//! Each program is attached by a link whose descriptor this process holds: when the process
//! ends, also by kill -9, the kernel detaches the program and nothing is left behind. Programs
//! of [`Redirect`] are attached to the wrapped programs' cgroup and last as long as it: no
//! program bypasses a chain because its master has ended. The meaning of the 16 bytes is up to
//! the caller.

mod asm;
mod cgroup;
mod events;
mod idioms;
mod kernel;
mod offers;
mod option;
mod redirect;
mod sock_ops;
mod steer;

use std::io;

pub use cgroup::{Freezer, Group};
pub use offers::Offers;
pub use option::{OPTION, SynOption};
pub use redirect::{
    DatagramMode, InboundConns, Offload, OptionChange, Ports, Redirect, RedirectConfig,
    RedirectEvent, Resolver, Rule, RuleAction, Rules, SocketNames, Traffic, WaitingConnect,
};
pub use steer::{Steer, Steering, Template};

/// Errors of loading and attaching a program.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// A right is missing, or the kernel refuses for another reason.
    #[error("cannot {action}: this takes root, or CAP_BPF and CAP_NET_ADMIN")]
    Denied {
        /// The step that failed.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refuses the program: it is too old, below 5.10, say.
    #[error("the kernel refuses the program for {hook}: {why}")]
    Refused {
        /// The hook it was loaded for.
        hook: String,
        /// The verifier's message.
        why: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// There is no such cgroup.
    #[error("no cgroup at {path}: a directory of cgroup version 2 is expected")]
    Cgroup {
        /// The path tried.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// More prefixes and ports than a program holds.
    #[error("{given} prefixes and ports do not fit into a program: {most} do; join some")]
    TooMany {
        /// Number given.
        given: usize,
        /// Max number.
        most: usize,
    },
    /// The cookie of a socket or namespace cannot be read.
    #[error("cannot ask a socket for its cookie")]
    Socket(#[source] io::Error),
}

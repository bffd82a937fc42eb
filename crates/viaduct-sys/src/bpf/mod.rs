//! Programs that the kernel runs on sockets of a cgroup: they write a TCP option into SYNs, and send
//! programs' connections elsewhere.
//!
//! ```text
//!   connect(2) ──▶ Steer: another destination ──▶ SynOption: the option ──▶ SYN on the wire
//!                    └──────── map: socket's cookie to 16 bytes ────┘
//!
//!   asm      instructions          kernel   map, program, link: bpf(2)
//!   idioms   what they do often    events   what they tell    sock_ops   what some are told
//!   cgroup   whose sockets         option, steer   the programs
//! ```
//!
//! Each hangs by a link whose descriptor this process holds: when it ends, also by kill -9, the kernel
//! takes the program away and nothing is left behind. Those of wrapped programs ([`Divert`]) hang by the
//! group that they are in, and go with it: nobody gets around a chain by the end of its master. What the
//! 16 bytes say is the caller's matter.

mod asm;
mod cgroup;
mod divert;
mod events;
mod idioms;
mod kernel;
mod offers;
mod option;
mod sock_ops;
mod steer;

use std::io;

pub use cgroup::{Freezer, Group};
pub use divert::{
    Carry, Diversion, Divert, Fate, Heard, Inside, Names, Offload, Optioned, Passing, Ports,
    Resolver, Rule, Rules, Waiting,
};
pub use offers::Offers;
pub use option::{OPTION, SynOption};
pub use steer::{Steer, Steering, Template};

/// Why there is no such program.
#[derive(Debug, thiserror::Error)]
pub enum BpfError {
    /// A right is missing, or something is in the way.
    #[error("cannot {action}: this takes root, or CAP_BPF and CAP_NET_ADMIN")]
    Denied {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel does not take the program: it is too old, below 5.10, say.
    #[error("the kernel refuses the program for {hook}: {why}")]
    Refused {
        /// Where it was to run.
        hook: String,
        /// What the verifier says.
        why: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no such cgroup.
    #[error("no cgroup at {path}: a directory of cgroup version 2 is expected")]
    Cgroup {
        /// Where it was looked for.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// More prefixes and ports than a program holds.
    #[error("{given} prefixes and ports do not fit into a program: {most} do; join some")]
    TooMany {
        /// How many there are.
        given: usize,
        /// How many fit.
        most: usize,
    },
    /// The socket could not be asked who it is.
    #[error("cannot ask a socket for its cookie")]
    Socket(#[source] io::Error),
}

//! BPF programs on the sockets of a cgroup: they write a TCP option into SYNs, and redirect
//! connections to a hop or, for wrapped programs, to a rendezvous.
//!
//! ```text
//!   connect(2) ──▶ Steer: another destination ──▶ SynOption: the option ──▶ SYN on the wire
//!                    └──────── map: socket's cookie to 16 bytes ────┘
//!
//!   asm      instructions          kernel   map, program, link: bpf(2)
//!   idioms   common sequences      events   ring buffer        sock_ops   context of sock_ops
//!   cgroup   which sockets         option, offers, steer, redirect   the programs
//! ```
//!
//! Each program is attached by a link whose descriptor this process holds: when the process ends,
//! even by kill -9, the kernel detaches the BPF program and nothing is left behind. The BPF
//! programs of [`Redirect`], however, stay attached to the cgroup of the wrapped programs until the
//! cgroup is removed, so that a wrapped program whose master has ended does not bypass its chain.
//! The meaning of the option's 16 bytes is up to the caller.

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
    /// A privilege is missing, or the kernel refuses for another reason.
    #[error("cannot {action} (requires root, or CAP_BPF and CAP_NET_ADMIN)")]
    Denied {
        /// The step that failed.
        action: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refuses the program, for example because the kernel is older than 5.10.
    #[error("cannot load the program for {hook}: {why}")]
    Refused {
        /// The hook of the program.
        hook: String,
        /// The verifier's message.
        why: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// There is no such cgroup.
    #[error("no cgroup at {path}: a directory of cgroup version 2 is expected")]
    Cgroup {
        /// The requested path.
        path: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// There are more prefixes and ports than a program can test.
    #[error(
        "{given} prefixes and ports are too many for a program, which can test {most}: merge some"
    )]
    TooMany {
        /// Number given.
        given: usize,
        /// Max number.
        most: usize,
    },
    /// The cookie of a socket or namespace cannot be read.
    #[error("cannot read the cookie of a socket")]
    Socket(#[source] io::Error),
}

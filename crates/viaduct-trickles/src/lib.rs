//! Trickles on sockets. A *port* here is a [`ServerPort`] or a [`ClientPort`], which sends and
//! receives the messages of a server or of clients; it is not a TCP or UDP port.
//!
//! ```text
//!   server   ServerPort::turn ──▶ each(message, Return, Answers) ──▶ sent when the batch is done
//!                 │      Listener: with the events, and the secrets
//!                 ▲ taps, raw sockets, UDP sockets; a rule hides packets from the kernel's TCP
//!                 ▼
//!   client   ClientPort::receive_* ──▶ each(Flow, PortEvent)   ClientPort::send(Flow, message)
//!                 ▲
//!            Connector: a stream client for each flow, timers, one descriptor to poll
//! ```
//!
//! To a port, a message is a string of bytes, which [`viaduct_proto::trickles::packet`] puts into
//! packets. A [`ServerPort`] keeps no state of clients. Changes to the host's rules are written to
//! a journal before they are made, and reverted when the port is dropped, or at the next start.

mod client;
mod clock;
mod connector;
mod egress;
mod gso;
mod listener;
mod local;
mod lookup_cache;
mod secrets;
mod server;
mod stale_changes;
mod stats;
mod tcp_sockets;

pub use client::{ClientPort, ClientSettings, Flow, PortEvent};
pub use connector::{Connector, ConnectorEvent};
pub use listener::Listener;
pub use secrets::{Secrets, SharedRotation};
pub use server::{Answers, ServerPort, ServerSettings};
pub use stale_changes::revert_stale_changes;
pub use stats::PortStats;

use viaduct_sys::journal::JournalError;

/// Send buffer of a socket in bytes: more than a tenth of a second at 1 Gb/s.
const SEND_BUFFER: usize = 16 << 20;

/// Reason why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// No address to listen at.
    #[error("no address to listen at: at least one is needed, such as 0.0.0.0:80")]
    NoAddress,
    /// MTU out of range.
    #[error("invalid MTU of {0} bytes: 576 to 65535 are allowed")]
    Mtu(usize),
    /// A rule could not be set.
    #[error(transparent)]
    Rules(#[from] JournalError),
    /// A socket operation failed.
    #[error("cannot {what}{}", if *.privilege { ", which requires root or CAP_NET_RAW; UDP \
        does not" } else { "" })]
    Socket {
        /// The operation, such as "open a packet socket".
        what: String,
        /// True if the operation requires privilege, which may be missing.
        privilege: bool,
        /// Error of the kernel.
        source: std::io::Error,
    },
}

impl PortError {
    /// Returns whether the reason may be missing privilege for packets in TCP's format.
    pub fn is_privilege(&self) -> bool {
        match self {
            // Another process has the journal or table of this name: it uses the same port or name.
            PortError::Rules(JournalError::Busy { .. } | JournalError::Locked(_)) => false,
            PortError::Rules(_) => true,
            PortError::Socket { privilege, .. } => *privilege,
            PortError::NoAddress | PortError::Mtu(_) => false,
        }
    }

    fn socket(
        what: impl Into<String>,
        privilege: bool,
    ) -> impl FnOnce(std::io::Error) -> PortError {
        let what = what.into();
        move |source| PortError::Socket { what, privilege, source }
    }
}

fn check_mtu(mtu: usize) -> Result<(), PortError> {
    if (576..=65_535).contains(&mtu) { Ok(()) } else { Err(PortError::Mtu(mtu)) }
}

//! Ports of Trickles: messages to and from the network, for a server and for a client.
//!
//! ```text
//!   server   ServerPort::turn ──▶ each(message, Return, Answers) ──▶ sent when the batch is done
//!                 │      Listener: with the events, and the secrets
//!                 ▲ taps, raw sockets, UDP sockets; a rule that keeps the kernel's TCP out
//!                 ▼
//!   client   ClientPort::turn ──▶ each(Flow, Heard)      ClientPort::send(Flow, message)
//!                 ▲
//!            Connector: a stream client for each flow, timers, one descriptor to wait for
//! ```
//!
//! A message is opaque bytes; [`viaduct_proto::trickles::packet`] makes packets of it. A server's port
//! keeps nothing per client. What either changes on the machine is written to a journal first and put
//! back when the port is dropped, or at the next start.

mod client;
mod clock;
mod connector;
mod door;
mod left;
mod listener;
mod local;
mod recent;
mod runs;
mod secrets;
mod server;
mod stats;

pub use client::{ClientPort, ClientSettings, Flow, Heard};
pub use connector::{Connector, Word};
pub use left::put_back_left;
pub use listener::Listener;
pub use secrets::Secrets;
pub use server::{Answers, ServerPort, ServerSettings};
pub use stats::PortStats;

use std::path::PathBuf;

use viaduct_sys::journal::JournalError;

/// Bytes of packets and datagrams that wait to leave, at most: a tenth of a second at 1 Gb/s.
const SEND_BUFFER: usize = 16 << 20;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// Nothing to listen at.
    #[error("no address to listen at: at least one is expected, as in 0.0.0.0:80")]
    NoAddress,
    /// Packets that no message fits.
    #[error("packets of at most {0} bytes: 576 to 65535 is expected")]
    Mtu(usize),
    /// A rule could not be set.
    #[error(transparent)]
    Rules(#[from] JournalError),
    /// A socket was refused.
    #[error("cannot {what}{}", if *.privilege { ", which takes root or CAP_NET_RAW; UDP alone \
        takes neither" } else { "" })]
    Socket {
        /// As in "open a packet socket".
        what: String,
        /// Whether privilege would help.
        privilege: bool,
        /// What the kernel said.
        source: std::io::Error,
    },
}

impl PortError {
    /// Whether packets in TCP's format are what is not allowed.
    fn is_privilege(&self) -> bool {
        match self {
            // Whose the name is serves there already.
            PortError::Rules(JournalError::Busy { .. } | JournalError::Claimed(_)) => false,
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

/// Where the journal of a port is kept.
fn journal(directory: &std::path::Path, instance: &str) -> PathBuf {
    directory.join(format!("{instance}.json"))
}

fn check_mtu(mtu: usize) -> Result<(), PortError> {
    if (576..=65_535).contains(&mtu) { Ok(()) } else { Err(PortError::Mtu(mtu)) }
}

//! Settings of a client's port, and its events.

use std::path::PathBuf;

use viaduct_proto::trickles::packet::FormatChoice;

/// Settings of a client's port.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Packet formats to try.
    pub formats: FormatChoice,
    /// Maximum length of sent packets in bytes, 576 to 65535; lower if the route's interface, or a
    /// router on the path, requires it.
    pub mtu: usize,
    /// True if sent packets are exempt from this host's conntrack; must be false if the host
    /// applies NAT to its own packets.
    pub untracked: bool,
    /// Name of the rules and the journal: letters, digits, `_`; unique among the host's clients.
    pub instance: String,
    /// Directory of the journal of changed rules.
    pub run_dir: PathBuf,
}

/// Event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent<'a> {
    /// Message from the server.
    Message(&'a [u8]),
    /// The server is a plain TCP server: its kernel has answered the SYN. This host's kernel has
    /// reset the TCP connection. The caller should close this connection, and connect over TCP.
    PlainTcp,
    /// A packet format is refused, and the other one is used.
    FellBack {
        /// True if the server's kernel has sent a TCP reset.
        reset: bool,
    },
    /// The host does not serve Trickles in any of the allowed formats.
    Refused {
        /// True if the host's kernel sent a TCP reset, and so would also refuse a TCP connection.
        reset: bool,
    },
    /// The path MTU has decreased: see [`ClientPort::room`](super::ClientPort::room).
    MtuDecreased,
}

//! Settings of a client's port, and its events.

use std::path::PathBuf;

use viaduct_proto::trickles::packet::FormatChoice;

/// Settings of a client's port.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    /// Packet formats to try.
    pub formats: FormatChoice,
    /// Maximum length of sent packets in bytes, 576 to 65535; less if the route's interface, or
    /// a router on the path, requires it.
    pub mtu: usize,
    /// True if sent packets are exempt from this host's conntrack; must be false if the host
    /// translates its own addresses.
    pub untracked: bool,
    /// Name of the rules and the journal, of letters, digits and `_`; unique for each client of
    /// the host.
    pub instance: String,
    /// Directory of the journal of changed rules.
    pub run_dir: PathBuf,
}

/// Event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortEvent<'a> {
    /// Message from the server.
    Message(&'a [u8]),
    /// The server is a plain TCP server: its kernel has answered the SYN. This host's kernel
    /// has reset that connection; close this one and connect as to any other server.
    PlainTcp,
    /// A packet format is refused, and the last request was sent by the other. `reset`: by a
    /// TCP reset of the server's kernel.
    FellBack {
        /// See above.
        reset: bool,
    },
    /// The host does not serve Trickles in any of the allowed formats. `reset`: its kernel has
    /// sent a TCP reset, so it would refuse any other connection, too.
    Refused {
        /// See above.
        reset: bool,
    },
    /// The path MTU has decreased: see [`ClientPort::room`](super::ClientPort::room).
    MtuDecreased,
}

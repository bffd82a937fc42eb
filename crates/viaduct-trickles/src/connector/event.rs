//! Events of a connector.

/// Event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectorEvent {
    /// The server has answered for the first time.
    Open,
    /// The stream has data to read, or room to write, or has ended; see
    /// [`Stream::state`](viaduct_proto::trickles::stream::Stream::state).
    Changed(u32),
    /// The server is a plain TCP server: the caller should close this connection, and connect over
    /// TCP.
    PlainTcp,
    /// A packet format is refused, and the other one is tried.
    FellBack {
        /// True if the server's kernel has sent a TCP reset. A Trickles server on that host can
        /// then be reached only over UDP.
        reset: bool,
    },
    /// The path MTU is too small for the first request. The caller should treat this like a
    /// refusal. Not reported after the server has answered.
    MtuTooSmall,
    /// The server no longer answers. It has answered before, and may answer again.
    Unresponsive,
    /// The host does not serve Trickles.
    Refused {
        /// True if the host's kernel sent a TCP reset, and so would also refuse a TCP connection.
        reset: bool,
    },
}

//! Events of a connector.

/// Event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectorEvent {
    /// The server has answered for the first time.
    Open,
    /// The stream has data to read, or room to write, or has ended; see
    /// [`Stream::state`](viaduct_proto::trickles::stream::Stream::state).
    Changed(u32),
    /// The server is a plain TCP server: close this connection, and connect as to any other.
    PlainTcp,
    /// A packet format is refused, and the other is tried. `reset`: by a TCP reset of the
    /// server's kernel, so that a Trickles server, if there is one, can be reached by UDP only.
    FellBack {
        /// See above.
        reset: bool,
    },
    /// The path MTU is too small for the first request. To be treated as if there were no
    /// listener. Not reported once the server has answered.
    MtuTooSmall,
    /// The server has answered before, and does not any more. It may answer again.
    Unresponsive,
    /// The host does not serve Trickles. `reset`: its kernel has sent a TCP reset, so it would
    /// refuse any other connection, too.
    Refused {
        /// See above.
        reset: bool,
    },
}

//! What a connector says.

/// What is to be said of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// The server has answered, for the first time.
    Open,
    /// This stream has something to read, or room to write, or has ended; see
    /// [`Stream::state`](viaduct_proto::trickles::stream::Stream::state).
    Changed(u32),
    /// The server is a plain TCP server: close this connection, and connect as to any other.
    PlainTcp,
    /// One way is refused, and the other is tried. `reset`: by a reset of the far kernel's TCP, so that a server,
    /// if there is one, is to be reached by UDP alone.
    Turned {
        /// See above.
        reset: bool,
    },
    /// Packets on the way there do not hold its first request: it is as if nobody listened there. Never said
    /// once the server has answered.
    Narrow,
    /// The server has answered before, and does not any more. It may again.
    Silent,
    /// Nobody listens there by Trickles. `reset`: the far kernel's TCP says so, so it would refuse any other
    /// connection, too.
    Refused {
        /// See above.
        reset: bool,
    },
}

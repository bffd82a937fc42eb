//! State of a connection at its port.

use std::net::SocketAddr;
use std::time::Duration;

use mio::Token;
use viaduct_proto::time::Instant;

/// Time without an answer after which the kernel's TCP is tried: two retransmissions, by the
/// other packet format too, and a round trip by satellite.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Shorter wait for UDP after the server's TCP refused: twice the time that the refusal took,
/// plus this.
const AFTER_RESET: Duration = Duration::from_millis(200);

/// State of a connection.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) to: SocketAddr,
    /// Encrypted: never goes on by TCP.
    pub(super) encrypted: bool,
    began: Instant,
    /// Time at which TCP is tried.
    pub(super) until: Instant,
    /// The server's TCP, or its host, has refused.
    pub(super) refused: bool,
    pub(super) token: Option<Token>,
    pub(super) standing: Standing,
    /// News is queued for the loop.
    pub(super) named: bool,
}

/// Progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// No answer yet.
    Asking,
    /// Established: the server has answered.
    There,
    /// To be continued by TCP.
    PlainTcp,
    /// Refused: no listener there.
    Refused,
}

/// News of an end for the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Readable, writable, or ended.
    Ready,
    /// To be continued by TCP to this server.
    PlainTcp(SocketAddr),
}

impl Seat {
    /// Returns the state of a new connection.
    pub(super) fn new(to: SocketAddr, encrypted: bool, now: Instant) -> Seat {
        let (token, standing) = (None, Standing::Asking);
        let until = now + ANSWER_TIMEOUT;
        Seat { to, encrypted, began: now, until, refused: false, token, standing, named: false }
    }

    /// Shortens the wait for UDP after a refusal by the server's TCP.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.until = self.until.min(now + 2 * now.since(self.began) + AFTER_RESET);
    }
}

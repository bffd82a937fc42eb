//! State of a connection at its port.

use std::net::SocketAddr;
use std::time::Duration;

use mio::Token;
use viaduct_proto::time::Instant;

/// Time without an answer after which the kernel's TCP is tried: enough for two retransmissions,
/// including one in the other packet format, and a round trip over a satellite link.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Fixed part of the shorter wait for UDP after the server's TCP refused. The wait is twice the
/// time that the refusal took, plus this value.
const AFTER_RESET: Duration = Duration::from_millis(200);

/// State of a connection.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) to: SocketAddr,
    /// True if encrypted: the connection never falls back to TCP.
    pub(super) encrypted: bool,
    began: Instant,
    /// Time at which TCP is tried, or a warning is logged if the connection is encrypted.
    pub(super) until: Instant,
    /// True if the server's TCP, or its host, has refused.
    pub(super) refused: bool,
    pub(super) token: Option<Token>,
    pub(super) state: SlotState,
    /// True if an event is queued for the loop.
    pub(super) is_queued: bool,
}

/// Progress of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// No answer yet.
    Connecting,
    /// Established: the server has answered.
    Established,
    /// To be continued over TCP.
    PlainTcp,
    /// Refused: the server has no listener at this port.
    Refused,
}

/// Event of an end for the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotEvent {
    /// Readable, writable, or ended.
    Ready,
    /// To be continued over TCP, to this server.
    PlainTcp(SocketAddr),
}

impl Slot {
    /// Returns the state of a new connection.
    pub(super) fn new(to: SocketAddr, encrypted: bool, now: Instant) -> Slot {
        let (token, state) = (None, SlotState::Connecting);
        let until = now + ANSWER_TIMEOUT;
        Slot { to, encrypted, began: now, until, refused: false, token, state, is_queued: false }
    }

    /// Shortens the wait for UDP after a refusal by the server's TCP.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.until = self.until.min(now + 2 * now.since(self.began) + AFTER_RESET);
    }
}

//! A connection's place at its port, and how it stands.

use std::net::SocketAddr;
use std::time::Duration;

use mio::Token;
use viaduct_proto::time::Instant;

/// How long a server may say nothing before it is tried by the kernel's TCP: two more tries, by the other
/// packets too, and a round trip by satellite.
const PATIENCE: Duration = Duration::from_secs(3);
/// The same where its TCP has refused us and it is asked by UDP: twice the time that the refusal took, and this.
const AFTER_RESET: Duration = Duration::from_millis(200);

/// A connection's place.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) to: SocketAddr,
    /// It is not to go on by anything else.
    pub(super) encrypted: bool,
    began: Instant,
    /// When it is tried by TCP.
    pub(super) until: Instant,
    /// The server's TCP, or its host, has said no to us.
    pub(super) refused: bool,
    pub(super) token: Option<Token>,
    pub(super) standing: Standing,
    /// The loop is to hear of it.
    pub(super) named: bool,
}

/// How a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Nothing is known of the server.
    Asking,
    /// It has answered.
    There,
    /// It is to be reached by TCP.
    PlainTcp,
    /// Nobody listens there.
    Refused,
}

/// What the loop hears of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It can be read, or written, or has ended.
    Ready,
    /// Its server, here, is to be reached by TCP.
    PlainTcp(SocketAddr),
}

impl Seat {
    /// Of a connection that begins.
    pub(super) fn new(to: SocketAddr, encrypted: bool, now: Instant) -> Seat {
        let (token, standing) = (None, Standing::Asking);
        let until = now + PATIENCE;
        Seat { to, encrypted, began: now, until, refused: false, token, standing, named: false }
    }

    /// Its TCP has refused us: UDP is not waited for as long as if nothing were known.
    pub(super) fn hurry(&mut self, now: Instant) {
        self.until = self.until.min(now + 2 * now.since(self.began) + AFTER_RESET);
    }
}

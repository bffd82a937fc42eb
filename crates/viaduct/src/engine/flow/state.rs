//! State of a flow, from connecting to broken.

use viaduct_proto::flow::Failure;

use super::close::Closing;
use super::{Flow, Middle};
use crate::engine::chain_io::Stage;
use crate::engine::negotiation::PendingNegotiation;

/// State of a flow.
///
/// ```text
///   Connecting ──▶ Connected ──▶ Established ──▶ Closing
///       └──────────────┴──────────────┴─────────────┴──▶ Broken
/// ```
#[derive(Debug)]
pub(super) enum State {
    /// The server has not answered; the negotiation, if there is one, follows the answer.
    Connecting(Option<PendingNegotiation>),
    /// The server has answered.
    Connected,
    /// The server has answered, and the waiting client or program has been notified.
    Established,
    /// An end broke, and the other has not received all of its bytes yet.
    Closing(Closing),
    /// Ended for this reason; true if the server had answered. The client may not be accepted yet.
    Broken(Failure, bool),
}

impl Flow {
    /// Returns whether the server has answered.
    pub fn is_connected(&self) -> bool {
        match self.state {
            State::Connecting(_) => false,
            State::Connected | State::Established | State::Closing(_) => true,
            State::Broken(_, is_connected) => is_connected,
        }
    }

    /// Records that the server has answered.
    pub(super) fn set_connected(&mut self) {
        if let State::Connecting(_) = self.state {
            self.state = State::Connected;
        }
    }

    /// Returns whether both ends are present; true only once.
    pub fn opens(&mut self) -> bool {
        let both = self.is_connected() && self.has_client();
        both && !std::mem::replace(&mut self.has_opened, true)
    }

    /// Stage of the server side.
    pub fn stage(&self) -> Stage {
        match (&self.state, &self.middle) {
            // A flow with a broken end stays open until all remaining bytes are delivered.
            (State::Closing(_), _) => Stage::Open,
            // The handlers may have used a connection other than the flow's own.
            (_, Middle::Chain(chain_io)) => chain_io.stage(),
            (_, Middle::Relay(_)) if !self.is_connected() => Stage::Opening,
            (_, Middle::Relay(_)) => Stage::Open,
        }
    }

    /// Returns whether the server side is established; true only once.
    pub fn becomes_established(&mut self) -> bool {
        let is_new = self.stage() == Stage::Open
            && matches!(self.state, State::Connecting(_) | State::Connected);
        if is_new {
            self.state = State::Established;
        }
        is_new
    }

    /// Returns whether the server side has been reported as established.
    pub fn is_established(&self) -> bool {
        matches!(self.state, State::Established)
    }

    /// Reason why the server cannot be reached, or why the flow has ended; `None` if neither
    /// applies.
    pub fn broken(&self) -> Option<Failure> {
        match self.state {
            State::Broken(why, _) => Some(why),
            _ => None,
        }
    }

    /// Records that the server refused or did not answer, or that an end broke.
    pub fn set_broken(&mut self, why: Failure) {
        self.state = State::Broken(why, self.is_connected());
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;

    use viaduct_proto::time::Instant;

    use super::*;
    use crate::engine::conn::Conn;

    #[test]
    fn a_broken_flow_was_connected_if_its_server_had_answered() {
        let flow = || {
            let source = SocketAddr::from(([127, 0, 0, 1], 1));
            Flow::with_client(Conn::Pending, source, Instant::ZERO)
        };
        let mut reset = flow();
        assert!(!reset.is_connected() && !reset.becomes_established());
        reset.set_connected();
        assert!(reset.becomes_established() && !reset.becomes_established(), "only once");
        reset.start_closing(io::ErrorKind::ConnectionReset.into(), Instant::ZERO);
        assert!(reset.is_connected() && !reset.becomes_established());
        assert_eq!((reset.stage(), reset.broken()), (Stage::Open, None));
        reset.set_broken(Failure::Reset);
        assert_eq!((reset.is_connected(), reset.broken()), (true, Some(Failure::Reset)));
        let mut refused = flow();
        refused.set_broken(Failure::Refused);
        assert_eq!((refused.is_connected(), refused.broken()), (false, Some(Failure::Refused)));
    }
}

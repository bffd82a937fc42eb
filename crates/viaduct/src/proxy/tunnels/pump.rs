//! Integration of tunnels with the loop: sending, ready ends, and sessions that arrive.

use mio::Token;
use viaduct_proto::flow::Failure;
use viaduct_proto::time::Instant;

use super::{Arrival, Took};
use crate::proxy::flow::{End, Flow};
use crate::proxy::leg::Leg;
use crate::proxy::worker::{Worker, time};

/// Rounds of driving the tunnels before the other flows have their turn.
const ROUNDS: usize = 8;
/// Ends that are driven in each round.
const MAX_READY: usize = 4096;

impl Worker {
    /// Moves all bytes that can move through tunnels.
    pub(in crate::proxy) fn pump(&mut self) {
        let Some(tunnels) = &mut self.tunnels else { return };
        tunnels.resume(time());
        tunnels.handle_timeout(time());
        for _ in 0..ROUNDS {
            let Some(tunnels) = &mut self.tunnels else { return };
            let now = time();
            tunnels.flush(now);
            let mut moved = false;
            while let Some(arrival) = self.tunnels.as_mut().and_then(|of| of.poll_arrival()) {
                self.take_in(arrival, now);
                moved = true;
            }
            for _ in 0..MAX_READY {
                let ready = self.tunnels.as_mut().and_then(|of| of.poll_ready());
                let Some((token, what)) = ready else { break };
                self.drive_session(token, what, now);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    fn drive_session(&mut self, Token(token): Token, what: Took, now: Instant) {
        let end = if token % 2 == 0 { End::Client } else { End::Server };
        self.drive(token / 2, end, what.readable, what.writable, now);
    }

    /// Accepts a session that a peer has opened.
    fn take_in(&mut self, arrival: Arrival, now: Instant) {
        let Arrival { session, to, source, peer } = arrival;
        let client = source.unwrap_or_else(|| ([0, 0, 0, 0], 0).into());
        let mut flow = Flow::waiting(Leg::Session(session), client, now);
        if self.access_log.is_on() {
            flow.account.wants("tunnel", &to, Some(peer.to_string()));
        }
        self.stats.accepted += 1;
        if self.flows.is_full() {
            self.stats.refused.full += 1;
            flow.set_broken(Failure::Full);
            return self.log_end(&flow, now);
        }
        if let Some(key) = self.flows.insert(flow) {
            self.open(key, to, source, now);
        }
    }
}

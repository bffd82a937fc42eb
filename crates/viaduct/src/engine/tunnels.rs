//! Integration of tunnels ([`crate::tunnel`]) with the loop: sending, ready ends, and inbound
//! streams.

use mio::Token;
use tracing::debug;
use viaduct_proto::flow::Failure;
use viaduct_proto::time::Instant;

use super::conn::Conn;
use super::flow::{End, Flow};
use super::worker::{Worker, time};
use crate::tunnel::{InboundStream, Readiness};

/// Maximum number of rounds of driving the tunnels before other flows are served.
const ROUNDS: usize = 8;
/// Maximum number of ends that are driven in each round.
const MAX_READY: usize = 4096;

impl Worker {
    /// Moves as many bytes through tunnels as possible.
    pub(super) fn drive_tunnels(&mut self) {
        let Some(tunnels) = &mut self.upstream.tunnels else { return };
        tunnels.resume(time());
        tunnels.handle_timeout(time());
        for _ in 0..ROUNDS {
            let Some(tunnels) = &mut self.upstream.tunnels else { return };
            let now = time();
            tunnels.flush(now);
            let mut moved = false;
            while let Some(arrival) =
                self.upstream.tunnels.as_mut().and_then(|of| of.poll_arrival())
            {
                self.accept_stream(arrival, now);
                moved = true;
            }
            for _ in 0..MAX_READY {
                let ready = self.upstream.tunnels.as_mut().and_then(|of| of.poll_ready());
                let Some((token, what)) = ready else { break };
                self.drive_stream(token, what, now);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    /// Leaves the dialled links of a process that has handed over, once no flow needs a new stream.
    pub(super) fn leave_links(&mut self, now: Instant) {
        let Some(tunnels) = self.upstream.tunnels.as_mut().filter(|of| of.is_leave_due(now)) else {
            return;
        };
        if self.flows.pick(|flow| !flow.is_connected()).is_empty() {
            tunnels.leave_dialled();
        }
    }

    fn drive_stream(&mut self, Token(token): Token, what: Readiness, now: Instant) {
        let end = if token % 2 == 0 { End::Client } else { End::Server };
        self.drive(token / 2, end, what.readable, what.writable, now);
    }

    fn accept_stream(&mut self, arrival: InboundStream, now: Instant) {
        let InboundStream { stream, to, source, peer } = arrival;
        let client = source.unwrap_or_else(|| ([0, 0, 0, 0], 0).into());
        let mut flow = Flow::with_client(Conn::Tunnel(stream), client, now);
        if self.access_log.is_on() {
            flow.account.set_request("tunnel", &to, Some(peer.to_string()));
        }
        self.stats.accepted += 1;
        let tunnels = self.upstream.tunnels.as_ref();
        if !tunnels.is_some_and(|of| of.may_be_client(&peer, source)) {
            debug!("{client} is not a client of the peer {peer}");
            return self.refuse_stream(flow, Failure::Denied, now);
        }
        if self.flows.is_full() {
            return self.refuse_stream(flow, Failure::Full, now);
        }
        if let Some(key) = self.flows.insert(flow) {
            self.open(key, to, source, now);
        }
    }

    /// Refuses a stream; the peer gets the reason.
    fn refuse_stream(&mut self, mut flow: Flow, why: Failure, now: Instant) {
        self.stats.refused.count(why);
        flow.set_broken(why);
        flow.reset();
        self.log_end(&flow, now);
    }
}

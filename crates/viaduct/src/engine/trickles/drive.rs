//! Integration of Trickles ports with the loop: ready ends, and servers that support only TCP.

use std::net::SocketAddr;

use mio::Token;
use tracing::debug;
use viaduct_proto::time::Instant;

use super::slot::SlotEvent;
use crate::engine::destination::failure;
use crate::engine::flow::End;
use crate::engine::flows::FIRST_NET_CONN;
use crate::engine::outbound::{OpenRequest, Opened, OutboundSpec};
use crate::engine::worker::Worker;

/// Maximum number of rounds of driving the ports before other flows are served.
const ROUNDS: usize = 8;
/// Maximum number of ends that are driven in each round.
const MAX_EVENTS: usize = 4096;

impl Worker {
    /// Moves as many bytes over Trickles as possible.
    pub(in crate::engine) fn drive_trickles(&mut self, now: Instant) {
        for _ in 0..ROUNDS {
            self.upstream.trickles.turn(now);
            let mut moved = false;
            for _ in 0..MAX_EVENTS {
                let Some((Token(token), event)) = self.upstream.trickles.poll_event() else {
                    break;
                };
                moved = true;
                if token >= FIRST_NET_CONN {
                    self.handle_net_conn(token, event, now);
                    continue;
                }
                let end = if token % 2 == 0 { End::Client } else { End::Server };
                match event {
                    SlotEvent::Ready => self.drive(token / 2, end, true, true, now),
                    SlotEvent::PlainTcp(to) => self.fall_back_to_tcp(token / 2, to, now),
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Handles an event of a further connection of a flow. A server that supports only TCP counts
    /// as a refusal, because the handlers have asked for Trickles.
    fn handle_net_conn(&mut self, token: usize, event: SlotEvent, now: Instant) {
        let Some((key, id)) = self.flows.net_conn(token) else { return };
        let Some(chain_io) = self.flows.at(key).chain_io() else { return };
        match event {
            SlotEvent::Ready => chain_io.net_conn_ready(id, true, true),
            SlotEvent::PlainTcp(_) => chain_io.refuse_net_conn(id, now),
        }
        self.drive(key, End::Client, false, false, now);
    }

    /// Continues flow `key` over a connection of the kernel's TCP to `to`.
    fn fall_back_to_tcp(&mut self, key: usize, to: SocketAddr, now: Instant) {
        let Some(flow) = self.flows.get(key) else { return };
        // The flow may have been given up meanwhile.
        if flow.broken().is_some() {
            return;
        }
        let haul = self.config.policies.far.haul(to.ip()).cloned();
        let plain = OpenRequest::new(to.into(), flow.source(), self.config.options);
        let request = OpenRequest { haul, ..plain };
        let direct = self.upstream.outbounds.get(&OutboundSpec::Direct);
        let begun = direct.and_then(|direct| direct.open(&request, now));
        let watched = begun.and_then(|Opened { conn: mut server, .. }| {
            self.flows.watch(&mut server, key, End::Server)?;
            Ok(server)
        });
        match watched {
            Ok(server) => {
                self.flows.at(key).fall_back_to_tcp(server);
                self.drive(key, End::Server, false, false, now);
            }
            Err(error) => {
                debug!("cannot connect to {to}: {error}");
                if let Some(chain_io) = self.flows.at(key).chain_io() {
                    chain_io.unconnected(failure(&error), now);
                }
                // The handlers may try another connection.
                self.drive(key, End::Client, false, false, now);
            }
        }
    }
}

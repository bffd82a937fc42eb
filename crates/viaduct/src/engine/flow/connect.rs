//! Setup of the server's end of a flow, and its transfer from an early connection to the client's
//! flow.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use tracing::warn;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp;

use super::client::PendingClient;
use super::end::FlowEnd;
use super::state::State;
use super::{Begun, End, Flow, Middle, Times};
use crate::engine::chain_io::Stage;
use crate::engine::conn::Conn;
use crate::engine::destination::{Route, failure};
use crate::engine::liveness::Liveness;
use crate::engine::outbound::{Opened, OutboundSpec};
use crate::engine::policy::Policies;

impl Flow {
    /// Sets the server side, whose connection was begun. Bytes that the client sent after its
    /// request go to the server, and so does the end of its stream.
    pub fn set_server(&mut self, begun: Begun, now: Instant) {
        let Begun { opened, middle, pending_negotiation, route } = begun;
        let (urgent, has_ended) = (self.client_is_urgent(), self.client_has_ended());
        let Opened { conn, preface_out } = opened;
        let for_hop = preface_out.len();
        self.ends[1] = FlowEnd { conn: Some(conn), preface_out, for_hop, ..FlowEnd::default() };
        (self.middle, self.route) = (middle, Some(route));
        self.state = State::Connecting(pending_negotiation);
        (self.times.begun, self.times.moved) = (now, now);
        if let Some(PendingClient::Requesting(request)) = &mut self.pending_client {
            request.begun = true;
            let pipelined = std::mem::take(&mut request.bytes);
            self.pipelined += pipelined.len() as u64;
            match &mut self.middle {
                Middle::Relay(_) => self.ends[1].preface_out.extend(pipelined),
                Middle::Chain(chain_io) => chain_io.write(pipelined, now),
            }
        }
        self.pace();
        self.wake_client(urgent);
        if has_ended {
            self.ending(End::Client);
        }
    }

    /// Route to try if the hop of the flow does not answer. `None` if no route is left, if the hop
    /// has answered, or if handlers may have consumed the client's bytes.
    pub fn next_route(&self, policies: &Policies) -> Option<Route> {
        let waits =
            matches!((&self.state, &self.middle), (State::Connecting(None), Middle::Relay(_)));
        self.route.as_ref().filter(|_| waits)?.after_failure(policies)
    }

    /// Replaces the server side, whose hop does not answer, by that of another attempt. Bytes that
    /// the client sent after its request are kept.
    pub fn set_next_server(&mut self, begun: Begun, now: Instant) {
        let end = &mut self.ends[1];
        let pipelined = end.preface_out.split_off(end.for_hop);
        let ends_after_preface = end.ends_after_preface;
        self.set_server(begun, now);
        let end = &mut self.ends[1];
        end.preface_out.extend(pipelined);
        end.ends_after_preface = ends_after_preface;
    }

    /// Sets the addresses to try if the first one does not answer.
    pub fn set_further_addresses(&mut self, further_addresses: VecDeque<SocketAddr>) {
        self.further_addresses = further_addresses;
    }

    /// Next address to try. `None` if no address is left, if the server has answered, or if
    /// handlers or another outbound may have consumed the client's bytes.
    pub fn next_address(&mut self) -> Option<SocketAddr> {
        let stays =
            matches!((&self.middle, self.outbound()), (Middle::Relay(_), OutboundSpec::Direct));
        let next = self.further_addresses.pop_front();
        let next = next.filter(|_| stays && !self.is_connected())?;
        let said = std::mem::take(&mut self.ends[1]).preface_out;
        if let Some(PendingClient::Requesting(request)) = &mut self.pending_client {
            (request.begun, self.pipelined) = (false, 0);
            drop(request.bytes.splice(..0, said));
        }
        Some(next)
    }

    /// Returns whether the client has an urgent byte pending. The loop reports such a byte only
    /// once.
    fn client_is_urgent(&self) -> bool {
        matches!(&self.middle, Middle::Relay(relay) if relay.is_urgent(End::Client))
    }

    /// Returns whether the client has ended its stream. The loop reports the end only once.
    fn client_has_ended(&self) -> bool {
        matches!(&self.middle, Middle::Relay(relay) if relay.is_ending(End::Client))
    }

    fn wake_client(&mut self, urgent: bool) {
        self.ready(End::Client, true, true);
        if urgent {
            self.urgent(End::Client);
        }
    }

    /// Takes over the server side of `early`, a flow without a client. This flow's client gets no
    /// answer to its request.
    pub fn adopt(&mut self, early: Flow, now: Instant) {
        let Flow { ends: [_, server], middle, route, state, times: Times { begun, .. }, .. } =
            early;
        let Some((conn, route)) = server.conn.zip(route) else { return };
        let opened = Opened { conn, preface_out: server.preface_out };
        self.set_server(Begun { opened, middle, pending_negotiation: None, route }, now);
        self.times.begun = begun;
        self.times.is_counted = !matches!(state, State::Connecting(_) | State::Connected);
        self.state = match state {
            State::Connecting(pending_negotiation) => State::Connecting(pending_negotiation),
            // This flow's client has not been notified yet.
            _ => State::Connected,
        };
        self.clear_request();
    }

    /// Sets the kernel's pacing rate.
    pub(super) fn pace(&self) {
        let Some(bits) = self.route.as_ref().and_then(|route| route.plan.rate) else { return };
        let conns = self.ends.iter().filter_map(|end| end.conn.as_ref());
        for stream in conns.filter_map(Conn::tcp) {
            if let Err(error) = tcp::pace(stream, bits / 8) {
                warn!("cannot limit the rate of a flow: {error}");
            }
        }
    }

    /// Continues over `server`, a connection of the kernel's TCP. Bytes that were written over
    /// Trickles and not received by the server are sent first.
    pub fn fall_back_to_tcp(&mut self, server: Conn) {
        let end = &mut self.ends[1];
        end.liveness = Liveness::New;
        if let Some(Conn::Trickles(conn)) = end.conn.replace(server) {
            let (mut said, ends_after_preface) = conn.into_unsent();
            said.append(&mut end.preface_out);
            (end.preface_out, end.ends_after_preface) = (said, ends_after_preface);
        }
        if let Some(route) = &mut self.route {
            route.instead = Some(OutboundSpec::Direct);
        }
        self.pace();
    }

    /// Records that the far end is connected, and sets the relay or chain if it is negotiated with
    /// the far end.
    fn settle(&mut self, now: Instant) -> io::Result<()> {
        let State::Connecting(pending_negotiation) = &mut self.state else { return Ok(()) };
        let pending_negotiation = pending_negotiation.take();
        self.state = State::Connected;
        let (Some(pending_negotiation), Some(server)) = (pending_negotiation, &self.ends[1].conn)
        else {
            return Ok(());
        };
        let urgent = self.client_is_urgent();
        self.middle = pending_negotiation.decide(server, now)?;
        match &mut self.middle {
            Middle::Chain(chain_io) if chain_io.is_guest() => {
                // The handlers may want this connection for several flows, including this one.
                self.spare = self.ends[1].conn.replace(Conn::Pending);
                self.state = State::Connecting(None);
            }
            Middle::Chain(chain_io) => chain_io.connected(server, now),
            Middle::Relay(_) => {}
        }
        self.wake_client(urgent);
        self.ready(End::Server, true, true);
        Ok(())
    }

    /// Checks whether the server's end is connected. `Err` if it failed and the handlers have no
    /// alternative.
    pub fn check_connected(&mut self, now: Instant) -> io::Result<()> {
        let Some(server) = &self.ends[1].conn else { return Ok(()) };
        let chain_io = match &mut self.middle {
            Middle::Relay(_) => {
                return if server.check_connected()? { self.settle(now) } else { Ok(()) };
            }
            Middle::Chain(chain_io) if chain_io.is_without_main() => return Ok(()),
            Middle::Chain(chain_io) => chain_io,
        };
        match server.check_connected() {
            Ok(false) => {}
            Ok(true) => {
                chain_io.connected(server, now);
                self.set_connected();
            }
            Err(error) => {
                chain_io.unconnected(failure(&error), now);
                if let Stage::Failed(_) = chain_io.stage() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::engine::relay::Relay;

    #[test]
    fn the_time_to_connect_is_counted_once_for_an_adopted_connection() {
        for established in [false, true] {
            let source = SocketAddr::from(([127, 0, 0, 1], 1));
            let opened = Opened { conn: Conn::Pending, preface_out: Vec::new() };
            let route = Route::straight(&Arc::default(), source, source.into());
            let middle = Middle::Relay(Relay::default());
            let begun = Begun { opened, middle, pending_negotiation: None, route };
            let mut early = Flow::new(begun, source, Instant::ZERO);
            early.set_connected();
            assert!(!established || early.becomes_established());
            let mut flow = Flow::with_client(Conn::Pending, source, Instant::ZERO);
            flow.adopt(early, Instant::ZERO);
            assert!(flow.becomes_established(), "this flow's client is notified");
            assert_eq!(flow.times.is_counted, established);
        }
    }
}

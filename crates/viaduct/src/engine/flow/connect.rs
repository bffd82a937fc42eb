//! Setup of a flow's halves: the server's, and the client's where that comes later.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use tracing::warn;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp;

use super::{Begun, End, Flow, Middle, Progress};
use crate::engine::chain_io::Stage;
use crate::engine::conn::Conn;
use crate::engine::destination::failure;
use crate::engine::liveness::Liveness;
use crate::engine::outbound::{Opened, OutboundSpec};

impl Flow {
    /// Sets the begun second half. Bytes that the client sent behind its request go to the
    /// server.
    pub fn set_server(&mut self, begun: Begun, now: Instant) {
        let Begun { opened, middle, pending_negotiation, route } = begun;
        let urgent = self.client_is_urgent();
        (self.conns[1], self.middle, self.pending_negotiation) =
            (Some(opened.conn), middle, pending_negotiation);
        self.liveness[1] = Liveness::New;
        self.route = Some(route);
        (self.begun, self.moved) = (now, now);
        self.preface_out[1] = opened.preface_out;
        if let Some(request) = &mut self.request {
            request.begun = true;
            let pipelined = std::mem::take(&mut request.bytes);
            self.pipelined += pipelined.len() as u64;
            match &mut self.middle {
                Middle::Relay(_) => self.preface_out[1].extend(pipelined),
                Middle::Chain(chain_io) => chain_io.write(pipelined, now),
            }
        }
        self.pace();
        self.wake_client(urgent);
    }

    /// Sets the addresses to try if the first one does not answer.
    pub fn set_further_addresses(&mut self, further_addresses: VecDeque<SocketAddr>) {
        self.further_addresses = further_addresses;
    }

    /// Next address to try. `None` unless the server has not answered and the client's bytes
    /// have gone nowhere else.
    pub fn next_address(&mut self) -> Option<SocketAddr> {
        let stays = matches!((&self.middle, self.by()), (Middle::Relay(_), OutboundSpec::Direct));
        let next = self.further_addresses.pop_front();
        let next = next.filter(|_| stays && !self.is_connected())?;
        self.conns[1] = None;
        let said = std::mem::take(&mut self.preface_out[1]);
        if let Some(request) = &mut self.request {
            (request.begun, self.pipelined) = (false, 0);
            drop(request.bytes.splice(..0, said));
        }
        Some(next)
    }

    /// Returns whether the client has an urgent byte pending. The loop reports it only once.
    fn client_is_urgent(&self) -> bool {
        matches!(&self.middle, Middle::Relay(relay) if relay.is_urgent(End::Client))
    }

    fn wake_client(&mut self, urgent: bool) {
        self.ready(End::Client, true, true);
        if urgent {
            self.urgent(End::Client);
        }
    }

    /// Takes over the second half of a flow without a client. This flow's client awaits no
    /// answer.
    pub fn adopt(&mut self, early: Flow, now: Instant) {
        let is_connected = early.is_connected();
        let Flow {
            conns: [_, server],
            preface_out: [_, preface_out],
            middle,
            pending_negotiation,
            route,
            begun,
            ..
        } = early;
        let Some((conn, route)) = server.zip(route) else { return };
        let opened = Opened { conn, preface_out };
        self.set_server(Begun { opened, middle, pending_negotiation, route }, now);
        self.begun = begun;
        // This flow's client is still to be told.
        self.progress = if is_connected { Progress::Connected } else { Progress::Connecting };
        self.clear_request();
    }

    /// Sets the client's connection.
    pub fn set_client(&mut self, client: Conn, now: Instant) {
        (self.conns[0], self.moved) = (Some(client), now);
        self.pace();
        self.ready(End::Client, true, true);
    }

    /// Sets the kernel's pacing rate.
    fn pace(&self) {
        let Some(bits) = self.route.as_ref().and_then(|route| route.plan.rate) else { return };
        for stream in self.conns.iter().flatten().filter_map(Conn::tcp) {
            if let Err(error) = tcp::pace(stream, bits / 8) {
                warn!("limit the rate of a flow: {error}");
            }
        }
    }

    /// Goes on to `server` over the kernel's TCP; bytes written to the server before that it
    /// has not received are sent there first.
    pub fn fall_back_to_tcp(&mut self, server: Conn) {
        self.liveness[1] = Liveness::New;
        if let Some(Conn::Trickles(conn)) = self.conns[1].replace(server) {
            let (mut said, ends_after_preface) = conn.into_unsent();
            said.append(&mut self.preface_out[1]);
            (self.preface_out[1], self.ends_after_preface) = (said, ends_after_preface);
        }
        if let Some(route) = &mut self.route {
            route.fell_back = true;
        }
        self.pace();
    }

    /// Settles the middle after the far end is connected: it may depend on the negotiation.
    fn decide(&mut self, now: Instant) -> io::Result<()> {
        let (Some(server), true) = (&self.conns[1], self.is_connected()) else { return Ok(()) };
        let Some(pending_negotiation) = self.pending_negotiation.take() else { return Ok(()) };
        let urgent = self.client_is_urgent();
        self.middle = pending_negotiation.decide(server, now)?;
        match &mut self.middle {
            Middle::Chain(chain_io) if chain_io.is_guest() => {
                // The handlers may want this connection for several flows, this one among them.
                self.spare = self.conns[1].replace(Conn::Pending);
                self.progress = Progress::Connecting;
            }
            Middle::Chain(chain_io) => chain_io.connected(server, now),
            Middle::Relay(_) => {}
        }
        self.wake_client(urgent);
        self.ready(End::Server, true, true);
        Ok(())
    }

    /// Checks whether the server's end is connected. `Err`: it failed, and the handlers have no
    /// alternative.
    pub fn check_connected(&mut self, now: Instant) -> io::Result<()> {
        let Some(server) = &self.conns[1] else { return Ok(()) };
        let chain_io = match &mut self.middle {
            Middle::Relay(_) => {
                if server.check_connected()? {
                    self.set_connected();
                }
                return self.decide(now);
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

    /// Sets the program's connection, which is still being made.
    pub fn set_coming(&mut self, client: Conn, now: Instant) {
        (self.coming, self.moved) = (Some(client), now);
    }

    /// Returns whether a program's connection is being made.
    pub fn is_coming(&self) -> bool {
        self.coming.is_some()
    }

    /// Checks whether the program's connection is made; it then becomes the client's end.
    /// `Err`: it failed.
    pub fn check_coming(&mut self, now: Instant) -> io::Result<()> {
        if let Some(client) = &self.coming
            && client.check_connected()?
            && let Some(client) = self.coming.take()
        {
            self.set_client(client, now);
        }
        Ok(())
    }
}

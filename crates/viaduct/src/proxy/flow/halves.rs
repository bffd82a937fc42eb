//! Setup of a flow's halves: the server's, and the client's where that comes later.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

use tracing::warn;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp;

use super::{Begun, End, Flow, Middle};
use crate::proxy::leg::Leg;
use crate::proxy::liveness::Liveness;
use crate::proxy::onward::Onward;
use crate::proxy::target::failure;
use crate::proxy::through::Stage;

impl Flow {
    /// Sets the begun second half. Bytes that the client sent behind its request go to the
    /// server.
    pub fn set_server(&mut self, begun: Begun, now: Instant) {
        let Begun { server, middle, undecided, first, to, from, by, rate } = begun;
        let urgent = self.client_is_urgent();
        (self.legs[1], self.middle, self.undecided) = (Some(server), middle, undecided);
        self.liveness[1] = Liveness::New;
        (self.to, self.from, self.by, self.rate) = (Some(to), from, by, rate);
        (self.begun, self.moved) = (now, now);
        self.first[1] = first;
        if let Some(asked) = &mut self.asked {
            asked.begun = true;
            let behind = std::mem::take(&mut asked.bytes);
            self.behind += behind.len() as u64;
            match &mut self.middle {
                Middle::Relay(_) => self.first[1].extend(behind),
                Middle::Through(through) => through.write(behind, now),
            }
        }
        self.pace();
        self.wake_client(urgent);
    }

    /// Sets the addresses to try if the first one does not answer.
    pub fn set_others(&mut self, others: VecDeque<SocketAddr>) {
        self.others = others;
    }

    /// Next address to try. `None` unless the server has not answered and the client's bytes
    /// have gone nowhere else.
    pub fn next_address(&mut self) -> Option<SocketAddr> {
        let stays = matches!((&self.middle, &self.by), (Middle::Relay(_), Onward::Direct));
        let next = self.others.pop_front().filter(|_| stays && !self.connected)?;
        self.legs[1] = None;
        let said = std::mem::take(&mut self.first[1]);
        if let Some(asked) = &mut self.asked {
            (asked.begun, self.behind) = (false, 0);
            drop(asked.bytes.splice(..0, said));
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
        let Flow { legs: [_, server], first: [_, first], middle, undecided, .. } = early;
        let Flow { to, from, by, rate, .. } = early;
        let Some((server, to)) = server.zip(to) else { return };
        self.set_server(Begun { server, middle, undecided, first, to, from, by, rate }, now);
        (self.begun, self.connected) = (early.begun, early.connected);
        self.answered();
    }

    /// Sets the client's connection.
    pub fn set_client(&mut self, client: Leg, now: Instant) {
        (self.legs[0], self.moved) = (Some(client), now);
        self.pace();
        self.ready(End::Client, true, true);
    }

    /// Sets the kernel's pacing rate.
    fn pace(&self) {
        let Some(bits) = self.rate else { return };
        for stream in self.legs.iter().flatten().filter_map(Leg::tcp) {
            if let Err(error) = tcp::pace(stream, bits / 8) {
                warn!("limit the rate of a flow: {error}");
            }
        }
    }

    /// Goes on to `server` over the kernel's TCP; bytes written to the server before that it
    /// has not received are sent there first.
    pub fn go_plain(&mut self, server: Leg) {
        self.liveness[1] = Liveness::New;
        if let Some(Leg::Trickles(trickle)) = self.legs[1].replace(server) {
            let (mut said, shuts) = trickle.into_said();
            said.append(&mut self.first[1]);
            (self.first[1], self.shuts) = (said, shuts);
        }
        self.by = Onward::Direct;
        self.pace();
    }

    /// Settles the middle after the far end is connected: it may depend on the negotiation.
    fn decide(&mut self, now: Instant) -> io::Result<()> {
        let (Some(server), true) = (&self.legs[1], self.connected) else { return Ok(()) };
        let Some(undecided) = self.undecided.take() else { return Ok(()) };
        let urgent = self.client_is_urgent();
        self.middle = undecided.decide(server, now)?;
        match &mut self.middle {
            Middle::Through(through) if through.is_guest() => {
                // The handlers may want this connection for several flows, this one among them.
                self.spare = self.legs[1].replace(Leg::Elsewhere);
                self.connected = false;
            }
            Middle::Through(through) => through.connected(server, now),
            Middle::Relay(_) => {}
        }
        self.wake_client(urgent);
        self.ready(End::Server, true, true);
        Ok(())
    }

    /// Checks whether the server's end is connected. `Err`: it failed, and the handlers have no
    /// alternative.
    pub fn check_connected(&mut self, now: Instant) -> io::Result<()> {
        let Some(server) = &self.legs[1] else { return Ok(()) };
        let through = match &mut self.middle {
            Middle::Relay(_) => {
                self.connected = server.check_connected()?;
                return self.decide(now);
            }
            Middle::Through(through) if through.is_without_main() => return Ok(()),
            Middle::Through(through) => through,
        };
        match server.check_connected() {
            Ok(false) => {}
            Ok(true) => {
                self.connected = true;
                through.connected(server, now);
            }
            Err(error) => {
                through.unconnected(failure(&error), now);
                if let Stage::Failed(_) = through.stage() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Sets the program's connection, which is still being made.
    pub fn set_coming(&mut self, client: Leg, now: Instant) {
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

//! Paths to the peer: its address over each transport, and the endpoint to which messages are sent.

use std::net::SocketAddr;

use super::config::{PeerConfig, outer};
use super::reporting::UNHEARD_AFTER;
use crate::repair::report::Report;
use crate::repair::session::SILENCE;
use crate::repair::transport::{Endpoint, Selector, Transport};
use crate::time::{Duration, Instant};
use crate::upgrade::PeerRecord;

/// Time without an authentic message after which other transports are tried.
const AUTO_SILENCE: Duration = Duration::from_secs(2);

/// Paths to one peer.
pub(in crate::repair) struct Paths {
    /// Destination of messages.
    pub(in crate::repair) endpoint: Option<Endpoint>,
    /// Address over each transport, to which initiations are sent.
    addresses: [Option<SocketAddr>; Transport::ALL.len()],
    pub(super) selector: Selector,
}

impl Paths {
    pub(super) fn new(config: &PeerConfig) -> Paths {
        let selector = Selector::new(config.transport);
        let addresses = [config.endpoint; Transport::ALL.len()];
        Paths { endpoint: endpoint(config.endpoint, selector.current), addresses, selector }
    }

    /// Applies changed settings. Returns whether a new session must be requested.
    pub(super) fn change(&mut self, old: &PeerConfig, new: &PeerConfig) -> bool {
        let is_other = new.transport != old.transport;
        if is_other {
            self.selector = Selector::new(new.transport);
        }
        if new.endpoint != old.endpoint {
            self.addresses = [new.endpoint; Transport::ALL.len()];
        }
        if is_other || new.endpoint != old.endpoint {
            let current = self.selector.current;
            self.endpoint = endpoint(self.addresses[current as usize], current);
        }
        is_other
    }

    /// Addresses, for the handover to a new process.
    pub(super) fn addresses(&self) -> [Option<SocketAddr>; Transport::ALL.len()] {
        self.addresses
    }

    /// Takes over the paths of the previous process.
    pub(super) fn resume(&mut self, now: Instant, record: &PeerRecord) {
        self.endpoint = record.endpoint.map(|(transport, address)| Endpoint { transport, address });
        self.addresses = record.addresses;
        self.selector.resume(now, record.transport, record.cause);
    }

    /// Bytes of the outer headers of messages.
    pub(super) fn headers(&self) -> usize {
        self.endpoint
            .map_or(outer(false), |at| outer(at.address.is_ipv6()) + at.transport.more_headers())
    }

    /// Time without an authentic message after which a new session is requested.
    pub(super) fn silence_limit(&self) -> Duration {
        if self.selector.is_auto() { AUTO_SILENCE } else { SILENCE }
    }

    /// Returns whether initiations can be sent.
    pub(super) fn has_address(&self) -> bool {
        self.addresses.iter().any(Option::is_some)
    }

    /// Destination of the current attempt of a handshake. The peer's fake TCP connection may no
    /// longer exist, so every second attempt over fake TCP goes to the address in the config.
    pub(super) fn address(&self, transport: Transport, config: &PeerConfig) -> Option<SocketAddr> {
        let known = self.addresses[transport as usize];
        match transport {
            Transport::FakeTcp if self.selector.is_even_try() => config.endpoint.or(known),
            Transport::Udp | Transport::FakeTcp => known,
        }
    }

    /// Changes to the transport of a response that has created a session.
    pub(super) fn handle_response(&mut self, from: Endpoint) {
        let address = self.addresses[from.transport as usize].unwrap_or(from.address);
        self.endpoint = Some(Endpoint { address, ..from });
    }

    /// Records the source of a message as the peer's address. Changes to the message's transport
    /// only if the message belongs to the session that seals messages (`is_current`): late messages
    /// of an earlier session must not restore the transport of that session.
    pub(super) fn handle_message(&mut self, from: Endpoint, is_current: bool) {
        self.addresses[from.transport as usize] = Some(from.address);
        if is_current || self.endpoint.is_none_or(|at| at.transport == from.transport) {
            self.endpoint = Some(from);
        }
    }

    /// Handles a report of the peer. Returns whether the peer does not receive this gateway's
    /// datagrams, so that another transport must be tried.
    pub(super) fn handle_report(&mut self, report: &Report) -> bool {
        let held = report.echo.map(|(_, held)| Duration::from_micros(held.into()));
        let is_unheard = self.selector.is_auto() && held.is_some_and(|held| held >= UNHEARD_AFTER);
        if is_unheard {
            self.selector.set_unheard();
        }
        is_unheard
    }

    /// Time of the next handshake; `session` is the time of the session's next handshake.
    pub(super) fn poll_timeout(&self, session: Instant) -> Option<Instant> {
        let due = self.selector.poll_timeout().map_or(session, |probe| probe.min(session));
        // Without an address no initiation can be sent, so there is no deadline.
        self.has_address().then_some(due)
    }
}

/// Endpoint at `address`, over `transport`.
fn endpoint(address: Option<SocketAddr>, transport: Transport) -> Option<Endpoint> {
    address.map(|address| Endpoint { transport, address })
}

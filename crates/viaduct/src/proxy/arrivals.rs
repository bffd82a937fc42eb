//! Arrival of clients: their SYNs, and their connections.

use std::io;
use std::net::SocketAddr;

use mio::net::TcpStream;
use tracing::{debug, warn};
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::proxy::Addresses;
use viaduct_proto::split::syn::Syn;
use viaduct_proto::time::Instant;
use viaduct_sys::capture::syn::SNAP;
use viaduct_sys::socket::tcp;

use super::account::outcome;
use super::flow::{Begun, End, Flow};
use super::flows::Flows;
use super::leg::Leg;
use super::outward::{open, set_up};
use super::target::{Route, Target, failure};
use super::worker::{Budget, Worker};

/// Connections accepted from one listener in a turn. Between turns, the servers of the accepted
/// ones are connected and their answers passed on: in a crowd each client waits for the earlier
/// ones, not for all.
pub(super) const MAX_ACCEPTS: usize = 16;

/// Flow that a SYN has started.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// Key of the flow.
    pub key: usize,
    /// Destination in the SYN: the same client address and port may come again with another
    /// one.
    told: Option<Addresses>,
}

impl Worker {
    /// Begins the connections that received SYNs ask for, within a turn's budget.
    pub(super) fn see_syns(&mut self, now: Instant) {
        let mut budget = Budget::begin();
        self.read_syns(&mut budget, now);
        self.read_held(&mut budget, now);
    }

    fn read_syns(&mut self, budget: &mut Budget, now: Instant) {
        let mut packet = [0; SNAP];
        while budget.take() {
            let Some(tap) = &self.tap else { return };
            let syn = match tap.recv(&mut packet) {
                Ok(Some(packet)) => Syn::parse(packet),
                Ok(None) => return,
                Err(_) => continue, // an interface went down
            };
            if let Some(syn) = syn {
                // A client whose flow could not be begun is refused when it is accepted, if it
                // ever is.
                let _ = self.begin_early(&syn, now);
            }
        }
        self.unread.syns = true;
    }

    /// Begins the connection that a SYN asks for. `Ok(None)` if it was begun earlier, too many
    /// wait, or the client has not named its destination yet.
    pub(super) fn begin_early(
        &mut self,
        syn: &Syn,
        now: Instant,
    ) -> Result<Option<usize>, Failure> {
        let mut begun = Ok(None);
        let told = self.target.told(syn);
        let unclear = told.is_none() && matches!(self.target, Target::Asked(_));
        // A proxy that is ending, or that connections bypass, still sees SYNs.
        let in_vain = self.deadline.is_some() || self.interception.is_missing();
        if self.flows.is_full() || unclear || in_vain {
            return begun;
        }
        let Worker { early, flows, target, policies, options, teller, limits, .. } = self;
        early.handle_syn(now, syn.tuple, || {
            let begin = |route: Route| {
                let source = route.source;
                flows.add(open(route, *options, teller, limits, now), source, now)
            };
            let route = target.route(&syn.tuple, told, policies).ok_or(Failure::Denied);
            // The handlers decide whether the flow may go on, once they have heard from their
            // peer.
            if route.as_ref().is_ok_and(|route| route.accepts) {
                return None;
            }
            begun = route.and_then(begin).map(Some);
            begun.ok().flatten().map(|key| Started { key, told })
        });
        begun
    }

    /// Accepts connections that wait at a listener, at most [`MAX_ACCEPTS`] of them.
    pub(super) fn accept(&mut self, listener: usize, now: Instant) {
        let mut all_taken = false;
        let mut clients = Vec::with_capacity(MAX_ACCEPTS);
        while clients.len() < MAX_ACCEPTS && !all_taken {
            let Some(listener) = self.listeners.get(listener) else { return };
            match listener.accept() {
                Ok((client, peer)) => clients.push((client, canonical(peer))),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    all_taken = true;
                    // Out of descriptors, for example; the next sweep tries again.
                    if error.kind() != io::ErrorKind::WouldBlock {
                        self.cannot_accept(&error);
                    }
                }
            }
        }
        // Their SYNs are in the tap by now: they preceded the handshakes. In a flood too large
        // to read in one turn, a SYN may be found only later; then that client gets a new
        // connection to its server. Held SYNs need no reading here: their clients come after
        // the verdicts.
        self.read_syns(&mut Budget::begin(), now);
        let at = self.met_at(listener);
        for (client, peer) in clients {
            if let Ok(to) = at.map_or_else(|| client.local_addr(), Ok) {
                self.admit(client, Tuple { client: peer, to: canonical(to) }, now);
            }
        }
        if !all_taken {
            self.unread.listeners.insert(listener);
        }
    }

    /// Logs the failure once as a warning: the cause usually lasts.
    fn cannot_accept(&mut self, error: &io::Error) {
        match std::mem::replace(&mut self.complained, true) {
            true => debug!("accept: {error}"),
            false => warn!("clients wait, and are accepted when that can be: accept: {error}"),
        }
    }

    /// Local address of all connections of a listener, if it is bound to a single address.
    fn met_at(&self, listener: usize) -> Option<SocketAddr> {
        let at = self.listeners.get(listener)?.local_addr().ok()?;
        (!self.options.transparent && !at.ip().is_unspecified()).then_some(at)
    }

    /// Sets up an accepted connection.
    fn admit(&mut self, client: TcpStream, tuple: Tuple, now: Instant) {
        self.stats.accepted += 1;
        set_up(&client, self.policies.far.haul(tuple.client.ip()));
        match &self.target {
            Target::Asked(terms) => {
                let terms = terms.clone();
                self.welcome(client, tuple, &terms, now);
            }
            _ => self.join(client, tuple, None, now),
        }
    }

    /// Joins a client, possibly with the addresses of a hop, with the connection that its SYN
    /// has begun, or begins a connection now.
    pub(super) fn join(
        &mut self,
        client: TcpStream,
        tuple: Tuple,
        told: Option<Addresses>,
        now: Instant,
    ) {
        let Some(client) = self.unwrap(client, &tuple, told, now) else { return };
        let mut client = Leg::Tcp(client.into());
        let to = self.target.destination(&tuple, told);
        let key = match self.started(&tuple, told) {
            Some(key) => key,
            None if self.flows.is_full() => {
                self.stats.refused.full += 1;
                self.log_refused(tuple.client, Some(to), outcome(Failure::Full), now);
                return client.reset(Failure::Denied);
            }
            None => match self.begin(&client, &tuple, told, now) {
                Ok(key) => key,
                Err(why) => {
                    self.stats.refused.count(why);
                    self.log_refused(tuple.client, Some(to), outcome(why), now);
                    return client.reset(why);
                }
            },
        };
        if let Some(why) = self.flows.at(key).broken() {
            self.stats.refused.count(why);
            self.log_refused(tuple.client, Some(to), outcome(why), now);
            client.reset(why);
            return self.end(key, true);
        }
        if self.access_log.is_on() {
            self.flows.at(key).account.wants("tcp", &Address::Ip(to), None);
        }
        if let Err(error) = self.flows.watch(&mut client, key, End::Client) {
            warn!("register a client: {error}");
            return self.end(key, true);
        }
        self.flows.at(key).set_client(client, now);
        self.drive(key, End::Client, true, true, now);
    }

    /// Flow that the SYN of `tuple` has started, if it goes to the destination in `told`.
    pub(super) fn started(&mut self, tuple: &Tuple, told: Option<Addresses>) -> Option<usize> {
        let started = self.early.handle_accept(tuple)?;
        if told.is_none() || started.told == told {
            return Some(started.key);
        }
        self.end(started.key, true);
        None
    }

    /// Begins the second half of a flow late; its destination comes from `tuple` or `told`.
    fn begin(
        &mut self,
        client: &Leg,
        tuple: &Tuple,
        told: Option<Addresses>,
        now: Instant,
    ) -> Result<usize, Failure> {
        let by_option = || client.tcp().filter(|_| self.target.heeds_options()).and_then(by_option);
        let told = told.or_else(by_option);
        let route = self.target.route(tuple, told, &self.policies).ok_or(Failure::Denied)?;
        let source = route.source;
        let begun = open(route, self.options, &self.teller, &self.limits, now);
        self.flows.add(begun, source, now)
    }
}

impl Flows {
    /// Inserts a flow for `source` whose second half was begun.
    pub(super) fn add(
        &mut self,
        begun: io::Result<Begun>,
        source: SocketAddr,
        now: Instant,
    ) -> Result<usize, Failure> {
        let flow = Flow::new(begun.map_err(|e| failure(&e))?, source, now);
        self.insert(flow).ok_or(Failure::Unreachable)
    }
}

/// Addresses in the SYN option of an accepted connection. The kernel has saved the SYN, even if
/// no tap has seen it.
pub(super) fn by_option(client: &TcpStream) -> Option<Addresses> {
    let syn = Syn::parse_headers(&tcp::saved_syn(client).ok()?)?;
    syn.hop.and_then(|_| syn.addresses())
}

/// Maps an IPv4-mapped address, as a dual-stack socket reports it, to IPv4.
fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

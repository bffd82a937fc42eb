//! Handling of clients' SYNs, and acceptance of their connections.

use std::io;
use std::net::SocketAddr;

use mio::net::TcpStream;
use tracing::warn;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::proxy::Addresses;
use viaduct_proto::split::syn::Syn;
use viaduct_proto::time::Instant;
use viaduct_sys::capture::syn::SNAP;
use viaduct_sys::socket::tcp;

use super::acceptor::canonical;
use super::account::outcome;
use super::config::EngineConfig;
use super::conn::Conn;
use super::destination::{Route, Target, failure};
use super::flow::{Begun, End, Flow};
use super::flows::Flows;
use super::outbound::set_up;
use super::worker::{Budget, Worker};

/// Flow whose early connection was begun for a SYN.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// Key of the flow.
    pub key: usize,
    /// Addresses in the SYN's hop option or PROXY header. They are compared with the addresses that
    /// the accepted client names, because a client may use the same address and port again for
    /// another destination.
    pub(super) signalled: Option<Addresses>,
}

impl Worker {
    /// Begins early connections for received SYNs, within a turn's budget.
    pub(super) fn see_syns(&mut self, now: Instant) {
        let mut budget = Budget::begin();
        self.read_syns(&mut budget, now);
        self.read_held(&mut budget, now);
    }

    fn read_syns(&mut self, budget: &mut Budget, now: Instant) {
        let mut packet = [0; SNAP];
        while budget.take() {
            let Some(syn) = self.acceptor.read_syn(&mut packet) else { return };
            if let Some(syn) = syn {
                // An error is not reported here: the client is refused when its connection is
                // accepted.
                let _ = self.begin_early(&syn, now);
            }
        }
        self.unread.syns = true;
    }

    /// Begins the early connection for a SYN, and returns the key of its flow. `Ok(None)` if no
    /// early connection is begun: one exists already, a limit is reached, the client has not named
    /// its destination yet, the proxy is stopping or bypassed, or the handlers have to accept the
    /// flow first.
    pub(super) fn begin_early(
        &mut self,
        syn: &Syn,
        now: Instant,
    ) -> Result<Option<usize>, Failure> {
        let mut begun = Ok(None);
        let signalled = self.config.target.signalled(syn);
        let unclear = signalled.is_none() && matches!(self.config.target, Target::Requested(_));
        // A proxy still sees SYNs while it is stopping, or while connections bypass it. No early
        // connection is needed for them.
        let is_unused = self.deadline.is_some() || self.acceptor.is_bypassed();
        if self.flows.is_full() || unclear || is_unused {
            return begun;
        }
        let Worker { acceptor, flows, config, upstream, .. } = self;
        let EngineConfig { target, policies, .. } = &*config;
        acceptor.early.handle_syn(now, syn.tuple, || {
            let begin = |route: Route| {
                let source = route.source;
                flows.add(upstream.begin(route, config, now), source, now)
            };
            let route = target.route(&syn.tuple, signalled, policies).ok_or(Failure::Denied);
            // The handlers accept or refuse the flow only once the handlers at the other host have
            // sent something, so no early connection is begun.
            if route.as_ref().is_ok_and(|route| route.plan.accepts) {
                return None;
            }
            begun = route.and_then(begin).map(Some);
            begun.ok().flatten().map(|key| Started { key, signalled })
        });
        begun
    }

    /// Accepts some of the pending connections of a listener.
    pub(super) fn accept(&mut self, listener: usize, now: Instant) {
        let Some((clients, are_all)) = self.acceptor.accept(listener) else { return };
        // The SYNs of these clients are in the tap by now, because their handshakes are complete.
        // If there are too many SYNs for one turn, a SYN may be read only after its client was
        // accepted; that client then gets a new connection to its server. Held SYNs are not read
        // here: their clients are accepted only after a verdict.
        self.read_syns(&mut Budget::begin(), now);
        let at = self.acceptor.bound_addr(listener, self.config.options.transparent);
        for (client, peer) in clients {
            if let Ok(to) = at.map_or_else(|| client.local_addr(), Ok) {
                self.set_up_client(client, Tuple { client: peer, to: canonical(to) }, now);
            }
        }
        if !are_all {
            self.unread.listeners.insert(listener);
        }
    }

    /// Sets up an accepted connection.
    fn set_up_client(&mut self, client: TcpStream, tuple: Tuple, now: Instant) {
        self.stats.accepted += 1;
        set_up(&client, self.config.policies.far.haul(tuple.client.ip()));
        match &self.config.target {
            Target::Requested(terms) => {
                let terms = terms.clone();
                self.start_handshake(client, tuple, &terms, now);
            }
            _ => self.join(client, tuple, None, now),
        }
    }

    /// Attaches a client to the early connection that was begun for its SYN, or begins a connection
    /// to the server if there is no early connection. `signalled` has the addresses that a previous
    /// hop has sent, if any.
    pub(super) fn join(
        &mut self,
        client: TcpStream,
        tuple: Tuple,
        signalled: Option<Addresses>,
        now: Instant,
    ) {
        let Some(client) = self.accept_for_origin(client, &tuple, signalled, now) else { return };
        let target = &self.config.target;
        let to = target.destination(&tuple, signalled);
        let by_option = || Some(&client).filter(|_| target.uses_options()).and_then(by_option);
        let in_syn = signalled.or_else(by_option);
        let mut client = Conn::Tcp(client.into());
        let begun = match self.started(&tuple, in_syn) {
            Some(key) => Ok(key),
            None if self.flows.is_full() => Err(Failure::Full),
            None => self.begin(&tuple, in_syn, now),
        };
        let broken = begun.ok().and_then(|key| self.flows.at(key).broken());
        let key = match (begun, broken) {
            (Ok(key), None) => key,
            (Ok(_), Some(why)) | (Err(why), _) => {
                self.stats.refused.count(why);
                if why == Failure::Denied {
                    let source = signalled.map_or(tuple.client, |named| named.source);
                    self.count_denied(source.ip(), to);
                }
                self.log_refused(tuple.client, Some(to), outcome(why), now);
                client.reset(why);
                if let Ok(key) = begun {
                    self.end(key, true);
                }
                return;
            }
        };
        if self.access_log.is_on() {
            self.flows.at(key).account.set_request("tcp", &Address::Ip(to), None);
        }
        if let Err(error) = self.flows.watch(&mut client, key, End::Client) {
            warn!("cannot register a client: {error}");
            return self.end(key, true);
        }
        self.flows.at(key).set_client(client, now);
        self.drive(key, End::Client, true, true, now);
    }

    /// Returns the flow that was started for a SYN of `tuple`, if there is one. If that SYN has
    /// named other addresses than the accepted client (`signalled`), ends the flow and returns
    /// `None`.
    pub(super) fn started(&mut self, tuple: &Tuple, signalled: Option<Addresses>) -> Option<usize> {
        let started = self.acceptor.early.handle_accept(tuple)?;
        if started.signalled == signalled {
            return Some(started.key);
        }
        self.end(started.key, true);
        None
    }

    /// Begins the flow of an accepted client that has no early connection. The destination comes
    /// from `tuple` or `signalled`.
    fn begin(
        &mut self,
        tuple: &Tuple,
        signalled: Option<Addresses>,
        now: Instant,
    ) -> Result<usize, Failure> {
        let route = self
            .config
            .target
            .route(tuple, signalled, &self.config.policies)
            .ok_or(Failure::Denied)?;
        let source = route.source;
        let begun = self.upstream.begin(route, &self.config, now);
        self.flows.add(begun, source, now)
    }
}

impl Flows {
    /// Inserts a flow for `source` whose connection to the server was begun.
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

//! Clients that arrive: their SYNs, and their connections.

use std::io;
use std::net::SocketAddr;

use mio::net::TcpStream;
use tracing::{debug, warn};
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::syn::Syn;
use viaduct_proto::time::Instant;
use viaduct_sys::syn::SNAP;
use viaduct_sys::tcp::{self, LongHaul, TcpOptions};

use super::flow::{Begun, End, Flow, Middle};
use super::flows::Flows;
use super::leg::Leg;
use super::relay::Relay;
use super::target::{Route, Target, failure};
use super::through::Through;
use super::worker::{Limits, Worker};

impl Worker {
    /// Begins the connections of the SYNs that have come.
    pub(super) fn see_syns(&mut self, now: Instant) {
        self.read_syns(now);
        self.read_held(now);
    }

    fn read_syns(&mut self, now: Instant) {
        let mut packet = [0; SNAP];
        loop {
            let Some(tap) = &self.tap else { return };
            let syn = match tap.recv(&mut packet) {
                Ok(Some(packet)) => Syn::parse(packet),
                Ok(None) => return,
                Err(_) => continue, // an interface went down
            };
            if let Some(Syn { tuple, .. }) = syn {
                // A client that is not begun for is refused when it comes, if it ever does.
                let _ = self.begin_early(&tuple, now);
            }
        }
    }

    /// Begins what a SYN asks for; `Ok(None)` if it has been begun, or too many wait.
    pub(super) fn begin_early(
        &mut self,
        tuple: &Tuple,
        now: Instant,
    ) -> Result<Option<usize>, Failure> {
        let mut begun = Ok(None);
        if self.flows.is_full() {
            return begun;
        }
        let Worker { early, flows, target, policies, options, limits, .. } = self;
        early.handle_syn(now, *tuple, || {
            let route = target.route(tuple, policies).ok_or(Failure::Denied);
            let begin = |route| flows.begin(route, *options, limits, tuple.client, now);
            begun = route.and_then(begin).map(Some);
            begun.ok().flatten()
        });
        begun
    }

    /// Takes in the connections that wait at a listener.
    pub(super) fn accept(&mut self, listener: usize, now: Instant) {
        loop {
            let Some(listener) = self.listeners.get(listener) else { return };
            let (client, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    debug!("accept: {error}");
                    return;
                }
            };
            let Ok(to) = client.local_addr() else { continue };
            self.stats.accepted += 1;
            // Each end has put its bytes together as it wants them sent.
            let _ = client.set_nodelay(true);
            set_up(&client, self.policies.far.haul(peer.ip()));
            if let Target::Asked(terms) = &self.target {
                let terms = terms.clone();
                self.welcome(client, canonical(peer), &terms, now);
                continue;
            }
            // Its SYN is in the tap by now: it came before its handshake was done.
            self.see_syns(now);
            self.join(client, Tuple { client: canonical(peer), to: canonical(to) }, now);
        }
    }

    /// Joins a client with the connection that its SYN has begun, or begins one now.
    fn join(&mut self, client: TcpStream, tuple: Tuple, now: Instant) {
        let mut client = Leg::Tcp(client);
        let key = match self.early.handle_accept(&tuple) {
            Some(key) => key,
            None if self.flows.is_full() => {
                self.stats.refused.full += 1;
                return client.reset();
            }
            None => match self.begin(&tuple, now) {
                Ok(key) => key,
                Err(why) => {
                    self.stats.refused.count(why);
                    return client.reset();
                }
            },
        };
        if let Some(why) = self.flows.at(key).broken() {
            self.stats.refused.count(why);
            client.reset();
            return self.end(key, true);
        }
        if let Err(error) = self.flows.watch(&mut client, key, End::Client) {
            warn!("register a client: {error}");
            return self.end(key, true);
        }
        self.flows.at(key).set_client(client, now);
        self.drive(key, End::Client, true, true, now);
    }

    /// Begins the second half of the flow that `tuple` names, late.
    fn begin(&mut self, tuple: &Tuple, now: Instant) -> Result<usize, Failure> {
        let route = self.target.route(tuple, &self.policies).ok_or(Failure::Denied)?;
        self.flows.begin(route, self.options, &self.limits, tuple.client, now)
    }
}

impl Flows {
    /// Begins the second half of a flow for `source`.
    fn begin(
        &mut self,
        route: Route,
        options: TcpOptions,
        limits: &Limits,
        source: SocketAddr,
        now: Instant,
    ) -> Result<usize, Failure> {
        let to = route.to;
        let begun = open(route, options, limits, now);
        let begun = begun.inspect_err(|e| debug!("connect to {to}: {e}"));
        let flow = Flow::new(begun.map_err(|e| failure(&e))?, source, now);
        self.insert(flow).ok_or(Failure::Unreachable)
    }
}

/// Begins to connect, and makes what stands between the two ends.
pub(super) fn open(
    route: Route,
    options: TcpOptions,
    limits: &Limits,
    now: Instant,
) -> io::Result<Begun> {
    let Route { to, from, first, via, handlers, rate, haul } = route;
    let (to, middle) = match handlers {
        None => (to, Middle::Relay(Relay::default())),
        Some(handlers) => match Through::new(handlers, limits.chain_buffer, to.into(), now) {
            Some((through, Address::Ip(to))) => (to, Middle::Through(Box::new(through))),
            _ => return Err(io::Error::other("the handlers lead to no address")),
        },
    };
    let server = TcpStream::from_std(tcp::connect(to, from, options)?);
    set_up(&server, haul.as_ref());
    Ok(Begun { server: Leg::Tcp(server), middle, first, via, rate })
}

/// Sets up a connection that crosses a long link.
fn set_up(stream: &TcpStream, haul: Option<&LongHaul>) {
    if let Some(Err(error)) = haul.map(|haul| haul.apply(stream)) {
        warn!("set up a connection across the long link: {error}");
    }
}

/// A socket for both families shows IPv4 addresses as mapped ones.
fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

//! Clients that arrive: their SYNs, and their connections.

use std::io;
use std::net::SocketAddr;

use mio::net::TcpStream;
use tracing::{debug, warn};
use viaduct_proto::flow::Address;
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::syn::Syn;
use viaduct_proto::time::Instant;
use viaduct_sys::syn::SNAP;
use viaduct_sys::tcp::{self, TcpOptions};

use super::flow::{End, Flow, Middle};
use super::flows::Flows;
use super::leg::Leg;
use super::relay::Relay;
use super::target::{Route, Target};
use super::through::Through;
use super::worker::{CHAIN_LIMIT, Worker};

impl Worker {
    /// Begins the connections of the SYNs that have come.
    pub(super) fn read_syns(&mut self, now: Instant) {
        let mut packet = [0; SNAP];
        loop {
            let Some(tap) = &self.tap else { return };
            let syn = match tap.recv(&mut packet) {
                Ok(Some(packet)) => Syn::parse(packet),
                Ok(None) => return,
                Err(_) => continue, // an interface went down
            };
            let Some(Syn { tuple, .. }) = syn else { continue };
            if self.flows.is_full() {
                continue;
            }
            let Worker { early, flows, target, policies, options, .. } = self;
            early.handle_syn(now, tuple, || {
                let route = target.route(&tuple, policies)?;
                flows.begin(&route, *options, tuple.client, now)
            });
        }
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
            // Each end has put its bytes together as it wants them sent.
            let _ = client.set_nodelay(true);
            if let Target::Asked(terms) = &self.target {
                let terms = terms.clone();
                self.welcome(client, canonical(peer), &terms, now);
                continue;
            }
            // Its SYN is in the tap by now: it came before its handshake was done.
            self.read_syns(now);
            self.join(client, Tuple { client: canonical(peer), to: canonical(to) }, now);
        }
    }

    /// Joins a client with the connection that its SYN has begun, or begins one now.
    fn join(&mut self, client: TcpStream, tuple: Tuple, now: Instant) {
        let Worker { flows, target, policies, options, .. } = self;
        let key = self.early.handle_accept(&tuple).or_else(|| {
            let route = target.route(&tuple, policies)?;
            flows.begin(&route, *options, tuple.client, now)
        });
        let mut client = Leg::Tcp(client);
        let Some(key) = key else { return client.reset() };
        if self.flows.at(key).is_broken() {
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
}

impl Flows {
    /// Begins the second half of a flow for `source`.
    fn begin(
        &mut self,
        route: &Route,
        options: TcpOptions,
        source: SocketAddr,
        now: Instant,
    ) -> Option<usize> {
        let begun = open(route, options, now);
        let (server, middle) =
            begun.inspect_err(|e| debug!("connect to {}: {e}", route.to)).ok()?;
        let mut flow = Flow::new(server, source, middle, now);
        flow.set_rate(route.rate);
        flow.say(End::Server, &route.first);
        self.insert(flow)
    }
}

/// Begins to connect, and makes what stands between the two ends.
pub(super) fn open(route: &Route, options: TcpOptions, now: Instant) -> io::Result<(Leg, Middle)> {
    let (to, middle) = match &route.handlers {
        None => (route.to, Middle::Relay(Relay::default())),
        Some(handlers) => {
            let goes = Through::new(handlers.clone(), CHAIN_LIMIT, route.to.into(), now);
            let Some((through, Address::Ip(to))) = goes else {
                return Err(io::Error::other("the handlers lead to no address"));
            };
            (to, Middle::Through(Box::new(through)))
        }
    };
    let server = tcp::connect(to, route.from, options)?;
    Ok((Leg::Tcp(TcpStream::from_std(server)), middle))
}

/// A socket for both families shows IPv4 addresses as mapped ones.
fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

//! Clients that arrive: their SYNs, and their connections.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mio::net::TcpStream;
use tracing::{debug, warn};
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::proxy::Addresses;
use viaduct_proto::split::syn::Syn;
use viaduct_proto::time::Instant;
use viaduct_sys::syn::SNAP;
use viaduct_sys::tcp::{self, LongHaul, TcpOptions};

use super::agreeing::{Agreeing, Undecided};
use super::flow::{Begun, End, Flow, Middle};
use super::flows::Flows;
use super::leg::Leg;
use super::onward::Onward;
use super::orders::Limits;
use super::relay::Relay;
use super::target::{Route, Target, failure};
use super::tell::Teller;
use super::through::Through;
use super::worker::Worker;

/// Connections accepted before they are looked at.
const AT_ONCE: usize = 64;

/// What a SYN has started.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// The flow.
    pub key: usize,
    /// Where to, as the SYN told: the same addresses may come again and tell another place.
    told: Option<Addresses>,
}

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
            if let Some(syn) = syn {
                // A client that is not begun for is refused when it comes, if it ever does.
                let _ = self.begin_early(&syn, now);
            }
        }
    }

    /// Begins what a SYN asks for; `Ok(None)` if it has been begun, too many wait, or the client is
    /// still to say where to.
    pub(super) fn begin_early(
        &mut self,
        syn: &Syn,
        now: Instant,
    ) -> Result<Option<usize>, Failure> {
        let mut begun = Ok(None);
        let told = self.target.told(syn);
        let unclear = told.is_none() && matches!(self.target, Target::Asked(_));
        // One that ends, or that connections pass by, sees SYNs still.
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
            // Whether it may go on, its handlers say when they have heard their other side.
            if route.as_ref().is_ok_and(|route| route.accepts) {
                return None;
            }
            begun = route.and_then(begin).map(Some);
            begun.ok().flatten().map(|key| Started { key, told })
        });
        begun
    }

    /// Takes in the connections that wait at a listener.
    pub(super) fn accept(&mut self, listener: usize, now: Instant) {
        loop {
            let mut all_taken = false;
            let mut clients = Vec::with_capacity(AT_ONCE);
            while clients.len() < AT_ONCE && !all_taken {
                let Some(listener) = self.listeners.get(listener) else { return };
                match listener.accept() {
                    Ok((client, peer)) => clients.push((client, canonical(peer))),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                    Err(error) => {
                        all_taken = true;
                        // Without a descriptor, say; the next sweep asks again.
                        if error.kind() != io::ErrorKind::WouldBlock {
                            self.cannot_accept(&error);
                        }
                    }
                }
            }
            // Their SYNs are in the tap by now: they came before their handshakes were done.
            self.see_syns(now);
            let at = self.met_at(listener);
            for (client, peer) in clients {
                if let Ok(to) = at.map_or_else(|| client.local_addr(), Ok) {
                    self.admit(client, Tuple { client: peer, to: canonical(to) }, now);
                }
            }
            if all_taken {
                return;
            }
        }
    }

    /// Says so once: what keeps one out keeps many.
    fn cannot_accept(&mut self, error: &io::Error) {
        match std::mem::replace(&mut self.complained, true) {
            true => debug!("accept: {error}"),
            false => warn!("clients wait, and are accepted when that can be: accept: {error}"),
        }
    }

    /// Where all clients of a listener are met, if it is one address and theirs.
    fn met_at(&self, listener: usize) -> Option<SocketAddr> {
        let at = self.listeners.get(listener)?.local_addr().ok()?;
        (!self.options.transparent && !at.ip().is_unspecified()).then_some(at)
    }

    /// Takes in a connection.
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

    /// Joins a client, of which we may have been told, with the connection that its SYN has begun, or
    /// begins one now.
    pub(super) fn join(
        &mut self,
        client: TcpStream,
        tuple: Tuple,
        told: Option<Addresses>,
        now: Instant,
    ) {
        let Some(client) = self.unwrap(client, &tuple, told, now) else { return };
        let mut client = Leg::Tcp(client);
        let key = match self.started(&tuple, told) {
            Some(key) => key,
            None if self.flows.is_full() => {
                self.stats.refused.full += 1;
                return client.reset(Failure::Denied);
            }
            None => match self.begin(&client, &tuple, told, now) {
                Ok(key) => key,
                Err(why) => {
                    self.stats.refused.count(why);
                    return client.reset(why);
                }
            },
        };
        if let Some(why) = self.flows.at(key).broken() {
            self.stats.refused.count(why);
            client.reset(why);
            return self.end(key, true);
        }
        if let Err(error) = self.flows.watch(&mut client, key, End::Client) {
            warn!("register a client: {error}");
            return self.end(key, true);
        }
        self.flows.at(key).set_client(client, now);
        self.drive(key, End::Client, true, true, now);
    }

    /// The flow that the SYN of `tuple` has started, if it goes where it is `told` to go.
    pub(super) fn started(&mut self, tuple: &Tuple, told: Option<Addresses>) -> Option<usize> {
        let started = self.early.handle_accept(tuple)?;
        if told.is_none() || started.told == told {
            return Some(started.key);
        }
        self.end(started.key, true);
        None
    }

    /// Begins the second half of the flow that `tuple` names, or that we were told of, late.
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
    /// Takes in a flow for `source` whose second half was begun.
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

/// Begins to connect, and makes what stands between the two ends.
pub(super) fn open(
    route: Route,
    options: TcpOptions,
    teller: &Teller,
    limits: &Limits,
    now: Instant,
) -> io::Result<Begun> {
    let (to, source) = (route.to.clone(), route.source);
    let begun = begin(route, options, teller, limits, now);
    begun.inspect_err(|error| debug!("connect to {to} for {source}: {error}"))
}

fn begin(
    route: Route,
    options: TcpOptions,
    teller: &Teller,
    limits: &Limits,
    now: Instant,
) -> io::Result<Begun> {
    let Route { to, from, told, carries, by, handlers, copied, rate, haul, source, accepts: _ } =
        route;
    let by = match (by, &to) {
        // It would be asked in vain.
        (Onward::Trickles(course), Address::Ip(to))
            if teller.trickles.is_plain(course, *to, now) =>
        {
            Onward::Direct
        }
        (by, _) => by,
    };
    if let (Some(agreeing), Address::Ip(at)) = (&teller.agreeing, &to) {
        return agree(agreeing, *at, (to.clone(), by, rate), options, limits, now);
    }
    // A change of tunnels needs a restart: whatever a policy names is there.
    let outlet = by.tunnel().and_then(|name| teller.outlets.get(name));
    let relay = match &handlers {
        // Neither a session nor a connection of Trickles can be spliced.
        _ if copied || outlet.is_some() || by.trickles().is_some() => None,
        None => Some(Relay::default()),
        Some(handlers) => Relay::of(handlers),
    };
    let meant = to.clone();
    let (goal, middle) = match (relay, handlers.unwrap_or_default()) {
        (Some(relay), _) => (Some((to, from)), Middle::Relay(relay)),
        (None, handlers) => match Through::new(handlers, limits.chain_buffer, to, now) {
            Some((through, goal)) => (goal, Middle::Through(Box::new(through))),
            None => return Err(io::Error::other("the handlers lead nowhere")),
        },
    };
    // What follows finds it a server.
    let (server, first) = (Leg::Elsewhere, Vec::new());
    let mut begun = Begun { server, middle, undecided: None, first, to: meant, by, rate };
    let Some((to, bound)) = goal else { return Ok(begun) };
    let from = bound.or(from);
    if let Some(outlet) = outlet {
        begun.server = Leg::Session(outlet.open(to, source));
        return Ok(begun);
    }
    let Address::Ip(to) = to else {
        return Err(io::Error::other(
            "the handlers lead to a name, which leads through tunnels alone",
        ));
    };
    if let Some(course) = begun.by.trickles() {
        if !teller.trickles.is_plain(course, to, now) {
            begun.server = Leg::Trickles(teller.trickles.connect(course, to, now)?);
            return Ok(begun);
        }
        begun.by = Onward::Direct;
    }
    if let Some(below) = &teller.below {
        begun.server = below.connect(to, from)?;
        return Ok(begun);
    }
    let (server, first) = match carries {
        None => teller.connect(to, from, options, told)?,
        Some(carries) => teller.carry(to, from, options, carries)?,
    };
    begun.first = first;
    let server = TcpStream::from_std(server);
    set_up(&server, haul.as_ref());
    begun.server = Leg::Tcp(server);
    Ok(begun)
}

/// Begins to connect over the kernel's TCP, and tells nobody anything.
pub(super) fn straight(
    to: SocketAddr,
    options: TcpOptions,
    haul: Option<&LongHaul>,
) -> io::Result<TcpStream> {
    let server = TcpStream::from_std(tcp::connect(to, None, options)?);
    set_up(&server, haul);
    Ok(server)
}

/// Begins to connect to `at`, or to go over a connection that is there; what stands between the two ends is
/// agreed on with the far end.
fn agree(
    agreeing: &Arc<Agreeing>,
    at: SocketAddr,
    (to, by, rate): (Address, Onward, Option<u64>),
    options: TcpOptions,
    limits: &Limits,
    now: Instant,
) -> io::Result<Begun> {
    let (server, first) = (Leg::Elsewhere, Vec::new());
    let middle = Middle::Relay(Relay::default());
    let mut begun = Begun { server, middle, undecided: None, first, to, by, rate };
    if let Some(chain) = agreeing.shared(at)
        && let Some((through, None)) = Through::new(chain, limits.chain_buffer, at.into(), now)
    {
        begun.middle = Middle::Through(Box::new(through));
        return Ok(begun);
    }
    begun.undecided = Some(Undecided::new(agreeing.clone(), at, limits.chain_buffer));
    let server = agreeing.connect(at, None, options)?;
    begun.server = Leg::Tcp(TcpStream::from_std(server));
    Ok(begun)
}

/// Begins one more connection of a flow, from an address of its own if one is named. Where handlers are
/// agreed on it offers them as the first did; that the other end means the same shows in what it says.
pub(super) fn dial(
    to: &Address,
    from: Option<SocketAddr>,
    options: TcpOptions,
    teller: &Teller,
) -> io::Result<Leg> {
    let begin = |to| {
        let stream = match (&teller.below, &teller.agreeing) {
            (Some(below), _) => return below.connect(to, from),
            (None, Some(agreeing)) => agreeing.connect(to, from, options)?,
            (None, None) => tcp::connect(to, from, options)?,
        };
        Ok(Leg::Tcp(TcpStream::from_std(stream)))
    };
    match to {
        Address::Ip(to) => begin(*to),
        Address::Name(name, _) => Err(io::Error::other(format!("{name}: nobody looks it up here"))),
    }
}

/// Sets up a connection that crosses a long link.
fn set_up(stream: &TcpStream, haul: Option<&LongHaul>) {
    if let Some(Err(error)) = haul.map(|haul| haul.apply(stream)) {
        warn!("set up a connection across the long link: {error}");
    }
}

/// What the option in the SYN of an accepted connection tells: the kernel has kept it, also where no
/// tap has seen it.
pub(super) fn by_option(client: &TcpStream) -> Option<Addresses> {
    let syn = Syn::parse_headers(&tcp::saved_syn(client).ok()?)?;
    syn.hop.and_then(|_| syn.told())
}

/// A socket for both families shows IPv4 addresses as mapped ones.
fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

//! Outbound connections: the second half of a flow, and the further ones of its handlers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mio::net::TcpStream;
use tracing::{debug, warn};
use viaduct_proto::flow::Address;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::{self, LongHaul, TcpOptions};

use super::chain_io::ChainIo;
use super::commands::Limits;
use super::conn::Conn;
use super::destination::Route;
use super::flow::{Begun, FlowRoute, Middle};
use super::flow_socket::FlowSocket;
use super::hop_signalling::Dialer;
use super::negotiation::{Negotiation, PendingNegotiation};
use super::relay::Relay;

/// Begins the second half of a flow: its connection, and the relay or chain between the ends.
pub(super) fn open(
    route: Route,
    options: TcpOptions,
    dialer: &Dialer,
    limits: &Limits,
    now: Instant,
) -> io::Result<Begun> {
    let (to, source) = (route.to.clone(), route.source);
    let begun = begin(route, options, dialer, limits, now);
    begun.inspect_err(|error| debug!("connect to {to} for {source}: {error}"))
}

fn begin(
    route: Route,
    options: TcpOptions,
    dialer: &Dialer,
    limits: &Limits,
    now: Instant,
) -> io::Result<Begun> {
    let Route { to, from, signalled, carries, plan, copied, haul, source, .. } = route;
    let mut taken = FlowRoute { to: to.clone(), from, plan, fell_back: false };
    if let (Some(negotiation), Address::Ip(at)) = (&dialer.negotiation, &to) {
        return negotiate(negotiation, *at, taken, options, limits, now);
    }
    if let (Some(target), Address::Ip(to)) = (taken.plan.by.trickles(), &to) {
        taken.fell_back = dialer.trickles.is_plain(target, *to, now);
    }
    // A change of tunnels needs a restart: every tunnel that a policy names exists.
    let outlet = taken.by().tunnel().and_then(|name| dialer.outlets.get(name));
    let handlers = taken.plan.handlers.clone();
    let relay = match &handlers {
        // Neither a session nor a connection of Trickles can be spliced.
        _ if copied || outlet.is_some() || taken.by().trickles().is_some() => None,
        None => Some(Relay::default()),
        Some(handlers) => Relay::of(handlers),
    };
    let (goal, middle) = match (relay, handlers.unwrap_or_default()) {
        (Some(relay), _) => (Some((to, from)), Middle::Relay(relay)),
        (None, handlers) => match ChainIo::new(handlers, limits.chain_buffer, (to, from), now) {
            Some((chain_io, goal)) => (goal, Middle::Chain(Box::new(chain_io))),
            None => return Err(io::Error::other("the handlers lead nowhere")),
        },
    };
    // Replaced below if the flow has a connection of its own.
    let (server, preface_out) = (Conn::Pending, Vec::new());
    let mut begun = Begun { server, middle, pending_negotiation: None, preface_out, route: taken };
    let Some((to, bound)) = goal else { return Ok(begun) };
    if let Some(outlet) = outlet {
        begun.server = Conn::Session(outlet.open(to, source));
        return Ok(begun);
    }
    let Address::Ip(to) = to else {
        return Err(io::Error::other(
            "the handlers lead to a name, which leads through tunnels alone",
        ));
    };
    let from = if route.keeps_client && begun.route.to != to.into() {
        // The handlers connect to another host, for which the client's address is not used.
        None
    } else {
        bound.or(from.filter(|from| from.is_ipv4() == to.is_ipv4()))
    };
    if let Some(target) = begun.route.by().trickles() {
        if !dialer.trickles.is_plain(target, to, now) {
            begun.server = Conn::Trickles(dialer.trickles.connect(target, to, now)?);
            return Ok(begun);
        }
        begun.route.fell_back = true;
    }
    if let Some(parent) = &dialer.parent {
        begun.server = parent.connect(to, from, options.mirrored)?;
        return Ok(begun);
    }
    let (server, preface_out) = match carries {
        None => dialer.connect(to, from, options, signalled)?,
        Some(carries) => dialer.carry(to, from, options, carries)?,
    };
    begun.preface_out = preface_out;
    let server = TcpStream::from_std(server);
    set_up(&server, haul.as_ref());
    begun.server = Conn::Tcp(server.into());
    Ok(begun)
}

/// Begins a connection over the kernel's TCP, without hop signalling.
pub(super) fn connect_directly(
    to: SocketAddr,
    options: TcpOptions,
    haul: Option<&LongHaul>,
) -> io::Result<TcpStream> {
    let server = TcpStream::from_std(tcp::connect(to, None, options)?);
    set_up(&server, haul);
    Ok(server)
}

/// Begins a connection to `at`, or joins a shared one; the relay or chain is negotiated with
/// the far end.
fn negotiate(
    negotiation: &Arc<Negotiation>,
    at: SocketAddr,
    route: FlowRoute,
    options: TcpOptions,
    limits: &Limits,
    now: Instant,
) -> io::Result<Begun> {
    let (server, preface_out, from) = (Conn::Pending, Vec::new(), route.from);
    let middle = Middle::Relay(Relay::default());
    let mut begun = Begun { server, middle, pending_negotiation: None, preface_out, route };
    if let Some(chain) = negotiation.shared(at)
        && let Some((chain_io, None)) =
            ChainIo::new(chain, limits.chain_buffer, (at.into(), None), now)
    {
        begun.middle = Middle::Chain(Box::new(chain_io));
        return Ok(begun);
    }
    begun.pending_negotiation =
        Some(PendingNegotiation::new(negotiation.clone(), at, limits.chain_buffer));
    let server = negotiation.connect(at, from, options)?;
    begun.server = Conn::Tcp(FlowSocket::from(server).into());
    Ok(begun)
}

/// Begins a further connection of a flow, from a local address if one is named. With
/// negotiation it sends the offer again; whether the other end agrees shows in its bytes.
pub(super) fn dial(
    to: &Address,
    from: Option<SocketAddr>,
    options: TcpOptions,
    dialer: &Dialer,
) -> io::Result<Conn> {
    let begin = |to| {
        let stream = match (&dialer.parent, &dialer.negotiation) {
            (Some(parent), _) => return parent.connect(to, from, options.mirrored),
            (None, Some(negotiation)) => negotiation.connect(to, from, options)?,
            (None, None) => tcp::connect(to, from, options)?,
        };
        Ok(Conn::Tcp(FlowSocket::from(stream).into()))
    };
    match to {
        Address::Ip(to) => begin(*to),
        Address::Name(name, _) => {
            Err(io::Error::other(format!("{name}: names are not looked up here")))
        }
    }
}

/// Applies the long-haul settings to a connection that crosses the long link.
pub(super) fn set_up(stream: &TcpStream, haul: Option<&LongHaul>) {
    if let Some(Err(error)) = haul.map(|haul| haul.apply(stream)) {
        warn!("set up a connection across the long link: {error}");
    }
}

//! Outbound connections: the second half of a flow, and the further ones of its handlers.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use mio::net::TcpStream;
use tracing::{debug, warn};
use viaduct_proto::flow::Address;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::{self, LongHaul, TcpOptions};

use super::agreeing::{Agreeing, Undecided};
use super::conn::Conn;
use super::flow::{Begun, Middle};
use super::leg::Leg;
use super::onward::Onward;
use super::orders::Limits;
use super::relay::Relay;
use super::target::Route;
use super::tell::Teller;
use super::through::Through;

/// Begins the second half of a flow: its connection, and the relay or chain between the ends.
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
    let Route { to, from, told, carries, by, handlers, copied, rate, haul, source, .. } = route;
    let by = match (by, &to) {
        // Trickles is known to fail there.
        (Onward::Trickles(course), Address::Ip(to))
            if teller.trickles.is_plain(course, *to, now) =>
        {
            Onward::Direct
        }
        (by, _) => by,
    };
    if let (Some(agreeing), Address::Ip(at)) = (&teller.agreeing, &to) {
        return agree(agreeing, (*at, from), (to.clone(), by, rate), options, limits, now);
    }
    // A change of tunnels needs a restart: every tunnel that a policy names exists.
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
        (None, handlers) => match Through::new(handlers, limits.chain_buffer, (to, from), now) {
            Some((through, goal)) => (goal, Middle::Through(Box::new(through))),
            None => return Err(io::Error::other("the handlers lead nowhere")),
        },
    };
    // Replaced below if the flow has a connection of its own.
    let (server, first) = (Leg::Elsewhere, Vec::new());
    let mut begun = Begun { server, middle, undecided: None, first, to: meant, from, by, rate };
    let Some((to, bound)) = goal else { return Ok(begun) };
    if let Some(outlet) = outlet {
        begun.server = Leg::Session(outlet.open(to, source));
        return Ok(begun);
    }
    let Address::Ip(to) = to else {
        return Err(io::Error::other(
            "the handlers lead to a name, which leads through tunnels alone",
        ));
    };
    let from = if route.keeps_client && begun.to != to.into() {
        // The handlers connect to another host, for which the client's address is not used.
        None
    } else {
        bound.or(from.filter(|from| from.is_ipv4() == to.is_ipv4()))
    };
    if let Some(course) = begun.by.trickles() {
        if !teller.trickles.is_plain(course, to, now) {
            begun.server = Leg::Trickles(teller.trickles.connect(course, to, now)?);
            return Ok(begun);
        }
        begun.by = Onward::Direct;
    }
    if let Some(below) = &teller.below {
        begun.server = below.connect(to, from, options.mirrored)?;
        return Ok(begun);
    }
    let (server, first) = match carries {
        None => teller.connect(to, from, options, told)?,
        Some(carries) => teller.carry(to, from, options, carries)?,
    };
    begun.first = first;
    let server = TcpStream::from_std(server);
    set_up(&server, haul.as_ref());
    begun.server = Leg::Tcp(server.into());
    Ok(begun)
}

/// Begins a connection over the kernel's TCP, without hop signalling.
pub(super) fn straight(
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
fn agree(
    agreeing: &Arc<Agreeing>,
    (at, from): (SocketAddr, Option<SocketAddr>),
    (to, by, rate): (Address, Onward, Option<u64>),
    options: TcpOptions,
    limits: &Limits,
    now: Instant,
) -> io::Result<Begun> {
    let (server, first) = (Leg::Elsewhere, Vec::new());
    let middle = Middle::Relay(Relay::default());
    let mut begun = Begun { server, middle, undecided: None, first, to, from, by, rate };
    if let Some(chain) = agreeing.shared(at)
        && let Some((through, None)) =
            Through::new(chain, limits.chain_buffer, (at.into(), None), now)
    {
        begun.middle = Middle::Through(Box::new(through));
        return Ok(begun);
    }
    begun.undecided = Some(Undecided::new(agreeing.clone(), at, limits.chain_buffer));
    let server = agreeing.connect(at, from, options)?;
    begun.server = Leg::Tcp(Conn::from(server).into());
    Ok(begun)
}

/// Begins a further connection of a flow, from a local address if one is named. With
/// negotiation it sends the offer again; whether the other end agrees shows in its bytes.
pub(super) fn dial(
    to: &Address,
    from: Option<SocketAddr>,
    options: TcpOptions,
    teller: &Teller,
) -> io::Result<Leg> {
    let begin = |to| {
        let stream = match (&teller.below, &teller.agreeing) {
            (Some(below), _) => return below.connect(to, from, options.mirrored),
            (None, Some(agreeing)) => agreeing.connect(to, from, options)?,
            (None, None) => tcp::connect(to, from, options)?,
        };
        Ok(Leg::Tcp(Conn::from(stream).into()))
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

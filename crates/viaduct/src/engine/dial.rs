//! Second halves of flows: the outbound connection, and the relay or chain in front of it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tracing::debug;
use viaduct_proto::flow::Address;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::TcpOptions;

use super::chain_io::ChainIo;
use super::commands::Limits;
use super::conn::Conn;
use super::destination::Route;
use super::flow::{Begun, Middle};
use super::negotiation::{Negotiation, PendingNegotiation};
use super::outbound::{OpenRequest, Opened, Outbound as _, Outbounds};
use super::relay::Relay;

/// Begins the second half of a flow: its connection, and the relay or chain between the ends.
pub(super) fn open(
    route: Route,
    options: TcpOptions,
    outbounds: &Outbounds,
    limits: &Limits,
    now: Instant,
) -> io::Result<Begun> {
    let (to, source) = (route.to.clone(), route.source);
    let begun = begin(route, options, outbounds, limits, now);
    begun.inspect_err(|error| debug!("connect to {to} for {source}: {error}"))
}

fn begin(
    mut route: Route,
    options: TcpOptions,
    outbounds: &Outbounds,
    limits: &Limits,
    now: Instant,
) -> io::Result<Begun> {
    if let (Some(negotiation), Address::Ip(at)) = (&outbounds.negotiation, &route.to) {
        let request = OpenRequest::new((*at).into(), route.source, options);
        let request = OpenRequest { from: route.from, ..request };
        return negotiate(negotiation, &request, route, limits, now);
    }
    route.fell_back = outbounds.get(&route.plan.by)?.is_known_to_fail(&route.to, now);
    let handlers = route.plan.handlers.clone();
    let can_splice = !route.copied && outbounds.get(route.outbound())?.can_splice();
    let relay = match &handlers {
        _ if !can_splice => None,
        None => Some(Relay::default()),
        Some(handlers) => Relay::of(handlers),
    };
    let meant = (route.to.clone(), route.from);
    let (goal, middle) = match (relay, handlers.unwrap_or_default()) {
        (Some(relay), _) => (Some(meant), Middle::Relay(relay)),
        (None, handlers) => match ChainIo::new(handlers, limits.chain_buffer, meant, now) {
            Some((chain_io, goal)) => (goal, Middle::Chain(Box::new(chain_io))),
            None => return Err(io::Error::other("the handlers lead nowhere")),
        },
    };
    let opened: Opened = match goal {
        None => Conn::Pending.into(),
        Some((to, bound)) => {
            route.fell_back |= outbounds.get(route.outbound())?.is_known_to_fail(&to, now);
            let fits = |from: &SocketAddr| match &to {
                Address::Ip(to) => to.is_ipv4() == from.is_ipv4(),
                Address::Name(..) => false,
            };
            // Where the handlers connect to another host, the client's address is not used.
            let from = match route.keeps_client && to != route.to {
                true => None,
                false => bound.or(route.from.filter(fits)),
            };
            let (source, signalled, haul) = (route.source, route.signalled, route.haul.take());
            let request = OpenRequest { to, from, source, signalled, options, haul };
            outbounds.get(route.outbound())?.open(&request, now)?
        }
    };
    Ok(Begun { opened, middle, pending_negotiation: None, route })
}

/// Begins the connection of `request`, or joins a shared one; the relay or chain is negotiated
/// with the far end.
fn negotiate(
    negotiation: &Arc<Negotiation>,
    request: &OpenRequest,
    route: Route,
    limits: &Limits,
    now: Instant,
) -> io::Result<Begun> {
    let (at, limit) = (request.ip()?, limits.chain_buffer);
    if let Some(chain) = negotiation.shared(at)
        && let Some((chain_io, None)) = ChainIo::new(chain, limit, (at.into(), None), now)
    {
        let (opened, middle) = (Conn::Pending.into(), Middle::Chain(Box::new(chain_io)));
        return Ok(Begun { opened, middle, pending_negotiation: None, route });
    }
    let pending_negotiation = Some(PendingNegotiation::new(negotiation.clone(), at, limit));
    let (opened, middle) = (negotiation.open(request, now)?, Middle::Relay(Relay::default()));
    Ok(Begun { opened, middle, pending_negotiation, route })
}

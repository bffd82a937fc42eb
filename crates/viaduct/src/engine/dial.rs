//! Server side of flows: the outbound connection, and the relay or handler chain between it and the
//! client.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tracing::debug;
use viaduct_proto::flow::Address;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::TcpOptions;

use super::chain_io::ChainIo;
use super::conn::Conn;
use super::destination::Route;
use super::flow::{Begun, Middle};
use super::negotiation::{Negotiation, PendingNegotiation};
use super::outbound::{OpenRequest, Opened, Outbound as _, OutboundSpec, Outbounds};
use super::relay::Relay;

impl Outbounds {
    /// Begins the server side of a flow: its connection, and the relay or chain between the ends.
    pub(super) fn begin(
        &self,
        route: Route,
        options: TcpOptions,
        now: Instant,
    ) -> io::Result<Begun> {
        let (to, source) = (route.to.clone(), route.source);
        let begun = match (&self.negotiation, &to) {
            (Some(negotiation), Address::Ip(at)) => {
                self.negotiate(negotiation, *at, route, options, now)
            }
            _ => self.begin_by_plan(route, options, now),
        };
        begun.inspect_err(|error| debug!("cannot connect to {to} for {source}: {error}"))
    }

    fn begin_by_plan(
        &self,
        mut route: Route,
        mut options: TcpOptions,
        now: Instant,
    ) -> io::Result<Begun> {
        if self.get(route.outbound())?.is_known_to_fail(&route.to, now) {
            route.instead = Some(OutboundSpec::Direct);
        }
        let handlers = route.plan.handlers.clone();
        let can_splice = !route.copied && self.get(route.outbound())?.can_splice();
        let relay = match &handlers {
            _ if !can_splice => None,
            None => Some(Relay::default()),
            Some(handlers) => Relay::of(handlers),
        };
        let meant = (route.to.clone(), route.from);
        let (goal, middle) = match (relay, handlers.unwrap_or_default()) {
            (Some(relay), _) => (Some(meant), Middle::Relay(relay)),
            (None, handlers) => {
                let (limit, mirrored) = (self.chain_buffer, options.mirrored);
                let (chain_io, goal) = ChainIo::new(handlers, limit, meant, mirrored, now)
                    .ok_or_else(|| io::Error::other("the handler chain cannot be built"))?;
                options.mirrored = chain_io.main_options();
                if let Some(transport) = chain_io.main_transport() {
                    route.instead = Some(route.outbound().over(transport));
                }
                (goal, Middle::Chain(Box::new(chain_io)))
            }
        };
        let opened = match goal {
            None => Conn::Pending.into(),
            Some((to, bound)) => self.open(&mut route, to, bound, options, now)?,
        };
        Ok(Begun { opened, middle, pending_negotiation: None, route })
    }

    /// Opens the connection of a flow to `to`, from `bound` if its handlers name an address.
    fn open(
        &self,
        route: &mut Route,
        to: Address,
        bound: Option<SocketAddr>,
        options: TcpOptions,
        now: Instant,
    ) -> io::Result<Opened> {
        if self.get(route.outbound())?.is_known_to_fail(&to, now) {
            route.instead = Some(OutboundSpec::Direct);
        }
        let fits = |from: &SocketAddr| match &to {
            Address::Ip(to) => to.is_ipv4() == from.is_ipv4(),
            Address::Name(..) => false,
        };
        // If the handlers connect to another host, the client's address is not used.
        let from = match route.keeps_client && to != route.to {
            true => None,
            false => bound.or(route.from.filter(fits)),
        };
        let (source, signalled, haul) = (route.source, route.signalled, route.haul.take());
        let request =
            OpenRequest { to, from, source, signalled, tell: route.plan.tell, options, haul };
        self.get(route.outbound())?.open(&request, now)
    }

    /// Begins a connection to `at`, or joins a shared one; the relay or chain is negotiated with
    /// the far end.
    fn negotiate(
        &self,
        negotiation: &Arc<Negotiation>,
        at: SocketAddr,
        route: Route,
        options: TcpOptions,
        now: Instant,
    ) -> io::Result<Begun> {
        let limit = self.chain_buffer;
        if let Some(chain) = negotiation.shared(at)
            && let Some((chain_io, None)) =
                ChainIo::new(chain, limit, (at.into(), None), options.mirrored, now)
        {
            let (opened, middle) = (Conn::Pending.into(), Middle::Chain(Box::new(chain_io)));
            return Ok(Begun { opened, middle, pending_negotiation: None, route });
        }
        let plain = OpenRequest::new(at.into(), route.source, options);
        let opened = negotiation.open(&OpenRequest { from: route.from, ..plain }, now)?;
        let pending_negotiation = Some(PendingNegotiation::new(negotiation.clone(), at, limit));
        let middle = Middle::Relay(Relay::default());
        Ok(Begun { opened, middle, pending_negotiation, route })
    }
}

//! Egress of flows that come from the same handlers at another host: the accepting handlers restore
//! the original bytes, which are then sent to the origin.
//!
//! ```text
//!   client ── another proxy's handlers ══════ accepting side ── Origin ──▶ server
//! ```

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use mio::net::TcpStream;
use tracing::warn;
use viaduct_proto::flow::Address;
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::proxy::Addresses;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::{self, LongHaul, TcpOptions};

use super::flow_socket::FlowSocket;
use super::worker::Worker;
use super::wrapped::{Arrival, Program};

/// Server of a flow. The connection to it is begun once the handlers have accepted the flow.
#[derive(Clone, Debug)]
struct Origin {
    to: SocketAddr,
    /// Local address to connect from; `None` if the kernel chooses it.
    from: Option<SocketAddr>,
    options: TcpOptions,
    /// Options of the connection, if it crosses a long link.
    far: Option<LongHaul>,
    /// Limit of the rate, in bits per second.
    rate: Option<u64>,
}

impl Worker {
    /// Accepts a client whose flow comes from the same handlers at another host. Returns the
    /// connection of any other client.
    pub(super) fn accept_for_origin(
        &mut self,
        client: TcpStream,
        tuple: &Tuple,
        signalled: Option<Addresses>,
        now: Instant,
    ) -> Option<TcpStream> {
        let policies = Some(&self.config.policies).filter(|policies| policies.accept());
        let route =
            policies.and_then(|policies| self.config.target.route(tuple, signalled, policies));
        let Some(route) = route.filter(|route| route.plan.accepts) else { return Some(client) };
        let Address::Ip(to) = route.to else { return Some(client) };
        let (rate, far) = (route.plan.rate, self.config.policies.far.haul(to.ip()).cloned());
        pace(&client, rate);
        let program = Origin { to, from: route.from, options: self.config.options, far, rate };
        let arrival = Arrival {
            stream: std::net::TcpStream::from(client).into(),
            client: route.source,
            own: to,
            handlers: route.plan.handlers.clone(),
            program: Box::new(program),
        };
        self.accept_inbound(arrival, now);
        None
    }
}

impl Program for Origin {
    fn take_socket(&mut self) -> io::Result<FlowSocket<std::net::TcpStream>> {
        let any: IpAddr = match self.to {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let socket = tcp::bound(self.from.unwrap_or((any, 0).into()), self.options)?;
        if let Some(far) = &self.far {
            far.apply(&socket)?;
        }
        pace(&socket, self.rate);
        Ok(FlowSocket::from(socket))
    }

    fn connect(&mut self, socket: &std::net::TcpStream) -> io::Result<()> {
        tcp::connect_bound(socket, self.to)
    }

    /// Only one flow can use the client's port; further flows get other ports.
    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        let from = self.from.map(|from| SocketAddr::new(from.ip(), 0));
        Some(Box::new(Origin { from, ..self.clone() }))
    }
}

/// Sets the kernel's pacing rate of a socket.
fn pace(socket: impl AsFd, rate: Option<u64>) {
    if let Some(Err(error)) = rate.map(|bits| tcp::pace(socket, bits / 8)) {
        warn!("cannot limit the rate of a flow: {error}");
    }
}

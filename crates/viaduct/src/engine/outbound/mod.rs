//! Outbounds: openers of flows' connections, directly to the server or through another program.
//!
//! ```text
//!   policy: OutboundSpec ──▶ Outbounds ──▶ Outbound::open ──▶ Conn, and its preface
//! ```
//!
//! | file | outbound |
//! |---|---|
//! | here | [`Outbound`], and [`Outbounds`]: the table of a loop |
//! | `spec` | description of an outbound in a policy |
//! | `direct` | to the server, by the kernel's TCP |
//! | `hop` | to a hop, which is sent the flow's addresses |
//! | `tunnel` | through a tunnel ([`crate::tunnel`]) |
//!
//! Other outbounds are defined next to their state: Trickles ([`super::trickles`]), connections
//! that offer handlers ([`super::negotiation`]), and a parent master in the kernel's place
//! ([`crate::master`]).

mod direct;
mod hop;
mod spec;
mod tunnel;

use std::collections::HashMap;
use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use viaduct_proto::flow::Address;
use viaduct_proto::split::proxy::Addresses;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::{LongHaul, TcpOptions};

use self::direct::Direct;
pub(super) use self::direct::{connect, set_up};
pub use self::hop::{HopSignaller, HopSignalling};
pub use self::spec::OutboundSpec;
use super::config::EngineConfig;
use super::conn::Conn;
use super::negotiation::Negotiation;
use super::trickles::Trickles;
use crate::tunnel::Outlet;
use crate::tunnel::settings::TunnelName;

/// Opener of outbound connections.
pub trait Outbound: Debug + Send + Sync {
    /// Begins a connection. Errors: the connect failed immediately.
    fn open(&self, request: &OpenRequest, now: Instant) -> io::Result<Opened>;

    /// Returns whether the opened connections are TCP connections of the kernel, which can be
    /// spliced.
    fn can_splice(&self) -> bool {
        true
    }

    /// Returns whether a connection to `to` is known to fail, and may be opened directly instead.
    fn is_known_to_fail(&self, _to: &Address, _now: Instant) -> bool {
        false
    }
}

/// Request for a connection.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    /// Destination; a host name only for tunnels.
    pub to: Address,
    /// Local address to connect from; `None` if the kernel chooses it.
    pub from: Option<SocketAddr>,
    /// Source address of the flow, sent to the far end of a tunnel.
    pub source: SocketAddr,
    /// Addresses to send to the hop, or to a later hop.
    pub signalled: Option<Addresses>,
    /// Form in which the hop gets these addresses; `None` means the form set for the engine.
    pub tell: Option<HopSignalling>,
    /// Options of the socket.
    pub options: TcpOptions,
    /// Long-haul socket settings, if the connection crosses the long link.
    pub haul: Option<LongHaul>,
}

/// A connection that was begun.
#[derive(Debug)]
pub struct Opened {
    /// The connection.
    pub conn: Conn,
    /// Bytes to send before the payload.
    pub preface_out: Vec<u8>,
}

/// Outbounds of a loop, by their description in policies.
#[derive(Debug, Default)]
pub(super) struct Outbounds {
    table: HashMap<OutboundSpec, Arc<dyn Outbound>>,
    /// Outbound to all hops.
    hops: Option<Arc<HopSignaller>>,
    /// Negotiation with far ends, if there is one.
    pub(super) negotiation: Option<Arc<Negotiation>>,
    /// Bytes that each end of a handler chain buffers.
    pub(super) chain_buffer: usize,
}

impl OpenRequest {
    /// Returns a request for a connection to `to` for `source`, with no address to bind or signal.
    pub fn new(to: Address, source: SocketAddr, options: TcpOptions) -> OpenRequest {
        OpenRequest { to, from: None, source, signalled: None, tell: None, options, haul: None }
    }

    /// Address of the destination. Errors: the destination is a host name.
    pub fn ip(&self) -> io::Result<SocketAddr> {
        match &self.to {
            Address::Ip(to) => Ok(*to),
            Address::Name(name, _) => {
                Err(io::Error::other(format!("{name}: only tunnels take host names")))
            }
        }
    }
}

impl From<Conn> for Opened {
    fn from(conn: Conn) -> Opened {
        Opened { conn, preface_out: Vec::new() }
    }
}

impl Outbounds {
    /// Returns the outbounds that the policies of `config` name.
    pub(super) fn new(
        config: &EngineConfig,
        signaller: &Arc<HopSignaller>,
        tunnels: &HashMap<TunnelName, Outlet>,
        trickles: &Trickles,
    ) -> Outbounds {
        let direct: Arc<dyn Outbound> = match &config.parent {
            Some(parent) => parent.clone(),
            None => Arc::new(Direct(signaller.clone())),
        };
        let entry = |spec: OutboundSpec| {
            let outbound: Arc<dyn Outbound> = match &spec {
                OutboundSpec::Direct => direct.clone(),
                OutboundSpec::Hop(_) | OutboundSpec::Hops(_) | OutboundSpec::Auto(_) => {
                    return None;
                }
                OutboundSpec::Tunnel(name) => Arc::new(tunnels.get(&name[..])?.clone()),
                OutboundSpec::Trickles(target) => Arc::new(trickles.outlet(*target)),
            };
            Some((spec, outbound))
        };
        let named = config.policies.outbounds().cloned().chain([OutboundSpec::Direct]);
        Outbounds {
            table: named.filter_map(entry).collect(),
            hops: Some(signaller.clone()),
            negotiation: config.negotiation.clone(),
            chain_buffer: config.limits.chain_buffer,
        }
    }

    /// Outbound that a policy describes as `spec`. Errors: there is no tunnel of that name, because
    /// a change of tunnels needs a restart; no policy names these parameters of Trickles; or `spec`
    /// is a list of hops none of which was chosen.
    pub(super) fn get(&self, spec: &OutboundSpec) -> io::Result<&dyn Outbound> {
        let found = match (spec, &self.hops) {
            (OutboundSpec::Hop(_), Some(signaller)) => Some(&**signaller as &dyn Outbound),
            _ => self.table.get(spec).map(|outbound| &**outbound),
        };
        found.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    /// Outbound of further connections of a flow. With negotiation their SYNs carry the offer
    /// again; the bytes from the other end show whether that end agrees.
    pub(super) fn further(&self) -> io::Result<&dyn Outbound> {
        match &self.negotiation {
            Some(negotiation) => Ok(&**negotiation),
            None => self.get(&OutboundSpec::Direct),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use viaduct_proto::split::proxy;

    use super::*;

    #[test]
    fn a_hop_gets_the_addresses_first_and_a_server_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let plain = OpenRequest::new(at.into(), at, TcpOptions::default());
        let signaller = Arc::new(HopSignaller::new(Some(HopSignalling::Proxy)));
        let direct = Direct(signaller.clone()).open(&plain, Instant::ZERO).unwrap();
        assert!(direct.preface_out.is_empty());
        let addresses = Addresses::new(at, at);
        let request = OpenRequest { signalled: Some(addresses), ..plain };
        let hop = signaller.open(&request, Instant::ZERO).unwrap();
        assert_eq!(hop.preface_out, proxy::emit(&addresses));
    }

    #[test]
    fn host_names_and_unknown_tunnels_are_refused() {
        let source = SocketAddr::from(([127, 0, 0, 1], 1));
        let name = Address::Name("host".to_owned(), 80);
        let request = OpenRequest::new(name, source, TcpOptions::default());
        let direct = Direct(Arc::new(HopSignaller::new(None)));
        assert!(direct.open(&request, Instant::ZERO).is_err());
        assert!(Outbounds::default().get(&OutboundSpec::Tunnel("paris".to_owned())).is_err());
    }
}

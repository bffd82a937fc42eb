//! A flow: its two ends, and the relay or handler chain between them.
//!
//! | file | |
//! |---|---|
//! | here | the parts of a flow, and queries about it |
//! | `state` | state of a flow, from connecting to broken |
//! | `end` | an end: connection, preface, liveness |
//! | `new` | constructors |
//! | `connect` | setup of the server's end |
//! | `client` | setup of the client's end, and its request |
//! | `io` | payload transfer, and release of resources |
//! | `close` | delivery of the remaining bytes after one end broke |
//! | `portable` | record of a flow for another process, and the flow made from it |

mod client;
mod close;
mod connect;
mod end;
mod io;
mod new;
mod portable;
mod state;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mio::net::TcpStream;
use viaduct_proto::flow::{Address, BottomId};
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::{self, Mirrored};

use self::client::PendingClient;
pub use self::client::ReadStop;
pub use self::end::End;
use self::end::FlowEnd;
use self::state::State;
use super::account::Account;
use super::chain_io::ChainIo;
use super::conn::Conn;
use super::destination::Route;
use super::liveness::DeadPeerLimits;
use super::negotiation::PendingNegotiation;
use super::outbound::{Opened, OutboundSpec};
use super::pipes::Pipes;
use super::policy::Plan;
use super::relay::Relay;
use super::stats::ProxyStats;

/// Relay or handler chain between the two ends.
#[derive(Debug)]
pub enum Middle {
    /// A relay: the kernel splices the two connections.
    Relay(Relay),
    /// A chain of handlers, or ends that cannot be spliced.
    Chain(Box<ChainIo>),
}

/// State that all flows of an event loop share.
#[derive(Debug)]
pub struct Shared {
    /// Pipes that no flow uses now.
    pub pipes: Pipes,
    /// Read buffer.
    pub scratch: Box<[u8]>,
}

/// A flow.
#[derive(Debug)]
pub struct Flow {
    /// Generation number: distinguishes this flow from a later one with the same key.
    pub id: u64,
    /// Client's address, or the source address that a previous hop has named.
    source: SocketAddr,
    state: State,
    /// Ends: the client's, the server's.
    ends: [FlowEnd; 2],
    /// Client that is not ready for payload.
    pending_client: Option<PendingClient>,
    middle: Middle,
    /// Route to the server, once the connection was begun.
    route: Option<Route>,
    /// Plan of a flow that the handlers accept for a server ([`super::origin`]). The client is then
    /// at the end towards the network, and the server takes the place of a client.
    pub accepts: Option<Arc<Plan>>,
    /// Remaining addresses of the host name that the client requested.
    further_addresses: VecDeque<SocketAddr>,
    /// The flow's own connection, unused because its handlers share another flow's connection.
    spare: Option<Conn>,
    /// Further connections of the flow's handlers, each with its key in the loop's table.
    pub net_conns: Vec<(usize, BottomId)>,
    /// Payload bytes that the client sent right after its request, not counted yet.
    pipelined: u64,
    /// True once both ends have been connected.
    has_opened: bool,
    /// True if closing the ends resets them, unless the flow was marked as ended well. This also
    /// applies if this process is killed.
    is_reset_on_close: bool,
    /// Socket options that the program has set on its own end.
    pub mirrored: Mirrored,
    /// Record for the access log.
    pub account: Account,
    /// Times that the loop's deadlines depend on.
    pub times: Times,
}

/// Times of a flow.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Start of the connection to the server.
    pub begun: Instant,
    /// True if the time that the server took to answer was counted for another flow, from which
    /// this flow has adopted the connection.
    pub is_counted: bool,
    /// Last transfer, or the start.
    pub moved: Instant,
    /// Last liveness check.
    pub checked: Option<Instant>,
    /// Time at which the loop drives the flow even without an event.
    pub alarm: Option<Instant>,
}

/// Server side of a flow, whose connection was begun.
#[derive(Debug)]
pub struct Begun {
    /// The server's end, with its preface.
    pub opened: Opened,
    /// Relay or handler chain between that end and the client.
    pub middle: Middle,
    /// Set if the relay or chain is to be negotiated with the far end, after the connection
    /// is established.
    pub pending_negotiation: Option<PendingNegotiation>,
    /// Route of the connection.
    pub route: Route,
}

/// Result of driving a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes that passed from the client, and to the client.
    pub bytes: [u64; 2],
    /// Bytes that handlers have written to either end.
    pub written: u64,
    /// True if both directions have ended.
    pub done: bool,
    /// True if more bytes can be moved after other flows have been served.
    pub more: bool,
}

impl Flow {
    /// Counts a client's flow for its policy, if it has one.
    pub fn count_for_policy(&self, stats: &mut ProxyStats, is_open: bool) {
        let route = self.route.as_ref().map(|route| &route.plan);
        let plan = self.accepts.as_ref().or(route).filter(|_| self.has_client());
        if let Some(name) = plan.and_then(|plan| plan.policy.as_ref()) {
            let policy = stats.policy(name);
            policy.open += u64::from(is_open);
            policy.count(self.has_opened, self.account.bytes());
        }
    }

    /// Returns whether the flow is a client's, for the access log.
    pub fn is_clients(&self) -> bool {
        self.has_client() || self.accepts.is_some() && !self.serves_others()
    }

    /// Client's address, or the source address that a previous hop has named.
    pub fn source(&self) -> SocketAddr {
        self.source
    }

    /// Sets the source address, if a previous hop has named it.
    pub fn set_source(&mut self, source: Option<SocketAddr>) {
        self.source = source.unwrap_or(self.source);
    }

    /// Ends that are present: the client's, the server's.
    pub fn conns(&mut self) -> [Option<&mut Conn>; 2] {
        self.ends.each_mut().map(|end| end.conn.as_mut())
    }

    /// Local address as the far end sees it, even if a handler or a tunnel connects for this host.
    pub fn own_name(&mut self, now: Instant) -> Option<SocketAddr> {
        match &mut self.middle {
            Middle::Chain(chain_io) => chain_io.own_name(now),
            Middle::Relay(_) => self.ends[1].conn.as_ref()?.names().map(|(own, _)| own),
        }
    }

    /// Checks whether the peers of the ends are still alive.
    pub fn check_liveness(&mut self, silence: DeadPeerLimits, now: Instant) {
        self.times.checked = Some(now);
        // True if the program has set its own timeout for the far end.
        let decided = self.mirrored.decides_liveness();
        let [client, server] = &mut self.ends;
        client.check_liveness(silence);
        if !decided {
            server.check_liveness(silence);
            if let Middle::Chain(chain_io) = &mut self.middle {
                chain_io.check_liveness(silence);
            }
        }
    }

    /// Server of a flow that the kernel relays without a hop, and the shortest round trip to that
    /// server. `None` for other flows.
    pub fn server_rtt(&self) -> Option<(IpAddr, Duration)> {
        let route =
            self.route.as_ref().filter(|route| *route.outbound() == OutboundSpec::Direct)?;
        let (Middle::Relay(_), true, Address::Ip(to)) =
            (&self.middle, self.is_connected(), &route.to)
        else {
            return None;
        };
        let server = self.ends[End::Server as usize].conn.as_ref()?.tcp()?;
        Some((to.ip(), tcp::sending(server).ok()?.shortest))
    }

    /// Applies the socket options of the program's own end to the connection to the network, or
    /// passes them to the handlers.
    pub fn mirror(&mut self, mirrored: Mirrored, now: Instant) {
        self.mirrored = mirrored;
        match &mut self.middle {
            Middle::Chain(chain_io) => chain_io.mirror(mirrored, now),
            Middle::Relay(_) => {
                let server = self.ends[End::Server as usize].conn.as_ref();
                if let Some(stream) = server.and_then(Conn::tcp) {
                    mirrored.apply_later(stream);
                }
            }
        }
    }

    /// Takes the unused connection to the destination, for use by another flow.
    pub fn spare(&mut self) -> Option<(Address, Conn)> {
        Some((self.route.as_ref()?.to.clone(), self.spare.take()?))
    }

    /// Returns whether the server end can be polled for its state at any time (tunnels,
    /// Trickles).
    pub fn may_be_asked(&self) -> bool {
        matches!(self.ends[1].conn, Some(Conn::Tunnel(_) | Conn::Trickles(_)))
    }

    /// Destination of the connection to the server, as text for logs.
    pub fn destination(&self) -> String {
        let to = self.route.as_ref().map(|route| route.to.to_string());
        to.unwrap_or_else(|| "nowhere yet".to_owned())
    }

    /// Local address for a further connection to `to`: the address of the flow's first connection,
    /// if that connection goes to `to`. `None` if the kernel chooses the address. The port is 0,
    /// because the first connection occupies its own.
    pub fn from(&self, to: &Address) -> Option<SocketAddr> {
        let route = self.route.as_ref().filter(|route| route.to == *to)?;
        route.from.map(|from| SocketAddr::new(from.ip(), 0))
    }

    /// Returns whether a connection to the server was begun, or is begun once the handlers accept
    /// the flow.
    pub fn is_routed(&self) -> bool {
        self.route.is_some() || self.accepts.is_some()
    }

    /// Outbound in use.
    pub fn outbound(&self) -> &OutboundSpec {
        self.route.as_ref().map_or(&OutboundSpec::Direct, Route::outbound)
    }

    /// Makes the ends reset if this process is killed. Otherwise a program would mistake the
    /// kernel's FIN for the end of the stream, although its far end never sent one.
    pub fn break_unless_ended(&mut self) {
        self.is_reset_on_close = true;
        self.streams().for_each(|stream| drop(tcp::reset_on_close(stream)));
    }

    /// Marks the flow as ended well: the ends close normally, and written bytes are still sent.
    pub fn end_well(&mut self) {
        if self.is_reset_on_close {
            self.streams().for_each(|stream| drop(tcp::fin_on_close(stream)));
        }
    }

    fn streams(&self) -> impl Iterator<Item = &TcpStream> {
        let conns = self.ends.iter().filter_map(|end| end.conn.as_ref());
        conns.chain(self.coming()).filter_map(Conn::tcp)
    }

    /// Handler chain, if the flow has one.
    pub fn chain_io(&mut self) -> Option<&mut ChainIo> {
        match &mut self.middle {
            Middle::Relay(_) => None,
            Middle::Chain(chain_io) => Some(chain_io),
        }
    }

    /// Returns whether the flow only serves other flows.
    pub fn serves_others(&self) -> bool {
        matches!(&self.middle, Middle::Chain(chain_io) if chain_io.is_alone())
    }

    /// Relay or handler chain between the ends.
    pub fn middle(&mut self) -> &mut Middle {
        &mut self.middle
    }

    /// Converts the flow into its chain and its end towards the network; `None` without a chain.
    pub fn into_chain(mut self) -> Option<(ChainIo, Option<Conn>)> {
        match self.middle {
            Middle::Relay(_) => None,
            Middle::Chain(chain_io) => Some((*chain_io, self.ends[1].conn.take())),
        }
    }
}

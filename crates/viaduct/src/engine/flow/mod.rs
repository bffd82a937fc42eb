//! A flow: its two ends, and the relay or handler chain between them.
//!
//! | file | |
//! |---|---|
//! | here | the parts of a flow, and queries about it |
//! | `new` | constructors |
//! | `connect` | setup of the client's end and the server's end |
//! | `preface` | the preface: bytes exchanged before the payload |
//! | `io` | payload transfer, and the end of a flow |
//! | `close` | delivery of the remaining bytes after one end broke |

mod close;
mod connect;
mod io;
mod new;
mod preface;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use mio::net::TcpStream;
use viaduct_proto::flow::{Address, BottomId, Failure};
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::preface::Preface;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::{self, Mirrored};

use self::close::Breaking;
pub use self::preface::ReadStop;
use super::account::Account;
use super::chain_io::{ChainIo, Stage};
use super::conn::Conn;
use super::liveness::{DeadPeerLimits, Liveness};
use super::negotiation::PendingNegotiation;
use super::outbound::{Opened, OutboundSpec};
use super::pipes::Pipes;
use super::policy::Plan;
use super::relay::Relay;

/// End of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Client = 0,
    Server = 1,
}

/// Relay or handler chain between the two ends.
#[derive(Debug)]
pub enum Middle {
    /// Nothing: two connections are spliced.
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

/// A flow. The client's end is missing on an early connection; the server's end is missing
/// until the client has named its destination.
#[derive(Debug)]
pub struct Flow {
    /// Ends: the client's, the server's.
    conns: [Option<Conn>; 2],
    /// Preface bytes to send to each end before any payload.
    preface_out: [Vec<u8>; 2],
    /// End of stream follows the server's preface: no payload comes after it.
    ends_after_preface: bool,
    request: Option<ClientRequest>,
    /// Source address that the flow is carried for.
    source: SocketAddr,
    /// Route of the second half, once it has begun.
    route: Option<FlowRoute>,
    /// Remaining addresses of the host name that the client requested.
    further_addresses: VecDeque<SocketAddr>,
    /// Generation number: distinguishes this flow from a later one with the same key.
    pub id: u64,
    progress: Progress,
    /// A program's connection that is still being made; it becomes the client's end.
    coming: Option<Conn>,
    /// Further connections of the flow's handlers, by the loop's key.
    pub net_conns: Vec<(usize, BottomId)>,
    /// The ends are reset on close unless the flow ended well; this also holds if this process
    /// is killed.
    breaks: bool,
    /// Both ends have been present.
    opened: bool,
    /// Reason why the server cannot be reached, if so.
    broken: Option<Failure>,
    /// End that broke, where the middle does not know it.
    broken_end: Option<End>,
    /// Set if an end broke and the other has not received all of its bytes yet.
    breaking: Option<Breaking>,
    middle: Middle,
    /// The middle still has to be negotiated with the far end.
    pending_negotiation: Option<PendingNegotiation>,
    /// The flow's own connection, left unused: its handlers share another flow's connection.
    spare: Option<Conn>,
    /// Payload bytes that the client sent right behind its request (pipelined), not counted yet.
    pipelined: u64,
    /// True if the loop reports room in the client's send buffer.
    room_watched: bool,
    /// Socket options that the program has set on its own end.
    pub mirrored: Mirrored,
    /// Liveness of the peers at both ends.
    liveness: [Liveness; 2],
    /// Time of the last liveness check.
    pub checked: Option<Instant>,
    /// Record for the access log.
    pub account: Account,
    /// Time at which the second half was begun.
    pub begun: Instant,
    /// Time of the last transfer, or of the start.
    pub moved: Instant,
    /// Time at which the loop drives the flow even without an event.
    pub alarm: Option<Instant>,
}

/// Progress of a flow's second half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// The server has not answered.
    Connecting,
    /// The server has answered.
    Connected,
    /// The server has answered, and the waiting party (client or program) has been told so.
    Established,
}

/// Route of a flow's second half that has begun.
#[derive(Clone, Debug)]
pub struct FlowRoute {
    /// Destination.
    pub to: Address,
    /// Local address to connect from, if not this host's own.
    pub from: Option<SocketAddr>,
    /// Decision of the policy.
    pub plan: Arc<Plan>,
    /// The server knows no Trickles: the flow goes directly, by TCP.
    pub fell_back: bool,
}

/// A second half that was begun.
#[derive(Debug)]
pub struct Begun {
    /// The server's end, with its preface.
    pub opened: Opened,
    /// Relay or handler chain in front of it.
    pub middle: Middle,
    /// Set if the middle is negotiated with the far end once that is connected.
    pub pending_negotiation: Option<PendingNegotiation>,
    /// Destination, and decision of the policy.
    pub route: FlowRoute,
}

/// Client's request for a destination.
#[derive(Debug)]
pub struct ClientRequest {
    /// Parser of the request.
    pub preface: Preface,
    /// Addresses of the client's connection.
    pub tuple: Tuple,
    /// Bytes received and not parsed yet.
    pub bytes: Vec<u8>,
    /// True if the connection was begun and the client waits for its result.
    pub begun: bool,
}

/// Result of driving a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Bytes that passed from the client, and to it.
    pub bytes: [u64; 2],
    /// Both directions have ended.
    pub done: bool,
    /// More can be moved, after the other flows had their turn.
    pub more: bool,
}

impl FlowRoute {
    /// Outbound in use.
    pub fn by(&self) -> &OutboundSpec {
        if self.fell_back { &OutboundSpec::Direct } else { &self.plan.by }
    }
}

impl Flow {
    /// Source address that the flow is carried for.
    pub fn source(&self) -> SocketAddr {
        self.source
    }

    /// Sets the source address, if a previous hop has named it.
    pub fn set_source(&mut self, source: Option<SocketAddr>) {
        self.source = source.unwrap_or(self.source);
    }

    /// Client's request, until the client has named its destination.
    pub fn request(&mut self) -> Option<&mut ClientRequest> {
        self.request.as_mut()
    }

    /// Clears the request: the client has received its answer.
    pub fn clear_request(&mut self) {
        self.request = None;
    }

    /// Ends that are present: the client's, the server's.
    pub fn conns(&mut self) -> [Option<&mut Conn>; 2] {
        self.conns.each_mut().map(Option::as_mut)
    }

    /// Local address as the far end sees it, also if a handler or a tunnel connects in this
    /// host's place.
    pub fn own_name(&mut self, now: Instant) -> Option<SocketAddr> {
        match &mut self.middle {
            Middle::Chain(chain_io) => chain_io.own_name(now),
            Middle::Relay(_) => self.conns[1].as_ref()?.names().map(|(own, _)| own),
        }
    }

    /// Checks whether the peers of the ends are still alive; for flows that last.
    pub fn check_liveness(&mut self, silence: DeadPeerLimits, now: Instant) {
        self.checked = Some(now);
        // The program itself has set when its far end is given up.
        let decided = self.mirrored.decides_liveness();
        for (end, (conn, liveness)) in self.conns.iter().zip(&mut self.liveness).enumerate() {
            if let Some(stream) = conn.as_ref().and_then(Conn::tcp)
                && !(decided && end == End::Server as usize)
            {
                liveness.check(stream, silence);
            }
        }
        if let Middle::Chain(chain_io) = &mut self.middle
            && !decided
        {
            chain_io.check_liveness(silence);
        }
    }

    /// Applies the socket options of the program's own end to the connections to the network.
    pub fn mirror(&mut self, mirrored: Mirrored) {
        self.mirrored = mirrored;
        if let Some(stream) = self.conns[End::Server as usize].as_ref().and_then(Conn::tcp) {
            mirrored.apply_later(stream);
        }
        if let Middle::Chain(chain_io) = &mut self.middle {
            chain_io.mirror(mirrored);
        }
    }

    /// Takes the unused connection to the destination, for use by another flow.
    pub fn spare(&mut self) -> Option<(Address, Conn)> {
        Some((self.route.as_ref()?.to.clone(), self.spare.take()?))
    }

    /// Returns whether the server has answered.
    pub fn is_connected(&self) -> bool {
        self.progress != Progress::Connecting
    }

    /// Records that the server has answered.
    fn set_connected(&mut self) {
        if self.progress == Progress::Connecting {
            self.progress = Progress::Connected;
        }
    }

    /// Returns whether both ends are present; true only once.
    pub fn opens(&mut self) -> bool {
        let both = self.is_connected() && self.has_client();
        both && !std::mem::replace(&mut self.opened, true)
    }

    /// Returns whether the second half can be polled for its state at any time (tunnel
    /// sessions, Trickles).
    pub fn may_be_asked(&self) -> bool {
        matches!(self.conns[1], Some(Conn::Session(_) | Conn::Trickles(_)))
    }

    /// Reason why the server cannot be reached, if so.
    pub fn broken(&self) -> Option<Failure> {
        self.broken
    }

    /// Records that the server refused or did not answer.
    pub fn set_broken(&mut self, why: Failure) {
        self.broken = Some(why);
    }

    /// Destination of the second half, as text for people.
    pub fn destination(&self) -> String {
        let to = self.route.as_ref().map(|route| route.to.to_string());
        to.unwrap_or_else(|| "nowhere yet".to_owned())
    }

    /// Local address for one more connection to `to`, if not this host's own: the address of
    /// the flow's first connection where that goes to `to` too. The port is 0: the first
    /// connection uses its own.
    pub fn from(&self, to: &Address) -> Option<SocketAddr> {
        let route = self.route.as_ref().filter(|route| route.to == *to)?;
        route.from.map(|from| SocketAddr::new(from.ip(), 0))
    }

    /// Outbound in use.
    pub fn by(&self) -> &OutboundSpec {
        self.route.as_ref().map_or(&OutboundSpec::Direct, FlowRoute::by)
    }

    /// Returns whether the client's end is present.
    pub fn has_client(&self) -> bool {
        self.conns[0].is_some()
    }

    /// Stage of the second half.
    pub fn stage(&self) -> Stage {
        match &self.middle {
            // A flow with a broken end stays open until all remaining bytes are delivered.
            _ if self.breaking.is_some() => Stage::Open,
            // The handlers may have used a connection other than the flow's own.
            Middle::Chain(chain_io) => chain_io.stage(),
            Middle::Relay(_) if !self.is_connected() => Stage::Opening,
            Middle::Relay(_) => Stage::Open,
        }
    }

    /// Returns whether the second half is established; true only once.
    pub fn becomes_established(&mut self) -> bool {
        let is_new = self.stage() == Stage::Open && !self.is_established();
        if is_new {
            self.progress = Progress::Established;
        }
        is_new
    }

    /// Tells a client that waits for the second half that it is established.
    pub fn accept_client(&self) {
        if let Some(client) = &self.conns[0] {
            client.accept();
        }
    }

    /// Returns whether the second half has been reported as established.
    pub fn is_established(&self) -> bool {
        self.progress == Progress::Established
    }

    /// Makes the ends reset if this process is killed. Otherwise a program would take the
    /// kernel's FIN for the end of the stream, though its far end never sent one.
    pub fn break_unless_ended(&mut self) {
        self.breaks = true;
        self.ends().for_each(|stream| drop(tcp::reset_on_close(stream)));
    }

    /// Marks the flow as ended well: the ends close normally, and written bytes still go out.
    pub fn end_well(&mut self) {
        if self.breaks {
            self.ends().for_each(|stream| drop(tcp::fin_on_close(stream)));
        }
    }

    fn ends(&self) -> impl Iterator<Item = &TcpStream> {
        self.conns.iter().chain([&self.coming]).flatten().filter_map(Conn::tcp)
    }

    /// Handler chain, if the flow has one.
    pub fn chain_io(&mut self) -> Option<&mut ChainIo> {
        match &mut self.middle {
            Middle::Relay(_) => None,
            Middle::Chain(chain_io) => Some(chain_io),
        }
    }

    /// Returns whether the flow only serves other flows.
    pub fn serves_others(&mut self) -> bool {
        self.chain_io().is_some_and(|chain_io| chain_io.is_alone())
    }

    /// Relay or handler chain between the ends.
    pub fn middle(&mut self) -> &mut Middle {
        &mut self.middle
    }

    /// Takes the flow apart: its handler chain, and its end towards the network.
    pub fn into_chain(mut self) -> Option<(ChainIo, Option<Conn>)> {
        match self.middle {
            Middle::Relay(_) => None,
            Middle::Chain(chain_io) => Some((*chain_io, self.conns[1].take())),
        }
    }
}

//! I/O of a flow with a handler chain, or with an end that cannot be spliced: bytes are copied
//! through user space.
//!
//! ```text
//!   application's conn ── EndState ── chain ──┬── NetConn 0 ── the flow's own conn to the network
//!   (missing until Stage::Open)               └── NetConn n ── further conns, as handlers request
//! ```
//!
//! | file | |
//! |---|---|
//! | here | construction of a chain, and queries about its flow |
//! | `io` | chain I/O, and the chain's actions |
//! | `further` | further connections, and other flows |
//! | `options` | socket options of the connections |
//! | `end_state`, `net_conn` | state of an end, and a connection to the network |

mod end_state;
mod further;
mod io;
mod net_conn;
mod options;

use std::net::SocketAddr;
use std::sync::Arc;

use viaduct_proto::flow::{Address, BottomId, Chain, Factory, Failure, OutputTransport, Spawn};
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::Mirrored;

use self::end_state::EndState;
use self::net_conn::{Ending, NetConn, name};
use super::conn::Conn;
use super::flow::End;
use super::liveness::DeadPeerLimits;

/// Factories of a chain's handlers, in order from the client; an empty list makes an empty chain.
pub type Factories = Arc<[Arc<dyn Factory>]>;

/// A handler chain, and the state of its ends.
#[derive(Debug)]
pub struct ChainIo {
    chain: Chain,
    app: EndState,
    net_conns: Vec<NetConn>,
    /// IDs of closed connections not yet reported to the event loop.
    closed: Vec<BottomId>,
    stage: Stage,
    /// True if the application's end broke and the chain was notified.
    aborted: bool,
    /// True if the network's stream has ended and the application has received all of its bytes.
    finished: bool,
    requests: Vec<ChainRequest>,
    /// Events of the handlers for the application (section 3.6 of the TESLA paper).
    events: Vec<Vec<u8>>,
    /// True if the flow only serves other flows, and ends when its connections are closed.
    alone: bool,
    /// True if the flow uses another flow's connection.
    guest: bool,
    /// Local addresses for connections that are still to be requested.
    binds: Vec<(BottomId, SocketAddr)>,
    /// Options of the program's own end that the handlers know of.
    mirrored: Mirrored,
    /// True if the handlers have set options that are still to be applied.
    sets_options: bool,
}

/// Progress of a flow's server side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The handlers are still connecting.
    Opening,
    /// Established: the application may use it.
    Open,
    /// Broken, or never established.
    Failed(Failure),
}

/// Requests of handlers to the event loop.
#[derive(Debug)]
pub enum ChainRequest {
    /// Opens a further connection to this address, from a local address if one is named.
    Connect(BottomId, Address, Option<SocketAddr>),
    /// Claims this key: connections that name it belong to this flow.
    Claim(Vec<u8>),
    /// Ends the claim to this key.
    Release(Vec<u8>),
    /// Moves this flow's connections to the flow that has claimed the key.
    Give(Vec<u8>),
    /// Drives the flow that has claimed the key.
    Wake(Vec<u8>),
    /// Starts a further flow of the same handlers.
    Spawn(Spawn),
}

impl ChainRequest {
    /// Returns whether the request opens the connection `id`.
    fn connects(&self, id: BottomId) -> bool {
        matches!(self, ChainRequest::Connect(of, ..) if *of == id)
    }
}

/// Destination of a flow's own connection, and its local address if the handlers name one;
/// `None` if the flow uses another flow's connection.
pub type Goal = Option<(Address, Option<SocketAddr>)>;

impl ChainIo {
    /// Returns a chain that is told to connect to `to`, and the destination that its handlers
    /// choose. Each end buffers at most `limit` bytes. `None` if no chain can be made. Flows with
    /// different `from` addresses never share a connection. `mirrored` has the options that the
    /// program has set.
    pub fn new(
        factories: Factories,
        limit: usize,
        (to, from): (Address, Option<SocketAddr>),
        mirrored: Mirrored,
        now: Instant,
    ) -> Option<(ChainIo, Goal)> {
        let shares = factories.iter().any(|factory| factory.shares());
        let mut chain_io = ChainIo::of(Chain::new(factories, limit, now))?;
        chain_io.mirror(mirrored, now);
        if let (true, Some(from)) = (shares, from) {
            chain_io.chain.bind(now, from.into());
        }
        chain_io.chain.connect(now, to);
        chain_io.act();
        let goal = chain_io.goal();
        chain_io.guest = goal.is_none();
        Some((chain_io, goal))
    }

    /// Returns whether the flow uses another flow's connection instead of its own.
    pub fn is_guest(&self) -> bool {
        self.guest
    }

    /// Transport that the handlers name for the flow's own connection.
    pub fn main_transport(&self) -> Option<OutputTransport> {
        self.chain.transport(self.net_conns[0].id)
    }

    /// Takes the request for the flow's own connection out of `requests`, and returns its
    /// destination. `None` if there is no such request.
    fn goal(&mut self) -> Goal {
        let main = self.net_conns[0].id;
        let is_main =
            |of: &ChainRequest| matches!(of, ChainRequest::Connect(id, ..) if *id == main);
        let at = self.requests.iter().position(is_main)?;
        match self.requests.remove(at) {
            ChainRequest::Connect(_, to, from) => Some((to, from)),
            _ => None,
        }
    }

    /// Marks the chain permanently as one without an application.
    pub fn be_alone(&mut self) {
        self.alone = true;
    }

    /// Returns whether the chain has no application ([`be_alone`](ChainIo::be_alone)).
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// Returns the chain of an accepted connection, `network`.
    pub fn accepting(
        factories: Factories,
        limit: usize,
        network: &Conn,
        now: Instant,
    ) -> Option<ChainIo> {
        let mut chain_io = ChainIo::of(Chain::new(factories, limit, now))?;
        let main = &mut chain_io.net_conns[0];
        main.connected = true;
        name(&mut chain_io.chain, main.id, network);
        main.measure(Some(network), &mut chain_io.chain);
        chain_io.chain.accepted(now);
        chain_io.act();
        Some(chain_io)
    }

    fn of(chain: Chain) -> Option<ChainIo> {
        let net_conns = vec![NetConn::new(chain.bottom()?, None)];
        let (app, stage) = (EndState::default(), Stage::Opening);
        Some(ChainIo {
            chain,
            app,
            net_conns,
            closed: Vec::new(),
            stage,
            aborted: false,
            finished: false,
            requests: Vec::new(),
            events: Vec::new(),
            alone: false,
            guest: false,
            binds: Vec::new(),
            mirrored: Mirrored::default(),
            sets_options: false,
        })
    }

    /// Progress of the server side.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Takes the handlers' requests since the last call.
    pub fn requests(&mut self) -> Vec<ChainRequest> {
        std::mem::take(&mut self.requests)
    }

    /// Takes the handlers' events for the application since the last call.
    pub fn events(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.events)
    }

    /// Passes a control call of the application to the handler of this name (section 3.6 of the
    /// TESLA paper).
    pub fn control(&mut self, to: &str, request: &[u8], now: Instant) -> Option<Vec<u8>> {
        let answer = self.chain.control(now, to, request);
        self.act();
        answer
    }

    /// Records the loop's report that `end` is readable or writable.
    pub fn ready(&mut self, end: End, readable: bool, writable: bool) {
        match end {
            End::Client => self.app.ready(readable, writable),
            End::Server => self.net_conns[0].state.ready(readable, writable),
        }
    }

    /// Records that `end` has an end of stream or an urgent byte after the readable data.
    pub fn may_hold_more(&mut self, end: End) {
        match end {
            End::Client => self.app.may_hold_more = true,
            End::Server => self.net_conns[0].state.may_hold_more = true,
        }
    }

    /// Checks whether the peers of further connections are still alive.
    pub fn check_liveness(&mut self, silence: DeadPeerLimits) {
        for net_conn in
            self.net_conns.iter_mut().filter(|net_conn| net_conn.connected && !net_conn.gone)
        {
            if let Some(stream) = net_conn.conn.as_ref().and_then(Conn::tcp) {
                net_conn.liveness.check(stream, silence);
            }
        }
    }

    /// Reports to the handlers that the flow's own connection is established.
    pub fn connected(&mut self, network: &Conn, now: Instant) {
        let main = &mut self.net_conns[0];
        if !std::mem::replace(&mut main.connected, true) {
            name(&mut self.chain, main.id, network);
            main.measure(Some(network), &mut self.chain);
            self.chain.connected(now, main.id, Ok(()));
            self.act();
        }
    }

    /// Reports to the handlers that the flow's own connection failed. The handlers decide whether
    /// the flow continues.
    pub fn unconnected(&mut self, why: Failure, now: Instant) {
        let main = &mut self.net_conns[0];
        if !std::mem::replace(&mut main.gone, true) {
            self.chain.connected(now, main.id, Err(why));
            self.act();
        }
    }

    /// Returns whether the flow's own connection has been established.
    pub fn is_connected(&self) -> bool {
        self.net_conns[0].connected
    }

    /// Returns whether the flow's own connection is closed or failed.
    pub fn is_without_main(&self) -> bool {
        self.net_conns[0].gone
    }

    /// Returns whether the flow's own connection is to be closed while the flow continues: its
    /// handlers have moved to other connections. If so, marks the connection as gone.
    pub fn leaves_main(&mut self) -> bool {
        let [main, others @ ..] = &mut self.net_conns[..] else { return false };
        let left = main.end == Some(Ending::Close);
        main.gone |= left && others.iter().any(|net_conn| !net_conn.gone);
        left && main.gone
    }

    /// Local address of the flow, as its handlers report it.
    pub fn own_name(&mut self, now: Instant) -> Option<SocketAddr> {
        match self.chain.getsockname(now)? {
            Address::Ip(at) => Some(at),
            Address::Name(..) => None,
        }
    }

    /// Passes on bytes that the client sent before the chain existed.
    pub fn write(&mut self, data: Vec<u8>, now: Instant) {
        self.chain.write(now, data.into());
    }
}

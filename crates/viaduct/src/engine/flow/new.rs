//! Constructors of flows.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mio::net::TcpStream;
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::preface::Preface;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::Mirrored;

use super::client::{ClientRequest, PendingClient};
use super::end::FlowEnd;
use super::state::State;
use super::{Begun, End, Flow, Middle, Times};
use crate::engine::account::Account;
use crate::engine::chain_io::ChainIo;
use crate::engine::conn::Conn;
use crate::engine::destination::Route;
use crate::engine::relay::Relay;

impl Flow {
    /// Returns a flow whose connection to the server was begun, without a client yet.
    pub fn new(begun: Begun, source: SocketAddr, now: Instant) -> Flow {
        let mut flow = Flow::empty(source, now);
        flow.set_server(begun, now);
        flow
    }

    /// Returns a flow with a client that has not named its destination yet.
    pub fn requesting(client: TcpStream, tuple: Tuple, preface: Preface, now: Instant) -> Flow {
        let mut flow = Flow::with_client(Conn::Tcp(client.into()), tuple.client, now);
        let request = ClientRequest { preface, tuple, bytes: Vec::new(), begun: false };
        flow.pending_client = Some(PendingClient::Requesting(request.into()));
        flow
    }

    /// Returns a flow with a client that has named its destination.
    pub fn with_client(client: Conn, source: SocketAddr, now: Instant) -> Flow {
        let mut flow = Flow::empty(source, now);
        flow.ends[0].conn = Some(client);
        flow
    }

    /// Returns a flow of an inbound connection for a program. The program is connected when the
    /// handlers accept the flow.
    pub fn accepted(server: Conn, middle: Middle, source: SocketAddr, now: Instant) -> Flow {
        let mut flow = Flow::empty(source, now);
        (flow.ends[1].conn, flow.middle) = (Some(server), middle);
        flow.state = State::Connected;
        flow.ready(End::Server, true, true);
        flow
    }

    /// Returns a flow over `network`, which the handlers of `other` have requested.
    pub fn spawned(network: Conn, chain_io: ChainIo, other: &Flow, now: Instant) -> Flow {
        let mut flow = Flow::empty(other.source, now);
        // The policy's decision applies to the other flow only.
        let route = |of: &Route| Route { plan: Arc::default(), ..of.clone() };
        flow.route = other.route.as_ref().map(route);
        flow.accepts.clone_from(&other.accepts);
        if flow.accepts.is_some() {
            flow.account = other.account.further(now);
        }
        (flow.ends[1].conn, flow.middle) = (Some(network), Middle::Chain(Box::new(chain_io)));
        flow.ready(End::Server, true, true);
        flow
    }

    pub(super) fn empty(source: SocketAddr, now: Instant) -> Flow {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Flow {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            source,
            state: State::Connecting(None),
            ends: [FlowEnd::default(), FlowEnd::default()],
            pending_client: None,
            middle: Middle::Relay(Relay::default()),
            route: None,
            accepts: None,
            further_addresses: VecDeque::new(),
            spare: None,
            net_conns: Vec::new(),
            pipelined: 0,
            has_opened: false,
            is_reset_on_close: false,
            mirrored: Mirrored::default(),
            account: Account::new(now),
            times: Times { begun: now, is_counted: false, moved: now, checked: None, alarm: None },
        }
    }
}

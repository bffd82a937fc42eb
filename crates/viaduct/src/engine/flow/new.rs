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

use super::{Begun, ClientRequest, End, Flow, FlowRoute, Middle, Progress};
use crate::engine::account::Account;
use crate::engine::chain_io::ChainIo;
use crate::engine::conn::Conn;
use crate::engine::liveness::Liveness;
use crate::engine::relay::Relay;

impl Flow {
    /// Returns a flow whose second half was begun, without a client yet.
    pub fn new(begun: Begun, source: SocketAddr, now: Instant) -> Flow {
        let mut flow = Flow::empty(source, now);
        flow.set_server(begun, now);
        flow
    }

    /// Returns a flow with a client that has not named its destination yet.
    pub fn requesting(client: TcpStream, tuple: Tuple, preface: Preface, now: Instant) -> Flow {
        let request = Some(ClientRequest { preface, tuple, bytes: Vec::new(), begun: false });
        Flow {
            conns: [Some(Conn::Tcp(client.into())), None],
            request,
            ..Flow::empty(tuple.client, now)
        }
    }

    /// Returns a flow with a client that has named its destination.
    pub fn with_client(client: Conn, source: SocketAddr, now: Instant) -> Flow {
        Flow { conns: [Some(client), None], ..Flow::empty(source, now) }
    }

    /// Returns a flow of an inbound connection for a program; the program gets it when its
    /// chain allows it.
    pub fn accepted(server: Conn, middle: Middle, source: SocketAddr, now: Instant) -> Flow {
        let mut flow = Flow::empty(source, now);
        (flow.conns[1], flow.middle) = (Some(server), middle);
        flow.progress = Progress::Connected;
        flow.ready(End::Server, true, true);
        flow
    }

    /// Returns a flow that the handlers of `other` ask for; it goes over `network`.
    pub fn spawned(network: Conn, chain_io: ChainIo, other: &Flow, now: Instant) -> Flow {
        let mut flow = Flow::empty(other.source, now);
        // The policy has decided about the other flow alone.
        let route =
            |of: &FlowRoute| FlowRoute { plan: Arc::default(), fell_back: false, ..of.clone() };
        flow.route = other.route.as_ref().map(route);
        (flow.conns[1], flow.middle) = (Some(network), Middle::Chain(Box::new(chain_io)));
        flow.ready(End::Server, true, true);
        flow
    }

    fn empty(source: SocketAddr, now: Instant) -> Flow {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Flow {
            conns: [None, None],
            preface_out: Default::default(),
            ends_after_preface: false,
            request: None,
            source,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            route: None,
            further_addresses: VecDeque::new(),
            progress: Progress::Connecting,
            coming: None,
            net_conns: Vec::new(),
            breaks: false,
            opened: false,
            broken: None,
            broken_end: None,
            breaking: None,
            middle: Middle::Relay(Relay::default()),
            pending_negotiation: None,
            spare: None,
            pipelined: 0,
            room_watched: false,
            mirrored: Mirrored::default(),
            liveness: [Liveness::New; 2],
            checked: None,
            account: Account::new(now),
            begun: now,
            moved: now,
            alarm: None,
        }
    }
}

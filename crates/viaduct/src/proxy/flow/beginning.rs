//! Constructors of flows.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use mio::net::TcpStream;
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::preface::Preface;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::Mirrored;

use super::{Asked, Begun, End, Flow, Middle};
use crate::proxy::account::Account;
use crate::proxy::leg::Leg;
use crate::proxy::liveness::Liveness;
use crate::proxy::onward::Onward;
use crate::proxy::relay::Relay;
use crate::proxy::through::Through;

impl Flow {
    /// Returns a flow whose second half was begun, without a client yet.
    pub fn new(begun: Begun, source: SocketAddr, now: Instant) -> Flow {
        let mut flow = Flow::empty(source, now);
        flow.set_server(begun, now);
        flow
    }

    /// Returns a flow with a client that has not named its destination yet.
    pub fn asking(client: TcpStream, tuple: Tuple, preface: Preface, now: Instant) -> Flow {
        let asked = Some(Asked { preface, tuple, bytes: Vec::new(), begun: false });
        Flow {
            legs: [Some(Leg::Tcp(client.into())), None],
            asked,
            ..Flow::empty(tuple.client, now)
        }
    }

    /// Returns a flow with a client that has named its destination.
    pub fn waiting(client: Leg, source: SocketAddr, now: Instant) -> Flow {
        Flow { legs: [Some(client), None], ..Flow::empty(source, now) }
    }

    /// Returns a flow of an inbound connection for a program; the program gets it when its
    /// chain allows it.
    pub fn accepted(server: Leg, middle: Middle, source: SocketAddr, now: Instant) -> Flow {
        let mut flow = Flow::empty(source, now);
        (flow.legs[1], flow.middle, flow.connected) = (Some(server), middle, true);
        flow.ready(End::Server, true, true);
        flow
    }

    /// Returns a flow that the handlers of `other` ask for; it goes over `network`.
    pub fn spawned(network: Leg, through: Through, other: &Flow, now: Instant) -> Flow {
        let mut flow = Flow::empty(other.source, now);
        (flow.to, flow.from) = (other.to.clone(), other.from);
        (flow.legs[1], flow.middle) = (Some(network), Middle::Through(Box::new(through)));
        flow.ready(End::Server, true, true);
        flow
    }

    fn empty(source: SocketAddr, now: Instant) -> Flow {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Flow {
            legs: [None, None],
            first: Default::default(),
            shuts: false,
            asked: None,
            source,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            to: None,
            from: None,
            others: VecDeque::new(),
            by: Onward::Direct,
            connected: false,
            coming: None,
            wires: Vec::new(),
            risen: false,
            breaks: false,
            opened: false,
            broken: None,
            broken_end: None,
            breaking: None,
            middle: Middle::Relay(Relay::default()),
            undecided: None,
            spare: None,
            rate: None,
            behind: 0,
            room_watched: false,
            mirrored: Mirrored::default(),
            liveness: [Liveness::New; 2],
            looked: None,
            account: Account::new(now),
            begun: now,
            moved: now,
            alarm: None,
        }
    }
}

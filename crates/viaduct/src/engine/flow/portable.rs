//! Flows that another process can continue: the record of a flow with a relay and no handlers, and
//! the flow made from it.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use viaduct_proto::flow::Address;
use viaduct_proto::time::Instant;
use viaduct_proto::upgrade::{EndRecord, FlowRecord, FlowState, MAX_PREFACE};

use super::end::FlowEnd;
use super::state::State;
use super::{Flow, Middle};
use crate::engine::conn::Conn;
use crate::engine::destination::Route;
use crate::engine::flow_socket::FlowSocket;
use crate::engine::liveness::Liveness;
use crate::engine::outbound::OutboundSpec;
use crate::engine::pipes::Pipes;
use crate::engine::policy::Plan;
use crate::engine::relay::Relay;

impl Flow {
    /// Returns whether another process can continue the flow. It must consist of two TCP
    /// connections and a relay without handlers; the client's connection may be missing if it has
    /// not been accepted yet.
    pub fn is_portable(&self) -> bool {
        let is_tcp = |end: &FlowEnd| match &end.conn {
            Some(Conn::Tcp(socket)) => !socket.is_lent(),
            _ => false,
        };
        let [client, server] = &self.ends;
        let is_open =
            matches!(self.state, State::Connecting(None) | State::Connected | State::Established);
        let is_plain = matches!(&self.middle, Middle::Relay(relay) if relay.is_portable())
            && self.pending_client.is_none()
            && self.spare.is_none()
            && self.net_conns.is_empty()
            && (self.is_connected() || self.further_addresses.is_empty());
        let is_routed = self.route.as_ref().is_some_and(|route| {
            matches!(route.to, Address::Ip(_))
                && matches!(route.outbound(), OutboundSpec::Direct | OutboundSpec::Hop(_))
        });
        is_open
            && is_plain
            && is_routed
            && is_tcp(server)
            && (client.conn.is_none() || is_tcp(client))
            && self.ends.iter().all(|end| !end.is_broken && end.preface_out.len() <= MAX_PREFACE)
            && self.account.is_portable()
    }

    /// Record of the flow, if it is portable. Its field `early`, the wait for a client, is
    /// left empty.
    pub fn record(&self) -> Option<FlowRecord> {
        let (route, Middle::Relay(relay)) = (self.route.as_ref()?, &self.middle) else {
            return None;
        };
        let Address::Ip(to) = route.to else { return None };
        let state = match self.state {
            State::Connecting(_) => FlowState::Connecting,
            State::Connected => FlowState::Connected,
            _ => FlowState::Established,
        };
        Some(FlowRecord {
            source: self.source,
            to,
            hop: route.outbound().hop(),
            policy: route.plan.policy.as_deref().map(str::to_owned),
            rate: route.plan.rate,
            state,
            has_client: self.has_client(),
            has_opened: self.has_opened,
            ends: self.ends.each_ref().map(FlowEnd::record),
            directions: relay.records(),
            pipelined: self.pipelined,
            begun: self.times.begun.as_nanos(),
            moved: self.times.moved.as_nanos(),
            early: None,
            account: self.account.record(),
        })
    }

    /// Descriptors of the record, in its order.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let conns = self.ends.iter().filter_map(|end| end.conn.as_ref()?.tcp());
        let mut all: Vec<_> = conns.map(|stream| stream.as_fd()).collect();
        if let Middle::Relay(relay) = &self.middle {
            all.extend(relay.pipe_ends());
        }
        all
    }

    /// Returns the flow of `record`, with the next of `descriptors`.
    ///
    /// # Errors
    /// A descriptor is missing, or does not match the record.
    pub fn restored(
        record: &FlowRecord,
        descriptors: &mut impl Iterator<Item = OwnedFd>,
        pipes: &mut Pipes,
        now: Instant,
    ) -> io::Result<Flow> {
        let mut socket = || -> io::Result<Conn> {
            let stream = std::net::TcpStream::from(descriptors.next().ok_or_else(missing)?);
            stream.set_nonblocking(true)?;
            Ok(Conn::Tcp(FlowSocket::from(stream).into()))
        };
        let client = if record.has_client { Some(socket()?) } else { None };
        let server = socket()?;
        let mut flow = Flow::empty(record.source, now);
        let [client_end, server_end] = record.ends.each_ref().map(FlowEnd::restored);
        flow.ends =
            [FlowEnd { conn: client, ..client_end }, FlowEnd { conn: Some(server), ..server_end }];
        flow.middle = Middle::Relay(Relay::restored(&record.directions, descriptors, pipes)?);
        let by = record.hop.map_or(OutboundSpec::Direct, OutboundSpec::Hop);
        let policy = record.policy.as_deref().map(Arc::from);
        let plan = Arc::new(Plan { policy, by, rate: record.rate, ..Plan::default() });
        flow.route = Some(Route::straight(&plan, record.source, record.to.into()));
        flow.state = match record.state {
            FlowState::Connecting => State::Connecting(None),
            FlowState::Connected => State::Connected,
            FlowState::Established => State::Established,
        };
        flow.has_opened = record.has_opened;
        flow.pipelined = record.pipelined;
        let time = |nanos: u64| Instant::from_nanos(nanos.min(now.as_nanos()));
        (flow.times.begun, flow.times.moved) = (time(record.begun), time(record.moved));
        flow.account.restore(&record.account, now);
        Ok(flow)
    }

    /// Prepares the flow for registration with another loop, or with the same one again. The
    /// registration reports what is ready.
    pub fn prepare_to_continue(&mut self) {
        self.ends[0].is_room_watched = false;
    }
}

impl FlowEnd {
    fn record(&self) -> EndRecord {
        EndRecord {
            preface: self.preface_out.clone(),
            ends_after_preface: self.ends_after_preface,
            is_limited: matches!(self.liveness, Liveness::Limited(_)),
        }
    }

    fn restored(record: &EndRecord) -> FlowEnd {
        let liveness = match record.is_limited {
            true => Liveness::Limited(Default::default()),
            false => Liveness::New,
        };
        FlowEnd {
            preface_out: record.preface.clone(),
            ends_after_preface: record.ends_after_preface,
            liveness,
            ..FlowEnd::default()
        }
    }
}

fn missing() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "a descriptor is missing")
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener, TcpStream};

    use super::super::{Begun, End, Shared};
    use super::*;
    use crate::engine::outbound::Opened;

    /// Two ends of a connection: ours, and the peer's.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        ours.set_nonblocking(true).unwrap();
        (ours, listener.accept().unwrap().0)
    }

    fn conn(stream: TcpStream) -> Conn {
        Conn::Tcp(FlowSocket::from(stream).into())
    }

    fn shared() -> Shared {
        Shared { pipes: Pipes::new(1), scratch: vec![0; 1024].into() }
    }

    /// A flow between two connections, and the peers of its ends.
    fn flow() -> (Flow, TcpStream, TcpStream) {
        let ((client, client_peer), (server, server_peer)) = (pair(), pair());
        let source = SocketAddr::from(([127, 0, 0, 1], 1));
        let route = Route::straight(&Arc::default(), source, source.into());
        let opened = Opened { conn: conn(server), preface_out: b"first ".to_vec() };
        let middle = Middle::Relay(Relay::default());
        let begun = Begun { opened, middle, pending_negotiation: None, route };
        let mut flow = Flow::new(begun, source, Instant::ZERO);
        flow.set_client(conn(client), Instant::ZERO);
        (flow, client_peer, server_peer)
    }

    #[test]
    fn a_flow_continues_from_its_record_with_all_its_bytes() {
        let (mut flow, mut client, mut server) = flow();
        let (mut old, mut new) = (shared(), shared());
        let now = Instant::from_nanos(9);
        client.write_all(b"to the server").unwrap();
        assert!(flow.is_portable());
        flow.check_connected(now).unwrap();
        // Bytes for a client that does not read wait in the pipe.
        server.set_nonblocking(true).unwrap();
        let mut written = 0;
        let mut moved = 1;
        while moved > 0 {
            while let Ok(more) = server.write(&[7; 65536]) {
                written += more;
            }
            flow.ready(End::Server, true, true);
            let bytes = flow.drive(&mut old, now).unwrap().bytes;
            moved = bytes[0] + bytes[1];
        }
        let record = flow.record().unwrap();
        assert!(record.directions[1].held > 0 && record.directions[0].held == 0);
        let own = |fd: BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
        let mut descriptors: Vec<_> = flow.descriptors().into_iter().map(own).collect();
        assert_eq!(descriptors.len(), record.descriptors());
        flow.release(&mut old);
        drop(flow);
        let mut descriptors = descriptors.drain(..);
        let mut flow = Flow::restored(&record, &mut descriptors, &mut new.pipes, now).unwrap();
        let ready = |flow: &mut Flow| {
            for end in [End::Client, End::Server] {
                flow.ready(end, true, true);
            }
        };
        assert!(flow.awaits_room(), "bytes wait for the client");
        ready(&mut flow);
        let mut got = [0; 19];
        server.set_nonblocking(false).unwrap();
        server.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"first to the server");
        client.set_nonblocking(true).unwrap();
        let (mut read, mut chunk) = (0, vec![0; 65536]);
        while read < written {
            ready(&mut flow);
            flow.drive(&mut new, now).unwrap();
            if let Ok(more) = client.read(&mut chunk) {
                assert!(more > 0 && chunk[..more].iter().all(|byte| *byte == 7));
                read += more;
            }
        }
        flow.release(&mut new);
    }

    #[test]
    fn flows_with_state_that_a_record_cannot_hold_are_not_portable() {
        let (mut lost, ..) = flow();
        lost.set_broken(viaduct_proto::flow::Failure::Reset);
        assert!(!lost.is_portable());
        let (mut long, ..) = flow();
        long.queue_preface(End::Server, &[0; MAX_PREFACE + 1]);
        assert!(!long.is_portable());
        let source = SocketAddr::from(([127, 0, 0, 1], 1));
        assert!(!Flow::with_client(Conn::Pending, source, Instant::ZERO).is_portable());
        let (whole, ..) = flow();
        let record = whole.record().unwrap();
        let none = &mut std::iter::empty();
        assert!(Flow::restored(&record, none, &mut Pipes::new(1), Instant::ZERO).is_err());
    }
}

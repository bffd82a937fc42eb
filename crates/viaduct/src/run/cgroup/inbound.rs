//! Connections to listening programs: BPF redirects them to listeners of this process.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::debug;
use viaduct_sys::bpf::InboundConns;
use viaduct_sys::socket::tcp::{self, Mirrored, TcpOptions};

use super::FlowTable;
use crate::engine::aware::SocketId;
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::{Arrival, Program};
use crate::master::carrier::Carrier;
use crate::run::negotiate::ClientFilter;
use crate::run::public_listeners::canonical;
use crate::run::report::{Report, ReportedProgram};

/// Backlog of connections to programs.
const BACKLOG: u32 = 4096;
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Acceptor of connections to programs.
pub(super) struct Inbound {
    pub(super) inside: InboundConns,
    /// Flows, by the local address of this process's connection to the program.
    pub(super) flows: Arc<Mutex<FlowTable>>,
    pub(super) carrier: Carrier,
    pub(super) report: Option<Report>,
    /// Filter that accepts or rejects clients, if handlers are negotiated.
    pub(super) filter: Option<ClientFilter>,
}

/// A listening program, as the target of one client's connection.
#[derive(Debug)]
struct RedirectedProgram {
    client: SocketAddr,
    own: SocketAddr,
    inside: InboundConns,
    flows: Arc<Mutex<FlowTable>>,
    /// Source port of our connection to the program, once it was begun.
    port: Option<u16>,
}

/// Opens a listener at `at`, to which all connections to programs are redirected, regardless of
/// their destination. `at` must be a loopback address, so that only this machine can reach the
/// listener.
pub(super) fn listener(at: IpAddr, save_syn: bool) -> io::Result<TcpListener> {
    let options = TcpOptions { inside: true, save_syn, ..TcpOptions::default() };
    let listener = tcp::listen((at, 0).into(), BACKLOG, options)?;
    listener.set_nonblocking(false)?;
    Ok(listener)
}

impl Inbound {
    /// Accepts connections until the process ends.
    pub(super) fn accept(mut self, listener: &TcpListener) {
        let here = listener.local_addr().ok();
        loop {
            match listener.accept() {
                Ok((stream, client)) => self.hand_over(stream, client, here),
                Err(error) => {
                    debug!("cannot accept a connection to a program: {error}");
                    // This process may be out of descriptors, so an immediate retry would spin.
                    thread::sleep(ACCEPT_RETRY_DELAY);
                }
            }
        }
    }

    fn hand_over(&mut self, stream: TcpStream, client: SocketAddr, here: Option<SocketAddr>) {
        let Ok(own) = stream.local_addr() else { return };
        if Some(own) == here || stream.set_nonblocking(true).is_err() {
            return;
        }
        let (client, own) = (canonical(client), canonical(own));
        let handlers = match &mut self.filter {
            None => None,
            Some(filter) => match filter.accept(&stream, client) {
                Some(handlers) => Some(handlers),
                None => return,
            },
        };
        let (inside, flows) = (self.inside.clone(), self.flows.clone());
        let program = Box::new(RedirectedProgram { client, own, inside, flows, port: None });
        let program = ReportedProgram::of(program, own, self.report.as_ref());
        self.carrier.arrive(Arrival { stream: stream.into(), client, own, handlers, program });
    }
}

/// Returns the local address, with port `port`, of this process's connection to a program that
/// listens at `program`.
pub(super) fn local_end(program: SocketAddr, port: u16) -> SocketAddr {
    let ip: IpAddr = match program {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(at) if at.ip().is_unicast_link_local() => (*at.ip()).into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    (ip, port).into()
}

impl Program for RedirectedProgram {
    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        let from = match self.own {
            SocketAddr::V4(_) => (Ipv4Addr::LOCALHOST, 0).into(),
            // The scope is kept, because it tells the program the interface.
            SocketAddr::V6(own) if own.ip().is_unicast_link_local() => {
                SocketAddrV6::new(*own.ip(), 0, 0, own.scope_id()).into()
            }
            SocketAddr::V6(_) => (Ipv6Addr::LOCALHOST, 0).into(),
        };
        let options = TcpOptions { inside: true, ..TcpOptions::default() };
        tcp::bound(from, options).map(FlowSocket::from)
    }

    fn connect(&mut self, bound_socket: &TcpStream) -> io::Result<()> {
        let ours = bound_socket.local_addr()?;
        self.inside.note(ours.port(), self.client, self.own)?;
        self.port = Some(ours.port());
        let socket_id = SocketId::Ends(self.client, self.own);
        let mut flows = self.flows.lock().unwrap_or_else(PoisonError::into_inner);
        flows.set(local_end(self.own, ours.port()), socket_id, Mirrored::default());
        drop(flows);
        tcp::connect_bound(bound_socket, self.own)
    }

    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        let (inside, flows) = (self.inside.clone(), self.flows.clone());
        Some(Box::new(RedirectedProgram {
            client: self.client,
            own: self.own,
            inside,
            flows,
            port: None,
        }))
    }
}

impl Drop for RedirectedProgram {
    fn drop(&mut self) {
        if let Some(port) = self.port {
            self.inside.forget(port, self.client, self.own);
        }
    }
}

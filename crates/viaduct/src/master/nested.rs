//! Nested masters: a run or a master that runs its own handlers, and then passes its flows to a
//! parent master, like a wrapped program.
//!
//! ```text
//!   program ── Call ──▶ worker: handlers ── NestedMaster ──▶ MasterClient ── Call ──▶ parent ══▶
//!   client ══▶ parent master ══ ParentArrival: loopback ══▶ worker: handlers ══▶ program
//! ```
//!
//! Loopback connections through a rendezvous ([`viaduct_sys::socket::rendezvous`]) join the worker
//! and the parent master. The connect of such a connection, like that of a wrapped program, is in
//! progress until the far end has answered. This needs no privilege with any interposer.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Weak};

use anyhow::{Context, Result};
use tracing::debug;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::time::Instant;
use viaduct_proto::wrap::wire::Welcome;
use viaduct_proto::wrap::{Fate, Rules, Transport};
use viaduct_sys::socket::pending::{Begun, ClosedPorts, Pending};
use viaduct_sys::socket::rendezvous::Rendezvous;
use viaduct_sys::socket::tcp::{self, Mirrored, TcpOptions};

use super::client::MasterClient;
use crate::engine::chain_io::Factories;
use crate::engine::commands::{CommandSender, WorkerCommand};
use crate::engine::conn::{Conn, ParentConn};
use crate::engine::flow_socket::FlowSocket;
use crate::engine::outbound::{OpenRequest, Opened, Outbound};
use crate::engine::workers::Workers;
use crate::engine::wrapped::{Arrival, Call, PendingConnect, Program};

/// Connection to a parent master, for a worker with its own handlers.
#[derive(Debug)]
pub struct NestedMaster {
    parent: Arc<MasterClient>,
    /// Rules of the parent master, which select the flows that it carries.
    parent_rules: Rules,
    /// Rate limit of the parent master in bytes a second, or 0 for none, if the kernel does all of
    /// its work.
    offload: Option<u64>,
    rendezvous: Rendezvous,
    closed: Arc<ClosedPorts>,
}

impl NestedMaster {
    /// Creates the connection to `parent`, whose rules are those in `welcome`. Errors: there is no
    /// loopback interface, or no port is free.
    pub fn new(parent: Arc<MasterClient>, welcome: &Welcome) -> Result<NestedMaster> {
        let Welcome { rules: parent_rules, offload, .. } = *welcome;
        let rendezvous = Rendezvous::open().context("cannot open the rendezvous")?;
        let closed = Arc::new(ClosedPorts::open().context("cannot reserve a closed port")?);
        Ok(NestedMaster { parent, parent_rules, offload, rendezvous, closed })
    }

    /// Begins a program's connect: through the handlers of `workers`, or only through the parent
    /// master if `rules` do not select the flow.
    pub fn call(&self, call: Call, rules: &Rules, workers: &Workers) {
        match call.to {
            Address::Ip(to) if rules.fate(Transport::Tcp, to) == Fate::Leave => {
                self.parent.call(call);
            }
            _ => workers.to(&call.to).send(WorkerCommand::Connect(Box::new(call))),
        }
    }

    /// Accepts a connection to a program. The connection goes through the parent master first,
    /// unless the kernel does all of the parent's work.
    pub fn arrive(self: &Arc<NestedMaster>, arrival: Arrival, workers: &Workers) {
        let worker = workers.with(arrival.client.ip());
        if self.offload.is_some() {
            return worker.send(WorkerCommand::Accept(Box::new(arrival)));
        }
        let Arrival { stream, client, own, handlers, program } = arrival;
        let next = DeferredArrival { client, own, handlers, program, worker: worker.clone() };
        let program =
            Box::new(ParentArrival { nested: self.clone(), pending: None, next: Some(next) });
        self.parent.arrive(Arrival { stream, client, own, handlers: None, program });
    }

    /// Begins a loopback connection. Returns the socket, and the pending connect. `from` is the
    /// requested source address, if any, which the parent master then uses.
    fn loopback_pair(
        &self,
        v4: bool,
        from: Option<SocketAddr>,
    ) -> io::Result<(TcpStream, Pending)> {
        let at = self.rendezvous.at(v4).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let from = from.map_or(at.ip(), |from| from.ip());
        let near = tcp::bound(SocketAddr::new(from, 0), TcpOptions::default())?;
        match Pending::begin(near.try_clone()?.into(), at)? {
            Begun::Waits(pending) => Ok((near, pending)),
            Begun::Connected => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }
}

impl Outbound for NestedMaster {
    /// Begins a connection with the options of the program's own socket.
    fn open(&self, request: &OpenRequest, _: Instant) -> io::Result<Opened> {
        let OpenRequest { from, options, .. } = request;
        self.connect(request.ip()?, *from, options.mirrored).map(Opened::from)
    }
}

impl NestedMaster {
    fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        mirrored: Mirrored,
    ) -> io::Result<Conn> {
        match (self.parent_rules.fate(Transport::Tcp, to), self.offload) {
            (Fate::Refuse, _) => Err(io::ErrorKind::PermissionDenied.into()),
            (Fate::Leave, _) => direct(to, from, mirrored, None),
            (Fate::Divert, Some(rate)) => {
                direct(to, from, mirrored, Some(rate).filter(|rate| *rate > 0))
            }
            (Fate::Divert, None) => {
                let (near, pending) = self.loopback_pair(to.is_ipv4(), from)?;
                let (source, bound_socket) =
                    (pending.program()?, self.rendezvous.bound_socket(to.is_ipv4())?);
                let ends = ParentConn::of(to);
                let (bound_socket, closed) = (Some(bound_socket), self.closed.clone());
                let pending_connect = ParentConnect {
                    ends: Arc::downgrade(&ends),
                    pending: Some(pending),
                    bound_socket,
                    closed,
                };
                let (is_bound, held) = (false, Box::new(pending_connect));
                self.parent.call(Call { to: to.into(), source, is_bound, mirrored, held });
                Ok(Conn::Loopback(FlowSocket::from(near).into(), ends))
            }
        }
    }
}

/// Connects directly, without the parent master; limited to `rate` bytes a second, if given.
fn direct(
    to: SocketAddr,
    from: Option<SocketAddr>,
    mirrored: Mirrored,
    rate: Option<u64>,
) -> io::Result<Conn> {
    let stream = tcp::connect(to, from, TcpOptions { mirrored, ..TcpOptions::default() })?;
    rate.map_or(Ok(()), |rate| tcp::pace(&stream, rate))?;
    Ok(Conn::Tcp(FlowSocket::from(stream).into()))
}

/// Pending connect of the worker to the parent master.
#[derive(Debug)]
struct ParentConnect {
    /// Addresses and result of the connection; gone once the connection is dropped.
    ends: Weak<ParentConn>,
    pending: Option<Pending>,
    bound_socket: Option<TcpStream>,
    closed: Arc<ClosedPorts>,
}

impl PendingConnect for ParentConnect {
    fn set_local_addr(&mut self, own: SocketAddr) {
        if let Some(ends) = self.ends.upgrade() {
            // Only the first address is stored.
            let _ = ends.own.set(own);
        }
    }

    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.bound_socket
            .take()
            .map(FlowSocket::from)
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn complete(&mut self, bound_socket: &TcpStream) -> io::Result<()> {
        let pending = self.pending.take().ok_or(io::ErrorKind::NotConnected)?;
        if self.ends.strong_count() == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        tcp::connect_bound(bound_socket, pending.program()?)
    }

    fn refuse(&mut self, why: Failure) {
        let (Some(pending), Some(ends)) = (self.pending.take(), self.ends.upgrade()) else {
            return;
        };
        let _ = ends.refused.set(why);
        // The refusal wakes the worker, which reads the reason.
        if let Err(error) = pending.refuse(&self.closed) {
            debug!("cannot refuse a connect to the parent master: {error}");
        }
    }
}

impl Drop for ParentConnect {
    /// Resets the connection if it is still pending.
    fn drop(&mut self) {
        self.refuse(Failure::Reset);
    }
}

/// Inbound connection to a program, while the parent master handles it.
#[derive(Debug)]
struct ParentArrival {
    nested: Arc<NestedMaster>,
    /// Loopback connect that the parent master completes.
    pending: Option<Pending>,
    next: Option<DeferredArrival>,
}

/// Parts of an arrival that the worker gets once the parent master has accepted the connection.
#[derive(Debug)]
struct DeferredArrival {
    client: SocketAddr,
    own: SocketAddr,
    handlers: Option<Factories>,
    program: Box<dyn Program>,
    worker: CommandSender,
}

impl Program for ParentArrival {
    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        let client = self.next.as_ref().ok_or(io::ErrorKind::NotConnected)?.client;
        let (_, pending) = self.nested.loopback_pair(client.is_ipv4(), None)?;
        self.pending = Some(pending);
        self.nested.rendezvous.bound_socket(client.is_ipv4()).map(FlowSocket::from)
    }

    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        let of = self.next.as_ref()?;
        let (program, worker) = (of.program.for_another_flow()?, of.worker.clone());
        let next = DeferredArrival {
            client: of.client,
            own: of.own,
            handlers: of.handlers.clone(),
            program,
            worker,
        };
        Some(Box::new(ParentArrival {
            nested: self.nested.clone(),
            pending: None,
            next: Some(next),
        }))
    }

    fn connect(&mut self, bound_socket: &TcpStream) -> io::Result<()> {
        let (pending, next) =
            self.pending.take().zip(self.next.take()).ok_or(io::ErrorKind::NotConnected)?;
        tcp::connect_bound(bound_socket, pending.program()?)?;
        let stream = TcpStream::from(pending.finish()?).into();
        let DeferredArrival { client, own, handlers, program, worker } = next;
        worker.send(WorkerCommand::Accept(Box::new(Arrival {
            stream,
            client,
            own,
            handlers,
            program,
        })));
        Ok(())
    }
}

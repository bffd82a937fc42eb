//! Nested masters: a run with handlers of its own and a master below hands its flows to that
//! master, as its programs hand theirs to it.
//!
//! ```text
//!   program ── Call ──▶ worker: handlers ── Above::connect ──▶ Joined ── Call ──▶ master below ══▶
//!   client ══▶ the master below ══ Between: a connection ══▶ worker: handlers ══▶ program
//! ```
//!
//! A connection between the two is a loopback connection that one end starts at a rendezvous
//! ([`viaduct_sys::socket::rendezvous`]) and the other completes. It is in progress until the far end has
//! answered, like a wrapped program's connection. It needs no privilege, whichever interposer
//! is used.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Weak};

use anyhow::{Context, Result};
use tracing::debug;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::wrap::wire::Welcome;
use viaduct_proto::wrap::{Fate, Rules, Transport};
use viaduct_sys::socket::pending::{Begun, ClosedPorts, Pending};
use viaduct_sys::socket::rendezvous::Rendezvous;
use viaduct_sys::socket::tcp::{self, Mirrored, TcpOptions};

use super::joined::Joined;
use crate::engine::chain_io::Factories;
use crate::engine::commands::{CommandSender, WorkerCommand};
use crate::engine::conn::Conn;
use crate::engine::flow_socket::FlowSocket;
use crate::engine::parent_master::{ParentConn, ParentMaster};
use crate::engine::wrapped::{Arrival, Call, PendingConnect, Program};

/// Connection to a master below.
#[derive(Debug)]
pub struct Above {
    below: Arc<Joined>,
    /// Rules of the master below: the flows that it carries.
    theirs: Rules,
    /// Set if the kernel does all work of the master below: its rate limit in bytes a second,
    /// or 0 for none.
    offload: Option<u64>,
    meeting: Rendezvous,
    closed: Arc<ClosedPorts>,
}

impl Above {
    /// Joins `below`, whose welcome announces its rules.
    ///
    /// # Errors
    /// There is no loopback interface, or no port is free.
    pub fn new(below: Arc<Joined>, welcome: &Welcome) -> Result<Above> {
        let Welcome { rules: theirs, offload, .. } = *welcome;
        let meeting = Rendezvous::open().context("open the meeting")?;
        let closed = Arc::new(ClosedPorts::open().context("reserve a port that is closed")?);
        Ok(Above { below, theirs, offload, meeting, closed })
    }

    /// Begins a program's connect: by the handlers of `worker` if `rules` want it, else by the
    /// master below.
    pub fn call(&self, call: Call, rules: &Rules, worker: &CommandSender) {
        match call.to {
            Address::Ip(to) if rules.fate(Transport::Tcp, to) == Fate::Leave => {
                self.below.call(call);
            }
            _ => worker.send(WorkerCommand::Connect(Box::new(call))),
        }
    }

    /// Accepts a connection to a program, which passes the master below first.
    pub fn arrive(self: &Arc<Above>, arrival: Arrival, worker: &CommandSender) {
        if self.offload.is_some() {
            return worker.send(WorkerCommand::Accept(Box::new(arrival)));
        }
        let Arrival { stream, client, own, handlers, program } = arrival;
        let next = Next { client, own, handlers, program, worker: worker.clone() };
        let program = Box::new(Between { above: self.clone(), pending: None, next: Some(next) });
        self.below.arrive(Arrival { stream, client, own, handlers: None, program });
    }

    /// Opens a connection: a socket whose connect is in progress, and that connect. `from` is the
    /// source address to use, if one is asked for; the master below adopts it.
    fn conn(&self, v4: bool, from: Option<SocketAddr>) -> io::Result<(TcpStream, Pending)> {
        let at = self.meeting.at(v4).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let from = from.map_or(at.ip(), |from| from.ip());
        let near = tcp::bound(SocketAddr::new(from, 0), TcpOptions::default())?;
        match Pending::begin(near.try_clone()?.into(), at)? {
            Begun::Waits(pending) => Ok((near, pending)),
            Begun::Connected => Err(io::ErrorKind::AlreadyExists.into()),
        }
    }
}

impl ParentMaster for Above {
    fn connect(
        &self,
        to: SocketAddr,
        from: Option<SocketAddr>,
        mirrored: Mirrored,
    ) -> io::Result<Conn> {
        match (self.theirs.fate(Transport::Tcp, to), self.offload) {
            (Fate::Refuse, _) => Err(io::ErrorKind::PermissionDenied.into()),
            (Fate::Leave, _) => direct(to, from, mirrored, None),
            (Fate::Divert, Some(rate)) => {
                direct(to, from, mirrored, Some(rate).filter(|rate| *rate > 0))
            }
            (Fate::Divert, None) => {
                let (near, pending) = self.conn(to.is_ipv4(), from)?;
                let (source, place) =
                    (pending.program()?, self.meeting.bound_socket(to.is_ipv4())?);
                let ends = ParentConn::of(to);
                let (place, closed) = (Some(place), self.closed.clone());
                let reach =
                    Reach { ends: Arc::downgrade(&ends), pending: Some(pending), place, closed };
                let (is_bound, held) = (false, Box::new(reach));
                self.below.call(Call { to: to.into(), source, is_bound, mirrored, held });
                Ok(Conn::Loopback(FlowSocket::from(near).into(), ends))
            }
        }
    }
}

/// Connects as without a master below, at most at `rate` bytes a second.
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

/// The worker's connection to the master below.
#[derive(Debug)]
struct Reach {
    /// Dropped with the connection.
    ends: Weak<ParentConn>,
    pending: Option<Pending>,
    place: Option<TcpStream>,
    closed: Arc<ClosedPorts>,
}

impl PendingConnect for Reach {
    fn set_local_addr(&mut self, own: SocketAddr) {
        if let Some(ends) = self.ends.upgrade() {
            // It is set once.
            let _ = ends.own.set(own);
        }
    }

    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.place.take().map(FlowSocket::from).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn complete(&mut self, place: &TcpStream) -> io::Result<()> {
        let pending = self.pending.take().ok_or(io::ErrorKind::NotConnected)?;
        if self.ends.strong_count() == 0 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        tcp::connect_bound(place, pending.program()?)
    }

    fn refuse(&mut self, why: Failure) {
        let (Some(pending), Some(ends)) = (self.pending.take(), self.ends.upgrade()) else {
            return;
        };
        let _ = ends.refused.set(why);
        // Wakes the worker, which reads the reason.
        if let Err(error) = pending.refuse(&self.closed) {
            debug!("a connection to the master below: {error}");
        }
    }
}

impl Drop for Reach {
    /// Resets the connection: nothing carries it any more.
    fn drop(&mut self) {
        self.refuse(Failure::Reset);
    }
}

/// Connection to a program, while the master below has it.
#[derive(Debug)]
struct Between {
    above: Arc<Above>,
    /// The connect that the master below completes.
    pending: Option<Pending>,
    next: Option<Next>,
}

/// Parts of the arrival that is handed to the worker afterwards.
#[derive(Debug)]
struct Next {
    client: SocketAddr,
    own: SocketAddr,
    handlers: Option<Factories>,
    program: Box<dyn Program>,
    worker: CommandSender,
}

impl Program for Between {
    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        let client = self.next.as_ref().ok_or(io::ErrorKind::NotConnected)?.client;
        let (_, pending) = self.above.conn(client.is_ipv4(), None)?;
        self.pending = Some(pending);
        self.above.meeting.bound_socket(client.is_ipv4()).map(FlowSocket::from)
    }

    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        let of = self.next.as_ref()?;
        let (program, worker) = (of.program.for_another_flow()?, of.worker.clone());
        let next =
            Next { client: of.client, own: of.own, handlers: of.handlers.clone(), program, worker };
        Some(Box::new(Between { above: self.above.clone(), pending: None, next: Some(next) }))
    }

    fn connect(&mut self, place: &TcpStream) -> io::Result<()> {
        let (pending, next) =
            self.pending.take().zip(self.next.take()).ok_or(io::ErrorKind::NotConnected)?;
        tcp::connect_bound(place, pending.program()?)?;
        let stream = TcpStream::from(pending.finish()?).into();
        let Next { client, own, handlers, program, worker } = next;
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

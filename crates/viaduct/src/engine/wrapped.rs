//! Flows of wrapped programs. A program's connect waits until the far end answers, then becomes a
//! flow's client. An inbound connection is passed to the program once the handlers accept it.
//!
//! ```text
//!   interposer ── Call ──▶ connection begun ──┬─ the far end answers ──▶ PendingConnect::complete
//!                                             └─ it does not         ──▶ PendingConnect::refuse
//!   interposer ── Arrival ──▶ handlers' handshake ──▶ Program::connect
//! ```
//!
//! The client side of a flow is a bound socket that is created for the flow. Another process may
//! have to connect it to the program, so it may still be unconnected when `complete` returns.

use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tracing::debug;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::split::extension::Onward;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::{Mirrored, TcpOptions};

use super::account::outcome;
use super::aware::SocketId;
use super::chain_io::{ChainIo, Factories};
use super::commands::WorkerCommand;
use super::conn::Conn;
use super::destination::{Route, failure};
use super::flow::{End, Flow, Middle};
use super::flow_socket::FlowSocket;
use super::relay::Relay;
use super::worker::{Worker, time};
use crate::rate_limited::RateLimitedLog;

/// Rate-limited warning about flows that are refused because the flow limit is reached.
static FULL: RateLimitedLog<()> = RateLimitedLog::new(1);

/// Error numbers of connects that are passed to the program unchanged: no route (ENETUNREACH), a
/// prohibited route (EACCES), and a blackhole route or an unsuitable source address (EINVAL).
const EXACT: [i32; 3] = [101, 13, 22];

/// A pending connect of a program, as its interposer represents it.
pub trait PendingConnect: Debug + Send {
    /// Identity of the program's socket, if the program may send requests to its flow's handlers.
    fn socket_id(&self) -> Option<SocketId> {
        None
    }

    /// Returns whether another user's process shares the socket. Such a flow is never spliced.
    fn is_lent(&self) -> bool {
        false
    }

    /// Returns whether the program can no longer get a result.
    fn has_gone(&self) -> bool {
        false
    }

    /// Sets the local address that the program sees on its socket from now on.
    fn set_local_addr(&mut self, own: SocketAddr);

    /// Takes the socket that the program's socket will be connected to. Called at most once.
    /// Errors: no such socket could be created.
    fn take_socket(&mut self) -> io::Result<FlowSocket<std::net::TcpStream>>;

    /// Completes the connect, because the far end has answered: connects the program's socket to
    /// `socket`, possibly after this method has returned. Errors: the program can no longer get the
    /// result.
    fn complete(&mut self, socket: &std::net::TcpStream) -> io::Result<()>;

    /// Tells the program that the far end cannot be reached.
    fn refuse(&mut self, why: Failure);

    /// Like [`refuse`](PendingConnect::refuse), with the kernel's error number if the kernel itself
    /// refused the connect.
    fn refuse_as(&mut self, why: Failure, _errno: i32) {
        self.refuse(why);
    }
}

/// A program's connect.
#[derive(Debug)]
pub struct Call {
    /// Destination.
    pub to: Address,
    /// Source address of the program's connect.
    pub source: SocketAddr,
    /// True if the program has chosen the port of `source`; the far end must see that port.
    pub is_bound: bool,
    /// Socket options that the program has set.
    pub mirrored: Mirrored,
    /// The pending connect.
    pub held: Box<dyn PendingConnect>,
}

/// A wrapped program that listens, as its interposer represents it.
pub trait Program: Debug + Send {
    /// Takes the socket that will be connected to the program. Called until it succeeds, then never
    /// again. Errors: no such socket could be created, or it is not available yet
    /// ([`io::ErrorKind::WouldBlock`]).
    fn take_socket(&mut self) -> io::Result<FlowSocket<std::net::TcpStream>>;

    /// Arranges for `tell` to be called once a pending socket is available, or can no longer become
    /// available.
    fn on_available(&mut self, _tell: Box<dyn FnOnce() + Send>) {}

    /// Tells the interposer that the handlers wait for the client's first bytes before the
    /// program can be connected.
    fn handlers_wait(&mut self) {}

    /// The same program, for a further flow of this client; `None` if the program accepts no
    /// further flow.
    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        None
    }

    /// Connects `socket` to the program, possibly after this method has returned. The program sees
    /// it as the client's connection. This value is dropped once the flow has ended. Errors: the
    /// connect failed immediately.
    fn connect(&mut self, socket: &std::net::TcpStream) -> io::Result<()>;
}

/// An inbound connection for a program.
#[derive(Debug)]
pub struct Arrival {
    /// The connection.
    pub stream: FlowSocket<std::net::TcpStream>,
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that the client connected to.
    pub own: SocketAddr,
    /// Handlers negotiated with the client; `None` means the policy's.
    pub handlers: Option<Factories>,
    /// Program to connect.
    pub program: Box<dyn Program>,
}

impl Worker {
    /// Counts an inbound connection for a program and accepts it.
    pub(super) fn handle_arrival(&mut self, arrival: Arrival, now: Instant) {
        self.stats.accepted += 1;
        self.accept_inbound(arrival, now);
    }

    /// Accepts an inbound connection for a program, or for an origin that takes the program's place
    /// as the flow's server ([`super::origin`]).
    pub(super) fn accept_inbound(&mut self, arrival: Arrival, now: Instant) {
        let Arrival { stream, client, own, handlers, program } = arrival;
        let mut server = Conn::of(stream, client, own);
        let plan = self.config.policies.plan(client.ip(), own);
        let accepts = plan.accepts.then(|| plan.clone());
        // A stopping proxy still serves clients whose handshake has begun.
        let ends = self.deadline.is_some() && !plan.accepts;
        let why = match (plan.deny, self.flows.is_full() || ends) {
            (true, _) => Some(Failure::Denied),
            (_, true) => Some(self.full()),
            _ => None,
        };
        let handlers = handlers.as_ref().or(plan.handlers.as_ref());
        let relay = match handlers {
            _ if server.is_lent() => None,
            None => Some(Relay::default()),
            Some(handlers) => Relay::of(handlers),
        };
        let middle = match relay {
            Some(relay) => Some(Middle::Relay(relay)),
            None => {
                let (handlers, limit) = (handlers.cloned(), self.config.limits.chain_buffer);
                let chain_io =
                    ChainIo::accepting(handlers.unwrap_or_default(), limit, &server, now);
                chain_io.map(|chain_io| Middle::Chain(Box::new(chain_io)))
            }
        };
        let (None, Some(middle)) = (why, middle) else {
            let why = why.unwrap_or(Failure::Unreachable);
            self.stats.refused.count(why);
            if accepts.is_some() {
                self.log_refused(client, Some(own), outcome(why), now);
            }
            return server.reset(Failure::Denied);
        };
        let mut flow = Flow::accepted(server, middle, client, now);
        flow.accepts = accepts;
        if flow.accepts.is_some() && self.access_log.is_on() {
            flow.account.set_request("tcp", &Address::Ip(own), None);
        }
        let Some(key) = self.flows.insert(flow) else {
            // Dropping `program` signals to its interposer that the flow was not accepted.
            if plan.accepts {
                self.log_refused(client, Some(own), outcome(Failure::Unreachable), now);
            }
            return self.stats.refused.count(Failure::Unreachable);
        };
        self.programs.add_arrival(key, SocketId::Ends(client, own), program);
        self.drive(key, End::Server, true, true, now);
        if let Some(program) = self.programs.listening(key) {
            program.handlers_wait();
        }
    }

    /// Connects flow `key` to its program, if it has one. Called once the flow's handlers have
    /// accepted the flow.
    pub(super) fn connect_program(&mut self, key: usize) {
        let Some(mut program) = self.programs.take_listening(key) else { return };
        let socket = match program.take_socket() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let (own, id) = (self.own.clone(), self.flows.at(key).id);
                program.on_available(Box::new(move || {
                    own.send(WorkerCommand::ConnectProgram(key, id));
                }));
                self.programs.set_listening(key, program);
                return;
            }
            socket => socket,
        };
        let begun = socket.and_then(|socket| {
            program.connect(&socket)?;
            self.await_client(socket, key)
        });
        match begun {
            Ok(()) => {
                self.programs.set_connected(key, program);
                self.flows.at(key).break_unless_ended();
            }
            Err(error) => {
                debug!("cannot connect to a program: {error}");
                let (flow, why) = (self.flows.at(key), failure(&error));
                flow.set_broken(why);
                if flow.accepts.is_some() {
                    self.stats.refused.count(why);
                }
                self.end(key, true);
            }
        }
    }

    /// Reason why no more flows are accepted: the proxy is ending, or the flow limit is reached
    /// (which is logged).
    fn full(&self) -> Failure {
        if self.deadline.is_some() {
            return Failure::Unreachable;
        }
        let what = "reached (descriptors): raise ulimit -n or LimitNOFILE=";
        FULL.warn((), format_args!("flow limit of {} {what}", self.flows.most));
        Failure::Full
    }

    /// Begins the flow of a program's connect.
    pub(super) fn handle_call(&mut self, call: Call, now: Instant) {
        self.stats.accepted += 1;
        let Call { to, source, is_bound, mirrored, mut held } = call;
        match self.begin_call(to, (source, is_bound), mirrored, held.is_lent(), now) {
            Ok(key) => self.programs.add_call(key, held),
            Err((why, errno)) => {
                self.stats.refused.count(why);
                match errno.filter(|errno| EXACT.contains(errno)) {
                    Some(errno) => held.refuse_as(why, errno),
                    None => held.refuse(why),
                }
            }
        }
    }

    fn begin_call(
        &mut self,
        to: Address,
        (source, is_bound): (SocketAddr, bool),
        mirrored: Mirrored,
        is_lent: bool,
        now: Instant,
    ) -> Result<usize, (Failure, Option<i32>)> {
        if self.flows.is_full() || self.deadline.is_some() {
            return Err((self.full(), None));
        }
        let route = match to {
            Address::Ip(to) => Route::by(&self.config.policies, source, (to, Onward::Open), None),
            Address::Name(name, port) => Route::by_name(&self.config.policies, source, &name, port)
                .ok_or((Failure::Unreachable, None))?
                .map(Some)
                .map_err(|why| (why, None))?,
        };
        let mut route = route.ok_or((Failure::Denied, None))?;
        route.from = route.from.or_else(|| bound(source, is_bound));
        route.copied |= is_lent;
        let options = TcpOptions { mirrored, ..self.config.options };
        let begun = self.upstream.outbounds.begin(route, options, now);
        let errno = begun.as_ref().err().and_then(io::Error::raw_os_error);
        let key = self.flows.add(begun, source, now).map_err(|why| (why, errno))?;
        self.flows.at(key).mirrored = mirrored;
        Ok(key)
    }

    /// Applies to a flow the socket options that its program has set.
    pub(super) fn mirror(&mut self, socket_id: SocketId, mirrored: Mirrored, now: Instant) {
        if let Some(key) = self.programs.aware.find(&[socket_id]) {
            self.flows.at(key).mirror(mirrored, now);
            self.runnable.push(key);
        }
    }

    /// Completes the pending connect of flow `key`, if there is one, after the far end has
    /// answered: the program's connection becomes the flow's client.
    pub(super) fn complete_pending(&mut self, key: usize, now: Instant) {
        let Some(mut held) = self.programs.take_call(key) else { return };
        if let Some(own) = self.flows.at(key).own_name(now) {
            held.set_local_addr(own);
        }
        let met = held.take_socket().and_then(|socket| {
            held.complete(&socket)?;
            if socket.peer_addr().is_err() {
                return self.await_client(socket, key);
            }
            let mut client = Conn::Tcp(socket.into());
            self.flows.watch(&mut client, key, End::Client)?;
            self.flows.at(key).set_client(client, now);
            Ok(())
        });
        match met {
            Ok(()) => self.flows.at(key).break_unless_ended(),
            Err(error) => {
                debug!("cannot complete a program's connect: {error}");
                self.end(key, true);
            }
        }
    }

    /// Sets `socket`, not connected to the program yet, as the future client of flow `key`.
    fn await_client(
        &mut self,
        socket: FlowSocket<std::net::TcpStream>,
        key: usize,
    ) -> io::Result<()> {
        let mut client = Conn::Tcp(socket.into());
        self.flows.watch_coming(&mut client, key)?;
        self.flows.at(key).set_coming(client, time());
        Ok(())
    }

    /// Refuses the pending connect of flow `key`, if there is one, because the far end cannot be
    /// reached. Returns true if there was one; the flow has then ended.
    pub(super) fn reject_pending(&mut self, key: usize, error: &io::Error) -> bool {
        let Some(mut held) = self.programs.take_call(key) else { return false };
        held.refuse(match failure(error) {
            // A timeout of the kernel is passed on as a timeout. Handlers and the proxy time out
            // earlier than the kernel would; the program then sees an unreachable far end.
            Failure::TimedOut if error.raw_os_error().is_none() => Failure::Unreachable,
            why => why,
        });
        self.end(key, true);
        true
    }
}

/// Local address that the far end must see, because the program has bound its socket to it. The
/// program connects from `source`; it has chosen the port, too, if `is_bound` is set. `None` if the
/// program has chosen neither address nor port. The rendezvous is on loopback, so a source of
/// 127.0.0.1 or ::1 means that the program has chosen no address. A link-local address is not used:
/// it has no meaning without its interface.
fn bound(source: SocketAddr, is_bound: bool) -> Option<SocketAddr> {
    let (ip, port) = (source.ip().to_canonical(), if is_bound { source.port() } else { 0 });
    let (chosen, any): (bool, IpAddr) = match ip {
        IpAddr::V4(ip) => (ip != Ipv4Addr::LOCALHOST, Ipv4Addr::UNSPECIFIED.into()),
        IpAddr::V6(ip) => {
            let chosen = ip != Ipv6Addr::LOCALHOST && !ip.is_unicast_link_local();
            (chosen, Ipv6Addr::UNSPECIFIED.into())
        }
    };
    (chosen || is_bound).then(|| SocketAddr::new(if chosen { ip } else { any }, port))
}

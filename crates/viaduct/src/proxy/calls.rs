//! Flows of wrapped programs. A connect waits for the answer of its far end, and then becomes the
//! client of its flow; a connection to a program is brought to it when its handlers let it.
//!
//! ```text
//!   interposer ── Call ──▶ connection begun ──┬─ the far end answers ──▶ Held::meet: client's leg
//!                                             └─ it does not         ──▶ Held::refuse
//!   interposer ── Arrival ──▶ handlers' own words ──▶ Program::connect: the client's leg
//! ```
//!
//! The client's leg is a bound socket made for it (its place). The process that connects this
//! socket to the program may be another one, so that the connection may come a moment later.

use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tracing::debug;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::{Mirrored, TcpOptions};

use super::aware::Whose;
use super::conn::Conn;
use super::flow::{End, Flow, Middle};
use super::leg::Leg;
use super::orders::Order;
use super::outward::open;
use super::relay::Relay;
use super::target::{Route, failure};
use super::through::{Factories, Through};
use super::worker::{Worker, time};
use crate::rate_limited::RateLimitedLog;

/// Rate-limited warning about flows refused for lack of room.
static FULL: RateLimitedLog<()> = RateLimitedLog::new(1);

/// Errors of connects that say more than a general failure: no route (ENETUNREACH), a
/// prohibited one (EACCES), and a blackhole route or a source address that does not fit
/// (EINVAL).
const EXACT: [i32; 3] = [101, 13, 22];

/// A pending connect of a program, as its interposer holds it.
pub trait Held: Debug + Send {
    /// Identity of the program's socket, if the program may ask about its handlers.
    fn whose(&self) -> Option<Whose> {
        None
    }

    /// Returns whether the socket is shared with another user's process. Nothing of such a flow
    /// is spliced.
    fn is_lent(&self) -> bool {
        false
    }

    /// Returns whether the program can no longer be told of a result.
    fn has_gone(&self) -> bool {
        false
    }

    /// Sets the local address that the program sees on its socket from now on.
    fn named(&mut self, own: SocketAddr);

    /// Takes the socket that the program's socket will be connected to; once only.
    ///
    /// # Errors
    /// No such socket could be made.
    fn place(&mut self) -> io::Result<Conn<std::net::TcpStream>>;

    /// Connects the program's socket to `place`, now or soon: the far end has answered.
    ///
    /// # Errors
    /// The program has gone.
    fn meet(&mut self, place: &std::net::TcpStream) -> io::Result<()>;

    /// Tells the program that the far end cannot be reached.
    fn refuse(&mut self, why: Failure);

    /// Like [`refuse`](Held::refuse), with the kernel's error number where the kernel refused
    /// the connect itself.
    fn refuse_as(&mut self, why: Failure, _errno: i32) {
        self.refuse(why);
    }
}

/// A program's connect.
#[derive(Debug)]
pub struct Call {
    /// Destination.
    pub to: Address,
    /// Source address that the flow is carried for.
    pub source: SocketAddr,
    /// True if the program has chosen the port of `source`; the far end must see that port.
    pub is_bound: bool,
    /// Socket options that the program has set.
    pub mirrored: Mirrored,
    /// The pending connect.
    pub held: Box<dyn Held>,
}

/// A wrapped program that listens, as its interposer reaches it.
pub trait Program: Debug + Send {
    /// Takes the socket that will be connected to the program; once only.
    ///
    /// # Errors
    /// No such socket could be made; or it is not available yet ([`io::ErrorKind::WouldBlock`]).
    fn place(&mut self) -> io::Result<Conn<std::net::TcpStream>>;

    /// Arranges for `tell` to be called once a pending socket is available, or has failed for
    /// good.
    fn when_there(&mut self, _tell: Box<dyn FnOnce() + Send>) {}

    /// Tells the interposer that the handlers wait for the client's first words before the
    /// program can be connected.
    fn waits(&mut self) {}

    /// The same program, for one more flow of this client; `None` if it takes a single flow
    /// only.
    fn another(&self) -> Option<Box<dyn Program>> {
        None
    }

    /// Connects `place` to the program, which takes it for the client's connection; now or
    /// soon.
    ///
    /// # Errors
    /// The connect failed at once.
    fn connect(&mut self, place: &std::net::TcpStream) -> io::Result<()>;
}

/// An inbound connection for a program.
#[derive(Debug)]
pub struct Arrival {
    /// The connection.
    pub stream: Conn<std::net::TcpStream>,
    /// Address of the client.
    pub client: SocketAddr,
    /// Address that the client connected to.
    pub own: SocketAddr,
    /// Handlers negotiated with the client; without them, the policy's.
    pub handlers: Option<Factories>,
    /// Program to connect.
    pub program: Box<dyn Program>,
}

impl Worker {
    /// Counts an inbound connection for a program and accepts it.
    pub(super) fn arrive(&mut self, arrival: Arrival, now: Instant) {
        self.stats.accepted += 1;
        self.let_come(arrival, now);
    }

    /// Accepts an inbound connection for a program, or for a server that takes a program's
    /// place.
    pub(super) fn let_come(&mut self, arrival: Arrival, now: Instant) {
        let Arrival { stream, client, own, handlers, program } = arrival;
        let mut server = Leg::of(stream, client, own);
        let plan = self.policies.plan(client.ip(), own);
        let why = match (plan.deny, self.flows.is_full() || self.deadline.is_some()) {
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
                let (handlers, limit) = (handlers.cloned(), self.limits.chain_buffer);
                let through = Through::accepting(handlers.unwrap_or_default(), limit, &server, now);
                through.map(|through| Middle::Through(Box::new(through)))
            }
        };
        let (None, Some(middle)) = (why, middle) else {
            self.stats.refused.count(why.unwrap_or(Failure::Unreachable));
            return server.reset(Failure::Denied);
        };
        let Some(key) = self.flows.insert(Flow::accepted(server, middle, client, now)) else {
            // Dropping the program tells it that its flow is not carried.
            return self.stats.refused.count(Failure::Unreachable);
        };
        self.aware.know(key, Some(Whose::Ends(client, own)));
        self.programs.insert(key, program);
        self.drive(key, End::Server, true, true, now);
        if let Some(program) = self.programs.get_mut(&key) {
            program.waits();
        }
    }

    /// Connects flow `key` to its program, if it has one: the flow's handlers have accepted it.
    pub(super) fn reach(&mut self, key: usize) {
        let Some(mut program) = self.programs.remove(&key) else { return };
        let place = match program.place() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let (own, id) = (self.own.clone(), self.flows.at(key).id);
                program.when_there(Box::new(move || own.tell(Order::Reach(key, id))));
                self.programs.insert(key, program);
                return;
            }
            place => place,
        };
        let begun = place.and_then(|place| {
            program.connect(&place)?;
            self.await_client(place, key)
        });
        match begun {
            Ok(()) => self.flows.at(key).break_unless_ended(),
            Err(error) => {
                debug!("a program cannot be reached: {error}");
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

    /// Begins the flow that a program's connect asks for.
    pub(super) fn call(&mut self, call: Call, now: Instant) {
        self.stats.accepted += 1;
        let Call { to, source, is_bound, mirrored, mut held } = call;
        match self.begin_call(to, (source, is_bound), mirrored, held.is_lent(), now) {
            Ok(key) => {
                self.aware.know(key, held.whose());
                self.calls.insert(key, held);
            }
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
            Address::Ip(to) => Route::by(&self.policies, source, to, None),
            Address::Name(name, port) => Route::by_name(&self.policies, source, &name, port)
                .ok_or((Failure::Unreachable, None))?
                .map(Some)
                .map_err(|why| (why, None))?,
        };
        let mut route = route.ok_or((Failure::Denied, None))?;
        route.from = route.from.or_else(|| bound(source, is_bound));
        route.copied |= is_lent;
        let options = TcpOptions { mirrored, ..self.options };
        let begun = open(route, options, &self.teller, &self.limits, now);
        let errno = begun.as_ref().err().and_then(io::Error::raw_os_error);
        let key = self.flows.add(begun, source, now).map_err(|why| (why, errno))?;
        self.flows.at(key).mirrored = mirrored;
        Ok(key)
    }

    /// Applies the socket options that a program has set to its flow.
    pub(super) fn mirror(&mut self, whose: Whose, mirrored: Mirrored) {
        if let Some(key) = self.aware.find(&[whose]) {
            self.flows.at(key).mirror(mirrored);
        }
    }

    /// Attaches the pending connect of flow `key`, if there is one, as its client: the far end has
    /// answered.
    pub(super) fn meet(&mut self, key: usize, now: Instant) {
        let Some(mut held) = self.calls.remove(&key) else { return };
        if let Some(own) = self.flows.at(key).own_name(now) {
            held.named(own);
        }
        let met = held.place().and_then(|place| {
            held.meet(&place)?;
            if place.peer_addr().is_err() {
                return self.await_client(place, key);
            }
            let mut client = Leg::Tcp(place.into());
            self.flows.watch(&mut client, key, End::Client)?;
            self.flows.at(key).set_client(client, now);
            Ok(())
        });
        match met {
            Ok(()) => self.flows.at(key).break_unless_ended(),
            Err(error) => {
                debug!("a program has gone: {error}");
                self.end(key, true);
            }
        }
    }

    /// Sets the socket `place`, which is still to be connected to the program, as the coming
    /// client of flow `key`.
    fn await_client(&mut self, place: Conn<std::net::TcpStream>, key: usize) -> io::Result<()> {
        let mut client = Leg::Tcp(place.into());
        self.flows.watch_coming(&mut client, key)?;
        self.flows.at(key).set_coming(client, time());
        Ok(())
    }

    /// Refuses the pending connect of flow `key`, if there is one, because the far end does not
    /// answer. Returns true if the flow is over with it.
    pub(super) fn turn_down(&mut self, key: usize, error: &io::Error) -> bool {
        let Some(mut held) = self.calls.remove(&key) else { return false };
        held.refuse(match failure(error) {
            // A timeout of the kernel here is one for the program too. The timeouts of handlers
            // and of the proxy are shorter, and no packet caused them: the program sees the far
            // end as unreachable.
            Failure::TimedOut if error.raw_os_error().is_none() => Failure::Unreachable,
            why => why,
        });
        self.end(key, true);
        true
    }
}

/// Address that a program connecting from `source` has bound its socket to, and that the far
/// end must see; with its port if `is_bound`. A program that has chosen no address connects to
/// the rendezvous from whatever address the kernel chooses. A link-local address has no meaning
/// without its interface.
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

//! Flows of wrapped programs. A connect waits for the answer of its far end, and then becomes the
//! client of its flow; a connection to a program is brought to it when its handlers let it.
//!
//! ```text
//!   interposer ── Call ──▶ connection begun ──┬─ the far end answers ──▶ Held::meet: the client's leg
//!                                             └─ it does not         ──▶ Held::refuse
//!   interposer ── Arrival ──▶ handlers' own words ──▶ Program::connect: the client's leg
//! ```
//!
//! The client's leg is a socket that was made for it, its place; whoever connects it to the program may
//! be another process, and take a moment.

use std::fmt::Debug;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use tracing::debug;
use viaduct_proto::flow::{Address, Failure};
use viaduct_proto::time::Instant;
use viaduct_sys::tcp::{Mirrored, TcpOptions};

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
use crate::sparing::Sparing;

/// Flows that were refused because there was no room.
static FULL: Sparing<()> = Sparing::new(1);

/// Errors of connects that say more than a failure: no route, one that is prohibited, one that is a black hole or a source
/// that does not fit.
const EXACT: [i32; 3] = [101, 13, 22];

/// A program's connect that waits, as its interposer holds it.
pub trait Held: Debug + Send {
    /// Which socket of the program's it is, if it may ask.
    fn whose(&self) -> Option<Whose> {
        None
    }

    /// Whether its socket is shared with another user's process: then nothing of the flow is spliced.
    fn is_lent(&self) -> bool {
        false
    }

    /// Whether its program cannot be told anything any more.
    fn has_gone(&self) -> bool {
        false
    }

    /// What the program is told of its own end from now on.
    fn named(&mut self, own: SocketAddr);

    /// The socket that the program's will be connected to; once only.
    ///
    /// # Errors
    /// There is none.
    fn place(&mut self) -> io::Result<Conn<std::net::TcpStream>>;

    /// The far end is there: the program's socket becomes connected to `place`, now or soon.
    ///
    /// # Errors
    /// The program has gone.
    fn meet(&mut self, place: &std::net::TcpStream) -> io::Result<()>;

    /// The far end is not there, as the program is told.
    fn refuse(&mut self, why: Failure);

    /// The same, where the kernel has refused to connect at all: its error number.
    fn refuse_as(&mut self, why: Failure, _errno: i32) {
        self.refuse(why);
    }
}

/// A connect.
#[derive(Debug)]
pub struct Call {
    /// Where to.
    pub to: Address,
    /// Who it is for.
    pub source: SocketAddr,
    /// Whether the program has chosen the port of that, which the far end is to see.
    pub is_bound: bool,
    /// Options that the program has set on its socket.
    pub mirrored: Mirrored,
    /// The program's end.
    pub held: Box<dyn Held>,
}

/// A wrapped program that listens, as its interposer reaches it.
pub trait Program: Debug + Send {
    /// The socket that will be connected to it; once only.
    ///
    /// # Errors
    /// There is none; or it is still to come ([`io::ErrorKind::WouldBlock`]).
    fn place(&mut self) -> io::Result<Conn<std::net::TcpStream>>;

    /// Has `tell` be called when one that was to come is there, or will never be.
    fn when_there(&mut self, _tell: Box<dyn FnOnce() + Send>) {}

    /// The handlers wait for the client's own words, before it can be connected to.
    fn waits(&mut self) {}

    /// The same program, for one more flow of this client's; `None`: it takes one alone.
    fn another(&self) -> Option<Box<dyn Program>> {
        None
    }

    /// Has `place` be connected to it, which takes the connection for the client's, now or soon.
    ///
    /// # Errors
    /// It cannot even begin.
    fn connect(&mut self, place: &std::net::TcpStream) -> io::Result<()>;
}

/// A connection to a program.
#[derive(Debug)]
pub struct Arrival {
    /// It.
    pub stream: Conn<std::net::TcpStream>,
    /// Whose it is.
    pub client: SocketAddr,
    /// Where it was meant to go.
    pub own: SocketAddr,
    /// The handlers that were agreed on with whose it is; without them the plan's.
    pub handlers: Option<Factories>,
    /// The program.
    pub program: Box<dyn Program>,
}

impl Worker {
    /// A connection to a program has come.
    pub(super) fn arrive(&mut self, arrival: Arrival, now: Instant) {
        self.stats.accepted += 1;
        self.let_come(arrival, now);
    }

    /// Takes in a connection to a program, or to whoever takes a program's place.
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
            // The program hears that nobody carries it as it is dropped.
            return self.stats.refused.count(Failure::Unreachable);
        };
        self.aware.know(key, Some(Whose::Ends(client, own)));
        self.programs.insert(key, program);
        self.drive(key, End::Server, true, true, now);
        if let Some(program) = self.programs.get_mut(&key) {
            program.waits();
        }
    }

    /// The handlers of flow `key` let it in: if it is a program's, that is connected to.
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

    /// Why no more flows are taken: it ends, or there is no room, which the log is told.
    fn full(&self) -> Failure {
        if self.deadline.is_some() {
            return Failure::Unreachable;
        }
        let what = "reached (descriptors): raise ulimit -n or LimitNOFILE=";
        FULL.warn((), format_args!("flow limit of {} {what}", self.flows.most));
        Failure::Full
    }

    /// Begins what a program asks for.
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

    /// A program has set options on its socket.
    pub(super) fn mirror(&mut self, whose: Whose, mirrored: Mirrored) {
        if let Some(key) = self.aware.find(&[whose]) {
            self.flows.at(key).mirror(mirrored);
        }
    }

    /// The far end of flow `key` has answered: if a program waits for it, that is its client now.
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

    /// The client of flow `key` is whoever `place` will be connected to.
    fn await_client(&mut self, place: Conn<std::net::TcpStream>, key: usize) -> io::Result<()> {
        let mut client = Leg::Tcp(place.into());
        self.flows.watch_coming(&mut client, key)?;
        self.flows.at(key).set_coming(client, time());
        Ok(())
    }

    /// The far end of flow `key` does not answer. If a program waits for it, it is told so, and the
    /// flow is over: true.
    pub(super) fn turn_down(&mut self, key: usize, error: &io::Error) -> bool {
        let Some(mut held) = self.calls.remove(&key) else { return false };
        held.refuse(match failure(error) {
            // When the kernel's time has run out here, so has the program's own. That of handlers, or of a proxy,
            // is shorter, and no packet says so: for the program the far end is out of reach.
            Failure::TimedOut if error.raw_os_error().is_none() => Failure::Unreachable,
            why => why,
        });
        self.end(key, true);
        true
    }
}

/// What a program that connects from `source` has bound its socket to, and the far end is to see; its port, if that
/// `is_bound`. One that has chosen no address connects to the meeting as the kernel chooses. A link-local address says
/// nothing without its interface.
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

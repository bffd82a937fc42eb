//! A chain of handlers between the two ends of a flow, or an end that cannot be spliced: bytes pass
//! through here.
//!
//! ```text
//!   application's leg ── Side ── chain ──┬── Wire 0 ── the flow's own leg to the network
//!   (missing until Stage::Open)          └── Wire n ── further legs, as the handlers Want them
//! ```
//!
//! | file | |
//! |---|---|
//! | here | how a chain comes about, and what its flow hears of it |
//! | `driving` | how bytes move, and what follows |
//! | `others` | further connections, and other flows |
//! | `side`, `wire` | an end, and a connection with its end |

mod driving;
mod others;
mod side;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;

use viaduct_proto::flow::{Address, BottomId, Chain, Factory, Failure, Spawn};
use viaduct_proto::time::Instant;
use viaduct_sys::tcp::Mirrored;

use self::side::Side;
use self::wire::{Ending, Wire, name};
use super::flow::End;
use super::leg::Leg;
use super::liveness::DeadPeerLimits;

/// The handlers of a chain, the client's first; none at all is an empty chain.
pub type Factories = Arc<[Arc<dyn Factory>]>;

/// A chain, and how its ends stand.
#[derive(Debug)]
pub struct Through {
    chain: Chain,
    /// How the application's end stands.
    app: Side,
    wires: Vec<Wire>,
    /// What those were called that are no more, until the loop knows.
    left: Vec<BottomId>,
    stage: Stage,
    /// The application's end broke, and the chain knows.
    aborted: bool,
    /// The network has said all that it will, and the application has it.
    finished: bool,
    wants: Vec<Want>,
    /// What its handlers have to say to the application (3.6).
    events: Vec<Vec<u8>>,
    /// It serves other flows, and is over when its connections are.
    alone: bool,
    /// It goes over another flow's connection.
    guest: bool,
    /// Where connections that are still to be wanted shall begin.
    binds: Vec<(BottomId, SocketAddr)>,
}

/// How far a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its handlers are still at it.
    Opening,
    /// It is the application's.
    Open,
    /// It broke, or never came about.
    Failed(Failure),
}

/// What handlers want of the loop.
#[derive(Debug)]
pub enum Want {
    /// One more connection, to there, from an address of this host's if one is named.
    Connect(BottomId, Address, Option<SocketAddr>),
    /// Connections that name this key are this flow's.
    Claim(Vec<u8>),
    /// They are no more.
    Release(Vec<u8>),
    /// This flow's connections belong to the flow that has claimed the key.
    Give(Vec<u8>),
    /// The flow that has claimed the key is to be driven on.
    Wake(Vec<u8>),
    /// One more flow of the same handlers.
    Spawn(Spawn),
}

/// Where a flow's own connection is to go, and from where if its handlers say so; `None`: it goes over
/// another flow's.
pub type Goal = Option<(Address, Option<SocketAddr>)>;

impl Through {
    /// A chain that is asked to go to `to`, each end of it holding `limit` bytes at most; and where
    /// its handlers go instead. `None`: they have nowhere to go. Flows with another `from` share no connection.
    pub fn new(
        factories: Factories,
        limit: usize,
        (to, from): (Address, Option<SocketAddr>),
        now: Instant,
    ) -> Option<(Through, Goal)> {
        let shares = factories.iter().any(|factory| factory.shares());
        let mut through = Through::of(Chain::new(factories, limit, now))?;
        if let (true, Some(from)) = (shares, from) {
            through.chain.bind(now, from.into());
        }
        through.chain.connect(now, to);
        through.act();
        let goal = through.goal();
        through.guest = goal.is_none();
        Some((through, goal))
    }

    /// Whether it has no connection of its own: it goes over another flow's.
    pub fn is_guest(&self) -> bool {
        self.guest
    }

    /// Where its own connection is to go.
    fn goal(&mut self) -> Goal {
        let main = self.wires[0].id;
        let is_main = |want: &Want| matches!(want, Want::Connect(id, ..) if *id == main);
        let at = self.wants.iter().position(is_main)?;
        match self.wants.remove(at) {
            Want::Connect(_, to, from) => Some((to, from)),
            _ => None,
        }
    }

    /// It has no application, and never will.
    pub fn be_alone(&mut self) {
        self.alone = true;
    }

    /// Whether that is so.
    pub fn is_alone(&self) -> bool {
        self.alone
    }

    /// The chain of a connection that was accepted, `network`.
    pub fn accepting(
        factories: Factories,
        limit: usize,
        network: &Leg,
        now: Instant,
    ) -> Option<Through> {
        let mut through = Through::of(Chain::new(factories, limit, now))?;
        let main = &mut through.wires[0];
        main.connected = true;
        name(&mut through.chain, main.id, network);
        main.measure(Some(network), &mut through.chain);
        through.chain.accepted(now);
        through.act();
        Some(through)
    }

    fn of(chain: Chain) -> Option<Through> {
        let wires = vec![Wire::new(chain.bottom()?, None)];
        let (app, stage) = (Side::default(), Stage::Opening);
        Some(Through {
            chain,
            app,
            wires,
            left: Vec::new(),
            stage,
            aborted: false,
            finished: false,
            wants: Vec::new(),
            events: Vec::new(),
            alone: false,
            guest: false,
            binds: Vec::new(),
        })
    }

    /// How far it has come.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// What its handlers want, since this was asked last.
    pub fn wants(&mut self) -> Vec<Want> {
        std::mem::take(&mut self.wants)
    }

    /// What its handlers have said to the application, since this was asked last.
    pub fn events(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.events)
    }

    /// A control call of the application to the handler of this name (3.6).
    pub fn control(&mut self, to: &str, request: &[u8], now: Instant) -> Option<Vec<u8>> {
        let answer = self.chain.control(now, to, request);
        self.act();
        answer
    }

    /// The loop says that `end` can be read or written.
    pub fn ready(&mut self, end: End, readable: bool, writable: bool) {
        match end {
            End::Client => self.app.ready(readable, writable),
            End::Server => self.wires[0].side.ready(readable, writable),
        }
    }

    /// `end` ends, or has an urgent byte, behind what can be read first.
    pub fn stutters(&mut self, end: End) {
        match end {
            End::Client => self.app.stutters = true,
            End::Server => self.wires[0].side.stutters = true,
        }
    }

    /// Looks whether the peers of its further connections are still there.
    pub fn look_for_ends(&mut self, silence: DeadPeerLimits) {
        for wire in self.wires.iter_mut().filter(|wire| wire.connected && !wire.gone) {
            if let Some(stream) = wire.leg.as_ref().and_then(Leg::tcp) {
                wire.liveness.look(stream, silence);
            }
        }
    }

    /// Has its further connections have what its program has set on its own end.
    pub fn mirror(&self, mirrored: Mirrored) {
        for wire in self.wires.iter().filter(|wire| !wire.gone) {
            if let Some(stream) = wire.leg.as_ref().and_then(Leg::tcp) {
                mirrored.apply_later(stream);
            }
        }
    }

    /// The flow's own leg to the network is there.
    pub fn connected(&mut self, network: &Leg, now: Instant) {
        let main = &mut self.wires[0];
        if !std::mem::replace(&mut main.connected, true) {
            name(&mut self.chain, main.id, network);
            main.measure(Some(network), &mut self.chain);
            self.chain.connected(now, main.id, Ok(()));
            self.act();
        }
    }

    /// It will not be: what becomes of the flow, its handlers say.
    pub fn unconnected(&mut self, why: Failure, now: Instant) {
        let main = &mut self.wires[0];
        if !std::mem::replace(&mut main.gone, true) {
            self.chain.connected(now, main.id, Err(why));
            self.act();
        }
    }

    /// Whether that leg has been there.
    pub fn is_connected(&self) -> bool {
        self.wires[0].connected
    }

    /// Whether that leg is of no use any more.
    pub fn is_without_main(&self) -> bool {
        self.wires[0].gone
    }

    /// Whether that leg is to be closed, though the flow goes on: its handlers have left it.
    pub fn leaves_main(&mut self) -> bool {
        let [main, others @ ..] = &mut self.wires[..] else { return false };
        let left = main.end == Some(Ending::Close);
        main.gone |= left && others.iter().any(|wire| !wire.gone);
        left && main.gone
    }

    /// What the flow's own address is, its handlers say.
    pub fn own_name(&mut self, now: Instant) -> Option<SocketAddr> {
        match self.chain.getsockname(now)? {
            Address::Ip(at) => Some(at),
            Address::Name(..) => None,
        }
    }

    /// What the client said before the chain was there.
    pub fn write(&mut self, data: Vec<u8>, now: Instant) {
        self.chain.write(now, data.into());
    }
}

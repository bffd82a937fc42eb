//! A chain of handlers between the two ends of a flow, or an end that cannot be spliced: bytes pass
//! through here.
//!
//! ```text
//!   application's leg ── Side ── chain ──┬── Wire 0 ── the flow's own leg to the network
//!   (missing until Stage::Open)          └── Wire n ── further legs, as the handlers Want them
//! ```

mod side;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tracing::warn;
use viaduct_proto::flow::{Action, Address, BottomId, Chain, Factory, Failure, Half, Kin, Spawn};
use viaduct_proto::time::Instant;

use self::side::Side;
use self::wire::{Ending, Wire, name};
use super::flow::{End, Moved};
use super::leg::Leg;

/// Times that each end is read before the other flows have their turn.
const TURNS: usize = 16;

/// The handlers of a chain, the client's first; none at all is an empty chain.
pub type Factories = Arc<[Arc<dyn Factory>]>;

/// A chain, and how its ends stand.
#[derive(Debug)]
pub struct Through {
    chain: Chain,
    /// How the application's end stands.
    app: Side,
    wires: Vec<Wire>,
    stage: Stage,
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
    /// its handlers go instead. `None`: they have nowhere to go.
    pub fn new(
        factories: Factories,
        limit: usize,
        to: Address,
        now: Instant,
    ) -> Option<(Through, Goal)> {
        let mut through = Through::of(Chain::new(factories, limit, now))?;
        through.chain.connect(now, to);
        through.act();
        let goal = through.goal();
        through.guest = goal.is_none();
        Some((through, goal))
    }

    /// One more chain of the same handlers, as they want it.
    pub fn spawned(&self, spawn: &Spawn, now: Instant) -> Option<(Through, Goal)> {
        let mut through = Through::of(Chain::spawned(&self.chain, spawn, now))?;
        through.alone = spawn.kin == Kin::Alone;
        through.act();
        let goal = through.goal();
        Some((through, goal))
    }

    /// It cannot be made.
    pub fn unspawned(&mut self, spawn: &Spawn, now: Instant) {
        self.chain.unspawned(spawn, now);
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

    /// Another flow's handlers have something for those that claimed `key` here.
    pub fn wake(&mut self, key: &[u8], now: Instant) {
        self.chain.wake(key, now);
        self.act();
    }

    /// The flow is over; what its handlers still want of other flows.
    pub fn abandon(&mut self, now: Instant) -> Vec<Want> {
        self.chain.abandon(now);
        self.act();
        self.wants()
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
        let (wants, events, binds) = (Vec::new(), Vec::new(), Vec::new());
        let [finished, alone, guest] = [false; 3];
        Some(Through { chain, app, wires, stage, finished, wants, events, alone, guest, binds })
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

    /// The same of a further connection.
    pub fn wire_stutters(&mut self, id: BottomId) {
        self.wire(id, |wire| wire.side.stutters = true);
    }

    /// A further connection can be read or written.
    pub fn wire_ready(&mut self, id: BottomId, readable: bool, writable: bool) {
        if let Some(wire) = self.wires.iter_mut().find(|wire| wire.id == id) {
            wire.side.ready(readable, writable);
        }
    }

    /// A connection that was wanted is begun.
    pub fn attach(&mut self, id: BottomId, leg: Leg) {
        self.wires.push(Wire::new(id, Some(leg)));
    }

    /// It cannot be.
    pub fn cannot_attach(&mut self, id: BottomId, why: Failure, now: Instant) {
        self.chain.connected(now, id, Err(why));
    }

    /// Takes in the connections of `giver`, whose own leg is `main`; what they are called here. `None`:
    /// it does not want them.
    pub fn take(
        &mut self,
        giver: Through,
        main: Option<Leg>,
        now: Instant,
    ) -> Option<Vec<BottomId>> {
        let moved = self.chain.take(now, giver.chain)?;
        let mut wires = giver.wires;
        if let Some(first) = wires.first_mut() {
            first.leg = main;
        }
        let mut taken = Vec::new();
        for mut wire in wires {
            if let Some(&(_, id)) = moved.iter().find(|(was, _)| *was == wire.id) {
                wire.id = id;
                // Whatever has come may have been told to the giver's loop alone.
                wire.side.ready(true, true);
                wire.side.stutters = true;
                taken.push(id);
                self.wires.push(wire);
            }
        }
        Some(taken)
    }

    /// Nobody has claimed what this chain gives.
    pub fn unclaimed(&mut self, now: Instant) {
        self.chain.unclaimed(now);
    }

    /// A further connection's leg.
    pub fn leg(&mut self, id: BottomId) -> Option<&mut Leg> {
        self.wires.iter_mut().find(|wire| wire.id == id)?.leg.as_mut()
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

    /// When it is to be driven, whatever happens: at its handlers' earliest timer, and at once if they
    /// want something.
    pub fn poll_timeout(&self) -> Option<Instant> {
        if self.wants.is_empty() { self.chain.poll_timeout() } else { Some(Instant::ZERO) }
    }

    /// Moves what can move; `held` says which ends take nothing yet. `Err`: the application's end broke.
    pub fn drive(
        &mut self,
        [mut app, mut main]: [Option<&mut Leg>; 2],
        held: [bool; 2],
        scratch: &mut [u8],
        now: Instant,
    ) -> io::Result<Moved> {
        if self.chain.measures() {
            self.wires.iter().for_each(|wire| wire.measure(main.as_deref(), &mut self.chain));
        }
        self.chain.handle_timeout(now);
        let mut moved = Moved::default();
        for _ in 0..TURNS {
            let from_app = self.read_app(&mut app, scratch, now)?;
            let mut from_network = 0;
            for wire in &mut self.wires {
                from_network += wire.read(&mut main, &mut self.chain, scratch, now);
            }
            self.act();
            let mut written = if held[0] { 0 } else { self.write_app(&mut app, now)? };
            for (n, wire) in self.wires.iter_mut().enumerate() {
                if n > 0 || !held[1] {
                    written += wire.write(&mut main, &mut self.chain, now);
                }
            }
            // What was sent may have ended a direction, or let the other go on.
            self.act();
            self.end_directions(&mut app, &mut main)?;
            if from_app == 0 && from_network == 0 && written == 0 {
                moved.done = (self.alone || self.app.shut) && self.wires.iter().all(Wire::is_over);
                return Ok(moved);
            }
            moved.bytes[0] += from_app;
            moved.bytes[1] += from_network;
        }
        moved.more = true;
        Ok(moved)
    }

    fn read_app(
        &mut self,
        app: &mut Option<&mut Leg>,
        scratch: &mut [u8],
        now: Instant,
    ) -> io::Result<u64> {
        let Some(leg) = app else { return Ok(0) };
        self.app.paused = !self.chain.may_write();
        let Some(read) = self.app.read(leg, scratch)? else { return Ok(0) };
        let bytes = read.len() as u64;
        match read.is_empty() {
            true => self.chain.shutdown(now, Half::Write),
            false => self.app.ended |= !self.chain.write(now, read),
        }
        Ok(bytes)
    }

    fn write_app(&mut self, app: &mut Option<&mut Leg>, now: Instant) -> io::Result<usize> {
        let Some(leg) = app else { return Ok(0) };
        let mut written = 0;
        while let Some(count) = self.app.write(leg, self.chain.incoming())? {
            self.chain.consumed(now, count);
            written += count;
        }
        Ok(written)
    }

    /// Takes down what the chain wants done.
    fn act(&mut self) {
        while let Some(action) = self.chain.poll_action() {
            match action {
                Action::Bind(id, Address::Ip(at)) => self.binds.push((id, at)),
                Action::Connect(id, to) => {
                    let bound = self.binds.iter().position(|(of, _)| *of == id);
                    let from = bound.map(|at| self.binds.swap_remove(at).1);
                    self.wants.push(Want::Connect(id, to, from));
                }
                Action::Claim(key) => self.wants.push(Want::Claim(key)),
                Action::Release(key) => self.wants.push(Want::Release(key)),
                Action::Give(key) => self.wants.push(Want::Give(key)),
                Action::Wake(key) => self.wants.push(Want::Wake(key)),
                Action::Spawn(spawn) => self.wants.push(Want::Spawn(spawn)),
                Action::Close(id) => self.wire(id, |wire| wire.end = Some(Ending::Close)),
                Action::Shutdown(id, Half::Write) => {
                    self.wire(id, |wire| wire.end = wire.end.or(Some(Ending::Shut)));
                }
                Action::Shutdown(id, Half::Read) => self.wire(id, |wire| wire.side.ended = true),
                Action::Receive(id, may) => self.wire(id, |wire| wire.side.paused = !may),
                Action::Connected(Ok(())) | Action::Accepted => self.stage = Stage::Open,
                Action::Connected(Err(why)) | Action::Failed(why) => {
                    self.stage = Stage::Failed(why);
                }
                Action::Finished => self.finished = true,
                Action::Say(line) => warn!("{line}"),
                Action::Event(event) => self.events.push(event),
                _ => {}
            }
        }
    }

    /// Ends the directions that are to end, of the legs that are there.
    fn end_directions(
        &mut self,
        app: &mut Option<&mut Leg>,
        main: &mut Option<&mut Leg>,
    ) -> io::Result<()> {
        self.wires.iter_mut().for_each(|wire| wire.end(main));
        match app {
            Some(leg) if self.finished => self.app.shut(leg),
            _ => Ok(()),
        }
    }

    fn wire(&mut self, id: BottomId, what: impl FnOnce(&mut Wire)) {
        self.wires.iter_mut().find(|wire| wire.id == id).map(what);
    }
}

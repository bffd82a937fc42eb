//! What a chain has beside its flow's two ends: further connections, and what it has with other flows.

use viaduct_proto::flow::{BottomId, Chain, Failure, Kin, Spawn};
use viaduct_proto::time::Instant;

use super::wire::Wire;
use super::{Goal, Through, Want};
use crate::proxy::leg::Leg;

impl Through {
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

    /// Lets go of further connections that are gone: a flow that outlives its connections may have had very
    /// many.
    pub(super) fn forget_gone(&mut self) {
        if self.wires.iter().skip(1).any(|wire| wire.gone) {
            let gone = self.wires.extract_if(1.., |wire| wire.gone);
            self.left.extend(gone.map(|wire| wire.id));
        }
    }

    /// Further connections that are no more, since this was asked last.
    pub fn left(&mut self) -> Vec<BottomId> {
        std::mem::take(&mut self.left)
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
}

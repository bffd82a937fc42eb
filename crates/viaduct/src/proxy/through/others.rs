//! A chain's further connections, and its relations to other flows.

use viaduct_proto::flow::{BottomId, Chain, Failure, Spawn, SpawnKind};
use viaduct_proto::time::Instant;

use super::wire::Wire;
use super::{Goal, Through, Want};
use crate::proxy::leg::Leg;

impl Through {
    /// Returns one more chain of the same handlers, as they requested.
    pub fn spawned(&self, spawn: &Spawn, now: Instant) -> Option<(Through, Goal)> {
        let mut through = Through::of(Chain::spawned(&self.chain, spawn, now))?;
        through.alone = spawn.kind == SpawnKind::Alone;
        through.act();
        let goal = through.goal();
        Some((through, goal))
    }

    /// Tells the handlers that such a chain cannot be made.
    pub fn unspawned(&mut self, spawn: &Spawn, now: Instant) {
        self.chain.unspawned(spawn, now);
    }

    /// Reports a wake-up for `key`, claimed here, by another flow's handlers.
    pub fn wake(&mut self, key: &[u8], now: Instant) {
        self.chain.wake(key, now);
        self.act();
    }

    /// Ends the chain; returns its handlers' last requests.
    pub fn abandon(&mut self, now: Instant) -> Vec<Want> {
        self.chain.abandon(now);
        self.act();
        self.wants()
    }

    /// Records that a further connection has an end of stream or an urgent byte behind the
    /// readable data.
    pub fn wire_stutters(&mut self, id: BottomId) {
        self.wire(id, |wire| wire.side.stutters = true);
    }

    /// Records that a further connection is readable or writable.
    pub fn wire_ready(&mut self, id: BottomId, readable: bool, writable: bool) {
        if let Some(wire) = self.wires.iter_mut().find(|wire| wire.id == id) {
            wire.side.ready(readable, writable);
        }
    }

    /// Attaches a requested connection that was begun.
    pub fn attach(&mut self, id: BottomId, leg: Leg) {
        self.wires.push(Wire::new(id, Some(leg)));
    }

    /// Tells the handlers that a requested connection cannot be begun.
    pub fn cannot_attach(&mut self, id: BottomId, why: Failure, now: Instant) {
        self.chain.connected(now, id, Err(why));
    }

    /// Removes further connections that are gone: a flow that outlives its connections may have
    /// had very many.
    pub(super) fn forget_gone(&mut self) {
        if self.wires.iter().skip(1).any(|wire| wire.gone) {
            let gone = self.wires.extract_if(1.., |wire| wire.gone);
            self.left.extend(gone.map(|wire| wire.id));
        }
    }

    /// Takes the IDs of further connections that were removed since the last call.
    pub fn left(&mut self) -> Vec<BottomId> {
        std::mem::take(&mut self.left)
    }

    /// Takes over the connections of `giver`, whose own leg is `main`; returns their IDs here.
    /// `None` if the chain does not accept them.
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
                // Events may have been reported to the giver alone.
                wire.side.ready(true, true);
                wire.side.stutters = true;
                taken.push(id);
                self.wires.push(wire);
            }
        }
        Some(taken)
    }

    /// Tells the handlers that no flow has claimed what this chain gives.
    pub fn unclaimed(&mut self, now: Instant) {
        self.chain.unclaimed(now);
    }

    /// Leg of a further connection.
    pub fn leg(&mut self, id: BottomId) -> Option<&mut Leg> {
        self.wires.iter_mut().find(|wire| wire.id == id)?.leg.as_mut()
    }
}

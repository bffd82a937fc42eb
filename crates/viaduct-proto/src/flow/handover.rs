//! Handover of output flows between chains, messages between chains, and removal of output flows
//! before their chain ends.

use bytes::Bytes;

use super::call::{Place, Up, Upper};
use super::context::Context;
use super::core::{Call, Core};
use super::ends::{Action, BottomId, Spawn, SpawnKind};
use super::handler::{Handler, Output};
use crate::time::Instant;

/// Claims of a chain, and the output flow that it gives away.
#[derive(Default)]
pub(super) struct Handovers {
    /// Claimed keys, and the nodes of the handlers that claimed them.
    claims: Vec<(Vec<u8>, usize)>,
    pending: Option<Handover>,
}

/// Output flow that is being given to another chain.
struct Handover {
    node: usize,
    output: Output,
    to: Vec<u8>,
    /// Data received on the flow and not handled yet.
    said: Bytes,
    /// Upstream calls that the flow has made since it was given away.
    later: Vec<Up>,
}

impl Handovers {
    pub(super) fn is_given(&self, node: usize, output: Output) -> bool {
        self.pending.as_ref().is_some_and(|it| (it.node, it.output) == (node, output))
    }

    /// Keeps a call of the flow that is being given away, for the flow's new owner.
    pub(super) fn keep(&mut self, what: Up) {
        if let Some(handover) = &mut self.pending {
            handover.later.push(what);
        }
    }
}

impl Core {
    pub(super) fn claim(&mut self, node: usize, key: &[u8]) {
        self.handovers.claims.push((key.to_vec(), node));
        self.actions.push_back(Action::Claim(key.to_vec()));
    }

    pub(super) fn release(&mut self, node: usize, key: &[u8]) {
        let claims = self.handovers.claims.len();
        self.handovers.claims.retain(|(claimed, by)| (&claimed[..], *by) != (key, node));
        if self.handovers.claims.len() < claims {
            self.actions.push_back(Action::Release(key.to_vec()));
        }
    }

    pub(super) fn wake(&mut self, key: &[u8]) {
        self.actions.push_back(Action::Wake(key.to_vec()));
    }

    /// Wakes the handler that has claimed `key`.
    pub(super) fn woken(&mut self, key: &[u8], now: Instant) {
        let claimed = self.handovers.claims.iter().find(|(claimed, _)| claimed == key);
        if let Some(&(_, node)) = claimed {
            self.with(node, now, |handler, cx| handler.woken(cx, key));
        }
    }

    pub(super) fn spawn(&mut self, node: usize, kind: SpawnKind, message: &[u8]) {
        let Some(position) = self.nodes.get(node).map(|node| node.position) else { return };
        let message = message.to_vec();
        self.actions.push_back(Action::Spawn(Spawn { kind, position, message }));
    }

    /// Calls the first handler at this position.
    pub(super) fn at(
        &mut self,
        position: usize,
        now: Instant,
        call: impl FnOnce(&mut dyn Handler, &mut Context<'_>),
    ) {
        let mut nodes = 0..self.nodes.next();
        let is_there = |&n: &usize| self.nodes.get(n).is_some_and(|node| node.position == position);
        if let Some(node) = nodes.find(is_there) {
            self.with(node, now, call);
        }
    }

    /// Tells all handlers that the flow is over.
    pub(super) fn abandoned(&mut self, now: Instant) {
        for node in 0..self.nodes.next() {
            self.with(node, now, |handler, cx| handler.abandoned(cx));
        }
    }

    pub(super) fn give(&mut self, node: usize, output: Output, to: &[u8], said: Bytes) {
        let (to, later) = (to.to_vec(), Vec::new());
        self.actions.push_back(Action::Give(to.clone()));
        self.handovers.pending = Some(Handover { node, output, to, said, later });
    }

    pub(super) fn unclaimed(&mut self, now: Instant) {
        if let Some(Handover { node, output, .. }) = self.handovers.pending.take() {
            self.with(node, now, |handler, cx| handler.unclaimed(cx, output));
        }
    }

    /// See [`Chain::take`](super::Chain::take).
    pub(super) fn take(
        &mut self,
        mut giver: Core,
        now: Instant,
    ) -> Option<Vec<(BottomId, BottomId)>> {
        let Handover { node: from, output, to, said, later } = giver.handovers.pending.take()?;
        let &(_, node) = self.handovers.claims.iter().find(|(key, _)| *key == to)?;
        let place = giver.output(from, output)?;
        // The factories may differ, for instance after a reload of the config, so names are
        // compared.
        let names = |core: &Core| core.factories.iter().map(|of| of.name()).collect::<Vec<_>>();
        if names(self) != names(&giver) {
            return None;
        }
        let (above, former) = (self.nodes.get_mut(node)?, giver.nodes.get(from)?);
        if above.position != former.position {
            return None;
        }
        let output = Output(above.outputs.len());
        above.outputs.push(None);
        let mut moved = Vec::new();
        let place = self.graft(&mut giver, place, Upper::Node(node, output), &mut moved)?;
        self.set_output(node, output, Some(place));
        self.with(node, now, |handler, cx| handler.taken(cx, output, said));
        self.queue.extend(later.into_iter().map(|what| Call::Up(place, what)));
        Some(moved)
    }

    /// Moves the flow at `place` of `giver`, with everything below it, into this chain, below `up`.
    fn graft(
        &mut self,
        giver: &mut Core,
        place: Place,
        up: Upper,
        moved: &mut Vec<(BottomId, BottomId)>,
    ) -> Option<Place> {
        match place {
            Place::Bottom(old) => {
                let mut bottom = giver.bottoms.remove(old)?;
                (bottom.id, bottom.up) = (BottomId(self.bottoms.next()), up);
                moved.push((BottomId(old), bottom.id));
                Some(Place::Bottom(self.bottoms.push(bottom)))
            }
            Place::Node(old) => {
                let mut node = giver.nodes.remove(old)?;
                node.up = up;
                let outputs = std::mem::take(&mut node.outputs);
                let new = self.nodes.push(node);
                let timers = giver.timers.iter().filter(|&&(_, node, _)| node == old);
                self.timers.extend(timers.map(|&(at, _, timer)| (at, new, timer)));
                let claims = giver.handovers.claims.iter().filter(|&&(_, by)| by == old);
                claims.for_each(|(key, _)| self.claim(new, key));
                for (number, place) in outputs.into_iter().enumerate() {
                    let up = Upper::Node(new, Output(number));
                    let place = place.and_then(|place| self.graft(giver, place, up, moved));
                    self.nodes.get_mut(new)?.outputs.push(place);
                }
                Some(Place::Node(new))
            }
        }
    }

    pub(super) fn unplumb(&mut self, node: usize, output: Output, now: Instant) {
        if let Some(place) = self.output(node, output) {
            self.set_output(node, output, None);
            self.remove(place, now);
        }
    }

    /// Removes the flow at `place`, with everything below it.
    fn remove(&mut self, place: Place, now: Instant) {
        match place {
            Place::Bottom(bottom) => {
                let bottom = self.bottoms.remove(bottom);
                self.actions.extend(bottom.and_then(|mut bottom| bottom.abort()));
            }
            Place::Node(node) => {
                self.with(node, now, |handler, cx| handler.abandoned(cx));
                let outputs = self.nodes.remove(node).map(|node| node.outputs);
                self.timers.retain(|&(_, of, _)| of != node);
                let held = |&(_, by): &(Vec<u8>, usize)| by == node;
                for (key, _) in self.handovers.claims.extract_if(.., |claim| held(claim)) {
                    self.actions.push_back(Action::Release(key));
                }
                outputs.into_iter().flatten().flatten().for_each(|place| self.remove(place, now));
            }
        }
    }
}

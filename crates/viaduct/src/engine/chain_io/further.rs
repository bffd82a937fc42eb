//! A chain's further connections, and its relations to other flows.

use viaduct_proto::flow::{BottomId, Chain, Failure, OutputTransport, Spawn, SpawnKind};
use viaduct_proto::time::Instant;

use super::net_conn::NetConn;
use super::{ChainIo, ChainRequest, Goal};
use crate::engine::conn::Conn;

impl ChainIo {
    /// Returns a further chain of the same handlers, at their request.
    pub fn spawned(&self, spawn: &Spawn, now: Instant) -> Option<(ChainIo, Goal)> {
        let mut chain_io = ChainIo::of(Chain::spawned(&self.chain, spawn, now))?;
        chain_io.alone = spawn.kind == SpawnKind::Alone;
        chain_io.act();
        let goal = chain_io.goal();
        Some((chain_io, goal))
    }

    /// Tells the handlers that the chain that they requested with `spawn` cannot be made.
    pub fn unspawned(&mut self, spawn: &Spawn, now: Instant) {
        self.chain.unspawned(spawn, now);
    }

    /// Passes on a wake-up by another flow's handlers for `key`, which this chain has claimed.
    pub fn wake(&mut self, key: &[u8], now: Instant) {
        self.chain.wake(key, now);
        self.act();
    }

    /// Ends the chain; returns its handlers' last requests.
    pub fn abandon(&mut self, now: Instant) -> Vec<ChainRequest> {
        self.chain.abandon(now);
        self.act();
        self.requests()
    }

    /// Records that a further connection has an end of stream or an urgent byte after the readable
    /// data.
    pub fn net_conn_may_hold_more(&mut self, id: BottomId) {
        self.net_conn(id, |net_conn| net_conn.state.may_hold_more = true);
    }

    /// Records that a further connection is readable or writable.
    pub fn net_conn_ready(&mut self, id: BottomId, readable: bool, writable: bool) {
        if let Some(net_conn) = self.net_conns.iter_mut().find(|net_conn| net_conn.id == id) {
            net_conn.state.ready(readable, writable);
        }
    }

    /// Transport that the handlers name for a requested connection.
    pub fn transport(&self, id: BottomId) -> Option<OutputTransport> {
        self.chain.transport(id)
    }

    /// Tells the handlers that a further connection was refused, and drops it.
    pub fn refuse_net_conn(&mut self, id: BottomId, now: Instant) {
        self.net_conn(id, |net_conn| net_conn.gone = true);
        self.cannot_attach(id, Failure::Refused, now);
    }

    /// Attaches a requested connection that was begun.
    pub fn attach(&mut self, id: BottomId, conn: Conn) {
        self.net_conns.push(NetConn::new(id, Some(conn)));
    }

    /// Tells the handlers that a requested connection cannot be begun.
    pub fn cannot_attach(&mut self, id: BottomId, why: Failure, now: Instant) {
        self.chain.connected(now, id, Err(why));
    }

    /// Removes further connections that are gone: a flow that outlives its connections may have
    /// had very many.
    pub(super) fn remove_closed(&mut self) {
        if self.net_conns.iter().skip(1).any(|net_conn| net_conn.gone) {
            let gone = self.net_conns.extract_if(1.., |net_conn| net_conn.gone);
            self.closed.extend(gone.map(|net_conn| net_conn.id));
        }
    }

    /// Takes the IDs of further connections that were removed since the last call.
    pub fn take_closed(&mut self) -> Vec<BottomId> {
        std::mem::take(&mut self.closed)
    }

    /// Takes over the connections of `giver`, including `main`, the end of the giver's flow towards
    /// the network. Returns their IDs in this chain. `None` if the chain does not accept them.
    pub fn take(
        &mut self,
        giver: ChainIo,
        main: Option<Conn>,
        now: Instant,
    ) -> Option<Vec<BottomId>> {
        let moved = self.chain.take(now, giver.chain)?;
        let mut net_conns = giver.net_conns;
        if let Some(first) = net_conns.first_mut() {
            first.conn = main;
        }
        let mut taken = Vec::new();
        for mut net_conn in net_conns {
            if let Some(&(_, id)) = moved.iter().find(|(was, _)| *was == net_conn.id) {
                net_conn.id = id;
                // Events may have been reported to the giver only.
                net_conn.state.ready(true, true);
                net_conn.state.may_hold_more = true;
                taken.push(id);
                self.net_conns.push(net_conn);
            }
        }
        Some(taken)
    }

    /// Tells the handlers that no flow has claimed the key under which they gave away their
    /// connections.
    pub fn unclaimed(&mut self, now: Instant) {
        self.chain.unclaimed(now);
    }

    /// Returns the further connection with this ID.
    pub fn conn(&mut self, id: BottomId) -> Option<&mut Conn> {
        self.net_conns.iter_mut().find(|net_conn| net_conn.id == id)?.conn.as_mut()
    }
}

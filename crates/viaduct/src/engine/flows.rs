//! All flows of a loop, by key, and their registration with the poll.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use mio::{Registry, Token};
use slab::Slab;
use tracing::warn;
use viaduct_proto::flow::{Address, BottomId};
use viaduct_proto::time::Instant;
use viaduct_proto::upgrade::EarlyRecord;

use super::chain_io::ChainIo;
use super::conn::Conn;
use super::flow::{End, Flow, Moved, Shared};
use crate::tunnel::FIRST_TOKEN;

/// First token of flows' further connections. The tokens of flows' ends are lower.
pub const FIRST_NET_CONN: usize = FIRST_TOKEN / 2;

/// All flows. The ends of flow `n` have the tokens `2 n` (client) and `2 n + 1` (server).
#[derive(Debug)]
pub struct Flows {
    slab: Slab<Flow>,
    /// Further connections: the flow of each, and the connection's ID in that flow.
    net_conns: Slab<(usize, BottomId)>,
    registry: Arc<Registry>,
    /// Maximum number of flows.
    pub most: usize,
    /// State that all flows share.
    pub shared: Shared,
    /// Alarms: times at which flows are driven even without an event.
    alarms: BTreeSet<(Instant, usize)>,
    /// Flows that another process is taking over; this loop does not touch them meanwhile.
    pub lent: Vec<LentFlow>,
}

/// A flow that another process is taking over.
#[derive(Debug)]
pub struct LentFlow {
    /// The flow.
    pub flow: Flow,
    /// Record of the wait for its client, if it is an early connection.
    pub early: Option<EarlyRecord>,
    /// True while its sockets are registered with this loop.
    is_registered: bool,
}

impl Flows {
    /// Returns an empty set for at most `most` flows.
    pub fn new(registry: Registry, most: usize, shared: Shared) -> Flows {
        Flows {
            slab: Slab::new(),
            net_conns: Slab::new(),
            registry: Arc::new(registry),
            most,
            shared,
            alarms: BTreeSet::new(),
            lent: Vec::new(),
        }
    }

    /// Number of flows, without lent ones.
    pub fn len(&self) -> usize {
        self.slab.len()
    }

    /// Returns whether there is no flow, not even a lent one.
    pub fn is_empty(&self) -> bool {
        self.slab.is_empty() && self.lent.is_empty()
    }

    /// Returns whether the maximum is reached. Two further connections of flows count as one flow,
    /// since a flow has two connections.
    pub fn is_full(&self) -> bool {
        self.slab.len() + self.net_conns.len() / 2 >= self.most
    }

    /// Returns the flow with this key, if there is one.
    pub fn get(&mut self, key: usize) -> Option<&mut Flow> {
        self.slab.get_mut(key)
    }

    /// Returns the flow with this key, which must exist.
    pub fn at(&mut self, key: usize) -> &mut Flow {
        &mut self.slab[key]
    }

    /// Inserts a flow and registers its ends; returns its key. `None` if there are too many flows,
    /// or if the registration fails; a flow that cannot be registered is reset.
    pub fn insert(&mut self, mut flow: Flow) -> Option<usize> {
        if self.is_full() {
            return None;
        }
        let entry = self.slab.vacant_entry();
        let key = entry.key();
        let watch = |(conn, end)| match conn {
            Some(conn) => watch(&self.registry, conn, key, end),
            None => Ok(()),
        };
        let watched = flow.conns().into_iter().zip([End::Client, End::Server]).try_for_each(watch);
        if let Err(error) = watched {
            warn!("cannot register a flow: {error}");
            flow.reset();
            return None;
        }
        entry.insert(flow);
        // Handlers may have set a timer that runs out before any end is ready.
        self.set_alarm(key);
        Some(key)
    }

    /// Registers an end of flow `key`.
    pub fn watch(&self, conn: &mut Conn, key: usize, end: End) -> io::Result<()> {
        watch(&self.registry, conn, key, end)
    }

    /// Moves the server side of flow `early`, which has no client, to flow `key`.
    pub fn hand_over(&mut self, early: usize, key: usize, now: Instant) -> io::Result<()> {
        let Some(mut early) = self.take_out(early) else { return Ok(()) };
        if let [_, Some(server)] = early.conns() {
            server.reregister(&self.registry, token(key, End::Server))?;
        }
        for &(net_conn, id) in &early.net_conns {
            self.net_conns[net_conn] = (key, id);
        }
        let net_conns = std::mem::take(&mut early.net_conns);
        self.slab[key].net_conns.extend(net_conns);
        self.slab[key].adopt(early, now);
        self.set_alarm(key);
        Ok(())
    }

    /// Moves as many bytes of a flow as possible.
    pub fn drive(&mut self, key: usize, now: Instant) -> io::Result<Moved> {
        let flow = &mut self.slab[key];
        let moved = flow.drive(&mut self.shared, now)?;
        for id in flow.chain_io().map(ChainIo::take_closed).unwrap_or_default() {
            for (net_conn, _) in flow.net_conns.extract_if(.., |(_, of)| *of == id) {
                self.net_conns.try_remove(net_conn);
            }
        }
        self.watch_room(key)?;
        Ok(moved)
    }

    /// Registers the client of a flow for writability if bytes wait for it.
    pub fn watch_room(&mut self, key: usize) -> io::Result<()> {
        let flow = &mut self.slab[key];
        if flow.awaits_room()
            && let [Some(client), _] = flow.conns()
        {
            client.reregister(&self.registry, token(key, End::Client))?;
        }
        Ok(())
    }

    /// Takes a flow's unused connection, with its destination.
    pub fn take_spare(&mut self, key: usize) -> Option<(Address, Conn)> {
        let (to, mut conn) = self.slab.get_mut(key)?.spare()?;
        conn.deregister(&self.registry).ok()?;
        Some((to, conn))
    }

    /// Removes a flow. Its ends stay registered until they are closed or, if lent, returned to
    /// their lender ([`super::flow_socket`]).
    pub fn remove(&mut self, key: usize) -> Option<Flow> {
        let flow = self.take_out(key)?;
        for &(net_conn, _) in &flow.net_conns {
            self.net_conns.try_remove(net_conn);
        }
        Some(flow)
    }

    /// Flow and ID of the further connection with this token.
    pub fn net_conn(&self, token: usize) -> Option<(usize, BottomId)> {
        self.net_conns.get(token - FIRST_NET_CONN).copied()
    }

    /// Registers a further connection of flow `key`.
    pub fn watch_net_conn(&mut self, conn: &mut Conn, key: usize, id: BottomId) -> io::Result<()> {
        let net_conn = self.net_conns.insert((key, id));
        self.slab[key].net_conns.push((net_conn, id));
        conn.register(&self.registry, Token(FIRST_NET_CONN + net_conn))
    }

    /// Registers a further connection that came from another flow.
    pub fn rewatch_net_conn(&mut self, key: usize, id: BottomId) -> io::Result<()> {
        let net_conn = self.net_conns.insert((key, id));
        self.slab[key].net_conns.push((net_conn, id));
        let conn = self.slab[key].chain_io().and_then(|chain_io| chain_io.conn(id));
        let conn = conn.ok_or(io::ErrorKind::NotFound)?;
        conn.reregister(&self.registry, Token(FIRST_NET_CONN + net_conn))
    }

    /// Registers a client's connection that is not established yet: the loop is notified of its
    /// establishment, and of later events.
    pub fn watch_coming(&self, conn: &mut Conn, key: usize) -> io::Result<()> {
        conn.register(&self.registry, token(key, End::Client))
    }

    /// Takes a flow out for another process, with all its bytes. [`Flows::deregister_lent`] must be
    /// called before the next poll.
    pub fn lend(&mut self, key: usize, early: Option<EarlyRecord>) {
        let Some(mut flow) = self.slab.try_remove(key) else { return };
        flow.times.alarm.take().map(|at| self.alarms.remove(&(at, key)));
        self.lent.push(LentFlow { flow, early, is_registered: true });
    }

    /// Deregisters those of the lent flows at `range` that are still registered. Otherwise this
    /// loop would get events of their sockets while the other process has them.
    pub fn deregister_lent(&mut self, range: Range<usize>) {
        let flows = self.lent[range].iter_mut().filter(|lent| lent.is_registered);
        for lent in flows {
            lent.is_registered = false;
            for conn in lent.flow.conns().into_iter().flatten() {
                if let Err(error) = conn.deregister(&self.registry) {
                    warn!("cannot deregister a flow: {error}");
                }
            }
        }
    }

    fn take_out(&mut self, key: usize) -> Option<Flow> {
        let mut flow = self.slab.try_remove(key)?;
        flow.times.alarm.map(|at| self.alarms.remove(&(at, key)));
        flow.release(&mut self.shared);
        Some(flow)
    }

    /// Sets the alarm of a flow to its next timeout.
    pub fn set_alarm(&mut self, key: usize) {
        let Some(flow) = self.slab.get_mut(key) else { return };
        let next = flow.poll_timeout();
        if next != flow.times.alarm {
            flow.times.alarm.map(|at| self.alarms.remove(&(at, key)));
            next.map(|at| self.alarms.insert((at, key)));
            flow.times.alarm = next;
        }
    }

    /// Time of the next alarm.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.alarms.first().map(|&(at, _)| at)
    }

    /// Takes the next flow whose alarm is due by `now`.
    pub fn poll_alarm(&mut self, now: Instant) -> Option<usize> {
        let &(_, key) = self.alarms.first().filter(|(at, _)| *at <= now)?;
        self.alarms.pop_first();
        self.at(key).times.alarm = None;
        Some(key)
    }

    /// All flows.
    pub fn iter(&self) -> impl Iterator<Item = &Flow> {
        self.slab.iter().map(|(_, flow)| flow)
    }

    /// Keys of the flows that `which` selects.
    pub fn pick(&self, which: impl Fn(&Flow) -> bool) -> Vec<usize> {
        self.slab.iter().filter(|(_, flow)| which(flow)).map(|(key, _)| key).collect()
    }
}

/// Registers an end of flow `key`. A client is registered for reading only, and assumed writable
/// until a write blocks. A server is also registered for writing, because it becomes writable when
/// it is connected.
fn watch(registry: &Arc<Registry>, conn: &mut Conn, key: usize, end: End) -> io::Result<()> {
    let token = token(key, end);
    match end {
        End::Client => conn.register_to_read(registry, token),
        End::Server => conn.register(registry, token),
    }
}

fn token(key: usize, end: End) -> Token {
    Token(2 * key + end as usize)
}

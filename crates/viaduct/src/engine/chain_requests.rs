//! Chain requests: a flow's handlers open further connections and flows, and move connections
//! between flows.
//!
//! ```text
//!   Connect          a further connection of the flow
//!   Claim, Release   a key by which accepted flows find the flow that they belong to
//!   Give             an accepted flow names such a key: its connection is moved to that flow
//!   Wake             the flow that such a key belongs to is woken
//!   Spawn            a further flow: without an application, or for an accepted flow's application
//! ```

use std::io;
use std::net::SocketAddr;

use tracing::debug;
use viaduct_proto::flow::{Address, BottomId, Failure, OutputTransport, Spawn, SpawnKind};
use viaduct_proto::time::Instant;
use viaduct_sys::socket::tcp::TcpOptions;

use super::chain_io::ChainRequest;
use super::conn::Conn;
use super::destination::failure;
use super::flow::{End, Flow};
use super::outbound::{OpenRequest, Outbound as _};
use super::trickles::{Early, TricklesTarget};
use super::worker::Worker;

/// Destination of a connection, and its local address if the handlers name one.
type DialTarget = (Address, Option<SocketAddr>);

impl Worker {
    /// Carries out the requests of flow `key`'s handlers. Afterwards the flow may be part of
    /// another flow.
    pub(super) fn apply_requests(&mut self, key: usize, now: Instant) {
        self.pass_events(key);
        let Some(chain_io) = self.flows.at(key).chain_io() else { return };
        let requests = chain_io.requests();
        // Dropped, and thus closed, if no request uses it.
        let mut spare = self.flows.take_spare(key);
        for request in requests {
            match request {
                ChainRequest::Connect(id, to, from) => {
                    self.connect_net_conn(key, id, (to, from), now);
                }
                ChainRequest::Claim(name) => self.claims.claim(name, key),
                ChainRequest::Release(name) => self.claims.release(&name, key),
                ChainRequest::Give(name) => return self.give(key, &name, now),
                ChainRequest::Wake(name) => self.wake(&name, now),
                ChainRequest::Spawn(spawn) => self.spawn(key, &spawn, spare.take(), now),
            }
        }
    }

    /// Wakes the flow that has claimed `name`, and queues it to be driven.
    pub(super) fn wake(&mut self, name: &[u8], now: Instant) {
        let Some(owner) = self.claims.owner(name) else { return };
        if let Some(chain_io) = self.flows.get(owner).and_then(Flow::chain_io) {
            chain_io.wake(name, now);
            self.runnable.push(owner);
        }
    }

    /// Ends the chain of flow `key`, and wakes other flows that wait for it.
    pub(super) fn abandon(&mut self, key: usize, now: Instant) {
        let Some(chain_io) = self.flows.get(key).and_then(Flow::chain_io) else { return };
        for request in chain_io.abandon(now) {
            if let ChainRequest::Wake(name) = request {
                self.wake(&name, now);
            }
        }
    }

    /// Creates a flow that the handlers of flow `key` request. Uses the connection `spare` if its
    /// destination is the new flow's.
    fn spawn(&mut self, key: usize, spawn: &Spawn, spare: Option<(Address, Conn)>, now: Instant) {
        let Some(chain_io) = self.flows.at(key).chain_io() else { return };
        let made = chain_io.spawned(spawn, now);
        if spawn.kind == SpawnKind::Accepted {
            chain_io.be_alone();
        }
        let listening = self.programs.listening(key).filter(|_| spawn.kind == SpawnKind::Accepted);
        let program = listening.and_then(|program| program.for_another_flow());
        // A flow for an application serves the same application as flow `key`.
        let made = made.filter(|_| spawn.kind == SpawnKind::Alone || program.is_some());
        let flow = made.and_then(|(chain_io, goal)| {
            let network = match goal {
                None => Conn::Pending,
                Some((to, None)) if spare.as_ref().is_some_and(|(there, _)| *there == to) => {
                    spare.map(|(_, conn)| conn)?
                }
                Some(target) => self
                    .dial(key, None, target, now)
                    .inspect_err(|error| debug!("cannot open a shared connection: {error}"))
                    .ok()?,
            };
            Some(Flow::spawned(network, chain_io, self.flows.at(key), now))
        });
        let Some(new) = flow.and_then(|flow| self.flows.insert(flow)) else {
            if let Some(chain_io) = self.flows.at(key).chain_io() {
                chain_io.unspawned(spawn, now);
                self.runnable.push(key);
            }
            return;
        };
        if let (SpawnKind::Accepted, Some(program)) = (spawn.kind, program) {
            self.programs.set_listening(new, program);
        }
        // The new flow's claims must be known before any of its connections is used.
        self.apply_requests(new, now);
        self.runnable.push(new);
    }

    fn connect_net_conn(&mut self, key: usize, id: BottomId, target: DialTarget, now: Instant) {
        let begun = self.dial(key, Some(id), target, now).and_then(|mut conn| {
            self.flows.watch_net_conn(&mut conn, key, id)?;
            Ok(conn)
        });
        let Some(chain_io) = self.flows.at(key).chain_io() else { return };
        match begun {
            Ok(conn) => chain_io.attach(id, conn),
            Err(error) => {
                debug!("cannot open a further connection: {error}");
                chain_io.cannot_attach(id, failure(&error), now);
            }
        }
        self.runnable.push(key);
    }

    /// Begins a further connection of flow `key`. In a proxy that keeps clients' addresses, a
    /// connection to the client's own destination gets the local address that the handlers name; if
    /// they name none, it gets the client's address. A connection to another destination gets the
    /// proxy's own address.
    fn dial(
        &mut self,
        key: usize,
        id: Option<BottomId>,
        (to, bound): DialTarget,
        now: Instant,
    ) -> io::Result<Conn> {
        let flow = self.flows.at(key);
        let from = match self.config.target.keeps_clients() {
            true => flow.from(&to).map(|from| bound.unwrap_or(from)),
            false => bound,
        };
        let (mut mirrored, mut transport) = (flow.mirrored, None);
        if let (Some(id), Some(chain_io)) = (id, flow.chain_io()) {
            chain_io.mirror(mirrored, now);
            (mirrored, transport) = (chain_io.options(id), chain_io.transport(id));
        }
        let options = TcpOptions { mirrored, ..self.config.options };
        let request = OpenRequest { from, ..OpenRequest::new(to, flow.source(), options) };
        let opened = match transport {
            Some(OutputTransport::Trickles) => {
                let target = flow.outbound().trickles().unwrap_or_default();
                let target = TricklesTarget { early: Early::Never, ..target };
                self.upstream.trickles.outlet(target).open(&request, now)?
            }
            _ => self.upstream.outbounds.further()?.open(&request, now)?,
        };
        Ok(opened.conn)
    }

    /// Moves the connection of flow `key` to the flow that has claimed `name`.
    fn give(&mut self, key: usize, name: &[u8], now: Instant) {
        let owner = self.claims.owner(name).filter(|owner| *owner != key);
        let Some(owner) = owner.filter(|owner| self.flows.get(*owner).is_some()) else {
            if let Some(chain_io) = self.flows.at(key).chain_io() {
                chain_io.unclaimed(now);
                self.runnable.push(key);
            }
            return;
        };
        self.programs.take_listening(key);
        self.programs.aware.forget(key, None);
        let Some((giver, main)) = self.flows.remove(key).and_then(Flow::into_chain) else {
            return;
        };
        let Some(chain_io) = self.flows.at(owner).chain_io() else { return };
        // Connections that the owner's chain does not take are closed when dropped.
        let taken = chain_io.take(giver, main, now).unwrap_or_default();
        for id in taken {
            if let Err(error) = self.flows.rewatch_net_conn(owner, id) {
                debug!("cannot take over a connection: {error}");
                if let Some(chain_io) = self.flows.at(owner).chain_io() {
                    chain_io.cannot_attach(id, Failure::Unreachable, now);
                }
            }
        }
        // The owner is driven before any other chain, so that its claims are up to date before
        // another connection is given away.
        self.drive(owner, End::Client, false, false, now);
    }
}

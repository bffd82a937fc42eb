//! Test driver: two hosts with a chain each and a network between them, in virtual time.
//!
//! ```text
//!   host 0: application ─ chain ─ bottoms ══ connections ══ bottoms ─ chain ─ application: host 1
//! ```
//!
//! Host 1 accepts all connections of host 0, each in a chain of its own. The driver also serves
//! the chains' claims and transfers.

mod end;
mod wire;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::Shell;
use crate::flow::{Action, Address, BottomId, Chain, Factory, Failure, Half, HandlerSpec, Spawn};
use crate::keys::SecretKey;
use crate::rng::Rng;
use crate::time::{Duration, Instant};

pub(crate) use end::End;
pub(crate) use wire::{Item, Wire};

pub(crate) const LIMIT: usize = 4_096;

/// Shell with files `N.key`, each with a key, and a file `word` with a password.
pub(crate) fn shell() -> Shell {
    let rng = Mutex::new(Rng::from_seed(7));
    Shell {
        files: Arc::new(|name| match name.strip_suffix(".key").map(str::parse) {
            Some(Ok(n)) => Ok(SecretKey::from_bytes([n; 32]).to_text()),
            _ if name == "word" => Ok("secret\n".to_owned()),
            _ => Err("there is no such file".to_owned()),
        }),
        entropy: Arc::new(move |out: &mut [u8]| rng.lock().unwrap().fill(out)),
        overlays: Arc::new(|_| Arc::new(|| None)),
    }
}

/// End of a connection: host, chain, bottom.
pub(crate) type Seat = (usize, usize, BottomId);

/// Connection: its two ends, and the data in flight from each.
pub(crate) struct Connection {
    pub(crate) seats: [Option<Seat>; 2],
    pub(crate) wires: [Wire; 2],
}

/// Hosts and network.
pub(crate) struct Net {
    pub(crate) now: Instant,
    pub(crate) ends: [Vec<End>; 2],
    factories: [Arc<[Arc<dyn Factory>]>; 2],
    claims: [BTreeMap<Vec<u8>, usize>; 2],
    pub(crate) connections: Vec<Connection>,
    pub(crate) delay: Duration,
    /// True if connections are established; otherwise they get no answer.
    pub(crate) is_up: bool,
    /// True if requests for spawned chains are granted.
    pub(crate) spawns: bool,
    /// Maximum bytes of one piece.
    pub(crate) cut: usize,
    /// Bytes that the connecting end has sent on each connection, for replays.
    pub(crate) heard: Vec<Vec<u8>>,
    pub(crate) said: Vec<String>,
}

pub(crate) fn factories(chain: &[&str], shell: &Shell) -> Arc<[Arc<dyn Factory>]> {
    let specs: Vec<HandlerSpec> = chain.iter().map(|text| text.parse().unwrap()).collect();
    super::registry(shell).chain(&specs).unwrap()
}

impl Net {
    /// Two hosts with a chain each, and no flow yet.
    pub(crate) fn new(client: &[&str], server: &[&str]) -> Net {
        let shell = shell();
        Net::of(factories(client, &shell), factories(server, &shell))
    }

    /// Two hosts with the chains of these factories.
    pub(crate) fn of(client: Arc<[Arc<dyn Factory>]>, server: Arc<[Arc<dyn Factory>]>) -> Net {
        Net {
            now: Instant::ZERO,
            ends: Default::default(),
            factories: [client, server],
            claims: Default::default(),
            connections: Vec::new(),
            delay: Duration::from_millis(5),
            is_up: true,
            spawns: true,
            cut: usize::MAX,
            heard: Vec::new(),
            said: Vec::new(),
        }
    }

    /// Two hosts with the same chain, and a flow.
    pub(crate) fn joined(chain: &[&str]) -> Net {
        let mut net = Net::new(chain, chain);
        net.connect();
        net
    }

    /// Opens a flow at host 0; returns its number.
    pub(crate) fn connect(&mut self) -> usize {
        let at = self.begin(0);
        self.ends[0][at].chain.connect(self.now, peer());
        self.settle();
        at
    }

    /// Opens a flow at host 0 from `own`; returns its number.
    pub(crate) fn connect_from(&mut self, own: Address) -> usize {
        let at = self.begin(0);
        self.ends[0][at].chain.bind(self.now, own);
        self.ends[0][at].chain.connect(self.now, peer());
        self.settle();
        at
    }

    fn begin(&mut self, host: usize) -> usize {
        let chain = Chain::new(self.factories[host].clone(), LIMIT, self.now);
        self.ends[host].push(End::new(chain, host == 0));
        self.ends[host].len() - 1
    }

    /// End of the first flow at `host`; at host 1, the first that was accepted.
    pub(crate) fn end(&mut self, host: usize) -> &mut End {
        let mut ends = self.ends[host].iter_mut();
        ends.find(|end| end.is_there).expect("a flow is there")
    }

    pub(crate) fn write(&mut self, host: usize, count: usize) {
        let now = self.now;
        self.end(host).write(now, count);
        self.settle();
    }

    pub(crate) fn shutdown(&mut self, host: usize) {
        let now = self.now;
        self.end(host).chain.shutdown(now, Half::Write);
        self.settle();
    }

    pub(crate) fn close(&mut self, host: usize) {
        let now = self.now;
        self.end(host).chain.close(now);
        self.settle();
    }

    /// Breaks all connections. If `heard`, both ends are notified.
    pub(crate) fn cut_all(&mut self, heard: bool) {
        (0..self.connections.len()).for_each(|at| self.cut_one(at, heard));
    }

    pub(crate) fn cut_one(&mut self, at: usize, heard: bool) {
        self.connections[at].wires.iter_mut().for_each(Wire::cut);
        if heard {
            let seats = std::mem::take(&mut self.connections[at].seats);
            for (host, chain, bottom) in seats.into_iter().flatten() {
                self.ends[host][chain].chain.failed(self.now, bottom, Failure::Reset);
            }
        }
        self.settle();
    }

    /// Makes the accepting host forget all claims.
    pub(crate) fn forget(&mut self) {
        self.claims[1].clear();
    }

    /// Flips a bit of the data in flight from `host` on the first connection.
    pub(crate) fn flip(&mut self, host: usize, nth: usize, bit: u8) -> bool {
        self.connections[0].wires[host].flip(nth, bit)
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while let Some(at) = self.next().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            for end in self.ends.iter_mut().flatten() {
                end.chain.handle_timeout(self.now);
            }
            self.settle();
        }
        self.now = end;
    }

    fn next(&self) -> Option<Instant> {
        let timers = self.ends.iter().flatten().filter_map(|end| end.chain.poll_timeout());
        let arrivals = (0..self.connections.len())
            .flat_map(|at| [0, 1].into_iter().filter_map(move |from| self.arrival(at, from)));
        timers.chain(arrivals).min()
    }

    /// Arrival time of the next item on a wire, if it may be delivered.
    fn arrival(&self, at: usize, from: usize) -> Option<Instant> {
        let (host, chain, bottom) = self.connections[at].seats[1 - from]?;
        let waits = self.ends[host][chain].paused.contains(&bottom);
        self.connections[at].wires[from].next(waits)
    }

    /// Runs everything that can happen now.
    pub(crate) fn settle(&mut self) {
        loop {
            let mut moved = false;
            for host in [0, 1] {
                for chain in 0..self.ends[host].len() {
                    moved |= self.act(host, chain);
                    moved |= self.ends[host][chain].consume(self.now);
                }
            }
            for at in 0..self.connections.len() {
                moved |= self.carry(at, 0) | self.carry(at, 1);
            }
            if !moved {
                break;
            }
        }
    }

    fn act(&mut self, host: usize, chain: usize) -> bool {
        let mut acted = false;
        while let Some(action) = self.ends[host][chain].chain.poll_action() {
            acted = true;
            match action {
                Action::Connect(bottom, _) => self.dial((host, chain, bottom)),
                Action::Shutdown(bottom, Half::Write) => self.put((host, chain, bottom), Item::Fin),
                Action::Close(bottom) => {
                    self.put((host, chain, bottom), Item::Fin);
                    self.leave((host, chain, bottom));
                }
                Action::Claim(key) => _ = self.claims[host].insert(key, chain),
                Action::Release(key) => _ = self.claims[host].remove(&key),
                Action::Give(key) => self.give(host, chain, &key),
                Action::Wake(key) => {
                    if let Some(&to) = self.claims[host].get(&key) {
                        self.ends[host][to].chain.wake(&key, self.now);
                    }
                }
                Action::Spawn(spawn) => self.spawn(host, chain, &spawn),
                Action::Say(line) => self.said.push(line),
                other => self.ends[host][chain].note(other),
            }
        }
        acted
    }

    fn spawn(&mut self, host: usize, parent: usize, spawn: &Spawn) {
        let parent = &mut self.ends[host][parent].chain;
        match self.spawns {
            true => {
                let chain = Chain::spawned(parent, spawn, self.now);
                self.ends[host].push(End::new(chain, false));
            }
            false => parent.unspawned(spawn, self.now),
        }
    }

    fn dial(&mut self, seat: Seat) {
        let mut wires = [Wire::default(), Wire::default()];
        let mut seats = [Some(seat), None];
        if self.is_up {
            wires[1].put(self.now + self.delay * 2, Item::Connected);
            let chain = self.begin(1);
            let bottom = self.ends[1][chain].chain.bottom().unwrap();
            self.ends[1][chain].chain.set_names(bottom, peer(), own());
            seats[1] = Some((1, chain, bottom));
            wires[0].put(self.now + self.delay, Item::Accepted);
        } else {
            wires.iter_mut().for_each(Wire::cut);
        }
        self.connections.push(Connection { seats, wires });
        self.heard.push(Vec::new());
    }

    fn at(&self, seat: Seat) -> Option<(usize, usize)> {
        let found = |side: usize| self.connections.iter().position(|c| c.seats[side] == Some(seat));
        [0, 1].into_iter().find_map(|side| Some((found(side)?, side)))
    }

    fn put(&mut self, seat: Seat, item: Item) {
        if let Some((at, side)) = self.at(seat) {
            self.connections[at].wires[side].put(self.now + self.delay, item);
        }
    }

    fn leave(&mut self, seat: Seat) {
        if let Some((at, side)) = self.at(seat) {
            self.connections[at].seats[side] = None;
        }
    }

    /// Transfers data from one side, as far as the wire and the other side allow.
    fn carry(&mut self, at: usize, from: usize) -> bool {
        let mut moved = false;
        if let Some((host, chain, bottom)) = self.connections[at].seats[from] {
            let end = &mut self.ends[host][chain];
            let room = self.connections[at].wires[from].room();
            let bytes = end.outgoing(bottom, room);
            if !bytes.is_empty() && end.connected.contains(&bottom) {
                end.chain.sent(self.now, bottom, bytes.len());
                if from == 0 {
                    self.heard[at].extend(&bytes);
                }
                for piece in bytes.chunks(self.cut) {
                    let item = Item::Data(piece.to_vec().into());
                    self.connections[at].wires[from].put(self.now + self.delay, item);
                }
                moved = true;
            }
        }
        while self.arrival(at, from).is_some_and(|when| when <= self.now) {
            self.arrive(at, from);
            moved = true;
        }
        moved
    }

    fn arrive(&mut self, at: usize, from: usize) {
        let (Some(item), Some(seat)) =
            (self.connections[at].wires[from].pop(), self.connections[at].seats[1 - from])
        else {
            return;
        };
        let (host, chain, bottom) = seat;
        let (now, end) = (self.now, &mut self.ends[host][chain]);
        match item {
            Item::Connected => {
                end.connected.push(bottom);
                end.chain.set_names(bottom, own(), peer());
                end.chain.connected(now, bottom, Ok(()));
            }
            Item::Accepted => {
                end.connected.push(bottom);
                end.chain.accepted(now);
            }
            Item::Data(data) => _ = end.chain.avail(now, bottom, data),
            Item::Fin => end.chain.finished(now, bottom),
        }
        self.act(host, chain);
    }

    /// Hands a chain's connections to the chain that has claimed the key.
    fn give(&mut self, host: usize, from: usize, key: &[u8]) {
        let Some(&to) = self.claims[host].get(key) else {
            return self.ends[host][from].chain.unclaimed(self.now);
        };
        let empty = Chain::new(Arc::new([]), LIMIT, self.now);
        let giver = std::mem::replace(&mut self.ends[host][from].chain, empty);
        let moved = self.ends[host][to].chain.take(self.now, giver);
        let moved = moved.expect("a chain takes what it has claimed");
        for (old, new) in moved {
            // A flow on a shared connection has no connection of its own.
            let Some((at, side)) = self.at((host, from, old)) else { continue };
            self.connections[at].seats[side] = Some((host, to, new));
            self.ends[host][to].connected.push(new);
        }
        // Registers the claims of the transferred handlers.
        self.act(host, to);
    }

    /// Asserts that the first flow's applications have received all data.
    pub(crate) fn assert_whole(&mut self) {
        let written = [self.end(0).written.made, self.end(1).written.made];
        let read = [self.end(1).read.got, self.end(0).read.got];
        assert_eq!(read, written, "{:?}", self.said);
    }
}

fn own() -> Address {
    Address::Ip(([192, 0, 2, 1], 40_000).into())
}

fn peer() -> Address {
    Address::Ip(([192, 0, 2, 2], 80).into())
}

//! Node of the overlay: dispatches messages to the state machines of its peers, and chooses the
//! routes.

use std::collections::VecDeque;
use std::net::SocketAddr;

use ipnet::IpNet;

use super::MAX_PEERS;
use super::choice::{Choice, Policy, Score};
use super::health::state_of;
use super::prober::{Prober, State as PathState, Timing};
use super::seal::{Keys, Window};
use super::stats::Stats;
use super::table::{NodeEntry, OverlayRoute, PathQuality, Table};
use super::wire::{Id, Kind, Message, Path};
use crate::health::State;
use crate::keys::{self, Entropy, PublicKey, SecretKey};
use crate::time::Instant;

/// Configuration of a node and its peers.
#[derive(Clone)]
pub struct Config {
    /// Name of the node.
    pub name: String,
    /// Secret key of the node.
    pub key: SecretKey,
    /// Addresses that are reached through the node.
    pub serves: Vec<IpNet>,
    /// Other nodes.
    pub peers: Vec<Peer>,
    /// Criterion by which routes are compared.
    pub policy: Policy,
    /// Schedule of the probes.
    pub timing: Timing,
}

/// Configuration of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Local name of the peer.
    pub name: String,
    /// Public key of the peer.
    pub key: PublicKey,
    /// Address of its SOCKS5 server, if flows may go through the peer.
    pub socks: Option<SocketAddr>,
    /// Address of its proxy, if this host's proxies may use it as a hop.
    pub hop: Option<SocketAddr>,
    /// Addresses that are reached through the peer.
    pub serves: Vec<IpNet>,
}

/// Reason why a configuration is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// More peers than fit into a message.
    #[error("{0} peers are too many: the maximum is {MAX_PEERS}")]
    TooMany(usize),
    /// Two peers have the same name or key, or a peer has the node's own. Keys count as the same if
    /// their first four bytes are equal, because these bytes identify a node in messages.
    #[error("peer {0}: the name or the key is used twice; each node needs its own")]
    Twice(String),
    /// An invalid public key.
    #[error("peer {0}: its key is invalid; `viaduct key show` prints the right one")]
    Key(String),
}

struct Known {
    peer: Peer,
    id: Id,
    keys: Keys,
    prober: Prober,
    /// Number of the next message to the peer.
    number: u64,
    /// Arrival time of the peer's last probe.
    called: Option<Instant>,
    /// Incarnation of the peer that answered a probe; `window` has the numbers of this
    /// incarnation's messages.
    boot: Option<u64>,
    window: Window,
    /// Number of the peer's latest message with paths, and these paths.
    told: (u64, Vec<Path>),
    choice: Choice,
    routes: Vec<OverlayRoute>,
}

/// Node of the overlay.
pub struct Node {
    config: Config,
    id: Id,
    boot: u64,
    peers: Vec<Known>,
    entropy: Entropy,
    out: VecDeque<(usize, Vec<u8>)>,
    version: u64,
    stats: Stats,
}

impl Node {
    /// Creates a node that knows nothing of its peers yet. `entropy` must be random enough for
    /// keys. Errors: two peers have the same name or key, there are too many peers, or a key is
    /// invalid.
    pub fn new(config: Config, entropy: Entropy, now: Instant) -> Result<Node, ConfigError> {
        if config.peers.len() > MAX_PEERS {
            return Err(ConfigError::TooMany(config.peers.len()));
        }
        let id = id(&config.key.public());
        let mut peers: Vec<Known> = Vec::new();
        for peer in &config.peers {
            let same =
                |known: &Known| known.peer.name == peer.name || known.id == self::id(&peer.key);
            if peers.iter().any(same) || peer.name == config.name || self::id(&peer.key) == id {
                return Err(ConfigError::Twice(peer.name.clone()));
            }
            let keys = Keys::new(&config.key, &peer.key);
            let keys = keys.ok_or_else(|| ConfigError::Key(peer.name.clone()))?;
            peers.push(Known::new(peer.clone(), keys, Prober::new(config.timing, now)));
        }
        let boot = random(&entropy);
        let (out, stats) = (VecDeque::new(), Stats::default());
        Ok(Node { config, id, boot, peers, entropy, out, version: 1, stats })
    }

    /// Adopts `config`. If the node's key and the timing stay the same, peers that are in both
    /// configurations keep their state, except the chosen routes. Errors: those of [`Node::new`];
    /// the node is then unchanged.
    pub fn reload(&mut self, config: Config, now: Instant) -> Result<(), ConfigError> {
        let alike = self.config.timing == config.timing && self.config.key == config.key;
        let mut new = Node::new(config, self.entropy.clone(), now)?;
        for known in new.peers.iter_mut().filter(|_| alike) {
            let is_same = |old: &Known| old.peer.key == known.peer.key;
            if let Some(at) = self.peers.iter().position(is_same) {
                let old = self.peers.swap_remove(at);
                let peer = std::mem::replace(&mut known.peer, old.peer.clone());
                *known = Known { peer, choice: Choice::default(), ..old };
            }
        }
        (new.boot, new.stats, new.version) = (self.boot, self.stats, self.version + 1);
        if !alike {
            // Message numbers start again, so the node counts as a new incarnation.
            new.boot = random(&new.entropy);
        }
        *self = new;
        self.choose(now);
        Ok(())
    }

    /// Processes a datagram from any source.
    pub fn handle_datagram(&mut self, now: Instant, datagram: &[u8]) {
        let Some((message, _)) = Message::parse(datagram) else {
            self.stats.malformed += 1;
            return;
        };
        let Some(at) = self.peers.iter().position(|peer| peer.id == message.from) else {
            self.stats.strangers += 1;
            return;
        };
        if !self.peers[at].keys.is_theirs(datagram) {
            self.stats.forged += 1;
            return;
        }
        match message.kind {
            Kind::Probe => self.probed(now, at, message),
            Kind::Answer => self.answered(now, at, message),
        }
    }

    fn probed(&mut self, now: Instant, at: usize, message: Message) {
        let peer = &mut self.peers[at];
        let known = peer.boot == Some(message.boot);
        if known && !peer.window.admit(message.number) {
            self.stats.replayed += 1;
            return;
        }
        self.stats.answers += 1;
        peer.called = Some(now);
        // If this incarnation of the peer has not answered a probe, the message may be a replay,
        // and its paths are ignored.
        if known {
            peer.tell(message.number, message.paths);
            self.choose(now);
        }
        self.send(at, Kind::Answer, message.nonce);
    }

    fn answered(&mut self, now: Instant, at: usize, message: Message) {
        let peer = &mut self.peers[at];
        let Some(rises) = peer.prober.answered(now, message.nonce) else {
            self.stats.replayed += 1;
            return;
        };
        self.stats.answered += 1;
        if peer.boot.replace(message.boot) != Some(message.boot) {
            // The earlier paths may be those of another incarnation.
            (peer.window, peer.told) = (Window::after(message.number), (0, Vec::new()));
            peer.tell(message.number, message.paths);
        } else if peer.window.admit(message.number) {
            peer.tell(message.number, message.paths);
        }
        if rises {
            self.news();
        }
        self.choose(now);
    }

    /// Next datagram to send, with the index of the peer in the config.
    pub fn poll_transmit(&mut self) -> Option<(usize, Vec<u8>)> {
        self.out.pop_front()
    }

    /// Time at which [`Node::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.peers.iter().map(|peer| peer.prober.deadline()).min()
    }

    /// Runs the timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let mut failures = 0;
        for peer in &mut self.peers {
            failures += u64::from(peer.prober.look(now));
        }
        if failures > 0 {
            self.stats.failures += failures;
            self.news();
            self.choose(now);
        }
        for at in 0..self.peers.len() {
            let (nonce, early) = (random(&self.entropy), random(&self.entropy) as f64);
            if self.peers[at].prober.probes(now, nonce, early / u64::MAX as f64) {
                self.stats.probes += 1;
                self.send(at, Kind::Probe, nonce);
            }
        }
    }

    /// Reports a change of a path's state to all peers, without waiting for the next probe.
    fn news(&mut self) {
        self.version += 1;
        self.peers.iter_mut().for_each(|peer| peer.prober.hurry());
    }

    fn send(&mut self, to: usize, kind: Kind, nonce: u64) {
        let paths = self.peers.iter().filter(|peer| peer.prober.state != PathState::New);
        let paths = paths.map(Known::path).collect();
        let peer = &mut self.peers[to];
        let number = peer.number;
        peer.number += 1;
        let message = Message { kind, from: self.id, boot: self.boot, number, nonce, paths };
        let mut datagram = Vec::new();
        message.emit(&mut datagram);
        peer.keys.seal(&mut datagram);
        self.out.push_back((to, datagram));
    }

    fn choose(&mut self, now: Instant) {
        let mut changes = 0;
        for to in 0..self.peers.len() {
            let mut routes = self.routes(to);
            let peer = &mut self.peers[to];
            let rule = (self.config.policy, self.config.timing.interval);
            changes += u64::from(peer.choice.pick(now, rule, &mut routes));
            let chosen = peer.choice.route;
            let mut order: Vec<OverlayRoute> = routes.into_iter().map(|(route, _)| route).collect();
            order.sort_by_key(|route| *route != chosen);
            if peer.routes != order {
                self.version += u64::from(peer.routes.first() != order.first());
                peer.routes = order;
            }
        }
        self.stats.changes += changes;
    }

    fn routes(&self, to: usize) -> Vec<(OverlayRoute, Score)> {
        let target = &self.peers[to];
        let direct = score(&target.path()).map(|score| (OverlayRoute::Direct, score));
        let by = self.peers.iter().enumerate().filter_map(|(n, node)| {
            let onward = node.told.1.iter().find(|path| path.to == target.id)?;
            node.peer.socks.filter(|_| n != to)?;
            Some((OverlayRoute::By(n), score(&node.path())?.then(score(onward)?)))
        });
        direct.into_iter().chain(by).collect()
    }

    /// Version of the table: rises when a route or the state of a path has changed.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Counters of the node.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// States of the peers, in their order.
    pub fn states(&self, now: Instant) -> Vec<State> {
        let by = |peer: &Known| match peer.routes.first() {
            Some(OverlayRoute::By(n)) => self.peers.get(*n).map(|node| node.peer.name.as_str()),
            _ => None,
        };
        self.peers.iter().map(|peer| state_of(now, &peer.prober, peer.called, by(peer))).collect()
    }

    /// Current table of the node, without the states of its peers.
    pub fn table(&self) -> Table {
        let number = |id: Id| self.peers.iter().position(|peer| peer.id == id);
        let others = |peer: &Known| {
            let told = peer.told.1.iter();
            told.filter_map(|path| Some((number(path.to)?, seen(path, PathState::Up)))).collect()
        };
        let place = |peer: &Known| NodeEntry {
            name: peer.peer.name.clone(),
            socks: peer.peer.socks,
            hop: peer.peer.hop,
            serves: peer.peer.serves.clone(),
            path: seen(&peer.path(), peer.prober.state),
            others: others(peer),
            routes: peer.routes.clone(),
        };
        Table {
            overlay: self.config.name.clone(),
            policy: self.config.policy,
            version: self.version,
            serves: self.config.serves.clone(),
            nodes: self.peers.iter().map(place).collect(),
            states: Vec::new(),
            stats: self.stats,
        }
    }
}

impl Known {
    fn new(peer: Peer, keys: Keys, prober: Prober) -> Known {
        Known {
            id: id(&peer.key),
            peer,
            keys,
            prober,
            number: 0,
            called: None,
            boot: None,
            window: Window::default(),
            told: (0, Vec::new()),
            choice: Choice::default(),
            routes: Vec::new(),
        }
    }

    /// Stores the peer's paths from message `number`, unless those of a later message are stored.
    fn tell(&mut self, number: u64, paths: Vec<Path>) {
        if number >= self.told.0 {
            self.told = (number, paths);
        }
    }

    fn path(&self) -> Path {
        let is_up = self.prober.state == PathState::Up;
        let rtt = self.prober.rtt.filter(|_| is_up);
        Path { to: self.id, rtt, loss: self.prober.loss() }
    }
}

/// Score of a path; `None` if it is not up.
fn score(path: &Path) -> Option<Score> {
    Some(Score { rtt: path.rtt?, loss: path.loss })
}

fn seen(path: &Path, state: PathState) -> PathQuality {
    let up = (state != PathState::New).then_some(path.rtt.is_some());
    let rtt_ms = path.rtt.map_or(0.0, |rtt| rtt.as_secs_f64() * 1e3);
    PathQuality { up, rtt_ms, loss: path.loss }
}

fn id(key: &PublicKey) -> Id {
    let [a, b, c, d, ..] = *key.as_bytes();
    Id::from_be_bytes([a, b, c, d])
}

fn random(entropy: &Entropy) -> u64 {
    u64::from_be_bytes(keys::random(entropy))
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("name", &self.config.name).finish_non_exhaustive()
    }
}

//! Datagrams on their way through a chain. A handler of streams holds bytes and hands them on; of a
//! datagram a handler says when it goes on, and whoever drives this keeps it until then, unaltered.
//!
//! ```text
//!   handle_datagram(now, ends, way, bytes, tag)
//!       │ out:  handler ─ when ─▶ handler ─ when ─▶ …      back: the other way round
//!       │       └ none: there is no room, it is dropped
//!       ▼
//!   waiting, by the time at which each goes on ──▶ poll_ready(now) -> tag
//! ```
//!
//! Each pair of ends has handlers of its own, as a flow has (TESLA, 3.2). Datagrams of one pair keep
//! their order. Pairs that have been silent for long are forgotten; so is the one that was silent
//! longest when there are too many, which then may lose its order, as datagrams may.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use super::registry::Factory;
use crate::time::{Duration, Instant};

/// Which way a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the program.
    Out,
    /// To the program.
    Back,
}

/// What a handler does to the datagrams between two ends.
pub trait Datagrams {
    /// One of `bytes` bytes comes at `now`: when it goes on, which is not before those that came the
    /// same way earlier; `None` if there is no room for it. `now` never goes backwards for one way.
    fn pass(&mut self, now: Instant, way: Way, bytes: usize) -> Option<Instant>;
}

/// Between whom datagrams travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The program's end.
    pub own: SocketAddr,
    /// The other.
    pub peer: SocketAddr,
}

/// What keeps a passage within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Pairs of ends that are known at once.
    pub pairs: usize,
    /// How long a pair may be silent before it is forgotten.
    pub idle: Duration,
}

/// What has passed, and what has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassageStats {
    /// Datagrams that were let on, out and back.
    pub passed: [u64; 2],
    /// The bytes that they carried.
    pub bytes: [u64; 2],
    /// Those that found no room.
    pub dropped: [u64; 2],
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It waits; [`Passage::poll_ready`] says when its time has come.
    Waits {
        /// It is the first between its ends.
        begins: bool,
    },
    /// There is no room for it.
    Dropped,
}

/// A chain for datagrams.
pub struct Passage {
    factories: Arc<[Arc<dyn Factory>]>,
    bounds: Bounds,
    pairs: HashMap<Ends, Pair>,
    /// Pairs by when they were used last; the number is each use's own.
    used: BTreeMap<u64, Ends>,
    uses: u64,
    waiting: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    stats: PassageStats,
}

struct Pair {
    handlers: Vec<Box<dyn Datagrams + Send>>,
    used: u64,
    /// When all that has come has gone on.
    until: Instant,
}

impl Passage {
    /// Through the handlers that `factories` make, the program's first; `None` if one of them works on
    /// streams alone.
    pub fn new(factories: Arc<[Arc<dyn Factory>]>, bounds: Bounds) -> Option<Passage> {
        let able = streams_alone(&factories).next().is_none();
        able.then(|| Passage {
            factories,
            bounds,
            pairs: HashMap::new(),
            used: BTreeMap::new(),
            uses: 0,
            waiting: BinaryHeap::new(),
            stats: PassageStats::default(),
        })
    }

    /// Takes a datagram of `bytes` bytes, which the caller keeps and calls `tag`.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        ends: Ends,
        way: Way,
        bytes: usize,
        tag: u32,
    ) -> Taken {
        self.uses += 1;
        let begins = !self.pairs.contains_key(&ends);
        if begins && self.pairs.len() >= self.bounds.pairs.max(1) {
            self.forget_oldest();
        }
        let (uses, factories) = (self.uses, &self.factories);
        let pair = self.pairs.entry(ends).or_insert_with(|| Pair {
            handlers: factories.iter().filter_map(|factory| factory.datagrams()).collect(),
            used: uses,
            until: now,
        });
        self.used.remove(&pair.used);
        self.used.insert(uses, ends);
        pair.used = uses;
        let Some(at) = pair.pass(now, way, bytes) else {
            self.stats.dropped[way as usize] += 1;
            return Taken::Dropped;
        };
        self.stats.passed[way as usize] += 1;
        self.stats.bytes[way as usize] += bytes as u64;
        self.waiting.push(Reverse((at, uses, tag)));
        Taken::Waits { begins }
    }

    /// The next datagram whose time has come.
    pub fn poll_ready(&mut self, now: Instant) -> Option<u32> {
        let Reverse((at, _, tag)) = *self.waiting.peek()?;
        (at <= now).then(|| {
            self.waiting.pop();
            tag
        })
    }

    /// When the next datagram goes on, or a pair is forgotten.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let next = self.waiting.peek().map(|Reverse((at, ..))| *at);
        let oldest = self.used.first_key_value().and_then(|(_, ends)| self.pairs.get(ends));
        let idle = oldest.map(|pair| pair.until + self.bounds.idle);
        next.into_iter().chain(idle).min()
    }

    /// Forgets pairs that have been silent for too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, ends)) = self.used.first_key_value() {
            let silent = |pair: &Pair| pair.until + self.bounds.idle <= now;
            if !self.pairs.get(ends).is_none_or(silent) {
                return;
            }
            self.forget_oldest();
        }
    }

    /// Datagrams that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Pairs of ends that are known.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// What has passed so far.
    pub fn stats(&self) -> PassageStats {
        self.stats
    }

    fn forget_oldest(&mut self) {
        if let Some((_, ends)) = self.used.pop_first() {
            self.pairs.remove(&ends);
        }
    }
}

/// Those handlers of a chain that know nothing of datagrams.
pub fn streams_alone(factories: &[Arc<dyn Factory>]) -> impl Iterator<Item = &'static str> {
    factories.iter().filter(|of| of.datagrams().is_none()).map(|of| of.name())
}

impl Pair {
    fn pass(&mut self, now: Instant, way: Way, bytes: usize) -> Option<Instant> {
        let step = |at, handler: &mut Box<dyn Datagrams + Send>| handler.pass(at, way, bytes);
        let at = match way {
            Way::Out => self.handlers.iter_mut().try_fold(now, step),
            Way::Back => self.handlers.iter_mut().rev().try_fold(now, step),
        };
        // Whoever is silent is silent since then.
        self.until = self.until.max(at.unwrap_or(now));
        at
    }
}

//! Passage of datagrams through a chain. Stream handlers buffer bytes; for a datagram, a handler
//! only decides when the datagram is due, or drops it. The driver keeps the datagram, unaltered,
//! until then.
//!
//! ```text
//!   handle_datagram(now, ends, direction, bytes, tag)
//!       │ out:  handler ─ time ─▶ handler ─ time ─▶ …      back: in reverse order
//!       │       └ none: no room, the datagram is dropped
//!       ▼
//!   waiting, by due time ──▶ poll_ready(now) -> tag
//! ```
//!
//! Each pair of ends has handlers of its own, as a flow has (section 3.2 of the TESLA paper).
//! Datagrams of one pair keep their order. Pairs that have been idle too long are forgotten. If
//! there are too many pairs, the pair that has been idle longest is forgotten too; datagrams of
//! that pair may then be reordered, which UDP permits.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;

use super::registry::Factory;
use crate::time::{Duration, Instant};

/// Direction of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the program.
    Out,
    /// To the program.
    Back,
}

/// Handler for the datagrams between two ends.
pub trait Datagrams {
    /// Handles a datagram of `bytes` bytes that arrives at `now`. Returns its due time, which is
    /// never earlier than that of the previous one in the same direction; `None` if there is no
    /// room. For one direction, `now` never decreases.
    fn pass(&mut self, now: Instant, direction: Direction, bytes: usize) -> Option<Instant>;
}

/// Addresses of the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The program's end.
    pub own: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
}

/// Limits of a passage.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Maximum number of pairs of ends.
    pub pairs: usize,
    /// Idle timeout of a pair.
    pub idle: Duration,
}

/// Counters by direction, out and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassageStats {
    /// Datagrams passed on.
    pub passed: [u64; 2],
    /// Bytes of these datagrams.
    pub bytes: [u64; 2],
    /// Datagrams dropped for lack of room.
    pub dropped: [u64; 2],
}

/// Result of handling a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The datagram waits; [`Passage::poll_ready`] returns its tag when it is due.
    Waits {
        /// True if the pair of ends is new, or had been forgotten.
        begins: bool,
    },
    /// There is no room, and the datagram is dropped.
    Dropped,
}

/// Chain for datagrams.
pub struct Passage {
    factories: Arc<[Arc<dyn Factory>]>,
    bounds: Bounds,
    pairs: HashMap<Ends, Pair>,
    /// Pairs by last use; uses are numbered.
    used: BTreeMap<u64, Ends>,
    uses: u64,
    waiting: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    stats: PassageStats,
}

struct Pair {
    handlers: Vec<Box<dyn Datagrams + Send>>,
    used: u64,
    /// Latest due time of the pair's datagrams, or arrival time of a dropped one, whichever is
    /// later. The idle timeout counts from here.
    until: Instant,
}

impl Passage {
    /// Creates a passage through the handlers of `factories`, the handler next to the program
    /// first; `None` if one of them works only on streams.
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

    /// Handles a datagram of `bytes` bytes, which the caller keeps and identifies by `tag`.
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        ends: Ends,
        direction: Direction,
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
        let Some(at) = pair.pass(now, direction, bytes) else {
            self.stats.dropped[direction as usize] += 1;
            return Taken::Dropped;
        };
        self.stats.passed[direction as usize] += 1;
        self.stats.bytes[direction as usize] += bytes as u64;
        self.waiting.push(Reverse((at, uses, tag)));
        Taken::Waits { begins }
    }

    /// Tag of the next datagram that is due.
    pub fn poll_ready(&mut self, now: Instant) -> Option<u32> {
        let Reverse((at, _, tag)) = *self.waiting.peek()?;
        (at <= now).then(|| {
            self.waiting.pop();
            tag
        })
    }

    /// Time at which the next datagram is due, or a pair is forgotten.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let next = self.waiting.peek().map(|Reverse((at, ..))| *at);
        let oldest = self.used.first_key_value().and_then(|(_, ends)| self.pairs.get(ends));
        let idle = oldest.map(|pair| pair.until + self.bounds.idle);
        next.into_iter().chain(idle).min()
    }

    /// Forgets pairs that have been idle too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, ends)) = self.used.first_key_value() {
            let silent = |pair: &Pair| pair.until + self.bounds.idle <= now;
            if !self.pairs.get(ends).is_none_or(silent) {
                return;
            }
            self.forget_oldest();
        }
    }

    /// Number of datagrams that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of known pairs.
    pub fn pairs(&self) -> usize {
        self.pairs.len()
    }

    /// Counters so far.
    pub fn stats(&self) -> PassageStats {
        self.stats
    }

    fn forget_oldest(&mut self) {
        if let Some((_, ends)) = self.used.pop_first() {
            self.pairs.remove(&ends);
        }
    }
}

/// Names of a chain's handlers that work only on streams.
pub fn streams_alone(factories: &[Arc<dyn Factory>]) -> impl Iterator<Item = &'static str> {
    factories.iter().filter(|of| of.datagrams().is_none()).map(|of| of.name())
}

impl Pair {
    fn pass(&mut self, now: Instant, direction: Direction, bytes: usize) -> Option<Instant> {
        let step = |at, handler: &mut Box<dyn Datagrams + Send>| handler.pass(at, direction, bytes);
        let at = match direction {
            Direction::Out => self.handlers.iter_mut().try_fold(now, step),
            Direction::Back => self.handlers.iter_mut().rev().try_fold(now, step),
        };
        self.until = self.until.max(at.unwrap_or(now));
        at
    }
}

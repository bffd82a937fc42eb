//! Replay window: record of the answered requests, in memory of fixed size (2.2).
//!
//! ```text
//!   floor                                                     now
//!     ├─── slice ───┼─── slice ───┼─── slice ───┼─── slice ───┤
//!     │             each a table of fingerprints, in buckets of a cache line
//!     └ continuations that are older than this are refused without a lookup
//! ```
//!
//! Answers are recorded in the newest slice. A slice ends when its time is over *or when it is
//! full*. Then the oldest slice is emptied and becomes the newest, and the floor rises to the
//! *reach* of the emptied slice: the latest time at which an entry was recorded, or at which the
//! entry's continuation was made. So no request is answered twice. A client whose continuation is
//! older than the floor has to restart, which costs a round trip and at most a slow start. A slice
//! lasts a third of the horizon, so that the three slices before the newest one cover all of it.
//! Under load the horizon becomes shorter, and the memory stays the same. Only answers are
//! recorded, and each requires an authentic continuation. So garbage uses no space, and the number
//! of a client's entries is proportional to the number of packets in its answers.
//!
//! A slice reaches beyond the clock if it has a continuation from a replica whose clock is *ahead*.
//! If the slice were emptied before the clock has reached the continuation's time, either current
//! continuations of this server would also be refused, or the continuation from the replica could
//! be answered twice. So the slice with the earliest reach is emptied, and at most two slices reach
//! beyond the clock at a time. Further continuations that are ahead are refused until the clock has
//! caught up. The other two slices alternate, even if a flood fills them fast.
//!
//! Keys are hashed with a secret of the window, so that an attacker cannot choose a bucket. In each
//! slice a key has two buckets of 16 fingerprints of 32 bits. With four full slices, a new key is
//! mistaken for a known one in fewer than 1 in 30 million lookups, which has the effect of a lost
//! packet.

use highway::{HighwayHash, HighwayHasher, Key};

use crate::time::{Duration, Instant};

const SLICES: usize = 4;
/// Fingerprints in a bucket: one cache line.
const BUCKET: usize = 16;
/// Maximum difference of the clocks of replicas.
pub const SKEW: Duration = Duration::from_millis(500);

/// Operations that are done at most once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Once {
    /// Answering a packet's continuation.
    Answered(u64),
    /// Mark: the request that returned this packet's continuation reported the previous packet
    /// as lost. For the first packet of an epoch, a later request may have done so.
    Lacked(u64),
    /// Retransmission of a lost packet.
    Again(u64),
    /// Sending of a new packet in answer to a survivor, or of a packet in a group.
    Survivor(u64),
    /// Beginning of a generation.
    Begun(u16),
    /// Mark: a generation has ended.
    Over(u16),
    /// Installation of an event with this identifier from another server.
    Installed(u64),
    /// Mark: the epoch with this base has ended, because a loss was reported.
    Ended(u64),
    /// Mark: the epoch with this `base` has ended by the loss `first`.
    EndedBy { base: u64, first: u64 },
    /// Mark: the epoch with this `base` has ended by a loss in this block of packets.
    EndedIn { base: u64, block: u64 },
}

/// The replay window of a server. See the [module](self).
#[derive(Debug)]
pub struct Replay {
    secret: [u64; 4],
    slices: [Vec<[u32; BUCKET]>; SLICES],
    /// Reach of each slice: the latest time at which an entry was recorded, or at which the entry's
    /// continuation was made.
    reach: [Instant; SLICES],
    newest: usize,
    /// Start time of the newest slice.
    began: Instant,
    /// Number of entries in the newest slice.
    noted: usize,
    /// Time at which the continuation that is being answered was made.
    made: Instant,
    /// Continuations made at or before this time are refused.
    floor: Instant,
    /// Maximum period of a slice. The slices other than the newest cover the horizon.
    slice: Duration,
    /// Maximum age of a continuation that may be answered.
    horizon: Duration,
    turned_early: u64,
}

impl Replay {
    /// Creates a window with `bytes` of memory (rounded down to a power of two, but at least 1 KiB)
    /// that covers `horizon`, or less if the memory is full. `secret` is random.
    pub fn new(bytes: usize, horizon: Duration, secret: [u64; 4], now: Instant) -> Self {
        let buckets = (bytes / SLICES / (BUCKET * 4)).max(4);
        let buckets = 1 << buckets.ilog2();
        Replay {
            secret,
            slices: std::array::from_fn(|_| touched(buckets)),
            reach: [Instant::ZERO; SLICES],
            newest: 0,
            began: now,
            noted: 0,
            made: Instant::ZERO,
            floor: now - horizon,
            slice: horizon / (SLICES as u32 - 1),
            horizon,
            turned_early: 0,
        }
    }

    /// Size of the tables in bytes.
    pub fn memory(&self) -> usize {
        SLICES * self.slices[0].len() * BUCKET * 4
    }

    /// Current maximum age of a continuation that may be answered.
    pub fn horizon(&self, now: Instant) -> Duration {
        self.horizon.min(now.since(self.floor))
    }

    /// Number of times that a slice was full before its period ended.
    pub fn turned_early(&self) -> u64 {
        self.turned_early
    }

    /// Returns whether a continuation made at `made` may be answered.
    pub fn is_fresh(&self, now: Instant, made: Instant) -> bool {
        let ahead = made.since(now);
        made > self.floor
            && now.since(made) <= self.horizon
            && (ahead == Duration::ZERO || ahead <= SKEW && self.has_place_ahead(now))
    }

    /// Like [`Replay::is_fresh`]; if true, subsequent entries belong to this continuation.
    pub(super) fn admit(&mut self, now: Instant, made: Instant) -> bool {
        let fresh = self.is_fresh(now, made);
        if fresh {
            self.made = made;
        }
        fresh
    }

    /// Returns whether a continuation ahead of the clock can be recorded such that at most two
    /// slices reach beyond the clock. In normal operation the previous slice still reaches beyond
    /// the clock for a moment after it has ended. Meanwhile the newest slice may take such
    /// continuations only until it is half full, so that it does not overflow into a third slice.
    fn has_place_ahead(&self, now: Instant) -> bool {
        let beyond = |&slice: &usize| slice != self.newest && self.reach[slice] > now;
        match (0..SLICES).filter(beyond).count() {
            0 => true,
            1 => self.noted <= self.slices[self.newest].len() * BUCKET / 2,
            _ => false,
        }
    }

    /// Returns whether `what` was recorded for `connection`.
    pub(super) fn knows(&self, connection: u64, what: Once) -> bool {
        self.holds(self.places(connection, what))
    }

    fn holds(&self, [first, second, print]: [u32; 3]) -> bool {
        self.slices.iter().any(|slice| {
            slice[first as usize].contains(&print) || slice[second as usize].contains(&print)
        })
    }

    /// Records `what` for `connection`. Returns false if it was recorded before.
    pub(super) fn note(&mut self, now: Instant, connection: u64, what: Once) -> bool {
        if now.since(self.began) >= self.slice {
            self.turn(now);
        }
        let places = self.places(connection, what);
        if self.holds(places) {
            return false;
        }
        if !self.put(places) {
            self.turned_early += 1;
            self.turn(now);
            self.put(places);
        }
        self.noted += 1;
        let reach = &mut self.reach[self.newest];
        *reach = (*reach).max(now).max(self.made);
        true
    }

    /// Stores a fingerprint in whichever of its two buckets has more free entries. Returns false if
    /// both are full.
    fn put(&mut self, [first, second, print]: [u32; 3]) -> bool {
        let slice = &mut self.slices[self.newest];
        let free = |bucket: &[u32; BUCKET]| bucket.iter().filter(|&&print| print == 0).count();
        let emptier = if free(&slice[first as usize]) >= free(&slice[second as usize]) {
            first
        } else {
            second
        };
        let place = slice[emptier as usize].iter_mut().find(|print| **print == 0);
        let room = place.is_some();
        place.into_iter().for_each(|place| *place = print);
        room
    }

    /// Empties the slice with the earliest reach, and makes it the newest. This is the oldest
    /// slice, unless the oldest slice has an entry ahead of the clock.
    fn turn(&mut self, now: Instant) {
        let oldest_first = (1..=SLICES).map(|after| (self.newest + after) % SLICES);
        self.newest = oldest_first.min_by_key(|&slice| self.reach[slice]).unwrap_or(self.newest);
        self.floor = self.floor.max(self.reach[self.newest]);
        self.slices[self.newest].fill([0; BUCKET]);
        self.reach[self.newest] = Instant::ZERO;
        (self.began, self.noted) = (now, 0);
    }

    /// Bucket numbers and fingerprint of a key; the fingerprint is not 0.
    fn places(&self, connection: u64, what: Once) -> [u32; 3] {
        let (kind, number) = match what {
            Once::Answered(number) => (0, number),
            Once::Again(number) => (1, number),
            Once::Survivor(number) => (2, number),
            Once::Begun(generation) => (3, generation.into()),
            Once::Over(generation) => (4, generation.into()),
            Once::Installed(code) => (5, code),
            Once::Lacked(number) => (6, number),
            Once::Ended(base) => (7, base),
            Once::EndedBy { base, first } => (8, combine(base, first)),
            Once::EndedIn { base, block } => (9, combine(base, block)),
        };
        let mut hasher = HighwayHasher::new(Key(self.secret));
        hasher.append([connection, number, kind, 0].map(u64::to_le_bytes).as_flattened());
        let [low, high] = hasher.finalize128();
        let mask = self.slices[0].len() as u64 - 1;
        [(low & mask) as u32, (low >> 32 & mask) as u32, (high as u32).max(1)]
    }
}

/// Combines two numbers. A client can choose a loss within its epoch, but not the base.
fn combine(base: u64, other: u64) -> u64 {
    base.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(other)
}

/// An empty table whose pages are allocated immediately. Pages of zeroed memory would be allocated
/// on first use, so the server's memory would seem to grow with its clients.
fn touched(buckets: usize) -> Vec<[u32; BUCKET]> {
    let mut table = vec![[u32::MAX; BUCKET]; buckets];
    table.fill([0; BUCKET]);
    table
}

#[cfg(test)]
mod tests;

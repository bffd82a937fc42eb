//! The replay window: what was answered already, in memory that is fixed once and for all (2.2).
//!
//! ```text
//!   floor                                                     now
//!     ├─── slice ───┼─── slice ───┼─── slice ───┼─── slice ───┤
//!     │             each a table of fingerprints, in buckets of a cache line
//!     └ continuations that are older than this are refused, whatever the tables say
//! ```
//!
//! What is answered enters the newest slice. A slice ends when its time is over *or when it is
//! full*; then the oldest is emptied and becomes the newest, and the floor rises to the *reach* of
//! what was forgotten: the latest time that anything in it was noted at, or that its continuation was
//! made at. So the window is never blind: who comes from below the floor is not
//! answered, but has to restart, which costs a round trip and no more than slow start. Under load
//! the horizon grows shorter, not the memory longer. And only answers enter, which need an
//! authentic continuation each: garbage takes no place, and a client takes as much as it is served.
//!
//! A slice reaches beyond the clock if a replica made one of its continuations whose clock is *ahead*. To forget
//! it before the clock has come there would either refuse what is made meanwhile, here too, or let
//! that continuation be answered twice. So of all slices that one is forgotten which reaches least, and at most
//! two reach beyond the clock at a time: what else is ahead is refused until it has come there. The
//! other two are left to take turns, however fast a flood fills them.
//!
//! Keys are hashed with a secret of the window, so that nobody can choose a bucket. Each has two
//! buckets of 16 fingerprints of 32 bits; a key that was never seen is taken for a seen one in
//! less than 1 of 30 million lookups a slice, which to its client is a lost packet.

use highway::{HighwayHash, HighwayHasher, Key};

use crate::time::{Duration, Instant};

/// How many slices there are.
const SLICES: usize = 4;
/// Fingerprints in a bucket: one cache line.
const BUCKET: usize = 16;
/// So far may the clocks of replicas be apart.
pub const SKEW: Duration = Duration::from_millis(500);

/// What is to happen once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Once {
    /// A packet's continuation is answered.
    Answered(u64),
    /// The request that was answered for this packet's continuation lacked the packet before it.
    Lacked(u64),
    /// A lost packet is sent again.
    Again(u64),
    /// A survivor is brought forth.
    Survivor(u64),
    /// A generation begins.
    Begun(u16),
    /// A generation is over.
    Over(u16),
    /// An event with this code is taken over from another server.
    Installed(u64),
    /// The piece that begins here has ended: a loss was reported.
    Ended(u64),
    /// That was so by this loss.
    EndedBy { base: u64, first: u64 },
}

/// The replay window of a server. See the [module](self).
#[derive(Debug)]
pub struct Replay {
    secret: [u64; 4],
    slices: [Vec<[u32; BUCKET]>; SLICES],
    /// The latest time at which anything in each slice was noted, or its continuation made.
    reach: [Instant; SLICES],
    newest: usize,
    /// When the newest began, and how much is in it.
    began: Instant,
    noted: usize,
    /// When the continuation was made that is being answered.
    made: Instant,
    /// Continuations that were not made after this are refused.
    floor: Instant,
    slice: Duration,
    horizon: Duration,
    turned_early: u64,
}

impl Replay {
    /// A window of `bytes` of memory (at least 1 KiB, rounded down to a power of two buckets a
    /// slice) that remembers `horizon`, or as much of it as there is room for. `secret` is random.
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
            slice: horizon / SLICES as u32,
            horizon,
            turned_early: 0,
        }
    }

    /// Bytes of its tables.
    pub fn memory(&self) -> usize {
        SLICES * self.slices[0].len() * BUCKET * 4
    }

    /// How far back a continuation may have been made to be answered.
    pub fn horizon(&self, now: Instant) -> Duration {
        self.horizon.min(now.since(self.floor))
    }

    /// How often a slice was full before its time.
    pub fn turned_early(&self) -> u64 {
        self.turned_early
    }

    /// Whether a continuation of the time `made` may be answered at all.
    pub fn is_fresh(&self, now: Instant, made: Instant) -> bool {
        let ahead = made.since(now);
        made > self.floor
            && now.since(made) <= self.horizon
            && (ahead == Duration::ZERO || ahead <= SKEW && self.has_place_ahead(now))
    }

    /// The same; and if so, what is noted from now on is done for this continuation.
    pub(super) fn admit(&mut self, now: Instant, made: Instant) -> bool {
        let fresh = self.is_fresh(now, made);
        if fresh {
            self.made = made;
        }
        fresh
    }

    /// Whether what is ahead of the clock can be noted, so that two slices reach beyond the clock at most. Where
    /// all is calm the last one does for a moment after its end; then the newest is not to run over into a
    /// third, for which it has room until it is half full.
    fn has_place_ahead(&self, now: Instant) -> bool {
        let beyond = |&slice: &usize| slice != self.newest && self.reach[slice] > now;
        match (0..SLICES).filter(beyond).count() {
            0 => true,
            1 => self.noted <= self.slices[self.newest].len() * BUCKET / 2,
            _ => false,
        }
    }

    /// Whether this was done already to `connection`.
    pub(super) fn knows(&self, connection: u64, what: Once) -> bool {
        self.holds(self.places(connection, what))
    }

    fn holds(&self, [first, second, print]: [u32; 3]) -> bool {
        self.slices.iter().any(|slice| {
            slice[first as usize].contains(&print) || slice[second as usize].contains(&print)
        })
    }

    /// Notes that this is done to `connection`; false if it was done already.
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

    /// Puts a fingerprint into the emptier of its buckets; false if both are full.
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

    /// Forgets the slice that reaches least, which is the oldest if nothing in it is ahead of the clock. It
    /// becomes the newest.
    fn turn(&mut self, now: Instant) {
        let behind = (1..=SLICES).map(|after| (self.newest + after) % SLICES);
        self.newest = behind.min_by_key(|&slice| self.reach[slice]).unwrap_or(self.newest);
        self.floor = self.floor.max(self.reach[self.newest]);
        self.slices[self.newest].fill([0; BUCKET]);
        self.reach[self.newest] = Instant::ZERO;
        (self.began, self.noted) = (now, 0);
    }

    /// Two buckets and a fingerprint, which is not 0.
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
            // Two numbers of a connection in one, which no client has a choice of.
            Once::EndedBy { base, first } => {
                (8, base.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(first))
            }
        };
        let mut hasher = HighwayHasher::new(Key(self.secret));
        hasher.append([connection, number, kind, 0].map(u64::to_le_bytes).as_flattened());
        let [low, high] = hasher.finalize128();
        let mask = self.slices[0].len() as u64 - 1;
        [(low & mask) as u32, (low >> 32 & mask) as u32, (high as u32).max(1)]
    }
}

/// An empty table whose memory is there already: zeros alone the system would only promise, and a
/// server would seem to grow as its clients come.
fn touched(buckets: usize) -> Vec<[u32; BUCKET]> {
    let mut table = vec![[u32::MAX; BUCKET]; buckets];
    table.fill([0; BUCKET]);
    table
}

#[cfg(test)]
mod tests;

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
//! full*; then the oldest is emptied and becomes the newest, and the floor rises to the end of
//! what was forgotten. So the window is never blind: who comes from below the floor is not
//! answered, but has to restart, which costs a round trip and no more than slow start. Under load
//! the horizon grows shorter, not the memory longer. And only answers enter, which need an
//! authentic continuation each: garbage takes no place, and a client takes as much as it is served.
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
    /// When each slice began; the one at `newest` last.
    began: [Instant; SLICES],
    newest: usize,
    /// Continuations made before this are refused.
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
            began: [now; SLICES],
            newest: 0,
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
        made >= self.floor && now.since(made) <= self.horizon && made.since(now) <= SKEW
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
        if now.since(self.began[self.newest]) >= self.slice {
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

    /// Forgets the oldest slice, which becomes the newest.
    fn turn(&mut self, now: Instant) {
        self.newest = (self.newest + 1) % SLICES;
        // What it held was noted before the slice behind it began, of continuations made before
        // that, or at most the skew later.
        let after = self.began[(self.newest + 1) % SLICES];
        if self.slices[self.newest].iter().any(|bucket| *bucket != [0; BUCKET]) {
            self.floor = self.floor.max(after + SKEW);
        }
        self.slices[self.newest].fill([0; BUCKET]);
        self.began[self.newest] = now;
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
mod tests {
    use super::*;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(1_000_000_000_000 + millis * 1_000_000)
    }

    fn window(bytes: usize) -> Replay {
        Replay::new(bytes, Duration::from_secs(8), [1, 2, 3, 4], at(0))
    }

    #[test]
    fn everything_happens_once() {
        let mut replay = window(1 << 16);
        for number in 0..1_000 {
            assert!(replay.note(at(number), 7, Once::Answered(number)));
        }
        for number in 0..1_000 {
            assert!(!replay.note(at(1_000), 7, Once::Answered(number)));
            assert!(replay.note(at(1_000), 8, Once::Answered(number)));
            assert!(replay.note(at(1_000), 7, Once::Again(number)));
        }
    }

    #[test]
    fn what_is_forgotten_is_too_old_to_be_answered() {
        let mut replay = window(1 << 16);
        for tick in 0..3_000 {
            let now = at(tick * 10);
            assert!(replay.note(now, 1, Once::Answered(tick)));
            // A continuation made at its tick, replayed at any later one.
            for old in (0..tick).step_by(37) {
                let made = at(old * 10);
                let refused = !replay.is_fresh(now, made) || replay.knows(1, Once::Answered(old));
                assert!(refused, "made at {made:?} is answered again at {now:?}");
            }
            let horizon = replay.horizon(now);
            assert!(horizon >= Duration::from_secs(5), "only {horizon:?} at {now:?}");
        }
        assert_eq!(replay.turned_early(), 0);
    }

    #[test]
    fn a_flood_shortens_the_horizon_and_neither_grows_nor_blinds() {
        let mut replay = window(1 << 16);
        let memory = replay.memory();
        assert!(replay.note(at(0), 1, Once::Answered(1)));
        // A million answers within two seconds, in memory for sixteen thousand.
        for number in 0..1_000_000 {
            assert!(replay.note(at(number / 500), 2, Once::Answered(number)) || number == 0);
            let old = number.saturating_sub(5_000);
            assert!(replay.knows(2, Once::Answered(old)), "{old} is forgotten at {number}");
        }
        assert_eq!(replay.memory(), memory);
        assert!(replay.turned_early() > 10);
        assert!(!replay.is_fresh(at(2_000), at(0)), "what the flood pushed out is refused");
        let fill = 1_000_000 / replay.turned_early();
        assert!(fill > 3_000, "a slice of 4,096 places is full with {fill}");
    }

    #[test]
    fn an_idle_window_keeps_its_horizon() {
        let mut replay = window(1 << 12);
        assert!(replay.note(at(100_000), 1, Once::Begun(1)));
        assert!(replay.is_fresh(at(100_000), at(93_000)));
    }
}

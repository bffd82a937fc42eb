//! `shape:rate=2M`: limits the rate in bits a second (section 4.1 of the TESLA paper). Time is
//! divided into slices of 100 ms, and data beyond a slice's share waits for the next slice.
//! Datagrams are paced individually: each leaves when the transmission of the previous one would
//! end at that rate. Datagrams beyond the queue's limit are dropped.

use std::sync::Arc;

use super::backlog::Backlog;
use super::paced::{Pace, Paced};
use super::size;
use crate::flow::datagrams::{Datagrams, Direction};
use crate::flow::{About, Arguments, Factory, Handler, Offload};
use crate::time::{Duration, Instant};
use crate::units::rate;

const SLICE: Duration = Duration::from_millis(100);
const SLICES_A_SECOND: u64 = 10;
/// Maximum number of slices whose shares are granted at once when a timer is late.
const MAX_LATE: u64 = 3;

/// Default limit of queued datagrams: the bytes that pass in this time, but at least [`MIN_HELD`].
const DATAGRAMS_WAIT: Duration = Duration::from_millis(200);
const MIN_HELD: usize = 16 << 10;

struct ShapeFactory {
    /// Rate towards the network in bits a second; `None` is no limit.
    out: Option<u64>,
    /// Rate from the network in bits a second; `None` is no limit.
    back: Option<u64>,
    /// Bytes of datagrams that may wait each way; `None` for the default.
    held: Option<usize>,
}

/// Pacing of datagrams between two ends, in both directions.
struct Spaced([Space; 2]);

/// Pacing of datagrams in one direction.
struct Space {
    rate: Option<u64>,
    /// Time at which the transmission of the previous datagram ends.
    free: Instant,
    waiting: Backlog,
}

/// Budget of the current slice.
struct Share {
    /// Bits a second; `None` is no limit.
    rate: Option<u64>,
    left: usize,
    /// Remainder below one byte, in tenths of a bit: at a low rate, a slice's share may be less
    /// than a byte.
    owed: u64,
    slice: Option<Instant>,
}

pub(super) fn about() -> About {
    About::new("shape", "limits the rate")
        .datagrams()
        .setting("rate", "BITS", "bits a second in each direction, such as 500k, 2M, 1G")
        .setting("out", "BITS", "rate towards the network; overrides rate=")
        .setting("in", "BITS", "rate from the network; overrides rate=")
        .setting(
            "held",
            "BYTES",
            "queue of datagrams each way, beyond which they are dropped; 200ms' worth by \
                default",
        )
}

/// `rate` both ways, or `out` and `in`; `held`: bytes of datagrams that may wait.
pub(super) fn build(arguments: &mut Arguments) -> Result<Arc<dyn Factory>, String> {
    let above_0 = |text: &str| rate(text).filter(|&bits| bits > 0);
    let mut bits = |key| arguments.take(key, "bits a second, such as 2M,", above_0);
    let (both, out, back) = (bits("rate")?, bits("out")?, bits("in")?);
    if both.or(out).or(back).is_none() {
        return Err("a rate is missing, as in shape:rate=2M or shape:out=2M,in=10M".to_owned());
    }
    let held = arguments.take("held", "a size such as 64K", size)?;
    Ok(Arc::new(ShapeFactory { out: out.or(both), back: back.or(both), held }))
}

impl Factory for ShapeFactory {
    fn name(&self) -> &'static str {
        "shape"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        // Any queued byte exceeds the slice's share, so the source is stopped immediately.
        Box::new(Paced::new(Share::new(self.out), Share::new(self.back), 1))
    }

    fn rates(&self) -> [Option<u64>; 2] {
        [self.out, self.back]
    }

    /// The kernel paces only outgoing data.
    fn offload(&self) -> Option<Offload> {
        self.back.is_none().then_some(Offload { rate: self.out })
    }

    fn datagrams(&self) -> Option<Box<dyn Datagrams + Send>> {
        Some(Box::new(Spaced([self.out, self.back].map(|rate| Space::new(rate, self.held)))))
    }
}

impl Datagrams for Spaced {
    fn pass(&mut self, now: Instant, direction: Direction, bytes: usize) -> Option<Instant> {
        self.0[direction as usize].pass(now, bytes)
    }
}

impl Space {
    fn new(rate: Option<u64>, held: Option<usize>) -> Self {
        let waits = |rate: u64| (rate as f64 / 8.0 * DATAGRAMS_WAIT.as_secs_f64()) as usize;
        let held = held.unwrap_or_else(|| rate.map_or(0, waits).max(MIN_HELD));
        Space { rate, free: Instant::ZERO, waiting: Backlog::new(held) }
    }

    fn pass(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let Some(rate) = self.rate else { return Some(now) };
        if !self.waiting.has_room(now, bytes) {
            return None;
        }
        let at = now.max(self.free);
        let nanos = u128::from(8 * bytes as u64) * 1_000_000_000 / u128::from(rate);
        self.free = at + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.waiting.hold(at, bytes);
        Some(at)
    }
}

impl Share {
    fn new(rate: Option<u64>) -> Self {
        Share { rate, left: 0, owed: 0, slice: None }
    }

    /// Adds the share of `slices` slices.
    fn add(&mut self, rate: u64, slices: u64) {
        self.owed = self.owed.saturating_add(rate.saturating_mul(slices));
        self.left = self.left.saturating_add((self.owed / (8 * SLICES_A_SECOND)) as usize);
        self.owed %= 8 * SLICES_A_SECOND;
    }
}

impl Pace for Share {
    fn left(&mut self, now: Instant) -> usize {
        let Some(rate) = self.rate else { return usize::MAX };
        let Some(began) = self.slice else {
            self.slice = Some(now);
            self.add(rate, 1);
            return self.left;
        };
        let passed = (now.since(began).as_nanos() / SLICE.as_nanos()) as u64;
        if passed > 0 {
            // If data waited for this slice, the shares of missed slices are granted too. Otherwise
            // the unused share is dropped.
            let waited = self.left == 0;
            self.left = 0;
            self.add(rate, if waited { passed.min(MAX_LATE) } else { 1 });
            let late = SLICE * u32::try_from(passed).unwrap_or(u32::MAX);
            self.slice = Some(began + late);
        }
        self.left
    }

    fn take(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
    }

    fn next(&self, ready: Instant) -> Instant {
        match (self.rate, self.slice) {
            (Some(_), Some(began)) => ready.max(began + SLICE),
            _ => ready,
        }
    }
}

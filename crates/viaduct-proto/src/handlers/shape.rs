//! `shape:rate=2M`: so many bits a second and no more (TESLA, 4.1). Time is cut into slices of
//! 100 ms; what exceeds a slice's share waits for the next.

use std::sync::Arc;

use super::paced::{Pace, Paced};
use super::rate;
use crate::flow::{About, Arguments, Factory, Handler, Offload};
use crate::time::{Duration, Instant};

const SLICE: Duration = Duration::from_millis(100);
const SLICES_A_SECOND: u64 = 10;
/// Slices that are made up for when a timer comes late.
const MOST_LATE: u64 = 3;

struct ShapeFactory {
    /// Bits a second; `None` is no limit.
    out: Option<u64>,
    back: Option<u64>,
}

/// What may pass in the current slice.
struct Share {
    /// Bits a second; `None` is no limit.
    rate: Option<u64>,
    left: usize,
    /// Bits that are due and make no byte yet.
    bits: u64,
    slice: Option<Instant>,
}

pub(super) fn about() -> About {
    About::new("shape", "lets so many bits a second pass and no more")
        .setting("rate", "BITS", "bits a second in each direction, such as 500k, 2M, 1G")
        .setting("out", "BITS", "towards the network, where that is another rate, or the only one")
        .setting("in", "BITS", "from the network, where that is another rate, or the only one")
}

/// `rate` both ways, or `out` towards the network and `in` from it.
pub(super) fn build(arguments: &mut Arguments) -> Result<Arc<dyn Factory>, String> {
    let mut bits = |key| arguments.take(key, "bits a second, such as 2M,", rate);
    let (both, out, back) = (bits("rate")?, bits("out")?, bits("in")?);
    if both.or(out).or(back).is_none() {
        return Err("a rate is missing, as in shape:rate=2M or shape:out=2M,in=10M".to_owned());
    }
    Ok(Arc::new(ShapeFactory { out: out.or(both), back: back.or(both) }))
}

impl Factory for ShapeFactory {
    fn name(&self) -> &'static str {
        "shape"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        // Whatever waits is more than the slice allows: the source stops at once.
        Box::new(Paced::new(Share::new(self.out), Share::new(self.back), 1))
    }

    /// The kernel paces what goes out, and nothing that comes in.
    fn offload(&self) -> Option<Offload> {
        self.back.is_none().then_some(Offload { rate: self.out })
    }
}

impl Share {
    fn new(rate: Option<u64>) -> Self {
        Share { rate, left: 0, bits: 0, slice: None }
    }

    /// The share of so many slices.
    fn add(&mut self, rate: u64, slices: u64) {
        self.bits += rate.saturating_mul(slices) / SLICES_A_SECOND;
        self.left = self.left.saturating_add((self.bits / 8) as usize);
        self.bits %= 8;
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
            // Who waited for this has it all, however late the timer was; what nobody used is gone.
            let waited = self.left == 0;
            self.left = 0;
            self.add(rate, if waited { passed.min(MOST_LATE) } else { 1 });
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

//! `shape:rate=2M`: so many bits a second and no more (TESLA, 4.1). Time is cut into slices of
//! 100 ms; what exceeds a slice's share waits for the next.

use std::sync::Arc;

use super::paced::{Pace, Paced};
use super::rate;
use crate::flow::{About, Arguments, Factory, Handler, Offload};
use crate::time::{Duration, Instant};

const SLICE: Duration = Duration::from_millis(100);
const SLICES_A_SECOND: u64 = 10;

struct ShapeFactory {
    /// Bits a second; `None` is no limit.
    out: Option<u64>,
    back: Option<u64>,
}

/// What may pass in the current slice.
struct Share {
    /// Bytes in each slice.
    each: usize,
    left: usize,
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
    fn new(bits: Option<u64>) -> Self {
        let each = bits.map_or(usize::MAX, |bits| (bits / 8 / SLICES_A_SECOND).max(1) as usize);
        Share { each, left: each, slice: None }
    }
}

impl Pace for Share {
    fn left(&mut self, now: Instant) -> usize {
        if self.slice.is_none_or(|began| now >= began + SLICE) {
            (self.left, self.slice) = (self.each, Some(now));
        }
        self.left
    }

    fn take(&mut self, bytes: usize) {
        self.left -= bytes;
    }

    fn next(&self, ready: Instant) -> Instant {
        self.slice.map_or(ready, |began| began + SLICE)
    }
}

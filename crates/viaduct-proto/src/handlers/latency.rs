//! `latency:delay=50ms`: every byte arrives that much later, in both directions (TESLA, 4.1).

use std::sync::Arc;

use super::paced::{Pace, Paced};
use crate::flow::{About, Arguments, Factory, Handler};
use crate::time::{Duration, Instant};

/// Bytes on their way in one direction before the source is stopped, unless told otherwise.
const DEFAULT_HELD: usize = 1 << 20;
const LONGEST: Duration = Duration::from_secs(60);

struct LatencyFactory {
    delay: Duration,
    held: usize,
}

/// Bytes go on when they are as old as this.
struct Age(Duration);

pub(super) fn about() -> About {
    About::new("latency", "delivers every byte that much later, in both directions")
        .setting("delay", "TIME", "how much later, such as 50ms; up to 60s")
        .setting("held", "BYTES", "bytes on their way each way at most; 1048576 by default")
}

/// `delay`: up to 60s. `held`: bytes on their way each way, 1 MiB by default.
pub(super) fn build(arguments: &mut Arguments) -> Result<Arc<dyn Factory>, String> {
    let time = |text: &str| delay(text).filter(|&delay| delay <= LONGEST);
    let delay = arguments.take("delay", "a time up to 60s, such as 50ms", time)?;
    let held = arguments.take("held", "a number of bytes", |text| text.parse().ok())?;
    let delay = delay.ok_or("delay is missing, as in latency:delay=50ms")?;
    Ok(Arc::new(LatencyFactory { delay, held: held.unwrap_or(DEFAULT_HELD) }))
}

fn delay(text: &str) -> Option<Duration> {
    let units = [("us", 1), ("ms", 1_000), ("s", 1_000_000)];
    let (number, unit) = units.iter().find_map(|(name, u)| Some((text.strip_suffix(name)?, u)))?;
    number.parse::<u64>().ok()?.checked_mul(*unit).map(Duration::from_micros)
}

impl Factory for LatencyFactory {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        Box::new(Paced::new(Age(self.delay), Age(self.delay), self.held))
    }
}

impl Pace for Age {
    fn ready(&self, now: Instant) -> Instant {
        now + self.0
    }
}

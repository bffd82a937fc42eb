//! `latency:delay=50ms`: delays all data by a fixed time, in both directions (section 4.1 of the
//! TESLA paper).

use std::sync::Arc;

use super::backlog::Backlog;
use super::paced::{Pace, Paced};
use super::size;
use crate::flow::datagrams::{Datagrams, Direction};
use crate::flow::{About, Arguments, Factory, Handler};
use crate::time::{Duration, Instant};

/// Default number of delayed bytes in one direction at which the source is stopped.
const DEFAULT_HELD: usize = 1 << 20;
const LONGEST: Duration = Duration::from_secs(60);

struct LatencyFactory {
    delay: Duration,
    held: usize,
}

/// Schedule that releases bytes once they have waited for this time.
struct Age(Duration);

/// Delays datagrams by `delay`; those beyond the limit are dropped.
struct AgeOfDatagrams {
    delay: Duration,
    /// Delayed datagrams, out and back.
    on_their_way: [Backlog; 2],
}

pub(super) fn about() -> About {
    About::new("latency", "delays every byte, in both directions")
        .datagrams()
        .setting("delay", "TIME", "delay, such as 50ms; up to 60s")
        .setting(
            "held",
            "BYTES",
            "maximum bytes delayed each way; 1M by default; excess datagrams are dropped",
        )
}

/// `delay`: up to 60s. `held`: delayed bytes each way, 1 MiB by default.
pub(super) fn build(arguments: &mut Arguments) -> Result<Arc<dyn Factory>, String> {
    let time = |text: &str| delay(text).filter(|&delay| delay <= LONGEST);
    let delay = arguments.take("delay", "a time up to 60s, such as 50ms", time)?;
    let held = arguments.take("held", "a size such as 64K", size)?;
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

    fn datagrams(&self) -> Option<Box<dyn Datagrams + Send>> {
        let on_their_way = [(); 2].map(|()| Backlog::new(self.held));
        Some(Box::new(AgeOfDatagrams { delay: self.delay, on_their_way }))
    }
}

impl Datagrams for AgeOfDatagrams {
    fn pass(&mut self, now: Instant, direction: Direction, bytes: usize) -> Option<Instant> {
        let backlog = &mut self.on_their_way[direction as usize];
        let at = now + self.delay;
        backlog.has_room(now, bytes).then(|| {
            backlog.hold(at, bytes);
            at
        })
    }
}

impl Pace for Age {
    fn ready(&self, now: Instant) -> Instant {
        now + self.0
    }
}

//! `congestion`: flows to one destination share a congestion estimate (Figure 4 of the TESLA paper,
//! after the Congestion Manager of Balakrishnan and others, SIGCOMM 1999).
//!
//! ```text
//!   program A ── flow 1 ─┐               ┌─ lane ─▶ kernel's TCP ─┐
//!             ── flow 2 ─┼─▶ Ensemble ───┼─ lane ─▶ kernel's TCP ─┼═▶ one destination
//!   program B ── flow 3 ─┘  one Window   └─ lane ─▶ kernel's TCP ─┘
//!                              ▲ acknowledged, sent again, round trip ┘
//! ```
//!
//! Each flow has a TCP connection of its own, and never exceeds what the kernel's congestion
//! control allows. In addition, the bytes in flight of all flows to an address are limited by one
//! shared window, which grows and shrinks with the signals of all connections, as the window of a
//! single connection would. So n flows together get the share of one flow and divide it evenly. A
//! new flow gets its share immediately, and does not have to cause losses to find it.
//!
//! `window` computes the shared window, `ensemble` divides it; this module has the handler.

mod ensemble;
mod window;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use self::ensemble::Ensemble;
use super::lane::Lane;
use crate::flow::{
    About, Address, Arguments, Context, End, FIRST, Factory, Failure, Half, Handler, Output, Timer,
};
use crate::time::{Duration, Instant};

/// Bytes of a flow that may wait in the handler before the flow's source is stopped.
const MAX_QUEUED: usize = 64 << 10;
/// Time for which the state of a path is kept after its last flow.
const STATE_TTL: Duration = Duration::from_secs(10);
/// Maximum number of destinations in a report.
const MAX_REPORTED: usize = 64;

/// State of all paths, by destination.
#[derive(Debug, Default)]
struct CongestionState {
    paths: BTreeMap<String, Ensemble>,
    next: u64,
}

struct CongestionFactory(Arc<Mutex<CongestionState>>);

struct Congestion {
    shared: Arc<Mutex<CongestionState>>,
    /// Destination and number of the flow, once it is connected.
    joined: Option<(String, u64)>,
    lane: Lane<End>,
    /// Time of the last call, for `drop`, which is not given the time.
    now: Instant,
}

pub(super) fn about() -> About {
    About::new("congestion", "shares a congestion estimate among flows to one destination")
}

/// Makes the factory; there are no settings.
pub(super) fn build(_: &mut Arguments) -> Result<Arc<dyn Factory>, String> {
    Ok(Arc::new(CongestionFactory(Arc::default())))
}

impl Factory for CongestionFactory {
    fn name(&self) -> &'static str {
        "congestion"
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        let (shared, lane) = (self.0.clone(), Lane::default());
        Box::new(Congestion { shared, joined: None, lane, now: Instant::ZERO })
    }

    fn measures(&self) -> bool {
        true
    }

    fn state(&self) -> Option<String> {
        let shared = lock(&self.0);
        let mut text = String::new();
        for (to, path) in shared.paths.iter().take(MAX_REPORTED) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{to}: {}", path.text());
        }
        let more = shared.paths.len().saturating_sub(MAX_REPORTED);
        if more > 0 {
            let _ = writeln!(text, "and {more} more destinations");
        }
        Some(text).filter(|text| !text.is_empty())
    }
}

impl CongestionState {
    fn join(&mut self, to: &str, now: Instant) -> u64 {
        self.paths.retain(|_, path| path.idle(now).is_none_or(|idle| idle < STATE_TTL));
        self.next += 1;
        self.paths.entry(to.to_owned()).or_insert_with(Ensemble::new).join(self.next);
        self.next
    }
}

impl Congestion {
    /// Adds the established connection to the ensemble of its destination.
    fn join(&mut self, cx: &mut Context<'_>) {
        let to = match cx.output(FIRST).getpeername() {
            Some(Address::Ip(at)) => at.ip().to_canonical().to_string(),
            Some(Address::Name(name, _)) => name,
            None => return,
        };
        let id = lock(&self.shared).join(&to, cx.now());
        self.joined = Some((to, id));
    }

    /// Sends what may be sent, and sets the timer for the rest.
    fn release(&mut self, cx: &mut Context<'_>) {
        self.now = cx.now();
        let measure = cx.output(FIRST).measure();
        let mut tick = None;
        loop {
            let mut shared = lock(&self.shared);
            // A connection without measurements, such as a stream in a tunnel, is not limited.
            let most = match (&self.joined, measure) {
                (Some((to, id)), Some(measure)) => match shared.paths.get_mut(to) {
                    Some(path) if tick.is_none() => {
                        path.report(*id, measure, self.lane.len(), self.now);
                        tick = Some(path.tick());
                        path.may_send(*id)
                    }
                    Some(path) => path.may_send(*id),
                    None => usize::MAX,
                },
                _ => usize::MAX,
            };
            let Some(data) = self.lane.pop(self.now, most) else { break };
            if let Some((to, id)) = &self.joined
                && let Some(path) = shared.paths.get_mut(to)
            {
                path.sent(*id, data.len());
            }
            drop(shared);
            // If the flow below accepts no more data, it reports that upstream itself.
            let _ = cx.output(FIRST).write(data);
        }
        if let Some(end) = self.lane.pop_end(self.now) {
            end.apply(cx, FIRST);
        }
        if let Some(may) = self.lane.steer(MAX_QUEUED) {
            cx.upstream().may_write(may);
        }
        // While bytes wait, here or in the connection, the limit is checked periodically.
        let busy = self.lane.len() > 0 || measure.is_some_and(|of| of.held > 0);
        cx.set_timer(Timer(0), tick.filter(|_| busy).map(|tick| self.now + tick));
    }

    fn leave(&mut self) {
        if let Some((to, id)) = self.joined.take()
            && let Some(path) = lock(&self.shared).paths.get_mut(&to)
        {
            path.leave(id, self.now);
        }
    }
}

impl Handler for Congestion {
    fn connected(&mut self, cx: &mut Context<'_>, _from: Output, result: Result<(), Failure>) {
        if result.is_ok() {
            self.join(cx);
        }
        cx.upstream().connected(result);
        self.release(cx);
    }

    fn accepted(&mut self, cx: &mut Context<'_>, _from: Output) {
        self.join(cx);
        cx.upstream().accepted();
    }

    fn write(&mut self, cx: &mut Context<'_>, data: Bytes) -> bool {
        self.lane.push(cx.now(), data);
        self.release(cx);
        true
    }

    fn shutdown(&mut self, cx: &mut Context<'_>, half: Half) {
        match half {
            Half::Write => self.lane.end(cx.now(), End::Shutdown),
            Half::Read => cx.output(FIRST).shutdown(half),
        }
        self.release(cx);
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.lane.end(cx.now(), End::Close);
        self.release(cx);
    }

    fn held(&self) -> u64 {
        self.lane.len() as u64
    }

    fn may_write(&mut self, cx: &mut Context<'_>, _from: Output, may: bool) {
        self.lane.set_open(may);
        self.release(cx);
    }

    fn failed(&mut self, cx: &mut Context<'_>, _from: Output, why: Failure) {
        self.now = cx.now();
        self.leave();
        cx.upstream().failed(why);
    }

    /// Answers any request with the state of all paths.
    fn control(&mut self, cx: &mut Context<'_>, to: &str, request: &[u8]) -> Option<Vec<u8>> {
        if to != "congestion" {
            return cx.output(FIRST).control(to, request);
        }
        CongestionFactory(self.shared.clone()).state().map(String::into_bytes)
    }

    fn timeout(&mut self, cx: &mut Context<'_>, _timer: Timer) {
        self.release(cx);
    }
}

impl Drop for Congestion {
    fn drop(&mut self) {
        self.leave();
    }
}

fn lock(shared: &Mutex<CongestionState>) -> MutexGuard<'_, CongestionState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;

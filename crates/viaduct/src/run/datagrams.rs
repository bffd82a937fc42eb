//! Common parts of the two methods that pass datagrams of programs through the handlers: in user
//! space ([`super::user_udp`]), or held by the kernel ([`super::held_udp`]).

use std::{io, thread};

use rustix::event::Timespec;
use tracing::{debug, warn};
use viaduct_proto::flow::datagrams::{Bounds, Passage, streams_alone};
use viaduct_proto::time::{Duration, Instant};
use viaduct_sys::clock;
use viaduct_sys::process::thread::set_timer_slack;

use super::Plan;

/// Maximum number of address pairs (program and peer) for which handlers keep state.
const MAX_PAIRS: usize = 16_384;
/// Timer slack. With its default, the kernel could delay datagrams to save wakeups.
const SLACK: Duration = Duration::from_nanos(1);

/// Counters of a program's datagrams, for a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatagramCounts {
    /// Bytes that the handlers have passed, from the program and to it.
    pub bytes: [u64; 2],
    /// Datagrams dropped for lack of room and, if the chain ends at a relay, datagrams dropped
    /// because the relay could not carry them.
    pub dropped: [u64; 2],
}

/// Returns the chain of `plan` as a [`Passage`] for datagrams, or the reason why datagrams cannot
/// use the chain.
pub fn passage(plan: &Plan) -> Result<Passage, String> {
    if let Some(why) = unsupported(plan) {
        return Err(why);
    }
    let bounds = Bounds { pairs: MAX_PAIRS, idle: plan.datagram_idle };
    let passage = Passage::new(plan.chain.clone(), bounds);
    passage.ok_or_else(|| "there is a handler that works only on streams".to_owned())
}

/// Returns whether the program's datagrams are to go through the handlers: the rules select them,
/// and either `--strict` is given or the handlers have work to do. The handlers have no work if the
/// chain is empty; or if the kernel does all of the chain's work, the chain does not limit a rate,
/// and there is no report that counts bytes.
pub fn are_handled(plan: &Plan) -> bool {
    let paced = plan.offload.is_none_or(|offload| offload.rate.is_some());
    let seen = !plan.chain.is_empty() && (paced || plan.report.is_some());
    plan.rules.want_datagrams() && (seen || plan.rules.strict)
}

/// Returns the message that tells the user why datagrams do not go through the handlers.
pub fn notice(plan: &Plan, why: &str) -> String {
    let treatment = if plan.rules.strict { "are refused (--strict)" } else { "go direct" };
    format!("{why}: datagrams {treatment}")
}

/// Returns the reason why datagrams cannot go through this chain, if there is one.
pub fn unsupported(plan: &Plan) -> Option<String> {
    if plan.streams_alone {
        return Some("the shared master carries streams only".to_owned());
    }
    let alone: Vec<&str> = streams_alone(&plan.chain).collect();
    let before = plan.chain.split_last().map(|(_, before)| before).unwrap_or_default();
    match &alone[..] {
        [] if before.iter().any(|handler| handler.relay().is_some()) => {
            Some("a handler that has a relay for datagrams must be the last one".to_owned())
        }
        [] => None,
        [one] => Some(format!("{one} works only on streams")),
        several => Some(format!("{} work only on streams", several.join(", "))),
    }
}

/// Starts the thread that passes datagrams through the handlers; `run` is its event loop.
pub fn spawn(run: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    let carry = move || {
        if let Err(error) = set_timer_slack(SLACK) {
            debug!("cannot set the timer slack; datagrams may be late: {error}");
        }
        if let Err(error) = run() {
            warn!("datagrams are no longer carried: {error}");
        }
    };
    thread::Builder::new().name("datagrams".to_owned()).spawn(carry).map(drop)
}

/// Returns the current time, on the clock that the handlers of datagrams use.
pub fn now() -> Instant {
    Instant::from_nanos(clock::now())
}

/// Converts a timeout to a `Timespec`.
pub fn timespec(wait: Duration) -> Timespec {
    Timespec { tv_sec: wait.as_secs().cast_signed(), tv_nsec: wait.subsec_nanos().into() }
}

//! Datagrams of programs that BPF sees: the kernel holds each until the handlers release it.
//!
//! ```text
//!   program ─▶ sys::nft::datagram_queue ── headers ──▶ rules ─▶ flow::datagrams::Passage ─┐ when?
//!              holds it ◀──────────────────── verdict, when its time has come ◀─┘
//! ```
//!
//! The program's own datagram goes on, so that addresses, errors and sizes are those of a
//! program without Viaduct. If the chain ends at a relay, the payload is sent there instead
//! ([`replaced`]).

mod replaced;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::{debug, warn};
use viaduct_proto::flow::datagrams::{Bounds, Direction, Ends, Passage, Taken, streams_alone};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::wire::datagram::Datagram;
use viaduct_proto::wrap::{Fate, Rules, Transport};
use viaduct_sys::bpf::Group;
use viaduct_sys::clock;
use viaduct_sys::nft::datagram_queue::DatagramQueue;
use viaduct_sys::nft::nfqueue::{QueuedPacket, SNAP, Verdict, WHOLE};
use viaduct_sys::process::thread::set_timer_slack;

use self::replaced::Replaced;
use super::Plan;
use super::report::{self, Report};

/// Pairs of ends whose handlers keep state, at most.
const PAIRS: usize = 16_384;
/// Timer slack: a datagram is not delayed so that the machine wakes up less often.
const SLACK: Duration = Duration::from_nanos(1);
/// Limit of the wait for a moment in which no other process holds a datagram.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(60);
/// Datagrams read before those that are due have their turn.
const TURN: usize = 256;

/// Outcome of [`start`].
#[derive(Debug)]
pub enum Fares {
    /// Datagrams pass the handlers.
    Held(Holder),
    /// Datagrams cannot pass them, for this reason.
    Not(String),
}

/// Holds the datagrams of a group until its handlers release them.
#[derive(Clone, Debug)]
pub struct Holder(Arc<Shared>);

/// Counts of datagrams that handlers have released, for a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Bytes released, out and back.
    pub bytes: [u64; 2],
    /// Datagrams dropped for want of room; and if the chain ends at a relay, those that the
    /// relay did not take or bring.
    pub dropped: [u64; 2],
}

/// Makes the datagrams of `group` pass the handlers of `plan` from now on, if they can.
pub fn start(group: &Group, plan: &Plan) -> Fares {
    let passage = match passage(plan) {
        Ok(passage) => passage,
        Err(why) => return Fares::Not(why),
    };
    let replaced = match Replaced::new(plan) {
        Ok(replaced) => replaced,
        Err(error) => return Fares::Not(format!("datagrams cannot be replaced ({error})")),
    };
    let datagrams = match DatagramQueue::open(group, replaced.is_some()) {
        Ok(datagrams) => datagrams,
        Err(error) => return Fares::Not(format!("{error} ({})", source(&error))),
    };
    let (rules, report) = (plan.rules, plan.report.clone());
    let state = State { passage, replaced, verdicts: Vec::new(), rules, report };
    let holder = Holder(Arc::new(Shared { datagrams, state: Mutex::new(state) }));
    let holds = holder.clone();
    let carry = move || {
        if let Err(error) = set_timer_slack(SLACK) {
            debug!("timers may be late: {error}");
        }
        if let Err(error) = holds.run() {
            warn!("datagrams cannot be carried any more: {error}");
        }
    };
    match thread::Builder::new().name("datagrams".to_owned()).spawn(carry) {
        Ok(_) => Fares::Held(holder),
        Err(error) => Fares::Not(format!("no thread can be started ({error})")),
    }
}

/// Returns the handlers of `plan` as a path for datagrams, or the reason why there is none.
pub fn passage(plan: &Plan) -> Result<Passage, String> {
    if let Some(why) = unable(plan) {
        return Err(why);
    }
    let bounds = Bounds { pairs: PAIRS, idle: plan.datagram_idle };
    let passage = Passage::new(plan.chain.clone(), bounds);
    passage.ok_or_else(|| "there is a handler that works on streams alone".to_owned())
}

/// Returns whether the handlers have work with the program's datagrams. They have none if the
/// rules say so, or if the kernel does all work of the chain, unless a report has to count bytes.
pub fn matter(plan: &Plan) -> bool {
    let paced = plan.offload.is_none_or(|offload| offload.rate.is_some());
    let seen = !plan.chain.is_empty() && (paced || plan.report.is_some());
    plan.rules.want_datagrams() && (seen || plan.rules.strict)
}

/// Returns the notice for the user when the first datagram goes another way because of `why`.
pub fn notice(plan: &Plan, why: &str) -> String {
    let fare = if plan.rules.strict { "are refused (--strict)" } else { "go direct" };
    format!("{why}: datagrams {fare}")
}

/// Returns the reason why this chain cannot pass datagrams, if there is one.
pub fn unable(plan: &Plan) -> Option<String> {
    if plan.streams_alone {
        return Some("the master lets nothing go around it, and carries streams".to_owned());
    }
    let alone: Vec<&str> = streams_alone(&plan.chain).collect();
    let before = plan.chain.split_last().map(|(_, before)| before).unwrap_or_default();
    match &alone[..] {
        [] if before.iter().any(|handler| handler.relay().is_some()) => {
            Some("a handler that has a relay stands last, or has none for datagrams".to_owned())
        }
        [] => None,
        [one] => Some(format!("{one} works on streams alone")),
        several => Some(format!("{} work on streams alone", several.join(", "))),
    }
}

fn source(error: &dyn std::error::Error) -> String {
    error.source().map(ToString::to_string).unwrap_or_default()
}

#[derive(Debug)]
struct Shared {
    datagrams: DatagramQueue,
    /// Locked while it works, so that readers see consistent counts.
    state: Mutex<State>,
}

struct State {
    passage: Passage,
    /// Set if payloads are sent elsewhere instead of the datagrams themselves.
    replaced: Option<Replaced>,
    /// Verdicts to hand to the kernel next.
    verdicts: Vec<(u32, Verdict)>,
    rules: Rules,
    report: Option<Report>,
}

impl Holder {
    /// Returns what the handlers have released so far.
    pub fn passed(&self) -> Passed {
        let state = self.state();
        let stats = state.passage.stats();
        let [no_room, astray] = state.replaced.as_ref().map_or([0; 2], Replaced::dropped);
        let no_room = no_room + stats.dropped.iter().sum::<u64>() + self.0.datagrams.lost();
        Passed { bytes: stats.bytes, dropped: [no_room, astray] }
    }

    /// Returns the rules that must outlive this process, so that no datagram goes around the
    /// handlers.
    pub fn rules(&self) -> Option<OwnedFd> {
        self.0.datagrams.rules()
    }

    /// Returns whether no datagram is held.
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        let mut fds = [PollFd::new(&self.0.datagrams, PollFlags::IN)];
        let some_wait = poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) != Ok(0);
        !some_wait && state.passage.waiting() == 0
    }

    /// Stops holding, without harm to other processes that hold datagrams.
    pub fn end(&self) {
        self.0.datagrams.end(HANDOVER_TIMEOUT);
    }

    /// Runs the event loop for as long as the process runs.
    fn run(&self) -> io::Result<()> {
        let relayed = self.state().replaced.as_ref().map(Replaced::watch).transpose()?;
        let mut buffer = vec![0; if relayed.is_some() { WHOLE } else { SNAP }];
        loop {
            let wait = self.turn(&mut buffer)?;
            let wait = wait.map(|wait| Timespec {
                tv_sec: wait.as_secs().cast_signed(),
                tv_nsec: wait.subsec_nanos().into(),
            });
            let fds = [Some(self.0.datagrams.as_fd()), relayed.as_ref().map(AsFd::as_fd)];
            let fds = fds.iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN));
            match poll(&mut fds.collect::<Vec<_>>(), wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads held datagrams and releases those that are due. Returns how long to wait unless
    /// something arrives.
    fn turn(&self, buffer: &mut [u8]) -> io::Result<Option<Duration>> {
        let mut state = self.state();
        for _ in 0..TURN {
            let Some(held) = self.0.datagrams.recv(buffer)? else { break };
            state.take(&held, now());
        }
        let now = now();
        state.take_replacing(now);
        while let Some(tag) = state.passage.poll_ready(now) {
            let verdict = match &mut state.replaced {
                None => Some((tag, Verdict::Pass)),
                Some(replaced) => replaced.let_on(now, tag),
            };
            state.verdicts.extend(verdict);
        }
        state.passage.handle_timeout(now);
        if let Err(error) = self.0.datagrams.verdicts(&state.verdicts) {
            // They stay held, and leave less room for the next.
            debug!("let datagrams on: {error}");
        }
        state.verdicts.clear();
        let given_up = state.replaced.as_mut().and_then(|replaced| replaced.handle_timeout(now));
        let next = state.passage.poll_timeout().into_iter().chain(given_up).min();
        Ok(next.map(|at| at.since(now)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take(&mut self, held: &QueuedPacket<'_>, now: Instant) {
        let Some((datagram, carried)) = Datagram::split(held.packet) else {
            return self.verdicts.push((held.id, Verdict::Pass));
        };
        let Datagram { source, destination, bytes } = datagram;
        let (way, own, peer) = match held.is_inbound {
            false => (Direction::Out, source, destination),
            true => (Direction::Back, destination, source),
        };
        if self.rules.fate(Transport::Udp, peer) != Fate::Divert {
            return self.verdicts.push((held.id, Verdict::Pass));
        }
        let ends = Ends { own, peer };
        let tag = match &mut self.replaced {
            None => held.id,
            Some(replaced) => match replaced.take(held, way, ends, carried, bytes) {
                Ok(tag) => tag,
                Err(verdict) => return self.verdicts.push((held.id, verdict)),
            },
        };
        self.pass(now, ends, way, bytes, tag);
    }

    /// Asks the handlers when the datagram is due.
    fn pass(&mut self, now: Instant, ends: Ends, way: Direction, bytes: usize, tag: u32) {
        match self.passage.handle_datagram(now, ends, way, bytes, tag) {
            Taken::Waits { begins: true } => {
                if let Some(report) = &self.report {
                    report.count(report::Fate::Handled, "udp", ends.peer);
                }
            }
            Taken::Waits { begins: false } => {}
            Taken::Dropped => {
                let id = match &mut self.replaced {
                    None => Some(tag),
                    Some(replaced) => replaced.forget(tag),
                };
                self.verdicts.extend(id.map(|id| (id, Verdict::Drop)));
            }
        }
    }

    /// Takes datagrams for the program that replace held ones.
    fn take_replacing(&mut self, now: Instant) {
        let Some(replaced) = &mut self.replaced else { return };
        for (ends, bytes, tag) in replaced.receive(now, &self.rules) {
            self.pass(now, ends, Direction::Back, bytes, tag);
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("pairs", &self.passage.pairs()).finish_non_exhaustive()
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::now())
}

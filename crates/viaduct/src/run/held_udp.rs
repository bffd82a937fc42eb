//! Datagrams of programs under `--via cgroup`: the kernel holds each one until the handlers
//! release it.
//!
//! ```text
//!   program ─▶ sys::nft::datagram_queue ── headers ──▶ rules ─▶ flow::datagrams::Passage ─┐
//!              holds it ◀─────────── verdict, when the datagram is due ◀──────────────┘
//! ```
//!
//! The kernel then sends the program's own datagram, so addresses, errors and sizes are the same as
//! without Viaduct. If the chain ends at a relay, the payload is sent to the relay instead
//! ([`relayed`]).

mod relayed;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing::debug;
use viaduct_proto::flow::datagrams::{Direction, Ends, Passage, Taken};
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::wire::datagram::Datagram;
use viaduct_proto::wrap::{Fate, Rules, Transport};
use viaduct_sys::bpf::Group;
use viaduct_sys::nft::datagram_queue::DatagramQueue;
use viaduct_sys::nft::nfqueue::{QueuedPacket, SNAP, Verdict, WHOLE};

use self::relayed::RelayedDatagrams;
use super::Plan;
use super::datagrams::{self, DatagramCounts, now, passage, timespec};
use super::report::{self, Report};

/// Maximum time for which [`HeldUdp::end`] waits for the queues of other processes to drain.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of datagrams read before due datagrams are released.
const MAX_READS: usize = 256;

/// Datagrams of a cgroup's programs, which the kernel holds until the handlers release them.
#[derive(Clone, Debug)]
pub struct HeldUdp(Arc<Inner>);

/// Begins to pass the datagrams of `group` through the handlers of `plan`. Errors: the reason why
/// datagrams cannot go through the handlers.
pub fn start(group: &Group, plan: &Plan) -> Result<HeldUdp, String> {
    let passage = passage(plan)?;
    let relayed = RelayedDatagrams::new(plan)
        .map_err(|error| format!("datagrams cannot be relayed ({error})"))?;
    let datagrams = DatagramQueue::open(group, relayed.is_some())
        .map_err(|error| format!("{error} ({})", source(&error)))?;
    let (rules, report) = (plan.rules, plan.report.clone());
    let state = State { passage, relayed, verdicts: Vec::new(), rules, report };
    let held_udp = HeldUdp(Arc::new(Inner { datagrams, state: Mutex::new(state) }));
    let event_loop = held_udp.clone();
    datagrams::spawn(move || event_loop.run())
        .map_err(|error| format!("no thread can be started ({error})"))?;
    Ok(held_udp)
}

fn source(error: &dyn std::error::Error) -> String {
    error.source().map(ToString::to_string).unwrap_or_default()
}

#[derive(Debug)]
struct Inner {
    datagrams: DatagramQueue,
    /// Locked for a complete round of the event loop, so that readers see consistent counters.
    state: Mutex<State>,
}

struct State {
    passage: Passage,
    /// Set if the chain ends at a relay, to which the payloads are sent.
    relayed: Option<RelayedDatagrams>,
    verdicts: Vec<(u32, Verdict)>,
    rules: Rules,
    report: Option<Report>,
}

impl HeldUdp {
    /// Returns the counters of datagrams so far.
    pub fn counts(&self) -> DatagramCounts {
        let state = self.state();
        let stats = state.passage.stats();
        let [no_room, astray] = state.relayed.as_ref().map_or([0; 2], RelayedDatagrams::dropped);
        let no_room = no_room + stats.dropped.iter().sum::<u64>() + self.0.datagrams.lost();
        DatagramCounts { bytes: stats.bytes, dropped: [no_room, astray] }
    }

    /// Returns a duplicate of the descriptor that owns the kernel's rules. It must outlive this
    /// process, so that no datagram bypasses the handlers.
    pub fn rules(&self) -> Option<OwnedFd> {
        self.0.datagrams.rules()
    }

    /// Returns whether no datagram is held.
    pub fn is_empty(&self) -> bool {
        let state = self.state();
        let mut fds = [PollFd::new(&self.0.datagrams, PollFlags::IN)];
        let some_wait = poll(&mut fds, Some(&Timespec::default())) != Ok(0);
        !some_wait && state.passage.waiting() == 0
    }

    /// Stops holding datagrams. The kernel then also drops the datagrams in the queues of other
    /// processes, so this call first waits until those queues are empty, for at most
    /// [`HANDOVER_TIMEOUT`].
    pub fn end(&self) {
        self.0.datagrams.end(HANDOVER_TIMEOUT);
    }

    /// Runs the event loop until the process ends.
    fn run(&self) -> io::Result<()> {
        let relayed = self.state().relayed.as_ref().map(RelayedDatagrams::watch).transpose()?;
        let mut buffer = vec![0; if relayed.is_some() { WHOLE } else { SNAP }];
        loop {
            let wait = self.process(&mut buffer)?;
            let wait = wait.map(timespec);
            let fds = [Some(self.0.datagrams.as_fd()), relayed.as_ref().map(AsFd::as_fd)];
            let fds = fds.iter().flatten().map(|fd| PollFd::new(fd, PollFlags::IN));
            match poll(&mut fds.collect::<Vec<_>>(), wait.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Reads held datagrams and releases those that are due. Returns the time until the next
    /// timeout, if any.
    fn process(&self, buffer: &mut [u8]) -> io::Result<Option<Duration>> {
        let mut state = self.state();
        for _ in 0..MAX_READS {
            let Some(held) = self.0.datagrams.recv(buffer)? else { break };
            state.submit_held(&held, now());
        }
        let now = now();
        state.submit_relayed(now);
        while let Some(tag) = state.passage.poll_ready(now) {
            let verdict = match &mut state.relayed {
                None => Some((tag, Verdict::Pass)),
                Some(relayed) => relayed.release(now, tag),
            };
            state.verdicts.extend(verdict);
        }
        state.passage.handle_timeout(now);
        if let Err(error) = self.0.datagrams.verdicts(&state.verdicts) {
            // The datagrams stay held, and occupy room in the kernel's queue.
            debug!("cannot release datagrams: {error}");
        }
        state.verdicts.clear();
        let relay_timeout = state.relayed.as_mut().and_then(|relayed| relayed.handle_timeout(now));
        let next = state.passage.poll_timeout().into_iter().chain(relay_timeout).min();
        Ok(next.map(|at| at.since(now)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn submit_held(&mut self, held: &QueuedPacket<'_>, now: Instant) {
        let Some((datagram, payload)) = Datagram::split(held.packet) else {
            return self.verdicts.push((held.id, Verdict::Pass));
        };
        let Datagram { source, destination, bytes } = datagram;
        let (direction, own, peer) = match held.is_inbound {
            false => (Direction::Out, source, destination),
            true => (Direction::Back, destination, source),
        };
        if self.rules.fate(Transport::Udp, peer) != Fate::Divert {
            return self.verdicts.push((held.id, Verdict::Pass));
        }
        let ends = Ends { own, peer };
        let tag = match &mut self.relayed {
            None => held.id,
            Some(relayed) => match relayed.take(held, direction, ends, payload, bytes) {
                Ok(tag) => tag,
                Err(verdict) => return self.verdicts.push((held.id, verdict)),
            },
        };
        self.submit(now, ends, direction, bytes, tag);
    }

    /// Submits a datagram to the handlers, which determine when it is due.
    fn submit(&mut self, now: Instant, ends: Ends, direction: Direction, bytes: usize, tag: u32) {
        match self.passage.handle_datagram(now, ends, direction, bytes, tag) {
            Taken::Waits { begins: true } => {
                if let Some(report) = &self.report {
                    report.count(report::FlowOutcome::Handled, "udp", ends.peer);
                }
            }
            Taken::Waits { begins: false } => {}
            Taken::Dropped => {
                let id = match &mut self.relayed {
                    None => Some(tag),
                    Some(relayed) => relayed.forget(tag),
                };
                self.verdicts.extend(id.map(|id| (id, Verdict::Drop)));
            }
        }
    }

    /// Submits datagrams from relays to the handlers.
    fn submit_relayed(&mut self, now: Instant) {
        let Some(relayed) = &mut self.relayed else { return };
        for (ends, bytes, tag) in relayed.receive(now, &self.rules) {
            self.submit(now, ends, Direction::Back, bytes, tag);
        }
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("pairs", &self.passage.pairs()).finish_non_exhaustive()
    }
}

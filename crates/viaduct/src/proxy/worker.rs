//! Event loop that drives all flows of a proxy, in one thread.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Result;
use mio::event::Event;
use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use tracing::info;
use viaduct_proto::split::early::Early;
use viaduct_proto::time::Instant;
use viaduct_sys::capture::syn::SynTap;
use viaduct_sys::clock;
use viaduct_sys::socket::tcp::TcpOptions;

use super::arrivals::Started;
use super::aware::Aware;
use super::calls::{Arrival, Held, Program};
use super::doors::{Doors, Syns};
use super::flow::{End, Shared};
use super::flows::{FIRST_WIRE, Flows};
use super::holding::Holding;
use super::keeper::Interception;
use super::orders::{Limits, Order, ToWorker};
use super::pipes::Pipes;
use super::policy::Policies;
use super::resolve::Resolver;
use super::settings::Settings;
use super::spin::Spin;
use super::stats::ProxyStats;
use super::target::Target;
use super::tell::Teller;
use super::trickles::Trickles;
use super::tunnels::{FIRST_TOKEN, Tunnels};
use crate::access_log::AccessLog;

/// Events taken from the kernel at once.
const EVENTS: usize = 1024;
/// Interval of deadline checks: deadlines are seconds long.
pub(super) const SWEEP: Duration = Duration::from_millis(500);
/// Size of the read buffer, in bytes, for data that cannot be spliced.
const SCRATCH: usize = 64 << 10;
/// Items taken from one source in a turn: SYNs, commands, resolved names. The rest waits until
/// the flows have had their turn, so that a flood does not stop them.
pub(super) const MAX_READS: usize = 256;
/// Time limit for SYNs in a turn: their verdicts may take the kernel long.
const SYN_TURN: Duration = Duration::from_millis(1);
/// Flows driven in a turn because of their alarms.
const MAX_ALARMS: usize = 4096;
const SYNS: Token = Token(usize::MAX - 1);
/// Token of the loop's one waker: for commands, and for the resolver's answers.
const WAKER: Token = Token(usize::MAX - 2);
const TRICKLES: Token = Token(usize::MAX - 4);
/// Listeners' tokens end here and grow downwards; flows' grow upwards from 0, two each.
const LISTENERS: usize = usize::MAX - 5;

/// Sources with items left after their turn.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) syns: bool,
    pub(super) orders: bool,
    pub(super) names: bool,
    /// Listeners, by number.
    pub(super) listeners: BTreeSet<usize>,
    /// Connections to programs. Such a connection may be the far side of another flow of this
    /// loop, whose program must be told first that it is connected: that event came earlier and
    /// is handled by now.
    pub(super) arrivals: Vec<Arrival>,
    /// Flows with a due alarm are left.
    alarms: bool,
}

impl Backlog {
    fn is_empty(&self) -> bool {
        !(self.syns || self.orders || self.names || self.alarms)
            && self.listeners.is_empty()
            && self.arrivals.is_empty()
    }
}

/// Limit of reads in one turn.
pub(super) struct Budget {
    left: usize,
    until: Instant,
}

impl Budget {
    /// Starts a budget now.
    pub(super) fn begin() -> Budget {
        Budget { left: MAX_READS, until: time() + SYN_TURN }
    }

    /// Takes one read from the budget; false if none is left.
    pub(super) fn take(&mut self) -> bool {
        let is_left = self.left > 0 && (!self.left.is_multiple_of(8) || time() < self.until);
        self.left = self.left.saturating_sub(1);
        is_left
    }
}

/// State of the event loop.
pub struct Worker {
    poll: Poll,
    pub(super) listeners: Vec<TcpListener>,
    pub(super) tap: Option<SynTap>,
    pub(super) holding: Option<Holding>,
    pub(super) early: Early<Started>,
    /// Pending connects of programs, by flow.
    pub(super) calls: HashMap<usize, Box<dyn Held>>,
    /// Programs to connect to once the handlers of their flow accept it.
    pub(super) programs: HashMap<usize, Box<dyn Program>>,
    /// Programs that know of their handlers.
    pub(super) aware: Aware,
    /// Keys that flows have claimed, for connections that name them.
    pub(super) claims: HashMap<Vec<u8>, usize>,
    pub(super) flows: Flows,
    /// Flows with more to move, after the others had their turn.
    pub(super) again: Vec<usize>,
    pub(super) resolver: Option<Resolver>,
    pub(super) tunnels: Option<Tunnels>,
    /// Ports of flows that go on by Trickles.
    pub(super) trickles: Trickles,
    pub(super) target: Target,
    pub(super) policies: Policies,
    pub(super) options: TcpOptions,
    pub(super) teller: Teller,
    pub(super) limits: Limits,
    /// State of the rules that divert clients to this proxy, if there are any.
    pub(super) interception: Arc<Interception>,
    pub(super) stats: ProxyStats,
    pub(super) access_log: AccessLog,
    pub(super) orders: mpsc::Receiver<Order>,
    /// Sender of commands to this loop, for results that come later.
    pub(super) own: ToWorker,
    pub(super) unread: Backlog,
    /// The log has been told that clients cannot be accepted.
    pub(super) complained: bool,
    /// Time at which a flow was last open.
    busy: Instant,
    /// Time at which to end, once asked to.
    pub(super) deadline: Option<Instant>,
    /// Time at which to close the listeners, once asked to end.
    pub(super) doors_close: Option<Instant>,
}

impl Worker {
    /// Returns a worker for these listeners, which accepts nothing yet, and the sender of its
    /// commands.
    pub fn new(
        settings: &Settings,
        doors: Doors,
        interception: Arc<Interception>,
        access_log: AccessLog,
    ) -> Result<(Worker, ToWorker)> {
        let Settings { target, policies, options, limits, .. } = settings.clone();
        let poll = Poll::new()?;
        let (send, orders) = mpsc::channel();
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let to_worker = ToWorker::new(send, waker.clone());
        // Sessions of tunnels may name their servers by host name, whatever the target is.
        let arrive = settings.tunnels.as_ref().is_some_and(|of| of.listen.is_some());
        let resolver = match target {
            Target::Fixed(_) | Target::Meant { .. } | Target::Called if !arrive => None,
            _ => Some(Resolver::new(&waker)),
        };
        let mut teller = Teller::new(settings.tell, &policies)?;
        let (most, mut wait) = limits.early.unwrap_or_default();
        let (tap, holding) = match doors.syns {
            Syns::Unseen => (None, None),
            Syns::Tap(tap) => (Some(tap), None),
            Syns::Queue(queue) => {
                // The client comes after its server has answered.
                wait += limits.connect;
                (None, Some(Holding::new(queue)))
            }
        };
        let tapped = tap.as_ref().map(AsFd::as_fd);
        if let Some(fd) = tapped.or(holding.as_ref().map(AsFd::as_fd)) {
            let fd = fd.as_raw_fd();
            poll.registry().register(&mut SourceFd(&fd), SYNS, Interest::READABLE)?;
        }
        let mut listeners = Vec::new();
        for (n, listener) in doors.listeners.into_iter().enumerate() {
            let mut listener = TcpListener::from_std(listener);
            poll.registry().register(&mut listener, Token(LISTENERS - n), Interest::READABLE)?;
            listeners.push(listener);
        }
        let tunnels = settings.tunnels.clone();
        let tunnels = tunnels.map(|of| Tunnels::new(of, poll.registry().try_clone()?, time()));
        let tunnels = tunnels.transpose()?;
        teller.agreeing.clone_from(&settings.agreeing);
        teller.below.clone_from(&settings.below);
        teller.outlets = tunnels.as_ref().map(Tunnels::outlets).unwrap_or_default();
        // With several loops, each has rules of its own.
        let name = match settings.workers {
            1 => settings.name.clone(),
            _ => format!("{}_{}", settings.name, doors.number),
        };
        let run_dir = settings.run_dir.clone();
        let buffer = limits.trickles_buffer / settings.workers.max(1) as usize;
        let trickles =
            Trickles::new(poll.registry().try_clone()?, TRICKLES, &name, run_dir, buffer);
        let shared =
            Shared { pipes: Pipes::new(settings.workers), scratch: vec![0; SCRATCH].into() };
        let mut worker = Worker {
            early: Early::new(most, wait),
            calls: HashMap::new(),
            aware: Aware::default(),
            programs: HashMap::new(),
            claims: HashMap::new(),
            flows: Flows::new(poll.registry().try_clone()?, limits.flows, shared),
            again: Vec::new(),
            poll,
            listeners,
            tap,
            holding,
            resolver,
            tunnels,
            trickles,
            target,
            policies,
            options,
            teller,
            limits,
            interception,
            stats: ProxyStats::default(),
            access_log,
            orders,
            own: to_worker.clone(),
            unread: Backlog::default(),
            complained: false,
            busy: time(),
            deadline: None,
            doors_close: None,
        };
        worker.open_trickles()?;
        Ok((worker, to_worker))
    }

    /// Runs until told to end.
    pub fn run(mut self) -> Result<()> {
        let ended = self.turn_until_over();
        self.log_cut(time());
        ended
    }

    fn turn_until_over(&mut self) -> Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        let (mut sweep_at, mut spin) = (time() + SWEEP, Spin::default());
        loop {
            let wait = self.wait().min(sweep_at.since(time()));
            // Without flows no peer can answer soon.
            let look = if self.flows.is_empty() { Duration::ZERO } else { self.limits.spin };
            match spin.poll(&mut self.poll, &mut events, wait, look) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(error.into());
                }
                _ => {}
            }
            // A turn may take milliseconds, and paths are measured more finely: each step has
            // its own time.
            let unread = std::mem::take(&mut self.unread);
            for event in &events {
                self.handle(event, time());
            }
            self.read_on(unread);
            for key in std::mem::take(&mut self.again) {
                self.drive(key, End::Client, false, false, time());
            }
            let now = time();
            self.wake_due(now);
            self.trickle(now);
            self.pump();
            let now = time();
            if now >= sweep_at {
                self.sweep(now);
                sweep_at = now + SWEEP;
            }
            self.close_doors(now);
            if self.is_over(now) {
                return Ok(());
            }
            if self.is_idle(now) {
                info!("idle");
                return Ok(());
            }
        }
    }

    /// Takes further items from sources with some left.
    fn read_on(&mut self, unread: Backlog) {
        for arrival in unread.arrivals {
            self.arrive(arrival, time());
        }
        if unread.syns {
            self.see_syns(time());
        }
        for listener in unread.listeners {
            self.accept(listener, time());
        }
        if unread.orders {
            self.obey(time());
        }
        if unread.names {
            self.read_answers(time());
        }
    }

    /// Drives flows whose alarm is due.
    fn wake_due(&mut self, now: Instant) {
        for _ in 0..MAX_ALARMS {
            let Some(key) = self.flows.poll_alarm(now) else { return };
            self.drive(key, End::Client, false, false, now);
        }
        self.unread.alarms = true;
    }

    /// Returns whether the loop has been without a flow for long enough to end.
    fn is_idle(&mut self, now: Instant) -> bool {
        if !self.flows.is_empty() {
            self.busy = now;
        }
        self.limits.idle_exit.is_some_and(|after| now.since(self.busy) >= after)
    }

    /// Time for which the loop may sleep.
    fn wait(&mut self) -> Duration {
        if !self.unread.is_empty()
            || !self.again.is_empty()
            || self.tunnels.as_ref().is_some_and(Tunnels::is_busy)
        {
            return Duration::ZERO;
        }
        let now = time();
        let tunnels = self.tunnels.as_mut().and_then(Tunnels::poll_timeout);
        let next = self.flows.poll_timeout().into_iter().chain(tunnels).min();
        let next = next.map(|at| at.since(now));
        next.into_iter().chain(self.trickles.poll_timeout(now)).min().unwrap_or(SWEEP)
    }

    /// Handles the readiness of a further connection of a flow.
    fn drive_wire(&mut self, token: usize, event: &Event, now: Instant) {
        let Some((key, id)) = self.flows.wire(token) else { return };
        let (readable, writable) = readiness(event);
        if let Some(through) = self.flows.at(key).through() {
            if event.is_read_closed() || event.is_priority() {
                through.wire_stutters(id);
            }
            through.wire_ready(id, readable, writable);
        }
        // The flow's own ends are not reported ready.
        self.drive(key, End::Client, false, false, now);
    }

    fn handle(&mut self, event: &Event, now: Instant) {
        match event.token() {
            SYNS => self.see_syns(now),
            WAKER => {
                self.obey(now);
                self.read_answers(now);
            }
            // Received packets are handled at the end of the turn.
            TRICKLES => {}
            Token(n) if (FIRST_WIRE..FIRST_TOKEN).contains(&n) => self.drive_wire(n, event, now),
            Token(n) if (FIRST_TOKEN..=LISTENERS - self.listeners.len()).contains(&n) => {
                if let Some(tunnels) = &mut self.tunnels {
                    tunnels.handle(event, now);
                }
            }
            Token(n) if n > LISTENERS - self.listeners.len() && n <= LISTENERS => {
                self.accept(LISTENERS - n, now);
            }
            Token(n) => {
                let end = if n % 2 == 0 { End::Client } else { End::Server };
                let (readable, writable) = readiness(event);
                if event.is_read_closed()
                    && let Some(flow) = self.flows.get(n / 2)
                {
                    flow.ending(end);
                }
                if event.is_priority()
                    && let Some(flow) = self.flows.get(n / 2)
                {
                    flow.urgent(end);
                }
                self.drive(n / 2, end, readable, writable, now);
            }
        }
    }
}

/// Returns whether an end is readable, and writable; either finds an error.
fn readiness(event: &Event) -> (bool, bool) {
    (
        event.is_readable() || event.is_read_closed() || event.is_error(),
        event.is_writable() || event.is_write_closed() || event.is_error(),
    )
}

/// Current time of the monotonic clock.
pub(super) fn time() -> Instant {
    Instant::from_nanos(clock::now())
}

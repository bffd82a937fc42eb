//! Event loop of a thread: drives the flows of a proxy that belong to this loop. A *turn* is one
//! pass of the loop.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Result;
use mio::event::Event;
use mio::{Events, Poll, Token, Waker};
use tracing::info;
use viaduct_proto::time::Instant;
use viaduct_sys::clock;

use super::acceptor::{Acceptor, LISTENERS, SYNS};
use super::claims::Claims;
use super::commands::{CommandSender, WorkerCommand};
use super::config::EngineConfig;
use super::flow::{End, Shared};
use super::flows::{FIRST_NET_CONN, Flows};
use super::intercept::InterceptState;
use super::listen_set::ListenSet;
use super::pipes::Pipes;
use super::programs::Programs;
use super::spin::Spin;
use super::stats::ProxyStats;
use super::upstream::Upstream;
use super::wrapped::Arrival;
use crate::access_log::AccessLog;
use crate::tunnel::FIRST_TOKEN;

/// Events taken from the kernel at once.
const MAX_EVENTS: usize = 1024;
/// Interval of deadline checks; the deadlines themselves are seconds long.
pub(super) const SWEEP_INTERVAL: Duration = Duration::from_millis(500);
/// Size of the read buffer, in bytes, for data that cannot be spliced.
const READ_BUFFER: usize = 64 << 10;
/// Items taken from one source in a turn: SYNs, or resolved names. The rest waits until the flows
/// have been driven, so that a flood cannot starve the flows.
pub(super) const MAX_READS: usize = 256;
/// Time limit for SYNs in a turn: the kernel may take long to carry out a verdict.
const SYN_TIME_LIMIT: Duration = Duration::from_millis(1);
/// Flows driven in a turn because of their alarms.
const MAX_ALARMS: usize = 4096;
/// Token of the loop's only waker: for commands, and for the resolver's answers.
const WAKER: Token = Token(usize::MAX - 2);
const TRICKLES: Token = Token(usize::MAX - 4);

/// Sources with items left after a turn.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    pub(super) syns: bool,
    pub(super) commands: bool,
    pub(super) names: bool,
    /// Listeners, by number.
    pub(super) listeners: BTreeSet<usize>,
    /// Inbound connections for programs. The connecting end may be another program with a flow in
    /// this loop, whose connect must complete first. The event of that connect came earlier, so it
    /// has been handled before the backlog is read.
    pub(super) arrivals: Vec<Arrival>,
    /// True if flows with a due alarm are left.
    alarms: bool,
}

impl Backlog {
    fn is_empty(&self) -> bool {
        !(self.syns || self.commands || self.names || self.alarms)
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
        Budget { left: MAX_READS, until: time() + SYN_TIME_LIMIT }
    }

    /// Takes one read from the budget; false if none is left, or the time is over.
    pub(super) fn take(&mut self) -> bool {
        let is_left = self.left > 0 && (!self.left.is_multiple_of(8) || time() < self.until);
        self.left = self.left.saturating_sub(1);
        is_left
    }
}

/// State of the event loop.
pub struct Worker {
    pub(super) poll: Poll,
    pub(super) acceptor: Acceptor,
    pub(super) programs: Programs,
    pub(super) claims: Claims,
    pub(super) flows: Flows,
    /// Flows with more bytes to move, to be driven again after the other flows.
    pub(super) runnable: Vec<usize>,
    pub(super) upstream: Upstream,
    /// Config in force.
    pub(super) config: EngineConfig,
    pub(super) stats: ProxyStats,
    pub(super) access_log: AccessLog,
    pub(super) commands: mpsc::Receiver<WorkerCommand>,
    /// Sender of commands to this loop, for results that other threads report later.
    pub(super) own: CommandSender,
    pub(super) unread: Backlog,
    /// Time at which a flow was last open.
    busy: Instant,
    /// Time at which the loop ends, once it was told to stop.
    pub(super) deadline: Option<Instant>,
    /// Time at which the listeners are closed, once the loop was told to stop.
    pub(super) listeners_close: Option<Instant>,
}

impl Worker {
    /// Returns a worker for `listen_set` that accepts nothing yet, and a sender of commands to it.
    pub fn new(
        config: &EngineConfig,
        mut listen_set: ListenSet,
        intercept_state: Arc<InterceptState>,
        access_log: AccessLog,
    ) -> Result<(Worker, CommandSender)> {
        let poll = Poll::new()?;
        let (send, commands) = mpsc::channel();
        let waker = Arc::new(Waker::new(poll.registry(), WAKER)?);
        let to_worker = CommandSender::new(send, waker.clone());
        let upstream = Upstream::new(config, &mut listen_set, poll.registry(), &waker, TRICKLES)?;
        let limits = &config.limits;
        let acceptor = Acceptor::new(poll.registry(), listen_set, limits, intercept_state)?;
        let shared =
            Shared { pipes: Pipes::new(config.workers), scratch: vec![0; READ_BUFFER].into() };
        let worker = Worker {
            acceptor,
            programs: Programs::default(),
            claims: Claims::default(),
            flows: Flows::new(poll.registry().try_clone()?, limits.flows, shared),
            runnable: Vec::new(),
            poll,
            upstream,
            config: config.clone(),
            stats: ProxyStats::default(),
            access_log,
            commands,
            own: to_worker.clone(),
            unread: Backlog::default(),
            busy: time(),
            deadline: None,
            listeners_close: None,
        };
        Ok((worker, to_worker))
    }

    /// Runs until told to end, or until it has been without a flow for the time in `idle_exit`.
    pub fn run(mut self) -> Result<()> {
        if let Some(tunnels) = &self.upstream.tunnels {
            tunnels.start(time());
        }
        let ended = self.turn_until_over();
        self.own.keep(self.stats().ended());
        self.own.heartbeat.end();
        self.log_cut(time());
        ended
    }

    fn turn_until_over(&mut self) -> Result<()> {
        let mut events = Events::with_capacity(MAX_EVENTS);
        let (mut sweep_at, mut spin) = (time() + SWEEP_INTERVAL, Spin::default());
        loop {
            let wait = self.wait().min(sweep_at.since(time()));
            // Busy polling waits for answers of peers; without flows there are none.
            let look = if self.flows.is_empty() { Duration::ZERO } else { self.config.limits.spin };
            match spin.poll(&mut self.poll, &mut events, wait, look) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(error.into());
                }
                _ => {}
            }
            // A turn may take milliseconds, which would distort path measurements; so each step
            // reads the clock.
            self.own.heartbeat.beat();
            let unread = std::mem::take(&mut self.unread);
            for event in &events {
                self.handle(event, time());
            }
            self.read_on(unread);
            for key in std::mem::take(&mut self.runnable) {
                self.drive(key, End::Client, false, false, time());
            }
            let now = time();
            self.wake_due(now);
            self.drive_trickles(now);
            self.drive_tunnels();
            let now = time();
            if now >= sweep_at {
                self.sweep(now);
                sweep_at = now + SWEEP_INTERVAL;
            }
            self.close_listeners(now);
            if self.is_over(now) {
                return Ok(());
            }
            if self.is_idle(now) {
                info!("idle");
                return Ok(());
            }
        }
    }

    /// Takes further items from the sources that had some left after the last turn.
    fn read_on(&mut self, unread: Backlog) {
        for arrival in unread.arrivals {
            self.handle_arrival(arrival, time());
        }
        if unread.syns {
            self.see_syns(time());
        }
        for listener in unread.listeners {
            self.accept(listener, time());
        }
        if unread.commands {
            self.handle_commands(time());
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
        self.config.limits.idle_exit.is_some_and(|after| now.since(self.busy) >= after)
    }

    /// Time for which the loop may sleep.
    fn wait(&mut self) -> Duration {
        if !self.unread.is_empty() || !self.runnable.is_empty() || self.upstream.is_busy() {
            return Duration::ZERO;
        }
        let now = time();
        let alarm = self.flows.poll_timeout().map(|at| at.since(now));
        alarm.into_iter().chain(self.upstream.poll_timeout(now)).min().unwrap_or(SWEEP_INTERVAL)
    }

    /// Handles the readiness of a further connection of a flow.
    fn drive_net_conn(&mut self, token: usize, event: &Event, now: Instant) {
        let Some((key, id)) = self.flows.net_conn(token) else { return };
        let (readable, writable) = readiness(event);
        if let Some(chain_io) = self.flows.at(key).chain_io() {
            if event.is_read_closed() || event.is_priority() {
                chain_io.net_conn_may_hold_more(id);
            }
            chain_io.net_conn_ready(id, readable, writable);
        }
        // Neither end of the flow itself is reported as ready.
        self.drive(key, End::Client, false, false, now);
    }

    fn handle(&mut self, event: &Event, now: Instant) {
        match event.token() {
            SYNS => self.see_syns(now),
            WAKER => {
                self.handle_commands(now);
                self.read_answers(now);
            }
            // Received packets are handled at the end of the turn.
            TRICKLES => {}
            Token(n) if (FIRST_NET_CONN..FIRST_TOKEN).contains(&n) => {
                self.drive_net_conn(n, event, now);
            }
            Token(n) if (FIRST_TOKEN..=LISTENERS - self.acceptor.len()).contains(&n) => {
                if let Some(tunnels) = &mut self.upstream.tunnels {
                    tunnels.handle(event, now);
                }
            }
            Token(n) if n > LISTENERS - self.acceptor.len() && n <= LISTENERS => {
                self.accept(LISTENERS - n, now);
            }
            Token(n) => {
                let end = if n % 2 == 0 { End::Client } else { End::Server };
                let (readable, writable) = readiness(event);
                let Some(flow) = self.flows.get(n / 2) else { return };
                if event.is_read_closed() {
                    flow.ending(end);
                }
                if event.is_priority() {
                    flow.urgent(end);
                }
                self.drive(n / 2, end, readable, writable, now);
            }
        }
    }
}

/// Returns whether an end is readable, and whether it is writable. An end with an error counts as
/// both: the next read or write returns the error.
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

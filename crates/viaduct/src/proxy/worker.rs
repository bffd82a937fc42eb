//! The loop that drives all flows of a proxy, in one thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::Result;
use mio::net::TcpListener;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use tracing::{debug, error, info};
use viaduct_proto::split::early::Early;
use viaduct_proto::time::Instant;
use viaduct_sys::clock;
use viaduct_sys::syn::SynTap;
use viaduct_sys::tcp::{self, TcpOptions};

use super::arrivals::Started;
use super::doors::{Doors, Syns};
use super::flow::{End, Flow, Shared};
use super::flows::Flows;
use super::holding::Holding;
use super::orders::{Limits, Order, ToWorker};
use super::pipes::Pipes;
use super::policy::Policies;
use super::resolve::Resolver;
use super::settings::Settings;
use super::stats::ProxyStats;
use super::target::{Target, failure};
use super::tell::Teller;
use super::tunnels::{FIRST_TOKEN, Tunnels};

/// Events taken from the kernel at once.
const EVENTS: usize = 1024;
/// How often deadlines are looked at: they are seconds long.
const SWEEP: Duration = Duration::from_millis(500);
/// How long those who have begun a handshake are still let in by a proxy that ends: a round trip over
/// satellites, and a lost packet.
const HANDSHAKES: Duration = Duration::from_millis(1_200);
/// Bytes read at once where they cannot be spliced.
const SCRATCH: usize = 64 << 10;
const SYNS: Token = Token(usize::MAX - 1);
const NAMES: Token = Token(usize::MAX - 2);
const ORDERS: Token = Token(usize::MAX - 3);
/// Listeners' tokens end here and grow downwards; flows' grow upwards from 0, two each.
const LISTENERS: usize = usize::MAX - 4;

/// The loop's state.
pub struct Worker {
    poll: Poll,
    pub(super) listeners: Vec<TcpListener>,
    pub(super) tap: Option<SynTap>,
    pub(super) holding: Option<Holding>,
    pub(super) early: Early<Started>,
    pub(super) flows: Flows,
    /// Flows that have more to move, after the others had their turn.
    again: Vec<usize>,
    pub(super) resolver: Option<Resolver>,
    pub(super) tunnels: Option<Tunnels>,
    pub(super) target: Target,
    pub(super) policies: Policies,
    pub(super) options: TcpOptions,
    pub(super) teller: Teller,
    pub(super) limits: Limits,
    pub(super) stats: ProxyStats,
    orders: mpsc::Receiver<Order>,
    /// When it had a flow last.
    busy: Instant,
    /// When to end, if it was asked to.
    deadline: Option<Instant>,
    /// When to close the listeners, if it was.
    doors_close: Option<Instant>,
}

impl Worker {
    /// Behind these doors, where nothing is accepted yet; and the way to tell it what to do.
    pub fn new(settings: &Settings, doors: Doors) -> Result<(Worker, ToWorker)> {
        let Settings { target, policies, options, limits, .. } = settings.clone();
        let poll = Poll::new()?;
        let (send, orders) = mpsc::channel();
        let to_worker = ToWorker::new(send, Arc::new(Waker::new(poll.registry(), ORDERS)?));
        // Sessions of tunnels may name their servers whatever else comes here.
        let arrive = settings.tunnels.as_ref().is_some_and(|of| of.listen.is_some());
        let resolver = match target {
            Target::Fixed(_) | Target::Meant { .. } if !arrive => None,
            _ => Some(Resolver::new(&Arc::new(Waker::new(poll.registry(), NAMES)?))?),
        };
        let mut teller = Teller::new(settings.tell, &policies)?;
        let (most, mut wait) = limits.early.unwrap_or_default();
        let (tap, holding) = match doors.syns {
            Syns::Unseen => (None, None),
            Syns::Tap(tap) => (Some(tap), None),
            Syns::Queue(queue) => {
                // Its client comes after its server has answered.
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
        teller.outlets = tunnels.as_ref().map(Tunnels::outlets).unwrap_or_default();
        let shared =
            Shared { pipes: Pipes::new(settings.workers), scratch: vec![0; SCRATCH].into() };
        let worker = Worker {
            early: Early::new(most, wait),
            flows: Flows::new(poll.registry().try_clone()?, limits.flows, shared),
            again: Vec::new(),
            poll,
            listeners,
            tap,
            holding,
            resolver,
            tunnels,
            target,
            policies,
            options,
            teller,
            limits,
            stats: ProxyStats::default(),
            orders,
            busy: time(),
            deadline: None,
            doors_close: None,
        };
        Ok((worker, to_worker))
    }

    /// Runs until it is told to end.
    pub fn run(mut self) -> Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        let mut sweep_at = time() + SWEEP;
        loop {
            let wait = self.wait();
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(error.into());
                }
                _ => {}
            }
            let now = time();
            for event in &events {
                self.handle(event, now);
            }
            for key in std::mem::take(&mut self.again) {
                self.drive(key, End::Client, false, false, now);
            }
            while let Some(key) = self.flows.poll_alarm(now) {
                self.drive(key, End::Client, false, false, now);
            }
            self.pump(now);
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

    /// Whether it has been without a flow for so long that it shall end.
    fn is_idle(&mut self, now: Instant) -> bool {
        if !self.flows.is_empty() {
            self.busy = now;
        }
        self.limits.idle_exit.is_some_and(|after| now.since(self.busy) >= after)
    }

    /// Does what it was told.
    fn obey(&mut self, now: Instant) {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Show(reply) => drop(reply.send(self.stats())),
                Order::Reload(settings) => {
                    let Settings { target, policies, options, limits, tunnels, .. } = *settings;
                    if let (Some(running), Some(new)) = (&mut self.tunnels, tunnels) {
                        running.set_links(&new.dials, now);
                    }
                    (self.target, self.policies) = (target, policies);
                    (self.options, self.limits) = (options, limits);
                    if let Err(error) = self.teller.prepare(&self.policies) {
                        error!("{error:#}");
                    }
                }
                Order::Drain => self.drain(now),
                Order::Stop => self.deadline = Some(now),
            }
        }
    }

    /// Takes no new flows. Who has begun a handshake is still let in.
    fn drain(&mut self, now: Instant) {
        self.deadline = Some(now + self.limits.drain);
        self.doors_close = Some(now + HANDSHAKES);
        self.holding = None;
        for listener in &self.listeners {
            if let Err(error) = tcp::take_no_more(listener) {
                debug!("refuse SYNs: {error}");
            }
        }
        info!(flows = self.flows.len(), "stopping");
    }

    /// Closes the listeners, when those who had begun a handshake have been let in.
    fn close_doors(&mut self, now: Instant) {
        if self.doors_close.is_some_and(|at| now >= at) {
            (0..self.listeners.len()).for_each(|n| self.accept(n, now));
            self.listeners.clear();
            (self.tap, self.doors_close) = (None, None);
        }
    }

    /// Whether it was asked to end, and can.
    fn is_over(&self, now: Instant) -> bool {
        let ended = self.flows.is_empty() && self.doors_close.is_none();
        self.deadline.is_some_and(|at| ended || now >= at)
    }

    fn stats(&self) -> ProxyStats {
        let (open, waiting) = (self.flows.len() as u64, self.early.len() as u64);
        let tunnels = self.tunnels.as_ref().map(Tunnels::counters).unwrap_or_default();
        ProxyStats { open, waiting, early: self.early.stats(), tunnels, ..self.stats.clone() }
    }

    /// How long the loop may sleep.
    fn wait(&mut self) -> Duration {
        if !self.again.is_empty() || self.tunnels.as_ref().is_some_and(Tunnels::is_busy) {
            return Duration::ZERO;
        }
        let tunnels = self.tunnels.as_mut().and_then(Tunnels::poll_timeout);
        match self.flows.poll_timeout().into_iter().chain(tunnels).min() {
            Some(at) => at.since(time()).min(SWEEP),
            None => SWEEP,
        }
    }

    fn handle(&mut self, event: &mio::event::Event, now: Instant) {
        match event.token() {
            SYNS => self.see_syns(now),
            NAMES => self.read_answers(now),
            ORDERS => self.obey(now),
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
                let (readable, writable) = (
                    event.is_readable() || event.is_read_closed() || event.is_error(),
                    event.is_writable() || event.is_write_closed() || event.is_error(),
                );
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

    /// Does what can be done for a flow, one end of which is ready.
    pub(super) fn drive(
        &mut self,
        key: usize,
        end: End,
        readable: bool,
        writable: bool,
        now: Instant,
    ) {
        let Some(flow) = self.flows.get(key) else { return };
        flow.ready(end, readable, writable);
        if flow.broken().is_some() {
            return;
        }
        if flow.asked().is_some_and(|asked| !asked.begun) {
            return self.hear(key, now);
        }
        // Only a server's connection says by itself that it is there.
        if !flow.is_connected() && (end == End::Server || flow.goes_by_session()) {
            match flow.check_connected(now) {
                Ok(()) if flow.is_connected() => {
                    let (via, took) = (flow.via(), now.since(flow.begun));
                    answer(flow);
                    self.stats.hop(via).took(took);
                    self.let_in(key, now);
                }
                Ok(()) => {}
                Err(error) => return self.unanswered(key, &error),
            }
        }
        self.stats.opened += u64::from(self.flows.at(key).opens());
        match self.flows.drive(key, now) {
            Ok(moved) => {
                for (sum, bytes) in self.stats.bytes.iter_mut().zip(moved.bytes) {
                    *sum += bytes;
                }
                if moved.done {
                    self.stats.finished += 1;
                    return self.end(key, false);
                }
                if moved.more {
                    self.again.push(key);
                }
                self.flows.set_alarm(key);
            }
            Err(error) => {
                debug!("flow: {error}");
                self.stats.reset += 1;
                self.end(key, true);
            }
        }
    }

    /// A server does not answer, or says no.
    fn unanswered(&mut self, key: usize, error: &io::Error) {
        let flow = self.flows.at(key);
        debug!("connect for {}: {error}", flow.source());
        self.stats.hop(flow.via()).failed += 1;
        if self.turn_away(key, error) {
            return self.stats.refused.count(failure(error));
        }
        let flow = self.flows.at(key);
        if flow.asked().is_some() {
            return self.refuse(key, failure(error));
        }
        flow.set_broken(failure(error));
        // Without a client it waits for one, to be told.
        if flow.has_client() {
            self.stats.refused.count(failure(error));
            self.end(key, true);
        }
    }

    /// Ends a flow; by a reset of both connections if one of them broke. One without a client ends
    /// only when its client comes or its time is up: `early` knows its key until then.
    pub(super) fn end(&mut self, key: usize, reset: bool) {
        self.forget_held(key);
        let Some(mut flow) = self.flows.remove(key) else { return };
        if reset {
            flow.reset();
        }
    }

    /// Looks at deadlines, and for those who could not be accepted when they came.
    fn sweep(&mut self, now: Instant) {
        (0..self.listeners.len()).for_each(|n| self.accept(n, now));
        while let Some((_, started)) = self.early.poll_expired(now) {
            self.end(started.key, true);
        }
        let Limits { connect, keep_alive, idle, .. } = self.limits;
        let quiet = |flow: &Flow| flow.has_client().then(|| now.since(flow.moved));
        let unanswered = |flow: &Flow| !flow.is_connected() && quiet(flow) > Some(connect);
        for key in self.flows.pick(unanswered) {
            self.unanswered(key, &io::ErrorKind::TimedOut.into());
        }
        if let Some(quiet) = keep_alive {
            // Those that have seen a sweep before: most flows never do.
            let lasts = |flow: &Flow| flow.has_client() && now.since(flow.begun) > SWEEP;
            let lasting = |flow: &Flow| flow.is_connected() && !flow.is_probed() && lasts(flow);
            for key in self.flows.pick(lasting) {
                self.flows.at(key).keep_alive(quiet);
            }
        }
        let Some(idle) = idle else { return };
        for key in self.flows.pick(|flow| flow.is_connected() && quiet(flow) > Some(idle)) {
            self.stats.idle += 1;
            self.end(key, true);
        }
    }
}

/// Tells a client that asked that its server is there.
fn answer(flow: &mut Flow) {
    if let Some(asked) = flow.asked() {
        let words = asked.preface.answer(Ok(()));
        flow.say(End::Client, &words);
        flow.answered();
    }
}

fn time() -> Instant {
    Instant::from_nanos(clock::now())
}

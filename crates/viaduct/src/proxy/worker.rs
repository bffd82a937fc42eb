//! The loop that drives all flows of a proxy, in one thread.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use signal_hook::consts::{SIGINT, SIGTERM};
use slab::Slab;
use tracing::{debug, info, warn};
use viaduct_proto::split::early::{Early, Tuple};
use viaduct_proto::split::syn::Syn;
use viaduct_proto::time::Instant as Time;
use viaduct_sys::clock;
use viaduct_sys::syn::{SNAP, SynTap};
use viaduct_sys::tcp::{self, TcpOptions};

use super::flow::{End, Flow, State};
use super::pipes::Pipes;
use super::resolve::Resolver;
use super::target::{Route, Target, failure};

/// Connections that the kernel holds ready to be accepted.
const BACKLOG: u32 = 4096;
/// Events taken from the kernel at once.
const EVENTS: usize = 1024;
/// How often deadlines are looked at: they are seconds long.
const SWEEP: Duration = Duration::from_millis(500);
const SYNS: Token = Token(usize::MAX - 1);
const NAMES: Token = Token(usize::MAX - 2);
/// Listeners' tokens end here and grow downwards; flows' grow upwards from 0, two each.
const LISTENERS: usize = usize::MAX - 3;

/// What keeps a proxy within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Flows at once.
    pub flows: usize,
    /// Early connections at once, and how long each waits; `None` forwards no SYN early.
    pub early: Option<(usize, Duration)>,
    /// How long a server may take to answer.
    pub connect: Duration,
    /// How long a flow may say nothing.
    pub idle: Option<Duration>,
    /// How long flows may go on after SIGTERM.
    pub drain: Duration,
}

/// The loop's state.
pub struct Worker {
    pub(super) poll: Poll,
    listeners: Vec<TcpListener>,
    tap: Option<SynTap>,
    early: Early<usize>,
    pub(super) flows: Slab<Flow>,
    pipes: Pipes,
    pub(super) resolver: Option<Resolver>,
    pub(super) target: Target,
    /// The next hop, if flows do not go straight on.
    pub(super) next: Option<SocketAddr>,
    pub(super) options: TcpOptions,
    pub(super) limits: Limits,
    stop: Arc<AtomicBool>,
}

impl Worker {
    /// Opens all that it needs, before anything is accepted.
    pub fn new(
        listen: &[SocketAddr],
        target: Target,
        next: Option<SocketAddr>,
        options: TcpOptions,
        limits: Limits,
    ) -> Result<Worker> {
        let poll = Poll::new()?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            // The second one ends it at once.
            signal_hook::flag::register_conditional_default(signal, stop.clone())?;
            signal_hook::flag::register(signal, stop.clone())?;
        }
        let resolver = match target {
            Target::Asked(_) => {
                Some(Resolver::new(&Arc::new(Waker::new(poll.registry(), NAMES)?))?)
            }
            _ => None,
        };
        // The tap first: no SYN may be missed that the listener answers.
        let ports = limits.early.and_then(|_| target.ports(listen));
        let tap = ports.map(|ports| SynTap::open(&ports)).transpose();
        let tap =
            tap.context("watch for SYNs, which takes root or CAP_NET_RAW (--forward late)")?;
        if let Some(tap) = &tap {
            let fd = tap.as_fd().as_raw_fd();
            poll.registry().register(&mut SourceFd(&fd), SYNS, Interest::READABLE)?;
        }
        let mut listeners = Vec::new();
        for (n, &at) in listen.iter().enumerate() {
            let listener = tcp::listen(at, BACKLOG, options)
                .with_context(|| format!("--listen: cannot use {at}"))?;
            let mut listener = TcpListener::from_std(listener);
            poll.registry().register(&mut listener, Token(LISTENERS - n), Interest::READABLE)?;
            listeners.push(listener);
        }
        let (most, wait) = limits.early.unwrap_or_default();
        Ok(Worker {
            early: Early::new(most, wait),
            flows: Slab::new(),
            pipes: Pipes::default(),
            poll,
            listeners,
            tap,
            resolver,
            target,
            next,
            options,
            limits,
            stop,
        })
    }

    /// Runs until a signal, and then until all flows have ended or their time is up.
    pub fn run(mut self) -> Result<()> {
        let mut events = Events::with_capacity(EVENTS);
        let mut sweep_at = Instant::now() + SWEEP;
        let mut deadline = None;
        loop {
            match self.poll.poll(&mut events, Some(SWEEP)) {
                Err(error) if error.kind() != io::ErrorKind::Interrupted => {
                    return Err(error.into());
                }
                _ => {}
            }
            let now = Instant::now();
            for event in &events {
                match event.token() {
                    SYNS => self.read_syns(now),
                    NAMES => self.read_answers(now),
                    Token(n) if n > LISTENERS - self.listeners.len() && n <= LISTENERS => {
                        self.accept(LISTENERS - n, now);
                    }
                    Token(n) => {
                        let end = if n % 2 == 0 { End::Client } else { End::Server };
                        let (readable, writable) = (
                            event.is_readable() || event.is_read_closed() || event.is_error(),
                            event.is_writable() || event.is_write_closed() || event.is_error(),
                        );
                        self.drive(n / 2, end, readable, writable, now);
                    }
                }
            }
            if now >= sweep_at {
                self.sweep(now);
                sweep_at = now + SWEEP;
            }
            if self.stop.load(Ordering::Relaxed) && deadline.is_none() {
                deadline = Some(now + self.limits.drain);
                self.listeners.clear();
                self.tap = None;
                info!(flows = self.flows.len(), "stopping");
            }
            if deadline.is_some_and(|at| self.flows.is_empty() || now >= at) {
                return Ok(());
            }
        }
    }

    /// Begins the connections of the SYNs that have come.
    fn read_syns(&mut self, now: Instant) {
        let mut packet = [0; SNAP];
        loop {
            let Some(tap) = &self.tap else { return };
            let syn = match tap.recv(&mut packet) {
                Ok(Some(packet)) => Syn::parse(packet),
                Ok(None) => return,
                Err(_) => continue, // an interface went down
            };
            let Some(Syn { tuple, .. }) = syn else { continue };
            if self.flows.len() >= self.limits.flows {
                continue;
            }
            let Worker { early, flows, poll, target, next, options, .. } = self;
            let route = target.route(&tuple, *next);
            early.handle_syn(time(), tuple, || {
                begin(flows, poll, &route, *options, tuple.client, now)
            });
        }
    }

    fn accept(&mut self, listener: usize, now: Instant) {
        loop {
            let Some(listener) = self.listeners.get(listener) else { return };
            let (client, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    debug!("accept: {error}");
                    return;
                }
            };
            let Ok(to) = client.local_addr() else { continue };
            // Each end has put its bytes together as it wants them sent.
            let _ = client.set_nodelay(true);
            if let Target::Asked(terms) = &self.target {
                let terms = terms.clone();
                self.welcome(client, canonical(peer), &terms, now);
                continue;
            }
            // Its SYN is in the tap by now: it came before its handshake was done.
            self.read_syns(now);
            self.join(client, Tuple { client: canonical(peer), to: canonical(to) }, now);
        }
    }

    /// Joins a client with the connection that its SYN has begun, or begins one now.
    fn join(&mut self, mut client: TcpStream, tuple: Tuple, now: Instant) {
        let Worker { flows, poll, target, next, options, limits, .. } = self;
        let route = target.route(&tuple, *next);
        let key = match self.early.handle_accept(&tuple) {
            Some(key) => Some(key),
            None if flows.len() >= limits.flows => None,
            None => begin(flows, poll, &route, *options, tuple.client, now),
        };
        let both = Interest::READABLE | Interest::WRITABLE;
        let Some(key) = key else {
            let _ = tcp::reset_on_close(&client);
            return;
        };
        if self.flows[key].is_broken() {
            let _ = tcp::reset_on_close(&client);
            return self.end(key, true);
        }
        if let Err(error) = self.poll.registry().register(&mut client, Token(2 * key), both) {
            warn!("register a client: {error}");
            return self.end(key, true);
        }
        self.flows[key].set_client(client, now);
        self.drive(key, End::Client, true, true, now);
    }

    fn drive(&mut self, key: usize, end: End, readable: bool, writable: bool, now: Instant) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        flow.ready(end, readable, writable);
        if flow.is_broken() {
            return;
        }
        if flow.asked().is_some_and(|asked| !asked.begun) {
            return self.hear(key, now);
        }
        if !flow.is_connected()
            && let Err(error) = flow.check_connected()
        {
            debug!("connect: {error}");
            if flow.asked().is_some() {
                return self.refuse(key, failure(&error));
            }
            flow.set_broken();
            // Without a client it waits for one, to be told.
            if flow.has_client() {
                self.end(key, true);
            }
            return;
        }
        let flow = &mut self.flows[key];
        if flow.is_connected()
            && let Some(asked) = flow.asked()
        {
            let words = asked.preface.answer(Ok(()));
            flow.say(End::Client, &words);
            flow.answered();
        }
        match flow.drive(&mut self.pipes, now) {
            Ok(State::Open) => {}
            Ok(State::Done) => self.end(key, false),
            Err(error) => {
                debug!("flow: {error}");
                self.end(key, true);
            }
        }
    }

    /// Ends a flow; by a reset of both connections if one of them broke. One without a client ends
    /// only when its client comes or its time is up: `early` knows its key until then.
    pub(super) fn end(&mut self, key: usize, reset: bool) {
        let mut flow = self.flows.remove(key);
        if reset {
            flow.reset();
        }
        flow.release(&mut self.pipes);
        for stream in flow.streams().into_iter().flatten() {
            let _ = self.poll.registry().deregister(stream);
        }
    }

    /// Looks at deadlines.
    fn sweep(&mut self, now: Instant) {
        while let Some((_, key)) = self.early.poll_expired(time()) {
            self.end(key, true);
        }
        let Limits { connect, idle, .. } = self.limits;
        let late = |flow: &Flow| {
            let quiet = now.saturating_duration_since(flow.moved);
            let allowed = if flow.is_connected() { idle } else { Some(connect) };
            flow.has_client() && allowed.is_some_and(|allowed| quiet > allowed)
        };
        let keys: Vec<_> =
            self.flows.iter().filter(|(_, flow)| late(flow)).map(|(key, _)| key).collect();
        for key in keys {
            self.end(key, true);
        }
    }
}

/// Begins the connection of a flow for `source`.
fn begin(
    flows: &mut Slab<Flow>,
    poll: &Poll,
    route: &Route,
    options: TcpOptions,
    source: SocketAddr,
    now: Instant,
) -> Option<usize> {
    let server = tcp::connect(route.to, route.from, options);
    let server = server.inspect_err(|e| debug!("connect to {}: {e}", route.to)).ok()?;
    let mut server = TcpStream::from_std(server);
    let entry = flows.vacant_entry();
    let (key, both) = (entry.key(), Interest::READABLE | Interest::WRITABLE);
    poll.registry().register(&mut server, Token(2 * key + 1), both).ok()?;
    let flow = entry.insert(Flow::new(server, source, now));
    flow.say(End::Server, &route.first);
    Some(key)
}

/// A socket for both families shows IPv4 addresses as mapped ones.
fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

fn time() -> Time {
    Time::from_nanos(clock::now())
}

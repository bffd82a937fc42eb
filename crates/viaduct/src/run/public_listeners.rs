//! Programs that listen, without privilege: the master accepts at the port that the program
//! asked for, and the program listens in a capture namespace ([`super::capture_ns`]) that only the
//! master connects into.
//!
//! ```text
//!   program ── listen ──▶ its socket, bound to 192.0.2.1:80, becomes the public listener;
//!                         in its place it gets a listener in the namespace, same address
//!   client ══▶ public listener ══▶ Arrival: handlers ══▶ a socket in the namespace, bound
//!                                                        to the client's address ══▶ program
//! ```
//!
//! Errors of an address are thus reported to the program by the kernel, and `accept` returns
//! the client's address. A public listener lives while a program listens behind it; the kernel
//! reports when the last one closes. It accepts only while the listener behind it has room in
//! its backlog, so that clients wait as they would before the program's own listener.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tracing::{debug, warn};
use viaduct_proto::wrap::Socket;
use viaduct_sys::netns::capture_ns::{self, Listeners, Purpose};
use viaduct_sys::seccomp::find_socket;
use viaduct_sys::socket::tcp;

use super::capture_ns::CaptureNs;
use super::report::{Report, ReportedProgram};
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::{Arrival, Program};
use crate::master::carrier::Carrier;

/// Interval between checks that programs still listen: a socket that was shut down is not closed.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Pause after an error of accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Connections accepted from one public listener before the others have their turn.
const MAX_ACCEPTS: usize = 64;
/// First and last interval between checks for room behind a full listener; it doubles in between.
const ROOM_CHECK_INTERVALS: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];
/// Event data that belongs to no public listener.
const WOKEN: u64 = 0;
const CLOSED: u64 = u64::MAX;

/// All public listeners of a run.
#[derive(Debug)]
pub struct PublicListeners {
    netns: Mutex<Option<OpenNs>>,
    list: Mutex<List>,
    /// Reports public listeners with pending connections, by their socket cookies.
    epoll: OwnedFd,
    wake: OwnedFd,
    /// Set when a program accepts a connection while some listener is full.
    has_drained: AtomicBool,
    carrier: Carrier,
    report: Option<Report>,
}

/// The capture namespace, and the source of events about listeners in it.
#[derive(Clone, Debug)]
struct OpenNs {
    netns: Arc<CaptureNs>,
    listeners: Arc<Listeners>,
}

/// All public listeners. Removing one closes it, and its port is free then.
#[derive(Debug, Default)]
struct List {
    /// By socket cookie.
    public_listeners: HashMap<u64, PublicListener>,
    /// The public listener of each listener in the namespace; both by cookie.
    inner: HashMap<u64, u64>,
    /// The public listeners at each port.
    ports: HashMap<u16, Vec<u64>>,
    /// Listeners that accept nothing for want of room behind them.
    full: Vec<u64>,
}

/// Public listener: a port that programs listen at.
#[derive(Debug)]
struct PublicListener {
    listener: TcpListener,
    /// Cookie of the program's original socket.
    cookie: u64,
    port: u16,
    is: Socket,
    backlog: i32,
    /// File status flags of the program's socket: whether its calls block.
    flags: OFlags,
    inner: Vec<InnerListener>,
    /// True while it is in [`List::full`].
    is_full: bool,
    /// Connections that may be accepted before the backlog behind it is read again.
    room: usize,
    /// Held by each accepted connection until it is in the program's backlog, or until its
    /// handlers wait for the client's preface.
    backlog_slot: Arc<()>,
}

/// A program's listener in the capture namespace.
#[derive(Debug)]
struct InnerListener {
    cookie: u64,
    inode: u64,
}

/// Connection to a program: the namespace, the client's address, and the socket bound there.
#[derive(Debug)]
struct CapturedProgram {
    netns: Arc<CaptureNs>,
    client: SocketAddr,
    bound_socket: Option<TcpStream>,
    own: SocketAddr,
    /// Counts this connection against the room of the backlog.
    backlog_slot: Option<Arc<()>>,
}

impl List {
    fn add(&mut self, public: PublicListener) {
        self.inner.extend(public.inner.iter().map(|inner| (inner.cookie, public.cookie)));
        self.ports.entry(public.port).or_default().push(public.cookie);
        self.public_listeners.insert(public.cookie, public);
    }

    /// Adds a listener behind a public listener.
    fn add_inner(&mut self, public: u64, inner: InnerListener) {
        self.inner.insert(inner.cookie, public);
        if let Some(public) = self.public_listeners.get_mut(&public) {
            public.inner.push(inner);
        }
    }

    /// Removes a closed listener, and with the last one behind it the public listener.
    fn remove_inner(&mut self, cookie: u64) {
        let Some(of) = self.inner.remove(&cookie) else { return };
        let Some(public) = self.public_listeners.get_mut(&of) else { return };
        public.inner.retain(|inner| inner.cookie != cookie);
        if !public.inner.is_empty() {
            return;
        }
        let port = public.port;
        self.public_listeners.remove(&of);
        if let Some(others) = self.ports.get_mut(&port) {
            others.retain(|cookie| *cookie != of);
            if others.is_empty() {
                self.ports.remove(&port);
            }
        }
    }

    /// Removes those at `port`, or at any port if it is 0, that no longer listen.
    fn sweep(&mut self, listeners: &Listeners, port: u16) -> io::Result<()> {
        let mut listening = HashSet::new();
        for v6 in [false, true] {
            listening.extend(listeners.at(port, v6)?.iter().map(|of| of.cookie));
        }
        let ours = |public: &u64| {
            port == 0 || self.public_listeners.get(public).is_some_and(|of| of.port == port)
        };
        let inner =
            self.inner.iter().filter(|(cookie, of)| !listening.contains(cookie) && ours(of));
        for cookie in inner.map(|(cookie, _)| *cookie).collect::<Vec<_>>() {
            self.remove_inner(cookie);
        }
        Ok(())
    }
}

impl PublicListener {
    /// Reads how many more connections fit behind the listener.
    fn update_room(&mut self, listeners: &Listeners) {
        // If the listeners cannot be read, none has room.
        let there = listeners.at(self.port, self.is.is_v6()).unwrap_or_default();
        let ours = there.iter().filter(|of| self.inner.iter().any(|it| it.cookie == of.cookie));
        let room =
            ours.map(|of| (of.backlog + 1).saturating_sub(of.waiting) as usize).sum::<usize>();
        // One reference is the listener's own.
        self.room = room.saturating_sub(Arc::strong_count(&self.backlog_slot) - 1);
    }
}

/// An accepted connection, its client's address, and its share of the backlog.
type Accepted = (TcpStream, SocketAddr, Arc<()>);

/// Outcome of a program's `listen`.
#[derive(Debug)]
pub enum ListenOutcome {
    /// The first descriptor replaces the program's own, which is the second.
    Replace(OwnedFd, OwnedFd),
    /// The socket stays: it is behind a public listener already, or in another network namespace.
    Unchanged,
}

impl PublicListeners {
    /// Starts without listeners. `carrier` takes the connections, and `report` counts them.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(carrier: Carrier, report: Option<Report>) -> io::Result<Arc<PublicListeners>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WOKEN), epoll::EventFlags::IN)?;
        let (netns, list, has_drained) =
            (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let public_listeners =
            Arc::new(PublicListeners { netns, list, epoll, wake, has_drained, carrier, report });
        let all = public_listeners.clone();
        thread::Builder::new().name("accept".to_owned()).spawn(move || all.accept_loop())?;
        Ok(public_listeners)
    }

    /// Opens the capture namespace unless it is open.
    ///
    /// # Errors
    /// The user may not create one; the error says why.
    pub fn open_ns(&self) -> Result<()> {
        let mut netns = self.netns.lock().unwrap_or_else(PoisonError::into_inner);
        if netns.is_none() {
            let (opened, listeners) = CaptureNs::open()?;
            let data = epoll::EventData::new_u64(CLOSED);
            epoll::add(&self.epoll, &listeners, data, epoll::EventFlags::IN)?;
            *netns = Some(OpenNs { netns: Arc::new(opened), listeners: Arc::new(listeners) });
        }
        Ok(())
    }

    /// Returns whether the capture namespace is open.
    pub fn has_ns(&self) -> bool {
        self.ns().is_some()
    }

    fn ns(&self) -> Option<OpenNs> {
        self.netns.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes `socket`, a duplicate of a program's TCP socket, listen behind a public listener.
    ///
    /// # Errors
    /// The error for the program: its address is taken, or there is no capture namespace.
    pub fn listen(&self, socket: OwnedFd, is: Socket, backlog: i32) -> io::Result<ListenOutcome> {
        let OpenNs { netns, listeners } = self.ns().ok_or(io::ErrorKind::NotConnected)?;
        let cookie = sockopt::socket_cookie(&socket)?;
        if let Some(outcome) = self.relisten(&netns, cookie, is, Some(backlog))? {
            return Ok(outcome);
        }
        let flags = fcntl_getfl(&socket)?;
        if !capture_ns::is_in_this_netns(&socket) {
            capture_ns::listen(&socket, backlog)?;
            if capture_ns::share_netns(&listeners, &socket) {
                // It was behind a public listener, and has been shut down.
                let public = open_public(&socket, is, backlog)
                    .and_then(|public| self.add(public, is, backlog, flags, &socket));
                if let Err(error) = public {
                    capture_ns::stop_listening(&socket)?;
                    return Err(error);
                }
            }
            return Ok(ListenOutcome::Unchanged);
        }
        capture_ns::listen(&socket, backlog)?;
        let inner = match listen_in_ns(&netns, &socket, is, backlog, flags) {
            Ok(inner) => inner,
            Err(error) => {
                capture_ns::stop_listening(&socket)?;
                return Err(error);
            }
        };
        let own = socket.try_clone()?;
        self.add(socket, is, backlog, flags, &inner)?;
        Ok(ListenOutcome::Replace(inner, own))
    }

    /// Accepts connections at `public`, which listens, for `inner`.
    fn add(
        &self,
        public: OwnedFd,
        is: Socket,
        backlog: i32,
        flags: OFlags,
        inner: &OwnedFd,
    ) -> io::Result<()> {
        let cookie = sockopt::socket_cookie(&public)?;
        let listener = TcpListener::from(public);
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let data = epoll::EventData::new_u64(cookie);
        epoll::add(&self.epoll, &listener, data, epoll::EventFlags::IN)?;
        // The room is not known yet: it is read before the first accept.
        let (inner, room, backlog_slot) = (vec![InnerListener::of(inner)?], 0, Arc::default());
        let is_full = false;
        let public = PublicListener {
            listener,
            cookie,
            port,
            is,
            backlog,
            flags,
            inner,
            is_full,
            room,
            backlog_slot,
        };
        let mut list = self.list();
        list.add(public);
        // If there were listeners before, the thread already wakes up at intervals.
        if list.public_listeners.len() == 1 {
            self.wake();
        }
        Ok(())
    }

    /// Returns the replacement for a socket that a program accepts from, which it may have
    /// inherited from before another process called `listen`; `None` if it needs none.
    pub fn accept(&self, cookie: u64, is: Socket) -> io::Result<Option<ListenOutcome>> {
        if !self.list().full.is_empty() && !self.has_drained.swap(true, Ordering::AcqRel) {
            self.wake();
        }
        let opened = self.ns();
        opened.map_or(Ok(None), |opened| self.relisten(&opened.netns, cookie, is, None))
    }

    /// Handles a socket that was the public listener, or is behind it.
    fn relisten(
        &self,
        netns: &CaptureNs,
        cookie: u64,
        is: Socket,
        backlog: Option<i32>,
    ) -> io::Result<Option<ListenOutcome>> {
        let mut list = self.list();
        if let Some(public) = list.public_listeners.get(&cookie) {
            let own = public.listener.try_clone()?.into();
            // All processes that share the socket share one accept queue.
            let theirs = public.inner.iter().find_map(|of| find_socket(of.inode));
            if let Some(inner) = theirs {
                return Ok(Some(ListenOutcome::Replace(inner, own)));
            }
            let backlog = backlog.unwrap_or(public.backlog);
            let more = listen_in_ns(netns, &public.listener, is, backlog, public.flags)?;
            list.add_inner(cookie, InnerListener::of(&more)?);
            return Ok(Some(ListenOutcome::Replace(more, own)));
        }
        let Some(of) = list.inner.get(&cookie).copied() else { return Ok(None) };
        if let (Some(backlog), Some(public)) = (backlog, list.public_listeners.get_mut(&of)) {
            public.backlog = backlog;
            capture_ns::listen(&public.listener, backlog)?;
        }
        Ok(Some(ListenOutcome::Unchanged))
    }

    /// Frees `port`, to which a program wants to bind a socket, if no program listens there any
    /// more.
    pub fn release(&self, port: u16) {
        let Some(OpenNs { listeners, .. }) = self.ns() else { return };
        let mut list = self.list();
        if list.ports.contains_key(&port)
            && let Err(error) = list.sweep(&listeners, port)
        {
            debug!("listeners in the capture namespace: {error}");
        }
    }

    /// Removes public listeners that no program listens behind any more.
    pub fn sweep(&self) {
        let Some(OpenNs { listeners, .. }) = self.ns() else { return };
        let mut list = self.list();
        if !list.public_listeners.is_empty()
            && let Err(error) = list.sweep(&listeners, 0)
        {
            debug!("listeners in the capture namespace: {error}");
        }
    }

    /// Handles closed listeners in the capture namespace.
    fn handle_closed(&self) {
        let Some(OpenNs { listeners, .. }) = self.ns() else { return };
        match listeners.closed() {
            Some(cookies) => {
                let mut list = self.list();
                cookies.into_iter().for_each(|cookie| list.remove_inner(cookie));
            }
            None => self.sweep(),
        }
    }

    /// Returns whether no program listens.
    pub fn is_empty(&self) -> bool {
        self.list().public_listeners.is_empty()
    }

    /// Returns whether the program that listens at `port` has set `SO_REUSEADDR`, or
    /// `SO_REUSEPORT` if `whole_port`, on its socket. Its socket in the capture namespace has
    /// them set in any case.
    pub fn reuse_option(&self, port: u16, whole_port: bool) -> Option<bool> {
        let list = self.list();
        let public = list.public_listeners.get(list.ports.get(&port)?.first()?)?;
        match whole_port {
            true => sockopt::socket_reuseport(&public.listener).ok(),
            false => sockopt::socket_reuseaddr(&public.listener).ok(),
        }
    }

    fn wake(&self) {
        // The counter cannot overflow.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Accepts connections to programs for as long as the process runs.
    fn accept_loop(&self) {
        let (mut last_check, mut events) = (Instant::now(), Vec::with_capacity(64));
        let [soonest, latest] = ROOM_CHECK_INTERVALS;
        let mut pause = soonest;
        loop {
            events.clear();
            let (is_empty, is_full) = {
                let list = self.list();
                (list.public_listeners.is_empty(), !list.full.is_empty())
            };
            let limit = if is_full { pause } else { CHECK_INTERVAL };
            let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
            let limit = (!is_empty).then_some(&limit);
            if let Err(error) = epoll::wait(&self.epoll, spare_capacity(&mut events), limit)
                && error != Errno::INTR
            {
                return warn!("connections to programs are no longer accepted: {error}");
            }
            // Closed listeners are removed before any connection is accepted for them.
            if events.iter().any(|event| event.data.u64() == CLOSED) {
                self.handle_closed();
            }
            for event in &events {
                match event.data.u64() {
                    CLOSED => {}
                    WOKEN => drop(rustix::io::read(&self.wake, &mut [0; 8])),
                    cookie => self.accept_pending(cookie),
                }
            }
            if is_full {
                let has_drained = self.has_drained.swap(false, Ordering::AcqRel);
                pause = if has_drained { soonest } else { (2 * pause).min(latest) };
                let full = std::mem::take(&mut self.list().full);
                full.into_iter().for_each(|cookie| self.accept_pending(cookie));
            } else {
                pause = soonest;
            }
            if last_check.elapsed() >= CHECK_INTERVAL {
                self.sweep();
                last_check = Instant::now();
            }
        }
    }

    fn accept_pending(&self, cookie: u64) {
        let (accepted, error) = self.accept_from(cookie);
        for (stream, client, backlog_slot) in accepted {
            if let Err(error) = self.hand_over(stream, client, backlog_slot) {
                debug!("a connection to a program: {error}");
            }
        }
        if let Some(error) = error {
            debug!("accept: {error}");
            // For example, no descriptor is left.
            thread::sleep(ACCEPT_RETRY_DELAY);
        }
    }

    /// Accepts connections of a public listener; returns them, and the error that ended the
    /// loop if any. A listener without room behind it is not polled for a while.
    fn accept_from(&self, cookie: u64) -> (Vec<Accepted>, Option<io::Error>) {
        let mut accepted = Vec::new();
        let Some(OpenNs { listeners, .. }) = self.ns() else { return (accepted, None) };
        let mut list = self.list();
        let Some(public) = list.public_listeners.get_mut(&cookie) else { return (accepted, None) };
        let is_full = loop {
            if accepted.len() == MAX_ACCEPTS {
                break false;
            }
            if public.room == 0 {
                public.update_room(&listeners);
            }
            if public.room == 0 {
                break true;
            }
            match public.listener.accept() {
                Ok((stream, client)) => {
                    public.room -= 1;
                    accepted.push((stream, client, public.backlog_slot.clone()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                Err(error) => return (accepted, Some(error)),
            }
        };
        let wanted = if is_full { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        let data = epoll::EventData::new_u64(cookie);
        if public.is_full != is_full {
            public.is_full = is_full;
            if let Err(error) = epoll::modify(&self.epoll, &public.listener, data, wanted) {
                return (accepted, Some(error.into()));
            }
        }
        if is_full {
            list.full.push(cookie);
        }
        (accepted, None)
    }

    fn hand_over(
        &self,
        stream: TcpStream,
        client: SocketAddr,
        backlog_slot: Arc<()>,
    ) -> io::Result<()> {
        // Reset the client if the connection is not handed over in whole.
        tcp::reset_on_close(&stream)?;
        let own = canonical(stream.local_addr()?);
        let client = canonical(client);
        let netns = self.ns().ok_or(io::ErrorKind::NotConnected)?.netns;
        let bound_socket = Some(netns.socket(Purpose::BoundSocket, client)?.into());
        stream.set_nonblocking(true)?;
        sockopt::set_socket_oobinline(&stream, true)?;
        sockopt::set_tcp_nodelay(&stream, true)?;
        tcp::fin_on_close(&stream)?;
        let here = capture_ns::to_family(netns.with_ns_scope(own), own.is_ipv6());
        let program = Box::new(CapturedProgram {
            netns,
            client,
            bound_socket,
            own: here,
            backlog_slot: Some(backlog_slot),
        });
        let program = ReportedProgram::of(program, own, self.report.as_ref());
        let stream = stream.into();
        self.carrier.arrive(Arrival { stream, client, own, handlers: None, program });
        Ok(())
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InnerListener {
    fn of(socket: &OwnedFd) -> io::Result<InnerListener> {
        Ok(InnerListener {
            cookie: sockopt::socket_cookie(socket)?,
            inode: capture_ns::inode(socket)?,
        })
    }
}

/// Opens a listener in the capture namespace with the options of `public`.
fn listen_in_ns(
    netns: &CaptureNs,
    public: impl AsFd,
    is: Socket,
    backlog: i32,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let public = public.as_fd();
    let at = rustix::net::getsockname(public)?.try_into()?;
    let alone = is.is_v6() && sockopt::ipv6_v6only(public)?;
    let purpose = Purpose::Listener { v6: is.is_v6(), alone };
    let inner = netns.socket(purpose, at)?;
    capture_ns::set_up_like(inner.as_fd(), public, flags)?;
    capture_ns::listen(&inner, backlog)?;
    Ok(inner)
}

/// Opens a public listener at the address of `inner`, a socket in the capture namespace.
fn open_public(inner: &OwnedFd, is: Socket, backlog: i32) -> io::Result<OwnedFd> {
    let at: SocketAddr = rustix::net::getsockname(inner)?.try_into()?;
    let family = if is.is_v6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let public = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if is.is_v6() {
        sockopt::set_ipv6_v6only(&public, sockopt::ipv6_v6only(inner)?)?;
    }
    sockopt::set_socket_reuseaddr(&public, true)?;
    rustix::net::bind(&public, &at)?;
    capture_ns::listen(&public, backlog)?;
    Ok(public)
}

/// Maps IPv4-mapped addresses to IPv4; other addresses keep their scope.
pub(super) fn canonical(at: SocketAddr) -> SocketAddr {
    match at.ip().to_canonical() {
        ip @ std::net::IpAddr::V4(_) => SocketAddr::new(ip, at.port()),
        std::net::IpAddr::V6(_) => at,
    }
}

impl Program for CapturedProgram {
    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        match self.bound_socket.take() {
            Some(bound_socket) => Ok(bound_socket.into()),
            None => {
                Ok(TcpStream::from(self.netns.socket(Purpose::BoundSocket, self.client)?).into())
            }
        }
    }

    /// Only one flow can use the client's port; further ones get ports of their own.
    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        let client = SocketAddr::new(self.client.ip(), 0);
        let (netns, bound_socket, backlog_slot) = (self.netns.clone(), None, None);
        Some(Box::new(CapturedProgram { netns, client, bound_socket, own: self.own, backlog_slot }))
    }

    fn handlers_wait(&mut self) {
        self.backlog_slot = None;
    }

    fn connect(&mut self, bound_socket: &TcpStream) -> io::Result<()> {
        tcp::connect_bound(bound_socket, self.own)
    }
}

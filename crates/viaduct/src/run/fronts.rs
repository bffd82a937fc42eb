//! Programs that listen, without privilege: the master accepts at the port that the program
//! asked for, and the program listens in a capture namespace ([`super::hall`]) that only the
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

use super::carrier::Carrier;
use super::hall::Hall;
use super::report::{Report, Visited};
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::{Arrival, Program};

/// Interval between checks that programs still listen: a socket that was shut down is not closed.
const LOOK: Duration = Duration::from_millis(500);
/// Pause after an error of accept.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections accepted from one public listener before the others have their turn.
const TURN: usize = 64;
/// First and last interval between checks for room behind a full listener; it doubles in between.
const ROOM: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];
/// Event data that belongs to no public listener.
const WOKEN: u64 = 0;
const CLOSED: u64 = u64::MAX;

/// All public listeners of a run.
#[derive(Debug)]
pub struct Fronts {
    hall: Mutex<Option<Opened>>,
    list: Mutex<List>,
    /// Reports public listeners with pending connections, by their socket cookies.
    epoll: OwnedFd,
    wake: OwnedFd,
    /// Set when a program accepts a connection while some listener is full.
    drains: AtomicBool,
    carrier: Carrier,
    report: Option<Report>,
}

/// The capture namespace, and the source of events about listeners in it.
#[derive(Clone, Debug)]
struct Opened {
    hall: Arc<Hall>,
    listeners: Arc<Listeners>,
}

/// All public listeners. Removing one closes it, and its port is free then.
#[derive(Debug, Default)]
struct List {
    /// By socket cookie.
    fronts: HashMap<u64, Front>,
    /// The public listener in front of each listener in the namespace; both by cookie.
    behind: HashMap<u64, u64>,
    /// The public listeners at each port.
    ports: HashMap<u16, Vec<u64>>,
    /// Listeners that accept nothing for want of room behind them.
    full: Vec<u64>,
}

/// Public listener: a port that programs listen at.
#[derive(Debug)]
struct Front {
    listener: TcpListener,
    /// Cookie of the program's original socket.
    cookie: u64,
    port: u16,
    is: Socket,
    backlog: i32,
    /// File status flags of the program's socket: whether its calls block.
    flags: OFlags,
    behind: Vec<Behind>,
    /// True while it is in [`List::full`].
    is_full: bool,
    /// Connections that may be accepted before the backlog behind it is read again.
    room: usize,
    /// Held by each accepted connection until it is in the program's backlog, or until its
    /// handlers wait for the client's preface.
    taken: Arc<()>,
}

/// A program's listener in the capture namespace.
#[derive(Debug)]
struct Behind {
    cookie: u64,
    inode: u64,
}

/// Connection to a program: the namespace, the client's address, and the socket bound there.
#[derive(Debug)]
struct Caller {
    hall: Arc<Hall>,
    client: SocketAddr,
    place: Option<TcpStream>,
    own: SocketAddr,
    /// Counts this connection against the room of the backlog.
    taken: Option<Arc<()>>,
}

impl List {
    fn add(&mut self, front: Front) {
        self.behind.extend(front.behind.iter().map(|behind| (behind.cookie, front.cookie)));
        self.ports.entry(front.port).or_default().push(front.cookie);
        self.fronts.insert(front.cookie, front);
    }

    /// Adds a listener behind a public listener.
    fn add_behind(&mut self, front: u64, behind: Behind) {
        self.behind.insert(behind.cookie, front);
        if let Some(front) = self.fronts.get_mut(&front) {
            front.behind.push(behind);
        }
    }

    /// Removes a closed listener, and with the last one behind it the public listener.
    fn remove_behind(&mut self, cookie: u64) {
        let Some(of) = self.behind.remove(&cookie) else { return };
        let Some(front) = self.fronts.get_mut(&of) else { return };
        front.behind.retain(|behind| behind.cookie != cookie);
        if !front.behind.is_empty() {
            return;
        }
        let port = front.port;
        self.fronts.remove(&of);
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
        let ours =
            |front: &u64| port == 0 || self.fronts.get(front).is_some_and(|of| of.port == port);
        let behind =
            self.behind.iter().filter(|(cookie, of)| !listening.contains(cookie) && ours(of));
        for cookie in behind.map(|(cookie, _)| *cookie).collect::<Vec<_>>() {
            self.remove_behind(cookie);
        }
        Ok(())
    }
}

impl Front {
    /// Reads how many more connections fit behind the listener.
    fn look_for_room(&mut self, listeners: &Listeners) {
        // If the listeners cannot be read, none has room.
        let there = listeners.at(self.port, self.is.is_v6()).unwrap_or_default();
        let ours = there.iter().filter(|of| self.behind.iter().any(|it| it.cookie == of.cookie));
        let room =
            ours.map(|of| (of.backlog + 1).saturating_sub(of.waiting) as usize).sum::<usize>();
        // One reference is the listener's own.
        self.room = room.saturating_sub(Arc::strong_count(&self.taken) - 1);
    }
}

/// An accepted connection, its client's address, and its share of the backlog.
type Accepted = (TcpStream, SocketAddr, Arc<()>);

/// Outcome of a program's `listen`.
#[derive(Debug)]
pub enum Listens {
    /// The first descriptor replaces the program's own, which is the second.
    Behind(OwnedFd, OwnedFd),
    /// The socket stays: it is behind a public listener already, or in another network namespace.
    Already,
}

impl Fronts {
    /// Starts without listeners. `carrier` takes the connections, and `report` counts them.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn new(carrier: Carrier, report: Option<Report>) -> io::Result<Arc<Fronts>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WOKEN), epoll::EventFlags::IN)?;
        let (hall, list, drains) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let fronts = Arc::new(Fronts { hall, list, epoll, wake, drains, carrier, report });
        let all = fronts.clone();
        thread::Builder::new().name("arrivals".to_owned()).spawn(move || all.take_in())?;
        Ok(fronts)
    }

    /// Opens the capture namespace unless it is open.
    ///
    /// # Errors
    /// The user may not create one; the error says why.
    pub fn open_hall(&self) -> Result<()> {
        let mut hall = self.hall.lock().unwrap_or_else(PoisonError::into_inner);
        if hall.is_none() {
            let (opened, listeners) = Hall::open()?;
            let data = epoll::EventData::new_u64(CLOSED);
            epoll::add(&self.epoll, &listeners, data, epoll::EventFlags::IN)?;
            *hall = Some(Opened { hall: Arc::new(opened), listeners: Arc::new(listeners) });
        }
        Ok(())
    }

    /// Returns whether the capture namespace is open.
    pub fn has_hall(&self) -> bool {
        self.opened().is_some()
    }

    fn opened(&self) -> Option<Opened> {
        self.hall.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes `socket`, a duplicate of a program's TCP socket, listen behind a public listener.
    ///
    /// # Errors
    /// The error for the program: its address is taken, or there is no capture namespace.
    pub fn listen(&self, socket: OwnedFd, is: Socket, backlog: i32) -> io::Result<Listens> {
        let Opened { hall, listeners } = self.opened().ok_or(io::ErrorKind::NotConnected)?;
        let cookie = sockopt::socket_cookie(&socket)?;
        if let Some(listens) = self.listen_again(&hall, cookie, is, Some(backlog))? {
            return Ok(listens);
        }
        let flags = fcntl_getfl(&socket)?;
        if !capture_ns::is_in_this_netns(&socket) {
            capture_ns::listen(&socket, backlog)?;
            if capture_ns::share_netns(&listeners, &socket) {
                // It was behind a public listener, and has been shut down.
                let front = front_of(&socket, is, backlog)
                    .and_then(|front| self.add(front, is, backlog, flags, &socket));
                if let Err(error) = front {
                    capture_ns::stop_listening(&socket)?;
                    return Err(error);
                }
            }
            return Ok(Listens::Already);
        }
        capture_ns::listen(&socket, backlog)?;
        let behind = match listen_behind(&hall, &socket, is, backlog, flags) {
            Ok(behind) => behind,
            Err(error) => {
                capture_ns::stop_listening(&socket)?;
                return Err(error);
            }
        };
        let own = socket.try_clone()?;
        self.add(socket, is, backlog, flags, &behind)?;
        Ok(Listens::Behind(behind, own))
    }

    /// Accepts connections at `front`, which listens, for `behind`.
    fn add(
        &self,
        front: OwnedFd,
        is: Socket,
        backlog: i32,
        flags: OFlags,
        behind: &OwnedFd,
    ) -> io::Result<()> {
        let cookie = sockopt::socket_cookie(&front)?;
        let listener = TcpListener::from(front);
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let data = epoll::EventData::new_u64(cookie);
        epoll::add(&self.epoll, &listener, data, epoll::EventFlags::IN)?;
        // The room is not known yet: it is read before the first accept.
        let (behind, room, taken) = (vec![Behind::of(behind)?], 0, Arc::default());
        let is_full = false;
        let front =
            Front { listener, cookie, port, is, backlog, flags, behind, is_full, room, taken };
        let mut list = self.list();
        list.add(front);
        // If there were listeners before, the thread already wakes up at intervals.
        if list.fronts.len() == 1 {
            self.wake();
        }
        Ok(())
    }

    /// Returns the replacement for a socket that a program accepts from, which it may have
    /// inherited from before another process called `listen`; `None` if it needs none.
    pub fn accept(&self, cookie: u64, is: Socket) -> io::Result<Option<Listens>> {
        if !self.list().full.is_empty() && !self.drains.swap(true, Ordering::AcqRel) {
            self.wake();
        }
        let opened = self.opened();
        opened.map_or(Ok(None), |opened| self.listen_again(&opened.hall, cookie, is, None))
    }

    /// Handles a socket that was the public listener, or is behind it.
    fn listen_again(
        &self,
        hall: &Hall,
        cookie: u64,
        is: Socket,
        backlog: Option<i32>,
    ) -> io::Result<Option<Listens>> {
        let mut list = self.list();
        if let Some(front) = list.fronts.get(&cookie) {
            let own = front.listener.try_clone()?.into();
            // All processes that share the socket share one accept queue.
            let theirs = front.behind.iter().find_map(|of| find_socket(of.inode));
            if let Some(behind) = theirs {
                return Ok(Some(Listens::Behind(behind, own)));
            }
            let backlog = backlog.unwrap_or(front.backlog);
            let more = listen_behind(hall, &front.listener, is, backlog, front.flags)?;
            list.add_behind(cookie, Behind::of(&more)?);
            return Ok(Some(Listens::Behind(more, own)));
        }
        let Some(of) = list.behind.get(&cookie).copied() else { return Ok(None) };
        if let (Some(backlog), Some(front)) = (backlog, list.fronts.get_mut(&of)) {
            front.backlog = backlog;
            capture_ns::listen(&front.listener, backlog)?;
        }
        Ok(Some(Listens::Already))
    }

    /// Frees `port`, to which a program wants to bind a socket, if no program listens there any
    /// more.
    pub fn release(&self, port: u16) {
        let Some(Opened { listeners, .. }) = self.opened() else { return };
        let mut list = self.list();
        if list.ports.contains_key(&port)
            && let Err(error) = list.sweep(&listeners, port)
        {
            debug!("listeners in the hall: {error}");
        }
    }

    /// Removes public listeners that no program listens behind any more.
    pub fn sweep(&self) {
        let Some(Opened { listeners, .. }) = self.opened() else { return };
        let mut list = self.list();
        if !list.fronts.is_empty()
            && let Err(error) = list.sweep(&listeners, 0)
        {
            debug!("listeners in the hall: {error}");
        }
    }

    /// Handles closed listeners in the capture namespace.
    fn see_closed(&self) {
        let Some(Opened { listeners, .. }) = self.opened() else { return };
        match listeners.closed() {
            Some(cookies) => {
                let mut list = self.list();
                cookies.into_iter().for_each(|cookie| list.remove_behind(cookie));
            }
            None => self.sweep(),
        }
    }

    /// Returns whether no program listens.
    pub fn is_empty(&self) -> bool {
        self.list().fronts.is_empty()
    }

    /// Returns whether the program that listens at `port` has set `SO_REUSEADDR`, or
    /// `SO_REUSEPORT` if `whole_port`, on its socket. Its socket in the capture namespace has
    /// them set in any case.
    pub fn shares(&self, port: u16, whole_port: bool) -> Option<bool> {
        let list = self.list();
        let front = list.fronts.get(list.ports.get(&port)?.first()?)?;
        match whole_port {
            true => sockopt::socket_reuseport(&front.listener).ok(),
            false => sockopt::socket_reuseaddr(&front.listener).ok(),
        }
    }

    fn wake(&self) {
        // The counter cannot overflow.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Accepts connections to programs for as long as the process runs.
    fn take_in(&self) {
        let (mut looked, mut events) = (Instant::now(), Vec::with_capacity(64));
        let [soonest, latest] = ROOM;
        let mut pause = soonest;
        loop {
            events.clear();
            let (is_empty, is_full) = {
                let list = self.list();
                (list.fronts.is_empty(), !list.full.is_empty())
            };
            let limit = if is_full { pause } else { LOOK };
            let limit = Timespec { tv_sec: 0, tv_nsec: limit.subsec_nanos().into() };
            let limit = (!is_empty).then_some(&limit);
            if let Err(error) = epoll::wait(&self.epoll, spare_capacity(&mut events), limit)
                && error != Errno::INTR
            {
                return warn!("connections to programs cannot be heard of any more: {error}");
            }
            // Closed listeners are removed before any connection is accepted for them.
            if events.iter().any(|event| event.data.u64() == CLOSED) {
                self.see_closed();
            }
            for event in &events {
                match event.data.u64() {
                    CLOSED => {}
                    WOKEN => drop(rustix::io::read(&self.wake, &mut [0; 8])),
                    cookie => self.take_from(cookie),
                }
            }
            if is_full {
                let drains = self.drains.swap(false, Ordering::AcqRel);
                pause = if drains { soonest } else { (2 * pause).min(latest) };
                let full = std::mem::take(&mut self.list().full);
                full.into_iter().for_each(|cookie| self.take_from(cookie));
            } else {
                pause = soonest;
            }
            if looked.elapsed() >= LOOK {
                self.sweep();
                looked = Instant::now();
            }
        }
    }

    fn take_from(&self, cookie: u64) {
        let (come, error) = self.accept_from(cookie);
        for (stream, client, taken) in come {
            if let Err(error) = self.take(stream, client, taken) {
                debug!("a connection to a program: {error}");
            }
        }
        if let Some(error) = error {
            debug!("accept: {error}");
            // For example, no descriptor is left.
            thread::sleep(PAUSE);
        }
    }

    /// Accepts connections of a public listener; returns them, and the error that ended the
    /// loop if any. A listener without room behind it is not polled for a while.
    fn accept_from(&self, cookie: u64) -> (Vec<Accepted>, Option<io::Error>) {
        let mut come = Vec::new();
        let Some(Opened { listeners, .. }) = self.opened() else { return (come, None) };
        let mut list = self.list();
        let Some(front) = list.fronts.get_mut(&cookie) else { return (come, None) };
        let is_full = loop {
            if come.len() == TURN {
                break false;
            }
            if front.room == 0 {
                front.look_for_room(&listeners);
            }
            if front.room == 0 {
                break true;
            }
            match front.listener.accept() {
                Ok((stream, client)) => {
                    front.room -= 1;
                    come.push((stream, client, front.taken.clone()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                Err(error) => return (come, Some(error)),
            }
        };
        let wanted = if is_full { epoll::EventFlags::empty() } else { epoll::EventFlags::IN };
        let data = epoll::EventData::new_u64(cookie);
        if front.is_full != is_full {
            front.is_full = is_full;
            if let Err(error) = epoll::modify(&self.epoll, &front.listener, data, wanted) {
                return (come, Some(error.into()));
            }
        }
        if is_full {
            list.full.push(cookie);
        }
        (come, None)
    }

    fn take(&self, stream: TcpStream, client: SocketAddr, taken: Arc<()>) -> io::Result<()> {
        // Reset the client if the connection is not handed over in whole.
        tcp::reset_on_close(&stream)?;
        let own = canonical(stream.local_addr()?);
        let client = canonical(client);
        let hall = self.opened().ok_or(io::ErrorKind::NotConnected)?.hall;
        let place = Some(hall.socket(Purpose::BoundSocket, client)?.into());
        stream.set_nonblocking(true)?;
        sockopt::set_socket_oobinline(&stream, true)?;
        sockopt::set_tcp_nodelay(&stream, true)?;
        tcp::fin_on_close(&stream)?;
        let here = capture_ns::to_family(hall.linked(own), own.is_ipv6());
        let program = Box::new(Caller { hall, client, place, own: here, taken: Some(taken) });
        let program = Visited::of(program, own, self.report.as_ref());
        let stream = stream.into();
        self.carrier.arrive(Arrival { stream, client, own, handlers: None, program });
        Ok(())
    }

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Behind {
    fn of(socket: &OwnedFd) -> io::Result<Behind> {
        Ok(Behind { cookie: sockopt::socket_cookie(socket)?, inode: capture_ns::inode(socket)? })
    }
}

/// Opens a listener in the capture namespace with the options of `front`.
fn listen_behind(
    hall: &Hall,
    front: impl AsFd,
    is: Socket,
    backlog: i32,
    flags: OFlags,
) -> io::Result<OwnedFd> {
    let front = front.as_fd();
    let at = rustix::net::getsockname(front)?.try_into()?;
    let alone = is.is_v6() && sockopt::ipv6_v6only(front)?;
    let purpose = Purpose::Listener { v6: is.is_v6(), alone };
    let behind = hall.socket(purpose, at)?;
    capture_ns::set_up_like(behind.as_fd(), front, flags)?;
    capture_ns::listen(&behind, backlog)?;
    Ok(behind)
}

/// Opens a public listener at the address of `behind`, a socket in the capture namespace.
fn front_of(behind: &OwnedFd, is: Socket, backlog: i32) -> io::Result<OwnedFd> {
    let at: SocketAddr = rustix::net::getsockname(behind)?.try_into()?;
    let family = if is.is_v6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let front = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if is.is_v6() {
        sockopt::set_ipv6_v6only(&front, sockopt::ipv6_v6only(behind)?)?;
    }
    sockopt::set_socket_reuseaddr(&front, true)?;
    rustix::net::bind(&front, &at)?;
    capture_ns::listen(&front, backlog)?;
    Ok(front)
}

/// Maps IPv4-mapped addresses to IPv4; other addresses keep their scope.
pub(super) fn canonical(at: SocketAddr) -> SocketAddr {
    match at.ip().to_canonical() {
        ip @ std::net::IpAddr::V4(_) => SocketAddr::new(ip, at.port()),
        std::net::IpAddr::V6(_) => at,
    }
}

impl Program for Caller {
    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        match self.place.take() {
            Some(place) => Ok(place.into()),
            None => {
                Ok(TcpStream::from(self.hall.socket(Purpose::BoundSocket, self.client)?).into())
            }
        }
    }

    /// Only one flow can use the client's port; further ones get ports of their own.
    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        let client = SocketAddr::new(self.client.ip(), 0);
        let (hall, place, taken) = (self.hall.clone(), None, None);
        Some(Box::new(Caller { hall, client, place, own: self.own, taken }))
    }

    fn handlers_wait(&mut self) {
        self.taken = None;
    }

    fn connect(&mut self, place: &TcpStream) -> io::Result<()> {
        tcp::connect_bound(place, self.own)
    }
}

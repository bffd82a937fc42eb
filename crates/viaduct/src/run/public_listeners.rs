//! Listening programs in a run without privilege: the master accepts at the port that the program
//! has requested, and connects to the program's own listener, which is in a capture namespace
//! ([`super::capture_ns`]).
//!
//! ```text
//!   program ── listen ──▶ its socket, bound to 192.0.2.1:80, becomes the public listener;
//!                         the program gets a listener in the namespace, same address
//!   client ══▶ public listener ══▶ Arrival: handlers ══▶ a socket in the namespace, bound
//!                                                        to the client's address ══▶ program
//! ```
//!
//! Thus the kernel reports address errors to the program, and `accept` returns the client's
//! address. A program's listener in the namespace is called the inner listener of the public one. A
//! public listener exists until its last inner listener is closed, which the kernel reports. It
//! accepts only while an inner listener has room in its backlog, so that clients wait as they would
//! at the program's own listener.

mod accept;
mod list;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::Result;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tracing::debug;
use viaduct_proto::wrap::Socket;
use viaduct_sys::netns::capture_ns::{self, Listeners, Purpose};
use viaduct_sys::seccomp::find_socket;

pub(super) use self::accept::canonical;
use self::list::{InnerListener, List, PublicListener};
use super::capture_ns::CaptureNs;
use super::report::Report;
use crate::master::carrier::Carrier;

/// Event data of `wake`. The event data of a public listener is its cookie.
const WOKEN: u64 = 0;
/// Event data of the notices of closed inner listeners.
const CLOSED: u64 = u64::MAX;

/// All public listeners of a run.
#[derive(Debug)]
pub struct PublicListeners {
    netns: Mutex<Option<OpenNs>>,
    list: Mutex<List>,
    /// Reports `wake`, closed inner listeners, and public listeners with pending connections.
    epoll: OwnedFd,
    wake: OwnedFd,
    /// Set when a program accepts a connection while a listener is full.
    has_drained: AtomicBool,
    carrier: Carrier,
    report: Option<Report>,
}

/// The capture namespace, and the source of events about its listeners.
#[derive(Clone, Debug)]
struct OpenNs {
    netns: Arc<CaptureNs>,
    listeners: Arc<Listeners>,
}

/// Outcome of a program's `listen`.
#[derive(Debug)]
pub enum ListenOutcome {
    /// Replaces the program's socket, which is the second descriptor, with the first.
    Replace(OwnedFd, OwnedFd),
    /// Leaves the program's socket unchanged: it already is an inner listener, or is in another
    /// network namespace.
    Unchanged,
}

impl PublicListeners {
    /// Starts the accept loop, without listeners. `carrier` carries the connections, and `report`
    /// counts them.
    pub fn new(carrier: Carrier, report: Option<Report>) -> io::Result<Arc<PublicListeners>> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &wake, epoll::EventData::new_u64(WOKEN), epoll::EventFlags::IN)?;
        let public_listeners = Arc::new(PublicListeners {
            netns: Mutex::default(),
            list: Mutex::default(),
            epoll,
            wake,
            has_drained: AtomicBool::new(false),
            carrier,
            report,
        });
        let all = public_listeners.clone();
        thread::Builder::new().name("accept".to_owned()).spawn(move || all.accept_loop())?;
        Ok(public_listeners)
    }

    /// Opens the capture namespace, unless it is open. Errors: the user cannot create a network
    /// namespace; the error gives the reason.
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

    /// Handles the `listen` of a program on a TCP socket, of which `socket` is a duplicate. Errors,
    /// which the program gets: the socket's address is in use, or there is no capture namespace.
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
                // The socket was an inner listener, and was then shut down: it needs a new public
                // listener.
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

    /// Adds the public listener `public` with its inner listener `inner`, and starts to accept.
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
        let mut list = self.list();
        list.add(PublicListener {
            listener,
            cookie,
            port,
            is,
            backlog,
            flags,
            inner: vec![InnerListener::of(inner)?],
            is_full: false,
            // Read before the first accept.
            room: 0,
            backlog_slot: Arc::default(),
        });
        // With earlier listeners, the accept loop already wakes up at intervals.
        if list.public_listeners.len() == 1 {
            self.wake();
        }
        Ok(())
    }

    /// Returns the replacement for a socket on which a program calls `accept`. A replacement is
    /// needed if the program inherited the socket before another process called `listen`: the
    /// socket is then the public listener itself. `None` if the socket is neither a public nor an
    /// inner listener.
    pub fn accept(&self, cookie: u64, is: Socket) -> io::Result<Option<ListenOutcome>> {
        if !self.list().full.is_empty() && !self.has_drained.swap(true, Ordering::AcqRel) {
            self.wake();
        }
        let opened = self.ns();
        opened.map_or(Ok(None), |opened| self.relisten(&opened.netns, cookie, is, None))
    }

    /// Handles `listen` or `accept` on a public or an inner listener; `None` for other sockets.
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
            // All processes that share a socket get the same inner listener, and thus share one
            // accept queue.
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

    /// Removes public listeners, at `port` or at all ports, whose programs have stopped listening,
    /// so that sockets can be bound to these ports again.
    pub fn sweep(&self, port: Option<u16>) {
        let Some(OpenNs { listeners, .. }) = self.ns() else { return };
        let mut list = self.list();
        let is_used = match port {
            Some(port) => list.ports.contains_key(&port),
            None => !list.public_listeners.is_empty(),
        };
        if is_used && let Err(error) = list.sweep(&listeners, port) {
            debug!("cannot list the listeners in the capture namespace: {error}");
        }
    }

    fn handle_closed(&self) {
        let Some(OpenNs { listeners, .. }) = self.ns() else { return };
        match listeners.closed() {
            Some(cookies) => {
                let mut list = self.list();
                cookies.into_iter().for_each(|cookie| list.remove_inner(cookie));
            }
            None => self.sweep(None),
        }
    }

    /// Returns whether no program listens.
    pub fn is_empty(&self) -> bool {
        self.list().public_listeners.is_empty()
    }

    /// Returns whether the program that listens at `port` has set `SO_REUSEADDR`, or `SO_REUSEPORT`
    /// if `whole_port`, on its socket; `None` if no program listens at the port. The inner listener
    /// always has both options.
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

    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
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

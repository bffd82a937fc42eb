//! Table of public listeners and of their inner listeners.

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::net::sockopt;
use viaduct_proto::wrap::Socket;
use viaduct_sys::netns::capture_ns::{self, Listeners};

/// All public listeners. The removal of a public listener closes it and frees its port.
#[derive(Debug, Default)]
pub(super) struct List {
    /// By socket cookie.
    pub(super) public_listeners: HashMap<u64, PublicListener>,
    /// Cookie of the public listener, by the cookie of the inner listener.
    pub(super) inner: HashMap<u64, u64>,
    /// Cookies of the public listeners at each port.
    pub(super) ports: HashMap<u16, Vec<u64>>,
    /// Cookies of the public listeners that do not accept because the backlogs of their inner
    /// listeners are full.
    pub(super) full: Vec<u64>,
}

/// Public listener: the socket at a port at which programs listen.
#[derive(Debug)]
pub(super) struct PublicListener {
    pub(super) listener: TcpListener,
    /// Cookie of `listener`, which is the program's original socket, or a replacement of a public
    /// listener that has been closed.
    pub(super) cookie: u64,
    pub(super) port: u16,
    pub(super) is: Socket,
    pub(super) backlog: i32,
    /// File status flags of the program's socket, such as `O_NONBLOCK`.
    pub(super) flags: OFlags,
    pub(super) inner: Vec<InnerListener>,
    /// True while this listener is in [`List::full`].
    pub(super) is_full: bool,
    /// Number of connections to accept before the backlogs of the inner listeners are read again.
    pub(super) room: usize,
    /// Referenced by each accepted connection until it is in the program's backlog, or until its
    /// handlers wait for the client's preface.
    pub(super) backlog_slot: Arc<()>,
}

/// A program's listener in the capture namespace.
#[derive(Debug)]
pub(super) struct InnerListener {
    pub(super) cookie: u64,
    pub(super) inode: u64,
}

impl List {
    pub(super) fn add(&mut self, public: PublicListener) {
        self.inner.extend(public.inner.iter().map(|inner| (inner.cookie, public.cookie)));
        self.ports.entry(public.port).or_default().push(public.cookie);
        self.public_listeners.insert(public.cookie, public);
    }

    /// Adds an inner listener to the public listener with the cookie `public`.
    pub(super) fn add_inner(&mut self, public: u64, inner: InnerListener) {
        self.inner.insert(inner.cookie, public);
        if let Some(public) = self.public_listeners.get_mut(&public) {
            public.inner.push(inner);
        }
    }

    /// Removes a closed inner listener. Also removes its public listener if it has no other inner
    /// listener.
    pub(super) fn remove_inner(&mut self, cookie: u64) {
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

    /// Removes the inner listeners, at `port` or at all ports, that no longer listen.
    pub(super) fn sweep(&mut self, listeners: &Listeners, port: Option<u16>) -> io::Result<()> {
        let mut listening = HashSet::new();
        for v6 in [false, true] {
            listening.extend(listeners.at(port.unwrap_or(0), v6)?.iter().map(|of| of.cookie));
        }
        let ours = |public: &u64| {
            let at = self.public_listeners.get(public).map(|of| of.port);
            port.is_none() || at == port
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
    /// Updates `room` from the backlogs of the inner listeners.
    pub(super) fn update_room(&mut self, listeners: &Listeners) {
        // The count is read before the backlogs: a connection that enters a backlog meanwhile is
        // then counted twice; in the other order it would be missed. One reference is that of
        // `self`.
        let on_their_way = Arc::strong_count(&self.backlog_slot) - 1;
        // If the listeners cannot be read, there is no room.
        let there = listeners.at(self.port, self.is.is_v6()).unwrap_or_default();
        let ours = there.iter().filter(|of| self.inner.iter().any(|it| it.cookie == of.cookie));
        let room =
            ours.map(|of| (of.backlog + 1).saturating_sub(of.waiting) as usize).sum::<usize>();
        self.room = room.saturating_sub(on_their_way);
    }
}

impl InnerListener {
    pub(super) fn of(socket: &OwnedFd) -> io::Result<InnerListener> {
        Ok(InnerListener {
            cookie: sockopt::socket_cookie(socket)?,
            inode: capture_ns::inode(socket)?,
        })
    }
}

//! Client side of a loop: its listeners, the source of their SYNs, and the connections that were
//! begun for SYNs.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use mio::net::{TcpListener, TcpStream};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use tracing::{debug, warn};
use viaduct_proto::split::early::Early;
use viaduct_proto::split::syn::Syn;
use viaduct_proto::upgrade::{ListenRecord, SynRecord};
use viaduct_sys::capture::syn::{SNAP, SynTap};
use viaduct_sys::socket::tcp;

use super::accept::Started;
use super::commands::Limits;
use super::deferred_accept::DeferredAccept;
use super::intercept::InterceptState;
use super::listen_set::{ListenSet, SynSource};

/// Token of the source of SYNs.
pub(super) const SYNS: Token = Token(usize::MAX - 1);
/// Highest token of a listener; the tokens of further listeners are lower. Flows have the tokens
/// from 0 upwards, two for each flow.
pub(super) const LISTENERS: usize = usize::MAX - 5;
/// Maximum number of connections accepted from one listener in a turn. The accepted clients are
/// served before the next turn, so that each of many clients waits only for earlier ones.
pub(super) const MAX_ACCEPTS: usize = 16;

/// Listeners, and the state of clients that are not accepted yet.
pub(super) struct Acceptor {
    listeners: Vec<TcpListener>,
    tap: Option<SynTap>,
    pub(super) deferred: Option<DeferredAccept>,
    pub(super) early: Early<Started>,
    /// State of the rules that divert clients to the listeners, if there are any.
    intercept_state: Arc<InterceptState>,
    /// True once the warning that clients cannot be accepted has been logged.
    has_logged_error: bool,
    /// True while another process may be accepting the clients.
    pub(super) is_paused: bool,
}

impl Acceptor {
    /// Registers a listen set. `intercept_state` is the state of the rules that divert clients to
    /// its listeners. Errors: a listener or the source of SYNs cannot be registered.
    pub(super) fn new(
        registry: &Registry,
        listen_set: ListenSet,
        limits: &Limits,
        intercept_state: Arc<InterceptState>,
    ) -> io::Result<Acceptor> {
        let (most, mut wait) = limits.early.unwrap_or_default();
        let (tap, deferred) = match listen_set.syns {
            SynSource::Unseen => (None, None),
            SynSource::Tap(tap) => (Some(tap), None),
            SynSource::Queue(queue) => {
                // A client whose SYN is held connects only after its server has answered.
                wait += limits.connect;
                (None, Some(DeferredAccept::new(queue)))
            }
        };
        let listeners = listen_set.listeners.into_iter().map(TcpListener::from_std).collect();
        let early = Early::new(most, wait);
        let has_logged_error = false;
        let is_paused = false;
        let mut acceptor = Acceptor {
            listeners,
            tap,
            deferred,
            early,
            intercept_state,
            has_logged_error,
            is_paused,
        };
        acceptor.resume(registry)?;
        Ok(acceptor)
    }

    /// Applies the timeouts of another config to held SYNs, including those already held.
    pub(super) fn reload(&mut self, limits: &Limits) {
        if let (Some(deferred), Some((_, wait))) = (&self.deferred, limits.early) {
            self.early.set_ttl(wait + limits.connect, deferred.tuples());
        }
    }

    /// Registers the listeners and the source of SYNs, so that clients are accepted here.
    pub(super) fn resume(&mut self, registry: &Registry) -> io::Result<()> {
        if let Some(fd) = self.syns() {
            let fd = fd.as_raw_fd();
            registry.register(&mut SourceFd(&fd), SYNS, Interest::READABLE)?;
        }
        for (n, listener) in self.listeners.iter_mut().enumerate() {
            registry.register(listener, Token(LISTENERS - n), Interest::READABLE)?;
        }
        self.is_paused = false;
        Ok(())
    }

    /// Stops accepting clients, which another process may accept, until [`Acceptor::resume`].
    pub(super) fn pause(&mut self, registry: &Registry) -> io::Result<()> {
        self.is_paused = true;
        if let Some(fd) = self.syns() {
            registry.deregister(&mut SourceFd(&fd.as_raw_fd()))?;
        }
        self.listeners.iter_mut().try_for_each(|listener| registry.deregister(listener))
    }

    /// Descriptor of the source of SYNs, if there is one.
    fn syns(&self) -> Option<BorrowedFd<'_>> {
        let tap = self.tap.as_ref().map(AsFd::as_fd);
        tap.or(self.deferred.as_ref().map(AsFd::as_fd))
    }

    /// Duplicates of the descriptors of the listen set, for the handover to a new process.
    pub(super) fn export(&self) -> io::Result<(ListenRecord, Vec<OwnedFd>)> {
        let syns = match (&self.tap, &self.deferred) {
            (Some(_), _) => SynRecord::Tap,
            (None, Some(_)) => SynRecord::Queue,
            (None, None) => SynRecord::Unseen,
        };
        let listeners = u16::try_from(self.listeners.len()).map_err(io::Error::other)?;
        let all = self.listeners.iter().map(AsFd::as_fd).chain(self.syns());
        let all = all.map(|fd| fd.try_clone_to_owned()).collect::<io::Result<_>>()?;
        Ok((ListenRecord { listeners, syns, ..ListenRecord::default() }, all))
    }

    /// Number of listeners; 0 once they are closed.
    pub(super) fn len(&self) -> usize {
        self.listeners.len()
    }

    /// Returns whether clients may bypass the proxy because rules are missing.
    pub(super) fn is_bypassed(&self) -> bool {
        self.intercept_state.is_missing()
    }

    /// Reads a packet from the tap into `buffer`. `None` if no packet is pending, there is no tap,
    /// or the acceptor is paused; `Some(None)` if the packet is not a SYN.
    pub(super) fn read_syn(&self, buffer: &mut [u8; SNAP]) -> Option<Option<Syn>> {
        match self.tap.as_ref().filter(|_| !self.is_paused)?.recv(buffer) {
            Ok(packet) => packet.map(Syn::parse),
            Err(_) => Some(None), // an interface went down
        }
    }

    /// Accepts at most [`MAX_ACCEPTS`] of the pending connections of a listener; returns them, and
    /// true if no more can be accepted now. `None` if the listener is closed or the acceptor is
    /// paused.
    pub(super) fn accept(
        &mut self,
        listener: usize,
    ) -> Option<(Vec<(TcpStream, SocketAddr)>, bool)> {
        if self.is_paused {
            return None;
        }
        let mut clients = Vec::with_capacity(MAX_ACCEPTS);
        while clients.len() < MAX_ACCEPTS {
            match self.listeners.get(listener)?.accept() {
                Ok((client, peer)) => clients.push((client, canonical(peer))),
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // For example, the process has no descriptors left. The next sweep tries again.
                    if error.kind() != io::ErrorKind::WouldBlock {
                        self.log_error(&error);
                    }
                    return Some((clients, true));
                }
            }
        }
        Some((clients, false))
    }

    /// Logs the failure once as a warning, because the cause usually persists.
    fn log_error(&mut self, error: &io::Error) {
        match std::mem::replace(&mut self.has_logged_error, true) {
            true => debug!("cannot accept clients: {error}"),
            false => warn!("cannot accept clients now, they wait in the backlog: {error}"),
        }
    }

    /// Local address of all connections of a listener, if it is bound to a single address and does
    /// not accept connections to other addresses (`is_transparent`).
    pub(super) fn bound_addr(&self, listener: usize, is_transparent: bool) -> Option<SocketAddr> {
        let at = self.listeners.get(listener)?.local_addr().ok()?;
        (!is_transparent && !at.ip().is_unspecified()).then_some(at)
    }

    /// Makes the kernel drop further SYNs. Clients that have begun a handshake can still connect.
    pub(super) fn drop_syns(&self) {
        // The new process uses the same sockets, and still needs the SYNs.
        if self.is_paused {
            return;
        }
        for listener in &self.listeners {
            if let Err(error) = tcp::drop_syns(listener) {
                debug!("cannot make the kernel drop SYNs: {error}");
            }
        }
    }

    /// Closes the listeners, and the tap of their SYNs.
    pub(super) fn close(&mut self) {
        self.listeners.clear();
        self.tap = None;
    }
}

/// Maps an IPv4-mapped address, as a dual-stack socket reports it, to IPv4.
pub(super) fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

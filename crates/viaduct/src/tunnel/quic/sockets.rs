//! UDP sockets of an endpoint: one for all links that peers have dialled, and one for each link
//! that this end has dialled.
//!
//! ```text
//!   peers ─────────────▶ shared socket, at the listening address
//!   far end of a link ─▶ own socket of the link
//! ```
//!
//! After another process has got the shared socket, the other links have own sockets, too. These
//! are connected to the peers, so that the kernel prefers them to the shared one. Links that a peer
//! dials later come from other ports, because they have own sockets at the peer.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::time::SystemTime;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use quinn_proto::ConnectionHandle;
use rustix::io::Errno;
use tracing::warn;
use viaduct_sys::socket::udp::{SendReport, UdpBatch};

/// Size of a socket's buffer for each direction, in bytes.
const BUFFER: usize = 8 << 20;

/// The sockets.
#[derive(Debug)]
pub(super) struct Sockets {
    /// Socket at the listening address; `None` if this end only dials.
    shared: Option<UdpBatch>,
    stage: Stage,
    /// Own sockets of links, and whether each is connected.
    own: Vec<(ConnectionHandle, UdpBatch, bool)>,
    /// Index in `own` of the socket that is read next; behind the last one, the shared socket.
    turn: usize,
}

/// Use of the shared socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// All datagrams are read.
    Serving,
    /// Queued datagrams of links are read, but no link is accepted: another process will accept it
    /// when its first packet is repeated.
    Emptying,
    /// Another process reads the datagrams.
    Paused,
}

impl Sockets {
    /// Opens the shared socket at `listen`, if given; uses the socket `inherited` instead, if there
    /// is one. Errors: the address is in use, or not this machine's.
    pub(super) fn new(
        listen: Option<SocketAddr>,
        inherited: Option<OwnedFd>,
    ) -> io::Result<Sockets> {
        let shared = match (inherited, listen) {
            (Some(socket), _) => Some(UdpBatch::inherited(socket)?),
            (None, Some(at)) => Some(UdpBatch::bind(at)?),
            (None, None) => None,
        };
        shared.as_ref().map_or(Ok(()), prepare)?;
        Ok(Sockets { shared, stage: Stage::Serving, own: Vec::new(), turn: 0 })
    }

    /// Descriptor of the shared socket.
    pub(super) fn shared(&self) -> Option<BorrowedFd<'_>> {
        self.shared.as_ref().map(|socket| socket.as_fd())
    }

    /// Returns whether links may be accepted.
    pub(super) fn accepts_links(&self) -> bool {
        self.stage == Stage::Serving
    }

    /// Reports to `registry` when the shared socket is readable.
    pub(super) fn watch_shared(&self, registry: &Registry, token: Token) -> io::Result<()> {
        self.shared().map_or(Ok(()), |socket| watch(socket, registry, token))
    }

    /// Reports to `registry` when the own socket of link `link` is readable.
    pub(super) fn watch(
        &self,
        link: ConnectionHandle,
        registry: &Registry,
        token: Token,
    ) -> io::Result<()> {
        let own = self.own.iter().find(|(handle, ..)| *handle == link);
        own.map_or(Ok(()), |(_, socket, _)| watch(socket.as_fd(), registry, token))
    }

    /// Opens a socket to dial `to`. Errors: no descriptor is left.
    pub(super) fn open(to: SocketAddr) -> io::Result<UdpBatch> {
        let anywhere = match to {
            SocketAddr::V4(_) => SocketAddr::from(([0, 0, 0, 0], 0)),
            SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let socket = UdpBatch::bind(anywhere)?;
        prepare(&socket)?;
        Ok(socket)
    }

    /// Sets the own socket of a link that is dialled.
    pub(super) fn set(&mut self, link: ConnectionHandle, socket: UdpBatch) {
        self.own.push((link, socket, false));
    }

    /// Opens a socket for a link that uses the shared one: it has the same address, and is
    /// connected to `peer`. Errors: no descriptor is left. A peer to which there is no route gets
    /// no socket.
    pub(super) fn connect(
        &mut self,
        link: ConnectionHandle,
        peer: SocketAddr,
        registry: &Registry,
        token: Token,
    ) -> io::Result<()> {
        let Some(shared) = &self.shared else { return Ok(()) };
        let socket = match shared.connected_to(peer) {
            Err(error) if is_exhausted(&error) => return Err(error),
            Err(error) => {
                warn!("the link with {peer} will be lost by the upgrade: {error}");
                return Ok(());
            }
            Ok(socket) => socket,
        };
        prepare(&socket)?;
        watch(socket.as_fd(), registry, token)?;
        self.own.push((link, socket, true));
        Ok(())
    }

    /// Closes the own socket of a link, if it has one.
    pub(super) fn remove(&mut self, link: ConnectionHandle) {
        self.own.retain(|(handle, ..)| *handle != link);
    }

    /// From now on only datagrams of existing links are read from the shared socket.
    pub(super) fn begin_pause(&mut self) {
        self.stage = Stage::Emptying;
    }

    /// Leaves the datagrams of the shared socket to another process.
    pub(super) fn pause(&mut self, registry: &Registry) -> io::Result<()> {
        self.stage = Stage::Paused;
        let Some(shared) = self.shared() else { return Ok(()) };
        registry.deregister(&mut SourceFd(&shared.as_raw_fd()))
    }

    /// Reads the shared socket again, since no other process does, and closes the connected ones.
    pub(super) fn resume(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.own.retain(|(.., is_connected)| !is_connected);
        match std::mem::replace(&mut self.stage, Stage::Serving) {
            Stage::Paused => self.watch_shared(registry, token),
            Stage::Serving | Stage::Emptying => Ok(()),
        }
    }

    /// Closes this process's copy of the shared socket.
    pub(super) fn close_shared(&mut self) {
        self.shared = None;
    }

    /// Lets the next socket be read, although the current one may not be empty.
    pub(super) fn take_turns(&mut self) {
        self.turn = if self.turn < self.own.len() { self.turn + 1 } else { 0 };
    }

    /// Receives a datagram: its length, sender and time of arrival. Each socket is read until it is
    /// empty; `None` if all are.
    pub(super) fn receive(
        &mut self,
        buffer: &mut [u8],
    ) -> io::Result<Option<(usize, SocketAddr, SystemTime)>> {
        let shared = self.shared.as_ref().filter(|_| self.stage != Stage::Paused);
        for _ in 0..=self.own.len() {
            let own = self.own.get(self.turn).map(|(_, socket, _)| socket);
            let received = own.or(shared).map_or(Ok(None), |socket| socket.recv_at(buffer))?;
            if received.is_some() {
                return Ok(received);
            }
            self.turn = if own.is_some() { self.turn + 1 } else { 0 };
        }
        Ok(None)
    }

    /// Sends datagrams from the own socket of `link`, or from the shared socket.
    pub(super) fn send(
        &mut self,
        link: Option<ConnectionHandle>,
        datagrams: &[(SocketAddr, &[u8])],
    ) -> SendReport {
        let own = self.own.iter_mut().find(|(handle, ..)| Some(*handle) == link);
        let socket = own.map(|(_, socket, _)| socket).or(self.shared.as_mut());
        socket.map_or_else(SendReport::default, |socket| socket.send(datagrams))
    }
}

/// Returns whether the process or the machine lacks descriptors or memory.
fn is_exhausted(error: &io::Error) -> bool {
    let exhausted = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS];
    Errno::from_io_error(error).is_some_and(|errno| exhausted.contains(&errno))
}

fn prepare(socket: &UdpBatch) -> io::Result<()> {
    socket.set_buffers(BUFFER)?;
    socket.enable_timestamps()
}

fn watch(socket: BorrowedFd<'_>, registry: &Registry, token: Token) -> io::Result<()> {
    registry.register(&mut SourceFd(&socket.as_raw_fd()), token, Interest::READABLE)
}

//! Connections of a client: streams over one [`ClientPort`], driven by the caller's event loop.
//!
//! ```text
//!   loop:   poll as_fd(), for poll_timeout() at most
//!           turn()            receive, run timers, send; repeat until it returns 0
//!           poll_event()      events of connections
//!           stream(flow)      read, write, request ...; then flush()
//! ```

mod connection;
mod event;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bytes::Bytes;
use rustix::event::{Timespec, epoll};
use viaduct_proto::keys::{Entropy, PublicKey};
use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::trickles::crypt::ClientCrypt;
use viaduct_proto::trickles::stream::{Config, Stream};
use viaduct_sys::process::memory;

use crate::egress::now;
use crate::{ClientPort, ClientSettings, Flow, PortError, PortEvent};
use connection::Connection;
pub use event::ConnectorEvent;

/// Number of TCP sequence numbers reserved for the answers to a request: the bytes of a
/// first window.
const EXPECTED: u32 = 16 << 10;
/// Number of restarts without an answer after which a connection changes its local port number,
/// because a NAT may have dropped the mapping. If the local address towards the server has changed,
/// the first restart already changes the port number.
const RESTARTS_BEFORE_NEW_PORT: u32 = 3;
/// Time without an answer after which the silence is reported.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Peak of unread bytes beyond which freed memory is returned to the kernel.
const RECLAIM_THRESHOLD: u64 = 32 << 20;
/// Epoll data of the port's tap; UDP sockets have their flows' numbers.
const TAP: u64 = u64::MAX;
/// Maximum number of sockets that one turn handles.
const SOCKETS: usize = 64;

/// Streams over a [`ClientPort`]. Not shared between threads.
#[derive(Debug)]
pub struct Connector {
    port: ClientPort,
    /// Epoll instance with all sockets of the port.
    sockets: OwnedFd,
    connections: HashMap<Flow, Connection>,
    timers: BTreeSet<(Instant, Flow)>,
    /// Connections that may have packets to send.
    touched: BTreeSet<Flow>,
    events: VecDeque<(Flow, ConnectorEvent)>,
    rng: Rng,
    /// Limit of bytes that all connections have requested and the application has not read.
    memory: u64,
    /// Current number of these bytes.
    unread: u64,
    /// Maximum of `unread` since memory was last returned to the kernel.
    peak: u64,
}

impl Connector {
    /// Opens the port in the calling thread's network namespace. `seed` is random. Errors: those of
    /// [`ClientPort::open`].
    pub fn open(settings: &ClientSettings, seed: u64) -> Result<Connector, PortError> {
        let mut rng = Rng::from_seed(seed);
        let port = ClientPort::open(settings, rng.next_u64())?;
        let sockets = epoll::create(epoll::CreateFlags::CLOEXEC).and_then(|sockets| {
            port.tap().map_or(Ok(()), |tap| watch(&sockets, tap, TAP))?;
            Ok(sockets)
        });
        let failed = PortError::socket("wait for sockets", false);
        Ok(Connector {
            port,
            sockets: sockets.map_err(|error| failed(error.into()))?,
            connections: HashMap::new(),
            timers: BTreeSet::new(),
            touched: BTreeSet::new(),
            events: VecDeque::new(),
            rng,
            memory: u64::MAX,
            unread: 0,
            peak: 0,
        })
    }

    /// Limits the bytes that all connections together have requested, and that the application has
    /// not read, to `memory`. Each connection may have an eighth of the unused part, but at least
    /// 64 KiB. So if the application leaves many connections unread, the others still make
    /// progress, with at least 64 KiB each.
    #[must_use]
    pub fn with_memory_limit(self, memory: u64) -> Connector {
        Connector { memory, ..self }
    }

    /// Opens a connection. Data written to its streams are sent by [`Connector::flush`]. Errors:
    /// there is no route, or no local port number is free.
    pub fn connect(&mut self, remote: SocketAddr, config: Config) -> io::Result<Flow> {
        self.begin(remote, config, None)
    }

    /// Opens an encrypted connection to a server whose public key is `server` (`viaduct key`).
    /// Unencrypted answers and answers of other servers are ignored. `entropy` fills buffers with
    /// random bytes. Errors: those of [`Connector::connect`].
    pub fn connect_encrypted(
        &mut self,
        remote: SocketAddr,
        config: Config,
        server: PublicKey,
        entropy: Entropy,
    ) -> io::Result<Flow> {
        self.begin(remote, config, Some(ClientCrypt::new(server, entropy)))
    }

    fn begin(
        &mut self,
        remote: SocketAddr,
        config: Config,
        crypt: Option<ClientCrypt>,
    ) -> io::Result<Flow> {
        let flow = self.port.connect(remote)?;
        let watched = self.port.socket(flow).map(|at| watch(&self.sockets, at, flow.0 as u64));
        if let Some(Err(error)) = watched {
            self.port.close(flow);
            return Err(error.into());
        }
        let token = self.rng.next_u64();
        let connection = Connection::open(config, crypt, self.port.room(flow), token, now());
        self.connections.insert(flow, connection);
        self.touched.insert(flow);
        Ok(flow)
    }

    /// Delays the first packet of a new connection by at most `most`, until data are written to its
    /// main stream, so that the packet carries these data.
    pub fn hold(&mut self, flow: Flow, most: Duration) {
        if let Some(connection) = self.connections.get_mut(&flow) {
            connection.held_until = Some(now() + most);
        }
    }

    /// Streams of a connection. [`Connector::flush`] sends the changes made to them.
    pub fn stream(&mut self, flow: Flow) -> Option<&mut Stream> {
        let connection = self.connections.get_mut(&flow)?;
        self.touched.insert(flow);
        Some(&mut connection.stream)
    }

    /// Streams of a connection, read-only.
    pub fn stream_ref(&self, flow: Flow) -> Option<&Stream> {
        self.connections.get(&flow).map(|connection| &connection.stream)
    }

    /// Like [`Stream::read`], but schedules a flush only if there were data.
    pub fn read(&mut self, flow: Flow, stream: u32) -> Option<Bytes> {
        let data = self.connections.get_mut(&flow)?.stream.read(stream)?;
        self.touched.insert(flow);
        Some(data)
    }

    /// Like [`Stream::write`], but schedules a flush only if bytes were accepted.
    pub fn write(&mut self, flow: Flow, stream: u32, data: &[u8]) -> usize {
        let Some(connection) = self.connections.get_mut(&flow) else { return 0 };
        let written = connection.stream.write(stream, data);
        if written > 0 {
            self.touched.insert(flow);
        }
        written
    }

    /// Closes a connection, and notifies its server.
    pub fn close(&mut self, flow: Flow) {
        if let Some(connection) = self.connections.get_mut(&flow) {
            connection.stream.close();
            self.touched.insert(flow);
            self.flush();
        }
        self.forget(flow);
    }

    /// Closes a connection without notification.
    pub fn forget(&mut self, flow: Flow) {
        let Some(connection) = self.connections.remove(&flow) else { return };
        self.unread -= connection.unread;
        drop(connection.stream);
        self.give_back();
        connection.due.map(|due| self.timers.remove(&(due, flow)));
        self.touched.remove(&flow);
        self.events.retain(|(of, _)| *of != flow);
        self.port.close(flow);
    }

    /// Processes received packets and expired timers, and sends packets. Does not block. Returns
    /// the number of received packets. To be called until it returns 0, and again when
    /// [`Connector::as_fd`] is readable. Errors: a socket's error, for instance because an
    /// interface went down. Connections stay usable.
    pub fn turn(&mut self) -> io::Result<usize> {
        let mut events = [MaybeUninit::uninit(); SOCKETS];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let waited = epoll::wait(&self.sockets, &mut events, Some(&at_once));
        let (mut packets, mut broken) = (0, None);
        match waited {
            Ok((events, _)) => {
                for event in events {
                    match self.receive(event.data.u64()) {
                        Ok(received) => packets += received,
                        Err(error) => broken = Some(error),
                    }
                }
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => broken = Some(error.into()),
        }
        self.run_timers();
        self.flush();
        // If any socket had packets, the error is not returned: an error would end the caller's
        // loop, although other sockets may have more packets.
        broken.filter(|_| packets == 0).map_or(Ok(packets), Err)
    }

    /// Sends the packets of all connections that were used since the last flush.
    pub fn flush(&mut self) {
        let touched = std::mem::take(&mut self.touched);
        let now = now();
        for &flow in &touched {
            let Some(connection) = self.connections.get_mut(&flow) else { continue };
            connection.stream.narrow(self.memory.saturating_sub(self.unread) / 8);
            while let Some(message) = connection.poll_transmit(now) {
                let sent = self.port.send(flow, &message, EXPECTED);
                if sent.is_err() && !connection.fit(self.port.room(flow), now) {
                    self.events.push_back((flow, ConnectorEvent::MtuTooSmall));
                    break;
                }
            }
            while let Some(stream) = connection.stream.poll_changed() {
                self.events.push_back((flow, ConnectorEvent::Changed(stream)));
            }
            let before = std::mem::replace(&mut connection.unread, connection.stream.unread());
            self.unread = self.unread - before + connection.unread;
            self.peak = self.peak.max(self.unread);
            let due = connection.held_until.or_else(|| connection.stream.poll_timeout());
            if due != connection.due {
                connection.due.map(|due| self.timers.remove(&(due, flow)));
                due.map(|due| self.timers.insert((due, flow)));
                connection.due = due;
            }
        }
        self.port.flush(touched);
        self.give_back();
    }

    /// The next event; `None` if there is none.
    pub fn poll_event(&mut self) -> Option<(Flow, ConnectorEvent)> {
        self.events.pop_front()
    }

    /// Maximum time to wait before the next [`Connector::turn`]; `None` for no limit.
    pub fn poll_timeout(&self) -> Option<Duration> {
        if !self.touched.is_empty() {
            return Some(Duration::ZERO);
        }
        self.timers.first().map(|(due, _)| *due - now())
    }

    /// The port, to get its counters and packet formats.
    pub fn port(&self) -> &ClientPort {
        &self.port
    }

    /// Returns freed memory, which the allocator would keep, to the kernel after a peak.
    fn give_back(&mut self) {
        if self.peak > RECLAIM_THRESHOLD && self.unread < self.peak / 8 {
            self.peak = 0;
            memory::trim_heap();
        }
    }

    /// Processes a batch of packets from a socket, and returns the number of packets.
    fn receive(&mut self, socket: u64) -> io::Result<usize> {
        let Connector { port, connections, touched, events, .. } = self;
        let (now, mut shortened) = (now(), Vec::new());
        // Returns whether a message is the server's.
        let mut each = |flow: Flow, event: PortEvent<'_>| {
            let Some(connection) = connections.get_mut(&flow) else { return false };
            match event {
                PortEvent::Message(message) => {
                    let refused = connection.refused();
                    if !connection.handle(now, message) {
                        return false;
                    }
                    if connection.stream.is_open() && !std::mem::replace(&mut connection.open, true)
                    {
                        events.push_back((flow, ConnectorEvent::Open));
                        // The first answer may have reported the path MTU.
                        shortened.push(flow);
                    }
                    touched.insert(flow);
                    return connection.refused() == refused;
                }
                // Refusals are ignored once the server has answered.
                PortEvent::PlainTcp | PortEvent::FellBack { .. } | PortEvent::Refused { .. }
                    if connection.open => {}
                PortEvent::PlainTcp => events.push_back((flow, ConnectorEvent::PlainTcp)),
                PortEvent::FellBack { reset } => {
                    events.push_back((flow, ConnectorEvent::FellBack { reset }));
                }
                PortEvent::Refused { reset } => {
                    events.push_back((flow, ConnectorEvent::Refused { reset }));
                }
                PortEvent::MtuDecreased => shortened.push(flow),
            }
            false
        };
        let packets = match socket {
            TAP => port.receive_tap(|flow, event| {
                each(flow, event);
            }),
            flow => port.receive_checked(Flow(flow as usize), each),
        };
        // The path MTU of these connections may have decreased.
        for flow in shortened {
            let Some(connection) = connections.get_mut(&flow) else { continue };
            if !connection.fit(port.room(flow), now) {
                events.push_back((flow, ConnectorEvent::MtuTooSmall));
            }
            touched.insert(flow);
        }
        packets
    }

    fn run_timers(&mut self) {
        let now = now();
        while let Some(&(due, flow)) = self.timers.first().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(due, flow));
            let Some(connection) = self.connections.get_mut(&flow) else { continue };
            connection.due = None;
            if connection.held_until.take().is_none() {
                connection.stream.handle_timeout(now);
            }
            self.touched.insert(flow);
            let attempts = connection.stream.attempts();
            if connection.open && attempts > 0 && connection.is_silent(now, SILENCE_TIMEOUT) {
                self.events.push_back((flow, ConnectorEvent::Unresponsive));
            }
            if connection.open
                && attempts > 0
                && (attempts >= RESTARTS_BEFORE_NEW_PORT || self.port.has_moved(flow))
            {
                // If there is no route, or no free port number, the connection keeps its port
                // number.
                let _ = self.port.reopen(flow);
            }
        }
    }
}

impl AsFd for Connector {
    /// Readable when there are packets for [`Connector::turn`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.sockets.as_fd()
    }
}

fn watch(sockets: &OwnedFd, socket: BorrowedFd<'_>, name: u64) -> rustix::io::Result<()> {
    epoll::add(sockets, socket, epoll::EventData::new_u64(name), epoll::EventFlags::IN)
}

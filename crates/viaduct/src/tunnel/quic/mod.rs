//! Links over QUIC: a connection for each link, and a QUIC stream for each stream of the tunnel, so
//! that the loss of a packet delays only the streams whose bytes it carried.
//!
//! ```text
//!   UDP socket ── Endpoint ──┬── Connection ── lanes ── Tunnel     one socket for all links of
//!                            └── Connection ── lanes ── Tunnel     a loop
//! ```
//!
//! | file | contains |
//! |---|---|
//! | here | [`Endpoint`]: the socket, and the dispatch of its datagrams |
//! | [`link`] | a connection as a link |
//! | [`lanes`] | lanes of a link, as QUIC streams |
//! | [`congestion`] | congestion control and pacing |
//! | [`identity`] | state that survives a restart |
//! | [`sockets`] | the UDP sockets |
//! | [`clock`] | the library's time |

mod clock;
mod congestion;
mod identity;
mod lanes;
mod link;
mod sockets;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use mio::{Registry, Token};
use quinn_proto::congestion::{ControllerFactory, CubicConfig, NewRenoConfig};
use quinn_proto::{
    AckFrequencyConfig, ClientConfig, ConnectionHandle, DatagramEvent, ServerConfig, Transmit,
    TransportConfig, VarInt,
};
use tracing::debug;
use viaduct_proto::time::Instant;

use super::settings::{CarrierKind, TunnelSettings};
use super::time;
use super::tls::quic as tls;
use clock::Clock;
use congestion::BbrConfig;
use sockets::Sockets;

pub(super) use link::QuicLink;

/// Maximum number of datagrams read before other sockets are served.
const READS: usize = 512;
/// Maximum plausible time of a datagram in the receive queue. The time is measured with the wall
/// clock; a longer time means that the clock was set.
const MAX_QUEUE_TIME: Duration = Duration::from_millis(100);
/// Maximum number of datagrams handed to the kernel at once.
const SEGMENTS: usize = 32;
/// Loss detection by time (RFC 9002, section 6.1.2): a packet is lost when a later packet was
/// acknowledged, and this many round trips have passed since the packet was sent.
const TIME_THRESHOLD: f32 = 1.25;
/// Loss detection by packet numbers (RFC 9002, section 6.1.1), which this value disables. Gateways
/// on the path repair losses some milliseconds late, which is a hundred packets at 130 Mb/s: each
/// repaired packet would be retransmitted, and treated as a sign of congestion. Without repairs,
/// losses are detected a quarter of a round trip later.
const PACKET_THRESHOLD: u32 = u32::MAX >> 1;
/// Number of ack-eliciting packets that the peer may leave unacknowledged for up to
/// [`MAX_ACK_DELAY`].
const ACK_THRESHOLD: u32 = 20;
/// Maximum delay of the peer's acknowledgements.
const MAX_ACK_DELAY: Duration = Duration::from_millis(2);
/// Interval of keepalive packets on an idle connection, which also show the peer a new address. The
/// connection is closed only after the loss of at least four of them.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Number of bytes that the peer may send in all streams before it has authenticated: the
/// handshake, HELLO and the frames that immediately follow.
const UNTRUSTED_WINDOW: u32 = 8 << 10;
/// Maximum number of bytes of the TLS handshake that are buffered while earlier bytes are missing.
const CRYPTO_BUFFER: usize = 4 << 10;

/// The UDP sockets, and the state for new connections.
#[derive(Debug)]
pub(super) struct Endpoint {
    inner: quinn_proto::Endpoint,
    sockets: Sockets,
    client: ClientConfig,
    clock: Clock,
    /// Keys of links in the loop's table, by connection.
    keys: HashMap<ConnectionHandle, usize>,
    /// True if more datagrams may be readable.
    pub(super) readable: bool,
    /// Arrival time of the last datagram.
    last_received: Instant,
    receive: Box<[u8]>,
    send: Vec<u8>,
}

/// Result of a received datagram.
pub(super) enum Arrived {
    /// Event for the link with this key.
    For(usize, Box<quinn_proto::ConnectionEvent>),
    /// A new link from this address.
    New(Box<QuicLink>, SocketAddr),
}

impl Endpoint {
    /// Opens the socket at the listening address, if one is configured. Uses the socket `inherited`
    /// instead, if there is one.
    pub(super) fn new(
        settings: &TunnelSettings,
        inherited: Option<OwnedFd>,
        now: Instant,
    ) -> anyhow::Result<Endpoint> {
        let mut client = ClientConfig::new(Arc::new(tls::client()?));
        client.transport_config(Arc::new(transport(settings, 0)?));
        let server = settings.listen.map(|_| -> anyhow::Result<_> {
            let mut server = ServerConfig::with_crypto(Arc::new(tls::server()?));
            // The dialler may open one stream, its first.
            server.transport_config(Arc::new(transport(settings, 1)?));
            Ok(Arc::new(server))
        });
        let config = Arc::new(identity::config(&settings.secret, settings.listen));
        let inner = quinn_proto::Endpoint::new(config, server.transpose()?, true, None);
        Ok(Endpoint {
            inner,
            sockets: Sockets::new(settings.listen, inherited)?,
            client,
            clock: Clock::new(now),
            keys: HashMap::new(),
            readable: false,
            last_received: now,
            receive: vec![0; 65_536].into(),
            send: Vec::new(),
        })
    }

    /// Reports to `registry` when datagrams of links that peers dial are readable.
    pub(super) fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        self.sockets.watch_shared(registry, token)
    }

    /// Reports to `registry` when datagrams of a dialled link are readable.
    pub(super) fn watch(
        &self,
        link: &QuicLink,
        registry: &Registry,
        token: Token,
    ) -> io::Result<()> {
        self.sockets.watch(link.handle, registry, token)
    }

    /// Descriptor of the socket at the listening address.
    pub(super) fn shared(&self) -> Option<BorrowedFd<'_>> {
        self.sockets.shared()
    }

    /// Prepares the handover of the shared socket to another process: opens own sockets for those
    /// of `links` that use it. From now on no link is accepted. The datagrams queued before must
    /// then be read, and [`Endpoint::pause`] called. Errors: no descriptor is left.
    pub(super) fn begin_pause<'a>(
        &mut self,
        links: impl Iterator<Item = &'a QuicLink>,
        registry: &Registry,
        token: Token,
    ) -> io::Result<()> {
        self.sockets.begin_pause();
        self.readable = true;
        for link in links.filter(|link| !link.is_dialled()) {
            self.sockets.connect(link.handle, link.connection.remote_address(), registry, token)?;
        }
        Ok(())
    }

    /// Closes this process's copy of the shared socket, which another process uses.
    pub(super) fn close_shared(&mut self) {
        self.sockets.close_shared();
    }

    /// Leaves the datagrams of the shared socket to another process.
    pub(super) fn pause(&mut self, registry: &Registry) -> io::Result<()> {
        self.sockets.pause(registry)
    }

    /// Reads the shared socket again, since no other process does.
    pub(super) fn resume(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.readable = true;
        self.sockets.resume(registry, token)
    }

    /// Dials a link.
    pub(super) fn dial(&mut self, to: SocketAddr, now: Instant) -> io::Result<QuicLink> {
        let socket = Sockets::open(to)?;
        let now = self.clock.theirs(now);
        let dialled = self.inner.connect(now, self.client.clone(), to, "viaduct");
        let (handle, connection) = dialled.map_err(io::Error::other)?;
        self.sockets.set(handle, socket);
        Ok(QuicLink::new(handle, connection, true))
    }

    /// Records the key that a link has in [`Tunnels`](super::Tunnels).
    pub(super) fn insert(&mut self, link: &QuicLink, key: usize) {
        self.keys.insert(link.handle, key);
    }

    pub(super) fn remove(&mut self, link: &QuicLink) {
        self.keys.remove(&link.handle);
        self.sockets.remove(link.handle);
    }

    /// Reads received datagrams, at most [`READS`]. If `crowded`, diallers must first prove their
    /// address by a Retry packet, which costs a round trip.
    pub(super) fn receive(&mut self, crowded: bool) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        // The wall clock is read first. A pause between the two calls can then only lengthen a
        // measured round trip, and only the shortest round trip counts.
        let wall = SystemTime::now();
        let now = time();
        for _ in 0..READS {
            let (length, from, at) = match self.sockets.receive(&mut self.receive) {
                Ok(Some(received)) => received,
                Ok(None) => {
                    self.readable = false;
                    break;
                }
                Err(error) => {
                    debug!("cannot receive a datagram: {error}");
                    continue;
                }
            };
            let datagram = BytesMut::from(&self.receive[..length]);
            self.send.clear();
            // Rates and round trips are measured without the time in the socket's queue, which is
            // not part of the path.
            let arrived_at = match wall.duration_since(at) {
                Ok(waited) => now - waited.min(MAX_QUEUE_TIME),
                Err(since) => now + since.duration().min(MAX_QUEUE_TIME),
            };
            self.last_received = self.last_received.max(arrived_at);
            let theirs = self.clock.theirs(self.last_received);
            let event = self.inner.handle(theirs, from, None, None, datagram, &mut self.send);
            match event {
                Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                    arrived
                        .extend(self.keys.get(&handle).map(|&key| Arrived::For(key, event.into())));
                }
                Some(DatagramEvent::NewConnection(incoming)) if !self.sockets.accepts_links() => {
                    self.inner.ignore(incoming);
                }
                Some(DatagramEvent::NewConnection(incoming)) if crowded && incoming.may_retry() => {
                    match self.inner.retry(incoming, &mut self.send) {
                        Ok(transmit) => self.transmit(None, &transmit),
                        Err(error) => self.inner.ignore(error.into_incoming()),
                    }
                }
                Some(DatagramEvent::NewConnection(incoming)) => {
                    match self.inner.accept(incoming, theirs, &mut self.send, None) {
                        Ok((handle, connection)) => {
                            let link = QuicLink::new(handle, connection, false);
                            arrived.push(Arrived::New(Box::new(link), from));
                            // The next datagrams may be for the new link.
                            break;
                        }
                        Err(refused) => {
                            debug!("a link is refused: {}", refused.cause);
                            refused.response.iter().for_each(|of| self.transmit(None, of));
                        }
                    }
                }
                Some(DatagramEvent::Response(transmit)) => self.transmit(None, &transmit),
                None => {}
            }
        }
        if self.readable {
            self.sockets.take_turns();
        }
        arrived
    }

    /// Sends the datagrams of `transmit` from the send buffer, for `link` if given. Datagrams for
    /// which the kernel has no room are dropped, as by a queue on the path.
    fn transmit(&mut self, link: Option<ConnectionHandle>, transmit: &Transmit) {
        let bytes = &self.send[..transmit.size];
        let datagrams = bytes.chunks(transmit.segment_size.unwrap_or(transmit.size).max(1));
        let datagrams: Vec<_> = datagrams.map(|bytes| (transmit.destination, bytes)).collect();
        let report = self.sockets.send(link, &datagrams);
        if report.failed() > 0 {
            debug!(?report, "datagrams were not sent");
        }
    }
}

/// Transport limits of a connection whose peer has not authenticated and may open `streams`
/// streams. [`QuicLink::trust`] lifts the limits.
fn transport(settings: &TunnelSettings, streams: u32) -> anyhow::Result<TransportConfig> {
    let core = &settings.core;
    // After authentication the tunnel's flow control bounds the bytes in flight and in buffers, and
    // QUIC's credit must not limit them further. A stream's credit cannot be raised later, so it is
    // large from the start. Before authentication, the connection's credit bounds all streams.
    let most = core.limit + u64::from(core.least_window) * u64::from(core.streams);
    let most = VarInt::from_u64(2 * most).unwrap_or(VarInt::MAX);
    let mut transport = TransportConfig::default();
    transport
        .max_concurrent_bidi_streams(VarInt::from_u32(streams))
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .stream_receive_window(most)
        .receive_window(VarInt::from_u32(UNTRUSTED_WINDOW))
        .crypto_buffer_size(CRYPTO_BUFFER)
        .send_window(most.into_inner())
        .max_idle_timeout(Some(core.silence.try_into()?))
        .keep_alive_interval(Some(KEEP_ALIVE.min(core.silence / 4)))
        .datagram_receive_buffer_size(None)
        .packet_threshold(PACKET_THRESHOLD)
        .time_threshold(TIME_THRESHOLD)
        .ack_frequency_config(Some(acknowledgements()))
        .congestion_controller_factory(controller(settings)?);
    Ok(transport)
}

/// Acknowledgement frequency: a tenth of the protocol's default, because the default is 43,000
/// acknowledgements a second at 1 Gb/s. Reordered packets are not acknowledged immediately, because
/// loss is detected by time.
fn acknowledgements() -> AckFrequencyConfig {
    let mut config = AckFrequencyConfig::default();
    config
        .ack_eliciting_threshold(VarInt::from_u32(ACK_THRESHOLD))
        .max_ack_delay(Some(MAX_ACK_DELAY))
        .reordering_threshold(VarInt::from_u32(0));
    config
}

fn controller(
    settings: &TunnelSettings,
) -> anyhow::Result<Arc<dyn ControllerFactory + Send + Sync + 'static>> {
    Ok(match settings.congestion.as_deref() {
        None | Some("cubic") => Arc::new(CubicConfig::default()),
        Some("bbr") => Arc::new(BbrConfig),
        Some("reno") => Arc::new(NewRenoConfig::default()),
        // The name is for TCP: for the links that this end dials over TCP, or for those that it
        // accepts.
        Some(_) if settings.carrier != CarrierKind::Quic || settings.dials.is_empty() => {
            Arc::new(CubicConfig::default())
        }
        Some(name) => anyhow::bail!("link-congestion: QUIC has cubic, bbr and reno, not {name:?}"),
    })
}

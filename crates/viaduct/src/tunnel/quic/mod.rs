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
//! | [`clock`] | the library's time |

mod clock;
mod congestion;
mod identity;
mod lanes;
mod link;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::BytesMut;
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use quinn_proto::congestion::{ControllerFactory, CubicConfig, NewRenoConfig};
use quinn_proto::{
    AckFrequencyConfig, ClientConfig, ConnectionHandle, DatagramEvent, ServerConfig, Transmit,
    TransportConfig, VarInt,
};
use tracing::debug;
use viaduct_proto::time::Instant;
use viaduct_sys::socket::udp::UdpBatch;

use super::settings::{CarrierKind, TunnelSettings};
use super::time;
use super::tls::quic as tls;
use clock::Clock;
use congestion::BbrConfig;

pub(super) use link::QuicLink;

/// Maximum number of datagrams read before other sockets are served.
const READS: usize = 512;
/// Maximum plausible time of a datagram in the receive queue. The time is measured with the wall
/// clock; a longer time means that the clock was set.
const MAX_QUEUE_TIME: Duration = Duration::from_millis(100);
/// Size of the socket's buffer for each direction, in bytes.
const SOCKET: usize = 8 << 20;
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

/// The UDP socket, and the state for new connections.
#[derive(Debug)]
pub(super) struct Endpoint {
    inner: quinn_proto::Endpoint,
    socket: UdpBatch,
    v6: bool,
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
    /// Opens the socket at the listening address, or at the unspecified address if none is
    /// configured.
    pub(super) fn new(settings: &TunnelSettings, now: Instant) -> anyhow::Result<Endpoint> {
        let anywhere = match settings.dials.iter().all(|dial| dial.to.is_ipv4()) {
            true => SocketAddr::from(([0, 0, 0, 0], 0)),
            false => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let at = settings.listen.unwrap_or(anywhere);
        let socket = UdpBatch::bind(at)?;
        socket.set_buffers(SOCKET)?;
        socket.enable_timestamps()?;
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
            socket,
            v6: at.is_ipv6(),
            client,
            clock: Clock::new(now),
            keys: HashMap::new(),
            readable: false,
            last_received: now,
            receive: vec![0; 65_536].into(),
            send: Vec::new(),
        })
    }

    pub(super) fn register(&self, registry: &Registry, token: Token) -> io::Result<()> {
        registry.register(
            &mut SourceFd(&self.socket.as_fd().as_raw_fd()),
            token,
            Interest::READABLE,
        )
    }

    /// Dials a link.
    pub(super) fn dial(&mut self, to: SocketAddr, now: Instant) -> io::Result<QuicLink> {
        let to = match to.ip() {
            IpAddr::V4(ip) if self.v6 => SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()),
            _ => to,
        };
        let now = self.clock.theirs(now);
        let dialled = self.inner.connect(now, self.client.clone(), to, "viaduct");
        let (handle, connection) = dialled.map_err(io::Error::other)?;
        Ok(QuicLink::new(handle, connection, true))
    }

    /// Records the key that a link has in [`Tunnels`](super::Tunnels).
    pub(super) fn insert(&mut self, link: &QuicLink, key: usize) {
        self.keys.insert(link.handle, key);
    }

    pub(super) fn remove(&mut self, link: &QuicLink) {
        self.keys.remove(&link.handle);
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
            let (length, from, at) = match self.socket.recv_at(&mut self.receive) {
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
                Some(DatagramEvent::NewConnection(incoming)) if crowded && incoming.may_retry() => {
                    match self.inner.retry(incoming, &mut self.send) {
                        Ok(transmit) => self.transmit(&transmit),
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
                            refused.response.iter().for_each(|transmit| self.transmit(transmit));
                        }
                    }
                }
                Some(DatagramEvent::Response(transmit)) => self.transmit(&transmit),
                None => {}
            }
        }
        arrived
    }

    /// Sends the datagrams of `transmit` from the send buffer. Datagrams for which the kernel has
    /// no room are dropped, as by a queue on the path.
    fn transmit(&mut self, transmit: &Transmit) {
        let bytes = &self.send[..transmit.size];
        let datagrams = bytes.chunks(transmit.segment_size.unwrap_or(transmit.size).max(1));
        let datagrams: Vec<_> = datagrams.map(|bytes| (transmit.destination, bytes)).collect();
        let report = self.socket.send(&datagrams);
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

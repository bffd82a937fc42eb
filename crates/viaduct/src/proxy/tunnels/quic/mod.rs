//! Links over QUIC: a connection each, and in it a stream for each session, so that a lost packet
//! holds up the sessions whose bytes it had and no others.
//!
//! ```text
//!   UDP socket ── Endpoint ──┬── Connection ── lanes ── Tunnel     one socket for all of a loop's
//!                            └── Connection ── lanes ── Tunnel
//! ```
//!
//! | file | noun |
//! |---|---|
//! | here | [`Endpoint`]: the socket, and which datagram is whose |
//! | [`link`] | a connection as a link |
//! | [`lanes`] | its streams |
//! | [`congestion`] | how fast it sends |
//! | [`identity`] | what outlives a restart |
//! | [`tls`] | keys that prove nothing, and what proves instead |
//! | [`clock`] | the library's time |

mod clock;
mod congestion;
mod identity;
mod lanes;
mod link;
#[cfg(test)]
mod tests;
mod tls;

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
use viaduct_sys::udp::UdpBatch;

use super::settings::TunnelSettings;
use crate::proxy::worker::time;
use clock::Clock;
use congestion::BbrConfig;

pub(super) use link::QuicLink;

/// Datagrams read before others have their turn.
const READS: usize = 512;
/// A datagram that has waited longer, by the wall's clock, has not: the clock was set.
const LONGEST_WAIT: Duration = Duration::from_millis(100);
/// Bytes that the socket may hold in each direction.
const SOCKET: usize = 8 << 20;
/// Datagrams handed to the kernel at once.
const SEGMENTS: usize = 32;
/// A packet is lost when one that was sent later is there, and so many round trips have passed since
/// it was sent; not when so many packets have overtaken it. Gateways below put lost packets back, some
/// ms late, which at 130 Mb/s are a hundred packets: each would be sent twice, and be taken for a sign
/// of congestion. Where nothing is put back, a quarter of a round trip is lost with it.
const LATE: f32 = 1.25;
const PACKETS: u32 = u32::MAX >> 1;
/// Packets that the peer acknowledges together, and the time for which it may wait for them.
const ACKNOWLEDGED: u32 = 20;
const ACKNOWLEDGE: Duration = Duration::from_millis(2);
/// Interval of probes on an idle connection, which also tell the peer of a new address. At least four are
/// lost before the connection is given up.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Bytes that the other end may send in all streams before it has shown its key: the handshake, HELLO and
/// the frames that follow it at once.
const UNTRUSTED_WINDOW: u32 = 8 << 10;
/// Bytes of TLS's handshake that may wait for others that come before them.
const CRYPTO_BUFFER: usize = 4 << 10;

/// The socket, and what is needed to make connections.
#[derive(Debug)]
pub(super) struct Endpoint {
    inner: quinn_proto::Endpoint,
    socket: UdpBatch,
    v6: bool,
    client: ClientConfig,
    clock: Clock,
    /// Links by their connections.
    keys: HashMap<ConnectionHandle, usize>,
    /// Whether there may be more to read.
    pub(super) readable: bool,
    /// When the last datagram arrived.
    heard: Instant,
    receive: Box<[u8]>,
    send: Vec<u8>,
}

/// What arrived.
pub(super) enum Arrived {
    /// Something for this link.
    For(usize, Box<quinn_proto::ConnectionEvent>),
    /// Somebody dials.
    New(Box<QuicLink>, SocketAddr),
}

impl Endpoint {
    /// Opens the socket: where links arrive, or anywhere.
    pub(super) fn new(settings: &TunnelSettings, now: Instant) -> anyhow::Result<Endpoint> {
        let anywhere = match settings.dials.iter().all(|dial| dial.to.is_ipv4()) {
            true => SocketAddr::from(([0, 0, 0, 0], 0)),
            false => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
        };
        let at = settings.listen.unwrap_or(anywhere);
        let socket = UdpBatch::bind(at)?;
        socket.set_buffers(SOCKET)?;
        socket.stamp()?;
        let mut client = ClientConfig::new(Arc::new(tls::client()?));
        client.transport_config(Arc::new(transport(settings, 0)?));
        let server = settings.listen.map(|_| -> anyhow::Result<_> {
            let mut server = ServerConfig::with_crypto(Arc::new(tls::server()?));
            // One stream, the dialler's first.
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
            heard: now,
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

    /// Begins a connection.
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

    /// Knows a connection's link from now on.
    pub(super) fn insert(&mut self, link: &QuicLink, key: usize) {
        self.keys.insert(link.handle(), key);
    }

    pub(super) fn remove(&mut self, link: &QuicLink) {
        self.keys.remove(&link.handle());
    }

    /// Reads what has come, a few hundred datagrams at most; `crowded`: whoever dials is to show first
    /// that it is where it says, which takes a round trip.
    pub(super) fn receive(&mut self, crowded: bool) -> Vec<Arrived> {
        let mut arrived = Vec::new();
        // In this order: a pause between the two makes a round trip longer, never shorter than it was, and
        // the shortest is what counts.
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
                    debug!("receive: {error}");
                    continue;
                }
            };
            let datagram = BytesMut::from(&self.receive[..length]);
            self.send.clear();
            // What it waited here is not the path's: rates and round trips are measured by this.
            let arrived_at = match wall.duration_since(at) {
                Ok(waited) => now - waited.min(LONGEST_WAIT),
                Err(since) => now + since.duration().min(LONGEST_WAIT),
            };
            self.heard = self.heard.max(arrived_at);
            let theirs = self.clock.theirs(self.heard);
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
                            // What follows may be for it.
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

    /// Sends what `transmit` says, from the buffer. What the kernel has no room for is lost, as it
    /// would be in a queue on the way.
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

/// Limits of a connection whose other end has not shown its key, and may open so many streams;
/// [`QuicLink::trust`] lifts them.
fn transport(settings: &TunnelSettings, streams: u32) -> anyhow::Result<TransportConfig> {
    let core = &settings.core;
    // From then on the tunnel's tokens bound what is on its way and what is held; QUIC's own credit never
    // does. A stream's cannot be raised later, and the connection's bounds all of them together.
    let most = core.limit + u64::from(core.floor) * u64::from(core.sessions);
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
        .packet_threshold(PACKETS)
        .time_threshold(LATE)
        .ack_frequency_config(Some(acknowledgements()))
        .congestion_controller_factory(controller(settings)?);
    Ok(transport)
}

/// How often the peer acknowledges: a tenth of what the protocol asks for at first, which at 1 Gb/s
/// are 43,000 a second; at once whatever comes late, since only time tells what is lost.
fn acknowledgements() -> AckFrequencyConfig {
    let mut config = AckFrequencyConfig::default();
    config
        .ack_eliciting_threshold(VarInt::from_u32(ACKNOWLEDGED))
        .max_ack_delay(Some(ACKNOWLEDGE))
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
        // It is meant for TCP, which an end that listens takes as well.
        Some(_) if settings.dials.is_empty() => Arc::new(CubicConfig::default()),
        Some(name) => anyhow::bail!("link-congestion: QUIC has cubic, bbr and reno, not {name:?}"),
    })
}

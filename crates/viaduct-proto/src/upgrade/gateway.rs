//! Records of a gateway.
//!
//! ```text
//!   old process                                     new process
//!     Gateway: sockets, TUN; Peer of each ─────────▶ receives all, sends nothing
//!     Service, in split mode ──────────────────────▶ prepares the proxy
//!     ... (the new process learns what arrives) ...
//!     Flows, in split mode
//!     stops; Peer of each, Connections, Cut ───────▶ sends from the next number on
//! ```
//!
//! With several packet threads, the last line is repeated for each.
//!
//! A session is handed over with its keys: only one of the two processes sends, so no counter is
//! used twice, and the peer notices nothing. Times are in nanoseconds of the host's monotonic
//! clock.

use std::fmt;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::record::{RecordError, is_short, range};
use crate::repair::lanes::MAX_LANES;
use crate::repair::{Cause, MAX_PEERS, Transport};

/// Maximum number of connections of fake TCP in a message.
pub const MAX_CONNECTIONS: usize = 128;
/// Maximum number of sessions with a peer, and of times of its latest losses.
const MAX_SESSIONS: usize = 16;
/// Maximum length of a peer's terms in bytes.
const MAX_TERMS: usize = 1 << 10;
/// Maximum number of loss totals in a record.
pub const MAX_COUNTS: usize = 24;

/// Gateway as a whole. Its descriptors: the config, the UDP socket and, where present, the TUN
/// device, the metrics listener, the packet cache's socket, the UDP socket of the second WAN, the
/// locks and the listeners of fake TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GatewayRecord {
    /// Version of the old program.
    pub version: String,
    /// Public key of the site.
    pub key: String,
    /// True if there is a TUN.
    pub has_tun: bool,
    /// True if there is a listener for metrics.
    pub has_metrics: bool,
    /// True if there is a packet cache service.
    pub has_cache: bool,
    /// Number of listeners of fake TCP.
    pub fake_tcp: u8,
    /// Key of the hash that gives the initial sequence numbers in fake TCP's SYN-ACKs.
    pub isn_key: [u64; 4],
    /// True if offloads are off.
    pub offloads_off: bool,
    /// Number of changes in the journal before the limits of packet sizes (MSS clamps and route
    /// MTUs), which come last.
    pub mark: u32,
    /// True if the gateway, as a member of a rack, has not set the routes of its slices yet.
    #[serde(default)]
    pub lacks_routes: bool,
    /// Number of [`PeerRecord`]s that follow: one for each lane of each peer.
    pub peers: u32,
    /// True if there are two WANs.
    #[serde(default)]
    pub has_second: bool,
    /// Names of the instances of rules whose locks are passed.
    #[serde(default)]
    pub locks: Vec<String>,
    /// True if the gateway has a proxy of split mode, whose
    /// [`ServiceRecord`](super::ServiceRecord) follows after the peers.
    #[serde(default)]
    pub has_flows: bool,
    /// Names of the peers whose tunnels over TLS are dialled.
    #[serde(default)]
    pub tls: Vec<String>,
}

/// Peer of a gateway, or one of its lanes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRecord {
    /// Public key of the peer.
    pub key: String,
    /// Number of the lane; each lane has its own record.
    #[serde(default)]
    pub lane: u8,
    /// Low 16 bits of the indices of the peer's sessions.
    pub slot: u16,
    /// Number of the next packet to the peer; 0 if packets are not numbered.
    pub next: u64,
    /// Number of the next packet from the peer, as far as known.
    pub heard: u64,
    /// Destination of messages to the peer.
    pub endpoint: Option<(Transport, SocketAddr)>,
    /// Address of the peer by each transport.
    pub addresses: [Option<SocketAddr>; Transport::ALL.len()],
    /// Transport in use.
    pub transport: Transport,
    /// Reason why this transport is used.
    pub cause: Cause,
    /// Sessions.
    pub session: SessionRecord,
    /// Losses on the path from the peer, as counted by this gateway.
    pub losses: LossesRecord,
    /// State of the repairs to the peer, if they adapt to the losses.
    pub control: Option<ControlRecord>,
    /// Latest terms that the peer has sent; empty before the first.
    pub terms: Vec<u8>,
}

/// Sessions with a peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Sessions, newest first.
    pub live: Vec<LiveRecord>,
    /// Clock of the peer's latest initiation that was answered.
    pub clock_heard: u64,
    /// Clock of the latest initiation sent.
    pub clock_sent: u64,
    /// Time of the last authentic message; `None` before the first.
    pub heard_at: Option<u64>,
    /// Time of the last completed handshake.
    pub handshake_at: Option<u64>,
    /// True if initiations are sent until one is answered.
    pub is_retrying: bool,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiveRecord {
    /// Indices of the session: this side's and the peer's.
    pub indices: [u32; 2],
    /// Transport of the handshake.
    pub transport: Transport,
    /// Time of the handshake.
    pub born: u64,
    /// True if this side has started the session.
    pub initiator: bool,
    /// True if the peer has used the session.
    pub confirmed: bool,
    /// Keys for sending and for receiving.
    pub keys: [SessionKey; 2],
    /// Counter of the next message to the peer.
    pub counter: u64,
    /// Counter after the highest one received.
    pub received: u64,
}

/// Key of a session; `Debug` does not show it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionKey(pub [u8; 32]);

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey")
    }
}

/// Totals of losses on a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossesRecord {
    /// Packets whose fate is known.
    pub packets: u64,
    /// Bursts of random losses, by bucket of their length.
    pub bursts: [u64; 16],
    /// Packets dropped by a full queue.
    pub congested: u64,
    /// Losses that flows have noticed.
    pub visible: u64,
}

/// State of repairs that adapt to the losses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlRecord {
    /// Packets a second.
    pub pace: Millionths,
    /// Round-trip time.
    pub rtt: Option<u64>,
    /// Share of a round trip for which flows can wait.
    pub share: Millionths,
    /// Repairs for each packet that the losses require.
    pub overhead: Millionths,
    /// Factor that corrects the overhead.
    pub trim: Millionths,
    /// Packets sent since the first report.
    pub passed: Millionths,
    /// Time at which repairs began.
    pub begun: Option<u64>,
    /// Times of the latest random losses, latest first.
    pub lost: Vec<u64>,
    /// Some earlier loss totals, each with its time, latest last.
    pub counts: Vec<(u64, LossesRecord)>,
}

/// Non-negative number, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Millionths(u64);

impl From<f64> for Millionths {
    /// Rounds down; a negative number becomes 0.
    fn from(number: f64) -> Millionths {
        Millionths((number * 1e6) as u64)
    }
}

impl From<Millionths> for f64 {
    fn from(number: Millionths) -> f64 {
        number.0 as f64 / 1e6
    }
}

/// Connection of fake TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionRecord {
    /// Address of this side.
    pub local: SocketAddr,
    /// Address of the peer's side.
    pub remote: SocketAddr,
    /// Sequence numbers: that of the next byte, the highest ever sent, the one acknowledged by the
    /// peer, and the one acknowledged to the peer.
    pub numbers: [u32; 4],
    /// True if windows are scaled.
    pub scaled: bool,
    /// Maximum distance from the acknowledged number to the next one, in bytes.
    pub reach: u32,
    /// Time of the last authentic datagram.
    pub heard_at: u64,
}

/// Point at which the old process has stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopRecord {
    /// Timestamp of the last outgoing packet that the old process has encoded, in nanoseconds since
    /// 1970.
    pub left: u64,
    /// Time at which the old process has stopped.
    pub at: u64,
}

impl GatewayRecord {
    /// Number of the record's descriptors.
    pub(super) fn descriptors(&self) -> usize {
        let sockets = [self.has_tun, self.has_metrics, self.has_cache, self.has_second];
        let sockets = sockets.into_iter().filter(|has| *has).count();
        2 + sockets + self.locks.len() + usize::from(self.fake_tcp)
    }

    pub(super) fn check(&self) -> Result<(), RecordError> {
        range("version", is_short(&self.version))?;
        range("key", is_short(&self.key))?;
        range("locks", self.locks.iter().all(|lock| is_short(lock)))?;
        range("tls", self.tls.iter().all(|name| is_short(name)))?;
        range("peers", self.peers as usize <= MAX_PEERS * MAX_LANES)
    }
}

impl PeerRecord {
    pub(super) fn check(&self) -> Result<(), RecordError> {
        range("key", is_short(&self.key))?;
        range("lane", usize::from(self.lane) < MAX_LANES)?;
        range("terms", self.terms.len() <= MAX_TERMS)?;
        range("sessions", self.session.live.len() <= MAX_SESSIONS)?;
        let Some(control) = &self.control else { return Ok(()) };
        range("lost", control.lost.len() <= MAX_SESSIONS)?;
        range("counts", control.counts.len() <= MAX_COUNTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upgrade::Message;

    /// Largest record that the bounds allow.
    fn largest() -> PeerRecord {
        let six: SocketAddr = "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:65535".parse().unwrap();
        let live = LiveRecord {
            indices: [u32::MAX; 2],
            transport: Transport::FakeTcp,
            born: u64::MAX,
            initiator: false,
            confirmed: false,
            keys: [SessionKey([222; 32]); 2],
            counter: u64::MAX,
            received: u64::MAX,
        };
        let losses = LossesRecord {
            packets: u64::MAX,
            bursts: [u64::MAX; 16],
            congested: u64::MAX,
            visible: u64::MAX,
        };
        PeerRecord {
            key: "f".repeat(64),
            lane: 63,
            slot: u16::MAX,
            next: u64::MAX,
            heard: u64::MAX,
            endpoint: Some((Transport::FakeTcp, six)),
            addresses: [Some(six); 2],
            transport: Transport::FakeTcp,
            cause: Cause::Unanswered,
            session: SessionRecord { live: vec![live; MAX_SESSIONS], ..SessionRecord::default() },
            losses,
            control: Some(ControlRecord {
                lost: vec![u64::MAX; MAX_SESSIONS],
                counts: vec![(u64::MAX, losses); MAX_COUNTS],
                ..ControlRecord::default()
            }),
            terms: vec![u8::MAX; MAX_TERMS],
        }
    }

    #[test]
    fn the_largest_record_fits_a_message_and_a_larger_one_is_refused() {
        let message = |peer: &PeerRecord| Message::Peer(Box::new(peer.clone()));
        let mut peer = largest();
        let bytes = message(&peer).emit().unwrap();
        assert_eq!(Message::parse(&bytes, 0).unwrap(), message(&peer));
        peer.terms.push(0);
        assert!(matches!(message(&peer).emit(), Err(RecordError::Range("terms"))));
        peer.terms.clear();
        peer.session.live.extend_from_within(..1);
        assert!(matches!(message(&peer).emit(), Err(RecordError::Range("sessions"))));
    }

    #[test]
    fn keys_are_not_shown() {
        let shown = format!("{:?}", largest());
        assert!(shown.contains("SessionKey") && !shown.contains("222"), "{shown}");
    }

    #[test]
    fn a_gateway_names_its_descriptors() {
        let locks = vec!["split".to_owned()];
        let gateway =
            GatewayRecord { has_tun: true, fake_tcp: 9, locks, ..GatewayRecord::default() };
        let message = Message::Gateway(gateway);
        assert_eq!(message.descriptors(), 13, "the config, UDP, TUN, a lock and nine listeners");
        assert!(Message::parse(&message.emit().unwrap(), 12).is_err());
    }

    #[test]
    fn a_gateway_of_an_earlier_version_has_its_routes() {
        let gateway = GatewayRecord { lacks_routes: true, ..GatewayRecord::default() };
        let mut record = serde_json::to_value(&gateway).unwrap();
        assert_eq!(serde_json::from_value::<GatewayRecord>(record.clone()).unwrap(), gateway);
        record.as_object_mut().unwrap().remove("lacks_routes");
        assert!(!serde_json::from_value::<GatewayRecord>(record).unwrap().lacks_routes);
    }

    #[test]
    fn numbers_pass_in_millionths() {
        for number in [0.0, 0.25, 1_234.5] {
            assert_eq!(f64::from(Millionths::from(number)), number);
        }
        assert_eq!(Millionths::from(-1.0), Millionths::default());
    }
}

//! Configuration of a peer.

use std::net::SocketAddr;

use crate::keys::PublicKey;
use crate::repair::auto::Auto;
use crate::repair::coder::{Coder, Observer};
use crate::repair::coding::Coding;
use crate::repair::lanes::LaneCount;
use crate::repair::racks::RackConfig;
use crate::repair::seal::SEAL_OVERHEAD;
use crate::repair::section::{PREFIX, REPAIR_HEAD, SECTION_HEAD};
use crate::repair::sender::Plan;
use crate::repair::session::WeakKey;
use crate::repair::sites::Sites;
use crate::repair::transport::{Transport, TransportChoice};
use crate::time::{Duration, Instant};

/// Configuration of a peer.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Name for display.
    pub name: String,
    /// Public key of the peer.
    pub key: PublicKey,
    /// Address of the peer's gateway; `None` if it is to be learnt from the peer's messages.
    pub endpoint: Option<SocketAddr>,
    /// Two paths to the peer, if both sites have two WANs; `endpoint` is then ignored.
    pub paths: Option<PathsConfig>,
    /// Transports that may be used.
    pub transport: TransportChoice,
    /// Addresses of the two sites.
    pub sites: Sites,
    /// Coding of outgoing packets; `None` leaves that direction unprotected.
    pub coding: Option<Coding>,
    /// Time without a packet after which incomplete repairs are sent.
    pub flush_after: Duration,
    /// Age at which session keys are replaced.
    pub rekey_after: Duration,
    /// Longest packet that is encoded, in bytes.
    pub longest: usize,
    /// MTU of the path between the gateways.
    pub mtu: usize,
    /// Share of the gateway's memory, in bytes. All peers together hold at most the sum of their
    /// shares. A peer may hold more than its share while other peers do not use theirs, and can
    /// always use its share while it has traffic.
    pub memory: usize,
    /// Membership of the two gateways in racks.
    pub rack: RackConfig,
}

/// Number of paths between two sites that have several.
pub const PATHS: usize = 2;

/// Paths to a peer: each begins at one of this site's WANs, and ends at one of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathsConfig {
    /// Address of the peer's gateway on each path.
    pub endpoints: [SocketAddr; PATHS],
    /// Path of the repairs.
    pub repairs: RepairPath,
}

/// Path over which repairs, names and copies of packets are sent while both paths are up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RepairPath {
    /// Path that the packets do not take, unless its round trip is much longer.
    #[default]
    Auto,
    /// Path of the packets.
    Same,
    /// Path that the packets do not take.
    Other,
}

impl PeerConfig {
    /// Config of lane `lane`, one of `count`.
    pub(in crate::repair) fn of_lane(&self, count: LaneCount, lane: u8) -> PeerConfig {
        let mut config = self.clone();
        config.memory /= count.get();
        if let Some(paths) = &self.paths {
            // All packets may take one path, so the rate is not divided.
            config.endpoint = paths.endpoints.get(usize::from(lane)).copied();
        } else if let Some(Coding::Auto(settings)) = &mut config.coding
            && let Some(rate) = &mut settings.limits.max_rate
        {
            *rate /= count.get() as f64;
        }
        config
    }

    /// Checks the parameters of the code without building an encoder.
    pub(in crate::repair) fn check(&self) -> Result<(), PeerError> {
        if let Some(Coding::Fixed(code)) = &self.coding {
            code.check()?;
        }
        Ok(())
    }
}

/// Bytes of the outer IP and UDP headers.
pub(super) fn outer(ipv6: bool) -> usize {
    if ipv6 { 48 } else { 28 }
}

/// Number of bytes by which a repair, with outer headers, is longer than the longest packet that it
/// covers. With [`TransportChoice::Auto`], the outer headers are those of UDP.
pub fn overhead(ipv6: bool, transport: TransportChoice) -> usize {
    let more = match transport {
        TransportChoice::Auto | TransportChoice::None => 0,
        TransportChoice::Only(only) => Transport::more_headers(only),
    };
    outer(ipv6) + more + SEAL_OVERHEAD + SECTION_HEAD + REPAIR_HEAD + PREFIX
}

/// Minimum memory of a peer, in bytes, with which a code can recover packets: there must be room
/// for all packets that a repair may cover, in addition to repairs and the ledger.
pub fn least_memory(coding: &Coding, longest: usize) -> usize {
    let packets = (coding.span() + 64) * longest.max(576);
    (packets.div_ceil(5) * 8).max(MIN_MEMORY)
}

/// Minimum memory of a peer without an encoder.
pub const MIN_MEMORY: usize = 256 << 10;

/// Reason why a peer cannot be created.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// Unusable public key.
    #[error(transparent)]
    Key(WeakKey),
    /// Unusable code parameters.
    #[error(transparent)]
    Code(#[from] crate::fec::Error),
}

/// Plan of a sender whose first packet gets the number `first`; `None` if `config` has no encoder.
pub(super) fn plan(
    now: Instant,
    config: &PeerConfig,
    first: u64,
) -> Result<Option<Plan>, PeerError> {
    let Some(coding) = &config.coding else { return Ok(None) };
    let coder = match coding {
        Coding::Auto(settings) => Coder::Auto(Box::new(Auto::new(now, settings, first)?)),
        Coding::Fixed(code) => Coder::Fixed(code.build_encoder(first)?),
        Coding::Observe => Coder::Observe(Observer::new(first)),
    };
    Ok(Some(Plan {
        coder,
        flush_after: config.flush_after,
        longest: config.longest,
        mtu: config.mtu,
    }))
}

//! Configuration of a peer.

use std::net::SocketAddr;

use crate::keys::PublicKey;
use crate::repair::coding::Coding;
use crate::repair::receiver::memory_for_store;
use crate::repair::seal::SEAL_OVERHEAD;
use crate::repair::section::{PREFIX, REPAIR_HEAD, SECTION_HEAD};
use crate::repair::session::WeakKey;
use crate::repair::sites::Sites;
use crate::time::Duration;

/// Configuration of a peer.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    /// Name for display.
    pub name: String,
    /// Public key of the peer.
    pub key: PublicKey,
    /// Address of the peer's gateway; if unknown, learnt from its messages.
    pub endpoint: Option<SocketAddr>,
    /// Addresses of the two sites.
    pub sites: Sites,
    /// Coding of outgoing packets; `None` leaves that direction unprotected.
    pub coding: Option<Coding>,
    /// Time without a packet after which unfilled bins fire.
    pub flush_after: Duration,
    /// Age at which session keys are replaced.
    pub rekey_after: Duration,
    /// Longest packet that is encoded, in bytes.
    pub longest: usize,
    /// MTU of the path between the gateways.
    pub mtu: usize,
    /// Bytes of memory for received packets and waiting repairs.
    pub memory: usize,
}

impl PeerConfig {
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

/// Bytes by which a repair exceeds the longest packet it covers, with outer IP and UDP headers.
pub fn overhead(ipv6: bool) -> usize {
    outer(ipv6) + SEAL_OVERHEAD + SECTION_HEAD + REPAIR_HEAD + PREFIX
}

/// Least [`PeerConfig::memory`], in bytes, with which a code can recover anything: the store must
/// hold all packets that a repair may cover.
pub fn least_memory(coding: &Coding, longest: usize) -> usize {
    memory_for_store((coding.span() + 64) * longest.max(576)).max(MIN_MEMORY)
}

/// Least memory of a peer without an encoder.
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

//! The transport continuation: the state of a connection that TCP would keep at the server (2.1).
//! It has 70 + 12 m bytes (the paper's has 75 + 12 m), where m is the number of losses that wait
//! for their repair.
//!
//! ```text
//!   0  number of the secret 1
//!   1  mode 2 bits | delayed 1 | by request 1 | losses 4
//!   2  connection 8
//!  10  generation 2          counts restarts
//!  12  tag 4                 chosen by the client; in every response
//!  16  base 8                the epoch: TCPBase
//!  24  number 4              of the packet, less the base; in a token: the attempt's number
//!  28  start 2               startCwnd
//!  30  ssthresh 2
//!  32  timestamp 6           microseconds of the server's clock
//!  38  smoothed RTT 4        microseconds; 0: not known
//!  42  secret of the nonces 1
//!  43  address 8             keyed hash of the client's address
//!  51  longest message 2     of a response
//!  53  delta 1 bit | burst limit 7
//!  54  losses, each: first 8 | count 4
//!      MAC 16                AES-CMAC of all preceding bytes
//! ```

mod body;
mod delta;
#[cfg(test)]
pub(super) mod tests;

use super::epoch::Epoch;
use super::keys::{KeyRing, Keys, MAC};
use super::plan::Run;
pub(super) use body::renumber;
pub use delta::{DELTA, Delta};

/// Length of a continuation without losses, in bytes.
pub const CONTINUATION: usize = 54 + MAC;
/// Bytes per loss.
pub const LOSS: usize = 12;
/// Maximum number of losses in a continuation.
pub const MAX_LOSSES: usize = 15;

/// Purpose of a continuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// An address token: its echo proves the client's address, and begins an epoch.
    AddressToken,
    /// A packet of an epoch that began with a first window.
    Begun,
    /// A packet of an epoch that began with the survivors of the previous epoch.
    Survivors,
}

/// Losses that wait for their repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    runs: [Run; MAX_LOSSES],
    count: u8,
}

impl Losses {
    /// The losses, ascending.
    pub fn runs(&self) -> &[Run] {
        &self.runs[..usize::from(self.count)]
    }

    /// Adds a loss. Losses beyond [`MAX_LOSSES`] are not tracked: the client has reported them
    /// already, and need only prove later that the tracked losses are repaired.
    pub fn push(&mut self, run: Run) {
        if let Some(free) = self.runs.get_mut(usize::from(self.count)) {
            *free = run;
            self.count += 1;
        }
    }
}

/// A transport continuation. See the [module](self).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Continuation {
    /// Purpose.
    pub mode: Mode,
    /// Number of the connection.
    pub connection: u64,
    /// Number of restarts of the connection; wraps around.
    pub generation: u16,
    /// Tag in all responses to this client.
    pub tag: u32,
    /// Recovery epoch of the packet.
    pub epoch: Epoch,
    /// The packet's number, at or above the epoch's base.
    pub number: u64,
    /// Time at which the continuation was created, in microseconds of the server's clock; below
    /// 2^48.
    pub timestamp: u64,
    /// Smoothed round trip in microseconds; 0 if none was measured.
    pub rtt: u32,
    /// Number of the secret from which the connection's nonces are derived.
    pub nonces: u8,
    /// Hash of the client's address, computed by [`Keys`].
    pub address: u64,
    /// Maximum length of a response message in bytes.
    pub message: u16,
    /// Maximum number of lost packets that are retransmitted in answer to one request; below 128.
    pub burst: u8,
    /// True if the server's packets omit the fields that the client knows from their epoch (5.3).
    pub delta: bool,
    /// Losses whose repair the client has not proven yet.
    pub losses: Losses,
}

/// Reason why a continuation is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// Too short, or fields out of range.
    #[error("these bytes are not a transport continuation")]
    Malformed,
    /// The secret is not in the ring.
    #[error("secret {0} of the continuation is not in the ring: open a new connection")]
    UnknownSecret(u8),
    /// The MAC does not match.
    #[error("the continuation was altered, or made with another secret")]
    Forged,
}

impl Continuation {
    /// Length of this continuation on the wire, in bytes.
    pub(super) fn len(&self) -> usize {
        CONTINUATION + LOSS * self.losses.runs().len()
    }

    /// Appends the continuation with its MAC.
    pub fn emit(&self, keys: &Keys, out: &mut Vec<u8>) {
        let start = out.len();
        self.emit_body(keys.number(), out);
        let mac = keys.transport(&out[start..]);
        out.extend_from_slice(&mac);
    }

    /// Parses a continuation without verifying its MAC, as a client does. Returns the continuation
    /// and its length. Errors: [`Invalid::Malformed`].
    pub fn peek(bytes: &[u8]) -> Result<(Continuation, usize), Invalid> {
        let (continuation, _) = Continuation::peek_body(bytes).ok_or(Invalid::Malformed)?;
        let len = continuation.len();
        if bytes.len() < len { Err(Invalid::Malformed) } else { Ok((continuation, len)) }
    }

    /// Parses the continuation at the beginning of `bytes`, and verifies that it was made by a
    /// server with a secret of `ring`. Errors: any [`Invalid`].
    pub fn open(ring: &KeyRing, bytes: &[u8]) -> Result<Continuation, Invalid> {
        let (continuation, len) = Continuation::peek(bytes)?;
        let keys = ring.get(bytes[0]).ok_or(Invalid::UnknownSecret(bytes[0]))?;
        let (body, mac) = bytes[..len].split_last_chunk::<MAC>().ok_or(Invalid::Malformed)?;
        if keys.is_transport(body, mac) { Ok(continuation) } else { Err(Invalid::Forged) }
    }
}

//! Encryption of messages, an addition to section 2.2 of the paper. A server without per-connection
//! state cannot store session keys, so it derives the session key anew for each request, from a
//! secret and from an id in the message.
//!
//! ```text
//!   client: knows the server's public key          server: its key pair, the ring of secrets
//!     │ ── opening: Noise NK [e, es] ( first message ) ──▶ │ id: random; key = F(secret, id)
//!     │ ◀─ answer:  Noise NK [e, ee] ( secret's number, id, key ) + response under key
//!     │ ── request: secret's number, id, message under key ──▶ │ key = F(secret, id), any replica
//!     │ ◀────────────────────────── response under key ──────── │
//! ```
//!
//! ```text
//!  opening    c1 | e 32 | { length 2 | message | zeros } 16
//!  answer     c2 | of e 4 | e 32 | { secret's number 1 | id 12 | key 32 } 16 | siv 16 | message
//!  request    c3 | number of the secret 1 | id 12 | siv 16 | message
//!  response   c4 | of the id 4 | siv 16 | message
//! ```
//!
//! The parts in braces are encrypted by Noise (NK, Curve25519, ChaCha20-Poly1305, BLAKE2s), and are
//! followed by Noise's tag of 16 bytes; *e* is the sender's ephemeral key. All other encrypted
//! parts use AES-SIV (RFC 5297), with the preceding bytes as associated data. Replicas cannot agree
//! on unique nonces, and SIV is safe without them: an eavesdropper learns only that two messages
//! were identical. The plaintexts are the messages of [`wire`](super::wire), unchanged.
//!
//! - An opening can be answered only with the secret key that belongs to the public key that the
//!   client knows.
//! - An attacker who later gets the server's secret key can read the first messages of recorded
//!   connections, but nothing else: session keys are also protected by Noise's ephemeral keys. An
//!   attacker who gets a secret of the ring can read the messages that it protects. So past
//!   messages are safe once their secret is rotated out and erased. Secrets that are derived from a
//!   [root](super::rotation) are the exception: the root yields the secrets of all past periods
//!   again.
//! - First messages can be replayed by an eavesdropper, as without encryption.

mod channel;
mod client;
mod server;

#[cfg(test)]
mod tests;

use snow::{Builder, HandshakeState};

pub(super) use channel::{Channel, open, seal};
pub use client::{ClientCrypt, OPENING};
pub use server::{ServerCrypt, Stats};

use crate::keys::{Entropy, Resolver};

/// Overhead of a sealed request in bytes.
pub const REQUEST: usize = 1 + 1 + ID + SIV;
/// Overhead of a sealed response in bytes.
pub const RESPONSE: usize = 1 + 4 + SIV;

/// Length of the id of a connection's key in bytes.
const ID: usize = 12;
/// Length of the synthetic IV of AES-SIV in bytes.
const SIV: usize = 16;
/// Length of Noise's ephemeral keys in bytes.
const EPHEMERAL: usize = 32;
/// Length of Noise's authentication tags in bytes.
const TAG: usize = 16;
/// Length of a key in bytes, for SIV with AES-128.
const KEY: usize = 32;
/// Length of Noise's second message.
const SECOND: usize = EPHEMERAL + 1 + ID + KEY + TAG;
/// Length of an answer's part before the SIV.
const HELLO: usize = 1 + 4 + SECOND;
/// Padding of an opening in bytes, so that the answer is no longer than the opening.
const PADDED: usize = 64;

const PATTERN: &str = "Noise_NK_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"viaduct trickles 1";

/// Types of sealed messages.
mod kind {
    pub(super) const OPENING: u8 = 0xc1;
    pub(super) const ANSWER: u8 = 0xc2;
    pub(super) const REQUEST: u8 = 0xc3;
    pub(super) const RESPONSE: u8 = 0xc4;
}

/// Starts a handshake with `key`: at the server its secret key, at a client the server's
/// public key.
fn noise<'k>(
    entropy: &Entropy,
    key: impl FnOnce(Builder<'k>) -> Result<Builder<'k>, snow::Error>,
    build: impl FnOnce(Builder<'k>) -> Result<HandshakeState, snow::Error>,
) -> Option<HandshakeState> {
    let params = PATTERN.parse().ok()?;
    let builder = Builder::with_resolver(params, Box::new(Resolver(entropy.clone())));
    key(builder.prologue(PROLOGUE).ok()?).and_then(build).ok()
}

//! Messages that nobody on the way can read, or alter (beyond the paper, section 2.2): who keeps nothing
//! can keep no session key, so the key is made anew for each request, of a secret and of what travels.
//!
//! ```text
//!   client: knows the server's public key          server: its key pair, the ring of secrets
//!     │ ── opening: Noise NK [e, es] ( first message ) ──▶ │ id: random; key = F(secret, id)
//!     │ ◀─ answer:  Noise NK [e, ee] ( secret's number, id, key ) + response under key
//!     │ ── request: secret's number, id, message under key ──▶ │ key = F(secret, id), on any replica
//!     │ ◀────────────────────────── response under key ──────── │
//! ```
//!
//! ```text
//!  opening    c1 | e 32 | { length 2 | message | zeros } 16
//!  answer     c2 | of e 4 | e 32 | { number of the secret 1 | id 12 | key 32 } 16 | siv 16 | message
//!  request    c3 | number of the secret 1 | id 12 | siv 16 | message
//!  response   c4 | of the id 4 | siv 16 | message
//! ```
//!
//! What stands in braces is Noise's (NK, Curve25519, ChaCha20-Poly1305, BLAKE2s). All else is under AES-SIV (RFC
//! 5297), with all that stands before it as associated data. Messages bear no numbers of their own that would never
//! be used twice, and replicas cannot agree on any: SIV takes no harm from that. All that a watcher learns
//! is that two messages were the same. What [`wire`](super::wire) has is inside; nothing there knows of it.
//!
//! - Who answers an opening has the secret key of the public one that the client knows.
//! - Whoever gets hold of that secret key later can read first messages of connections that were recorded, and
//!   nothing else of them: keys travel under Noise's fresh ones too. Whoever gets hold of a ring's secret can
//!   read what it protected. So what was said is safe once the secret is rotated out and forgotten.
//! - First messages can be sent again by anybody who has seen them, as without encryption.

mod channel;
mod client;
mod server;

#[cfg(test)]
mod tests;

use snow::{Builder, HandshakeState};

pub(super) use channel::{Channel, Form};
pub use client::{ClientCrypt, OPENING};
pub use server::{ServerCrypt, Stats};

use crate::keys::{Entropy, Resolver};

/// Bytes that sealing adds to a request.
pub const REQUEST: usize = 1 + 1 + ID + SIV;
/// Bytes that sealing adds to a response.
pub const RESPONSE: usize = 1 + 4 + SIV;

/// Bytes of a connection's number here.
const ID: usize = 12;
const SIV: usize = 16;
/// Noise's ephemeral key, and its tags.
const EPHEMERAL: usize = 32;
const TAG: usize = 16;
/// Bytes of a key: of SIV with AES-128.
const KEY: usize = 32;
/// Noise's second message.
const SECOND: usize = EPHEMERAL + 1 + ID + KEY + TAG;
/// Bytes before what is under the key in an answer.
const HELLO: usize = 1 + 4 + SECOND;
/// Bytes that an opening is longer than its message, so that the answer is no longer than the opening.
const PADDED: usize = 64;

const PATTERN: &str = "Noise_NK_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"viaduct trickles 1";

/// What a sealed message is.
mod kind {
    pub(super) const OPENING: u8 = 0xc1;
    pub(super) const ANSWER: u8 = 0xc2;
    pub(super) const REQUEST: u8 = 0xc3;
    pub(super) const RESPONSE: u8 = 0xc4;
}

/// A handshake, whose `key` says who the server is: its own, or the one that the client knows.
fn noise<'k>(
    entropy: &Entropy,
    key: impl FnOnce(Builder<'k>) -> Result<Builder<'k>, snow::Error>,
    build: impl FnOnce(Builder<'k>) -> Result<HandshakeState, snow::Error>,
) -> Option<HandshakeState> {
    let params = PATTERN.parse().ok()?;
    let builder = Builder::with_resolver(params, Box::new(Resolver(entropy.clone())));
    key(builder.prologue(PROLOGUE).ok()?).and_then(build).ok()
}

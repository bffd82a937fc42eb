//! Client side: pending handshakes, and keys.

use std::collections::VecDeque;

use snow::HandshakeState;

use super::channel::{open, seal};
use super::{EPHEMERAL, HELLO, ID, KEY, PADDED, SECOND, TAG, kind, noise};
use crate::keys::{Entropy, PublicKey};
use crate::trickles::bytes::Reader;
use crate::trickles::wire::request::is_open;

/// Overhead of a sealed first message in bytes: the minimum length of an opening.
pub const OPENING: usize = 1 + EPHEMERAL + 2 + PADDED + TAG;
/// Maximum number of pending handshakes, and of keys that are kept.
const MAX_HANDSHAKES: usize = 4;

/// A handshake that has not been answered.
struct Pending {
    /// First bytes of the client's ephemeral key, which the answer repeats.
    of: [u8; 4],
    noise: Box<HandshakeState>,
}

struct Key {
    secret: u8,
    id: [u8; ID],
    key: [u8; KEY],
}

/// Encryption state of a client, for a connection and its replacements. See the [module](super).
pub struct ClientCrypt {
    server: PublicKey,
    entropy: Entropy,
    pending: VecDeque<Pending>,
    /// Keys, the newest first.
    keys: VecDeque<Key>,
    refused: u64,
}

impl std::fmt::Debug for ClientCrypt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientCrypt").field("server", &self.server).finish_non_exhaustive()
    }
}

impl ClientCrypt {
    /// Creates the state of a client. `server` is the server's public key.
    pub fn new(server: PublicKey, entropy: Entropy) -> Self {
        let (pending, keys) = Default::default();
        ClientCrypt { server, entropy, pending, keys, refused: 0 }
    }

    /// Number of messages that could not be decrypted: unencrypted, altered, or from another host.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Encrypts a message of the connection. The first message starts a handshake. For a later
    /// message, returns `None` while no key is known; that message is then lost.
    pub fn seal(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        if is_open(message) {
            return self.begin(message);
        }
        let Key { secret, id, key } = self.keys.front()?;
        let mut out = vec![kind::REQUEST, *secret];
        out.extend_from_slice(id);
        seal(key, message, &mut out)?;
        Some(out)
    }

    /// Decrypts a message. Returns `None`, and counts the message, if it is not from the server.
    pub fn open(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let opened = match message.first() {
            Some(&kind::RESPONSE) => self.response(message),
            Some(&kind::ANSWER) => self.finish(message),
            _ => None,
        };
        self.refused += u64::from(opened.is_none());
        opened
    }

    fn begin(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let key = self.server.as_bytes();
        let mut noise =
            noise(&self.entropy, |b| b.remote_public_key(key), |b| b.build_initiator())?;
        let mut inside = u16::try_from(message.len()).ok()?.to_be_bytes().to_vec();
        inside.extend_from_slice(message);
        inside.resize(inside.len() + PADDED, 0);
        let mut out = vec![0; 1 + EPHEMERAL + inside.len() + TAG];
        out[0] = kind::OPENING;
        noise.write_message(&inside, &mut out[1..]).ok()?;
        let of = *out[1..].first_chunk()?;
        self.pending.push_front(Pending { of, noise: Box::new(noise) });
        self.pending.truncate(MAX_HANDSHAKES);
        Some(out)
    }

    /// Completes a handshake, and decrypts the response in the same message.
    fn finish(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let (hello, _) = message.split_first_chunk::<HELLO>()?;
        let of = &hello[1..5];
        // The key of a duplicated answer is known already.
        let known = self.keys.iter().find_map(|key| open(&key.key, message, HELLO));
        if known.is_some() {
            return known;
        }
        let at = self.pending.iter().position(|pending| pending.of == of)?;
        let mut given = [0; SECOND - EPHEMERAL - TAG];
        self.pending[at].noise.read_message(&hello[5..], &mut given).ok()?;
        self.pending.remove(at);
        let mut reader = Reader(&given);
        let key = Key { secret: reader.u8()?, id: reader.array()?, key: reader.array()? };
        // The key is authentic even if the rest of the message was altered.
        let inner = open(&key.key, message, HELLO);
        self.keys.push_front(key);
        self.keys.truncate(MAX_HANDSHAKES);
        inner
    }

    fn response(&self, message: &[u8]) -> Option<Vec<u8>> {
        let of = message.get(1..5)?;
        let mut fitting = self.keys.iter().filter(|key| key.id[..4] == *of);
        fitting.find_map(|key| open(&key.key, message, 5))
    }
}

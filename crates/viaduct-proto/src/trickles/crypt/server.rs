//! Server side: a function of the message, the key pair and the secrets.

use super::channel::open;
use super::{Channel, EPHEMERAL, HELLO, ID, KEY, OPENING, PADDED, SECOND, SIV, TAG, kind, noise};
use crate::keys::{Entropy, PublicKey, SecretKey};
use crate::time::{Duration, Instant};
use crate::trickles::bytes::Reader;
use crate::trickles::keys::KeyRing;

/// Maximum number of handshakes per second, of all threads of a server together. A handshake costs
/// about 150 microseconds of CPU time, and any host can cause a handshake, even with garbage of an
/// opening's length. Openings beyond the limit are not answered; their clients try again.
const RATE: u32 = 2_000;
/// Maximum number of handshakes in a burst, of all threads together.
const AT_ONCE: u32 = 200;
/// Interval between handshakes at [`RATE`].
const APART: Duration = Duration::from_nanos(1_000_000_000 / RATE as u64);

/// Counters of messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Handshakes.
    pub handshakes: u64,
    /// Messages that were decrypted, openings included.
    pub opened: u64,
    /// Refused: altered, or under an unknown key.
    pub altered: u64,
    /// Refused: unencrypted, although encryption is required.
    pub clear: u64,
    /// Refused: handshakes beyond the rate limit.
    pub busy: u64,
}

/// Encryption state of a server. See the [module](super).
pub struct ServerCrypt {
    identity: SecretKey,
    required: bool,
    entropy: Entropy,
    /// Minimum mean interval between handshakes.
    apart: Duration,
    /// Time at which all handshakes so far would be done at the maximum rate.
    busy_until: Instant,
    stats: Stats,
}

impl std::fmt::Debug for ServerCrypt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerCrypt").field("public", &self.public()).finish_non_exhaustive()
    }
}

impl ServerCrypt {
    /// Creates the state of a server with the secret key `identity`, which its replicas share. With
    /// `required`, unencrypted messages are refused.
    pub fn new(identity: SecretKey, required: bool, entropy: Entropy) -> Self {
        let busy_until = Instant::ZERO;
        let (apart, stats) = (APART, Stats::default());
        ServerCrypt { identity, required, entropy, apart, busy_until, stats }
    }

    /// Divides the limit of handshakes by `threads`, the number of threads of the server. Each
    /// thread has its own `ServerCrypt`.
    #[must_use]
    pub fn of_threads(self, threads: u32) -> Self {
        ServerCrypt { apart: APART * threads.max(1), ..self }
    }

    /// Public key of the server, which clients must know.
    pub fn public(&self) -> PublicKey {
        self.identity.public()
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Decrypts a message. Returns its plaintext, if it was encrypted, and the channel for its
    /// answers. Returns `None`, and counts the message, if it is refused.
    pub(in crate::trickles) fn open(
        &mut self,
        now: Instant,
        ring: &KeyRing,
        message: &[u8],
    ) -> Option<(Option<Vec<u8>>, Channel)> {
        let opened = match message.first() {
            Some(&kind::REQUEST) => request(ring, message),
            // Messages shorter than any opening do not count against the rate limit. Only the key
            // exchange, which is the expensive part, shows whether a longer message is an opening.
            Some(&kind::OPENING) if message.len() < OPENING => None,
            Some(&kind::OPENING) => {
                if !self.has_time(now) {
                    self.stats.busy += 1;
                    return None;
                }
                self.handshake(ring, message)
            }
            _ if self.required => {
                self.stats.clear += 1;
                return None;
            }
            _ => return Some((None, Channel::Clear)),
        };
        let Some((message, channel)) = opened else {
            self.stats.altered += 1;
            return None;
        };
        self.stats.opened += 1;
        Some((Some(message), channel))
    }

    fn has_time(&mut self, now: Instant) -> bool {
        let begin = self.busy_until.max(now);
        let free = begin.since(now) <= APART * AT_ONCE;
        if free {
            self.busy_until = begin + self.apart;
        }
        free
    }

    fn handshake(&mut self, ring: &KeyRing, message: &[u8]) -> Option<(Vec<u8>, Channel)> {
        let first = message.get(1..)?;
        let ephemeral: [u8; 4] = *first.first_chunk()?;
        let key = self.identity.as_bytes();
        let mut noise =
            noise(&self.entropy, |b| b.local_private_key(key), |b| b.build_responder())?;
        let mut inside = vec![0; first.len().checked_sub(EPHEMERAL + TAG)?];
        noise.read_message(first, &mut inside).ok()?;
        let mut reader = Reader(&inside);
        let length = reader.u16()?;
        let inner = reader.take(length.into())?.to_vec();
        // Without this padding the answer could be longer than the opening.
        if reader.0.len() < PADDED {
            return None;
        }
        let mut id = [0; ID];
        (self.entropy)(&mut id);
        let secret = ring.newest().number();
        let key: [u8; KEY] = ring.channel_key(secret, &id)?;
        let mut hello = [0; HELLO];
        hello[0] = kind::ANSWER;
        hello[1..5].copy_from_slice(&ephemeral);
        let given = [&[secret], &id[..], &key].concat();
        let written = noise.write_message(&given, &mut hello[5..]).ok()?;
        debug_assert_eq!(written, SECOND);
        self.stats.handshakes += 1;
        Some((inner, Channel::Sealed { secret, id, hello: Some(hello) }))
    }
}

fn request(ring: &KeyRing, message: &[u8]) -> Option<(Vec<u8>, Channel)> {
    let head = 1 + 1 + ID;
    let mut reader = Reader(message.get(1..head + SIV)?);
    let (secret, id) = (reader.u8()?, reader.array()?);
    let inner = open(&ring.channel_key(secret, &id)?, message, head)?;
    Some((inner, Channel::Sealed { secret, id, hello: None }))
}

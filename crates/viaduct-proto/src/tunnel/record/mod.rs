//! Encryption and authentication of a link over a plain stream (TCP): a Noise handshake with the
//! sites' keys, then numbered records under AES-GCM.
//!
//! ```text
//!  dialler                                                          listener
//!    length 2 | e, es, s, ss, version            (97 bytes)  ──▶    is the key that of a peer?
//!    length 2 | e, ee, se, version, verdict      (50 bytes)  ◀──
//!    length 2 | tag 16                                       ──▶    confirmation: dialler is up
//!    length 2 | sealed | tag 16   ◀─▶   records of 1 to 16384 bytes each
//! ```
//!
//! The pattern is Noise IK. The first message does not authenticate the dialler by itself. The
//! holder of the listener's secret key can compute `ss` for any dialler (key compromise
//! impersonation), and a recorded message can be replayed. Only the dialler's own secret key gives
//! the `se` of the second message. The listener therefore attributes nothing to the dialler before
//! the confirmation, an empty record under the keys that are derived with `se`. The dialler needs
//! no confirmation: only the listener can compute the second message, which answers a fresh key.
//!
//! A listener that refuses the dialler reports this in the second message, which only the holder of
//! the dialler's key can read. The two messages keep these lengths in all future versions, so that
//! a refusal because of the version is understood.
//!
//! The number of a record, counted from 0 for each key, is its nonce. The length of a record is
//! authenticated as well. The confirmation is record 0. Each direction has its own key, which is
//! replaced by one derived from it every 2^20 records, well within the limits of AES-GCM.
//!
//! Flows of the handler `crypt` are encrypted in the same way, with another pattern ([`FLOW`]).
//!
//! In a secure channel whose ends are not authenticated (QUIC, TLS), only the handshake takes
//! place. The handshake is bound to the channel by a value that is unique to the channel. The bytes
//! after the handshake are not sealed again.

mod direction;
mod handshake;
mod refusal;
#[cfg(test)]
mod tests;

use bytes::{Buf, BytesMut};
use snow::{Builder, HandshakeState};

use crate::keys::{Entropy, PublicKey, SecretKey};
use crate::tunnel::wire::VERSION;
use direction::Direction;
use handshake::{Handshake, builder, remote};
pub use refusal::Refusal;

/// Maximum bytes in one record of a tunnel.
pub const MAX_RECORD: usize = 16_384;

const LENGTH: usize = 2;
const TAG: usize = 16;
/// Number of records under one key.
const REKEY: u64 = 1 << 20;

/// Parameters of a secure stream: the pattern of the handshake, and the limits of a record.
#[derive(Debug)]
pub(crate) struct Parameters {
    pattern: &'static str,
    prologue: &'static [u8],
    /// Length of each message of the handshake in bytes, the dialler's first.
    messages: &'static [usize],
    /// True if the messages carry a version and a verdict, and a confirmation follows them.
    confirms: bool,
    /// Minimum number of bytes in one record.
    least: usize,
    /// Maximum number of bytes in one record.
    most: usize,
}

/// Parameters of a tunnel's links: the dialler knows the key of the listener.
pub(crate) const LINK: Parameters = Parameters {
    pattern: "Noise_IK_25519_ChaChaPoly_BLAKE2s",
    prologue: b"viaduct tunnel 2",
    messages: &[32 + 48 + 16 + 1, 32 + 16 + 2],
    confirms: true,
    least: 1,
    most: MAX_RECORD,
};

/// Parameters of the handler `crypt`: either end may have several peers, a replayed handshake
/// proves nothing, and an empty record ends its direction.
pub(crate) const FLOW: Parameters = Parameters {
    pattern: "Noise_XX_25519_ChaChaPoly_BLAKE2s",
    prologue: b"viaduct crypt 1",
    messages: &[32, 32 + 48 + 16, 48 + 16],
    confirms: false,
    least: 0,
    most: u16::MAX as usize - TAG,
};

/// Reason why a stream is not accepted as that of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// An invalid length of a message.
    #[error("a message of {0} bytes, which is not a valid length")]
    Length(usize),
    /// The message does not authenticate.
    #[error(
        "a message fails authentication: the peer has another key than expected, or did not send it"
    )]
    Forged,
    /// The other end's key is not that of a peer.
    #[error("the key {0} is not that of any peer")]
    Unknown(PublicKey),
    /// The other end speaks another version of the format.
    #[error("version {0} of the tunnel; {VERSION} is expected")]
    Version(u8),
    /// The other end has refused this one.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// Secure stream: the handshake, and then records. It does no I/O.
pub struct Secure {
    parameters: &'static Parameters,
    state: State,
    /// True if the bytes after the handshake are not sealed.
    bare: bool,
    /// Received bytes of a message that is not complete yet.
    inbox: BytesMut,
}

enum State {
    Handshake(Box<Handshake>),
    Established(Box<Established>),
    /// The stream has failed with this error. Nothing is accepted after it.
    Failed(RecordError),
}

struct Established {
    peer: Option<PublicKey>,
    /// True if the other end has proved that it has the keys.
    confirmed: bool,
    seal: Direction,
    open: Direction,
}

impl Secure {
    /// Dials `peer`. The first message is appended to `out`.
    pub fn dial(
        secret: &SecretKey,
        peer: &PublicKey,
        entropy: Entropy,
        out: &mut Vec<u8>,
    ) -> Result<Secure, RecordError> {
        Secure::dial_in(&[], secret, peer, entropy, out)
    }

    /// Dials `peer` inside the channel that `binding` identifies. The bytes after the handshake are
    /// not sealed.
    pub fn dial_in(
        binding: &[u8],
        secret: &SecretKey,
        peer: &PublicKey,
        entropy: Entropy,
        out: &mut Vec<u8>,
    ) -> Result<Secure, RecordError> {
        let prologue = [LINK.prologue, binding].concat();
        let noise = builder(&LINK, &prologue, secret, entropy).remote_public_key(peer.as_bytes());
        let noise = noise.and_then(Builder::build_initiator).map_err(|_| RecordError::Forged)?;
        let mut secure = Secure::new(&LINK, noise, vec![*peer], !binding.is_empty());
        secure.shake(out)?;
        Ok(secure)
    }

    /// Creates the listener's end, for a dialler that is one of `peers`.
    pub fn listen(secret: &SecretKey, peers: Vec<PublicKey>, entropy: Entropy) -> Secure {
        Secure::listen_in(&[], secret, peers, entropy)
    }

    /// Creates the listener's end inside the channel that `binding` identifies, for a dialler that
    /// is one of `peers`. The bytes after the handshake are not sealed.
    pub fn listen_in(
        binding: &[u8],
        secret: &SecretKey,
        peers: Vec<PublicKey>,
        entropy: Entropy,
    ) -> Secure {
        let prologue = [LINK.prologue, binding].concat();
        let noise = builder(&LINK, &prologue, secret, entropy).build_responder();
        let noise = noise.expect("the builder has the pattern and the key");
        Secure::new(&LINK, noise, peers, !binding.is_empty())
    }

    /// Creates one end of a flow with one of `peers`. If this end sends the first message, it is
    /// appended to `out`.
    pub(crate) fn flow(
        dials: bool,
        binding: &[u8],
        secret: &SecretKey,
        peers: Vec<PublicKey>,
        entropy: Entropy,
        out: &mut Vec<u8>,
    ) -> Result<Secure, RecordError> {
        let prologue = [FLOW.prologue, binding].concat();
        let noise = builder(&FLOW, &prologue, secret, entropy);
        let noise = if dials { noise.build_initiator() } else { noise.build_responder() };
        let noise = noise.map_err(|_| RecordError::Forged)?;
        let mut secure = Secure::new(&FLOW, noise, peers, false);
        secure.shake(out)?;
        Ok(secure)
    }

    fn new(
        parameters: &'static Parameters,
        noise: HandshakeState,
        peers: Vec<PublicKey>,
        bare: bool,
    ) -> Secure {
        let state = State::Handshake(Box::new(Handshake::new(noise, peers)));
        Secure { parameters, state, bare, inbox: BytesMut::new() }
    }

    /// Returns whether the other end has proved that it has its key, and records can be sealed.
    pub fn is_up(&self) -> bool {
        matches!(&self.state, State::Established(up) if up.confirmed)
    }

    /// Key of the other end, once it is authenticated.
    pub fn peer(&self) -> Option<PublicKey> {
        match &self.state {
            State::Established(up) if up.confirmed => up.peer,
            _ => None,
        }
    }

    /// Buffer for received bytes, to be filled before [`open`](Secure::open).
    pub fn inbox(&mut self) -> &mut BytesMut {
        &mut self.inbox
    }

    /// Passes the plaintext of complete messages to `deliver`, one record at a time. Answers are
    /// appended to `out`. After an error the stream cannot be used.
    pub fn open(
        &mut self,
        out: &mut Vec<u8>,
        mut deliver: impl FnMut(&[u8]),
    ) -> Result<(), RecordError> {
        while let Some(plain) = self.advance(out)? {
            deliver(&self.inbox[LENGTH..LENGTH + plain]);
            self.inbox.advance(LENGTH + plain + TAG);
        }
        if self.bare && self.is_up() && !self.inbox.is_empty() {
            deliver(&self.inbox.split());
        }
        Ok(())
    }

    /// Plaintext of the next record, without a copy, if it is complete. Answers are appended to
    /// `out`. After an error the stream cannot be used.
    pub(crate) fn next(&mut self, out: &mut Vec<u8>) -> Result<Option<BytesMut>, RecordError> {
        let Some(plain) = self.advance(out)? else { return Ok(None) };
        let mut record = self.inbox.split_to(LENGTH + plain + TAG);
        record.truncate(LENGTH + plain);
        record.advance(LENGTH);
        Ok(Some(record))
    }

    /// Advances the handshake, and opens the record at the head of the inbox in place. Returns the
    /// length of its plaintext; `None` if there is no complete record.
    fn advance(&mut self, out: &mut Vec<u8>) -> Result<Option<usize>, RecordError> {
        let opened = self.try_advance(out);
        if let Err(error) = opened {
            self.state = State::Failed(error);
        }
        opened
    }

    fn try_advance(&mut self, out: &mut Vec<u8>) -> Result<Option<usize>, RecordError> {
        while let Some(head) = self.inbox.first_chunk::<LENGTH>().copied() {
            let length = usize::from(u16::from_be_bytes(head));
            let whole = self.inbox.len() >= LENGTH + length;
            match &mut self.state {
                State::Failed(error) => return Err(*error),
                State::Established(up) if !up.confirmed => {
                    if length != TAG {
                        return Err(RecordError::Length(length));
                    }
                    if !whole {
                        break;
                    }
                    up.open.open(head, &mut self.inbox[LENGTH..LENGTH + length])?;
                    self.inbox.advance(LENGTH + length);
                    up.confirmed = true;
                }
                State::Established(_) if self.bare => break,
                State::Established(up) => {
                    let (least, most) = (self.parameters.least + TAG, self.parameters.most + TAG);
                    if !(least..=most).contains(&length) {
                        return Err(RecordError::Length(length));
                    }
                    if !whole {
                        break;
                    }
                    let message = &mut self.inbox[LENGTH..LENGTH + length];
                    return up.open.open(head, message).map(|plain| Some(plain.len()));
                }
                State::Handshake(handshake) => {
                    if self.parameters.messages.get(handshake.done) != Some(&length) {
                        return Err(RecordError::Length(length));
                    }
                    if !whole {
                        break;
                    }
                    handshake
                        .read_message(self.parameters, &self.inbox[LENGTH..LENGTH + length])?;
                    self.inbox.advance(LENGTH + length);
                    self.shake(out)?;
                }
            }
        }
        match self.state {
            State::Failed(error) => Err(error),
            _ => Ok(None),
        }
    }

    /// Sends the handshake's next message if it is this end's turn, and completes the handshake
    /// after its last message.
    fn shake(&mut self, out: &mut Vec<u8>) -> Result<(), RecordError> {
        let State::Handshake(handshake) = &mut self.state else { return Ok(()) };
        if !handshake.noise.is_handshake_finished() && handshake.noise.is_my_turn() {
            handshake.write_message(self.parameters, out)?;
        }
        if let Some(error) = handshake.refuses {
            return Err(error);
        }
        if handshake.noise.is_handshake_finished() {
            let mut up = Established::new(&mut handshake.noise);
            let dials = handshake.noise.is_initiator();
            up.confirmed = dials || !self.parameters.confirms;
            if dials && self.parameters.confirms {
                up.seal.seal(&[], out);
            }
            self.state = State::Established(Box::new(up));
        }
        Ok(())
    }

    /// Appends `plain` to `out`, sealed in records unless the channel itself is secure. Appends
    /// nothing before the handshake is complete.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        if let State::Established(up) = &mut self.state
            && up.confirmed
        {
            if self.bare {
                return out.extend_from_slice(plain);
            }
            // All records of a call have about the same size: there is no short last record.
            let records = plain.len().div_ceil(self.parameters.most).max(1);
            out.reserve(plain.len() + records * (LENGTH + TAG));
            let each = plain.len().div_ceil(records).max(1);
            plain.chunks(each).for_each(|chunk| up.seal.seal(chunk, out));
        }
    }

    /// Appends the record that ends this direction.
    pub(crate) fn seal_end(&mut self, out: &mut Vec<u8>) {
        if let State::Established(up) = &mut self.state {
            up.seal.seal(&[], out);
        }
    }
}

impl Established {
    fn new(noise: &mut HandshakeState) -> Established {
        let peer = remote(noise);
        let (first, second) = noise.dangerously_get_raw_split();
        let (seal, open) = if noise.is_initiator() { (first, second) } else { (second, first) };
        Established {
            peer,
            confirmed: false,
            seal: Direction::new(seal),
            open: Direction::new(open),
        }
    }
}

impl std::fmt::Debug for Secure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secure").field("up", &self.is_up()).finish_non_exhaustive()
    }
}

//! What makes a link of a plain stream (TCP) private and both its ends known: a Noise handshake with
//! the sites' keys, then numbered records under AES-GCM.
//!
//! ```text
//!  dialler                                                    listener
//!    length 2 | e, es, s, ss  (96 bytes)   ──▶   knows the dialler's key: one of its peers, or none
//!    length 2 ◀── e, ee, se  (48 bytes)
//!    length 2 | sealed | tag 16   ◀─▶   records of 1 to 16384 bytes each
//! ```
//!
//! The pattern is Noise IK: the dialler knows whom it dials, and is known after its first message,
//! which nobody else can read. A record's number, counted from 0 in each direction, is its nonce;
//! its length is authenticated with it. The key of a direction is replaced by one derived from it
//! every 2^20 records, far before AES-GCM wants it.
//!
//! Where the stream is part of a secure channel whose ends are not known (QUIC), the handshake alone
//! is done in it, bound to the channel by a value that only this channel has; what follows is as it
//! is.

mod direction;
#[cfg(test)]
mod tests;

use bytes::{Buf, BytesMut};
use snow::{Builder, HandshakeState};

use crate::keys::{Entropy, PublicKey, Resolver, SecretKey};
use direction::Direction;

/// Most bytes in one record.
pub const MOST_RECORD: usize = 16_384;

const PATTERN: &str = "Noise_IK_25519_ChaChaPoly_BLAKE2s";
const PROLOGUE: &[u8] = b"viaduct tunnel 1";
const FIRST: usize = 32 + 48 + 16;
const SECOND: usize = 32 + 16;
const LENGTH: usize = 2;
const TAG: usize = 16;
/// Records under one key.
const REKEY: u64 = 1 << 20;

/// Why a stream is not that of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    /// A length that no message has.
    #[error("a message of {0} bytes, where none has so many")]
    Length(usize),
    /// It does not authenticate.
    #[error("a message that the peer cannot have sent, or not with the key that is expected")]
    Forged,
    /// The dialler is none of the peers.
    #[error("the key {0} is none of the peers'")]
    Unknown(PublicKey),
}

/// A link's handshake, and then its records. Bytes in, bytes out.
pub struct Secure {
    state: State,
    /// What follows the handshake is not sealed.
    bare: bool,
    /// What came and is not a whole message yet.
    inbox: BytesMut,
}

enum State {
    /// We have dialled, and wait for the answer.
    Dialled(Box<HandshakeState>),
    /// We wait to be told who dials.
    Listening(Box<HandshakeState>, Vec<PublicKey>),
    Up(Box<Up>),
    /// Something did not authenticate: nothing comes after it.
    Failed(RecordError),
}

struct Up {
    peer: Option<PublicKey>,
    seal: Direction,
    open: Direction,
}

impl Secure {
    /// Dials `peer`; the first message goes to `out`.
    pub fn dial(
        secret: &SecretKey,
        peer: &PublicKey,
        entropy: Entropy,
        out: &mut Vec<u8>,
    ) -> Result<Secure, RecordError> {
        Secure::dial_in(&[], secret, peer, entropy, out)
    }

    /// The same inside a channel that `binding` names; what follows is not sealed.
    pub fn dial_in(
        binding: &[u8],
        secret: &SecretKey,
        peer: &PublicKey,
        entropy: Entropy,
        out: &mut Vec<u8>,
    ) -> Result<Secure, RecordError> {
        let prologue = [PROLOGUE, binding].concat();
        let noise = builder(&prologue, secret, entropy).remote_public_key(peer.as_bytes());
        let mut noise =
            noise.and_then(Builder::build_initiator).map_err(|_| RecordError::Forged)?;
        say(&mut noise, FIRST, out)?;
        Ok(Secure::new(State::Dialled(Box::new(noise)), binding))
    }

    /// Waits for one of `peers` to dial.
    pub fn listen(secret: &SecretKey, peers: Vec<PublicKey>, entropy: Entropy) -> Secure {
        Secure::listen_in(&[], secret, peers, entropy)
    }

    /// The same inside a channel that `binding` names; what follows is not sealed.
    pub fn listen_in(
        binding: &[u8],
        secret: &SecretKey,
        peers: Vec<PublicKey>,
        entropy: Entropy,
    ) -> Secure {
        let prologue = [PROLOGUE, binding].concat();
        let noise = builder(&prologue, secret, entropy).build_responder();
        let noise = noise.expect("a key and a pattern are all that it needs");
        Secure::new(State::Listening(Box::new(noise), peers), binding)
    }

    fn new(state: State, binding: &[u8]) -> Secure {
        Secure { state, bare: !binding.is_empty(), inbox: BytesMut::new() }
    }

    /// Whether records can be sealed.
    pub fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// Who dialled, once that is known.
    pub fn peer(&self) -> Option<PublicKey> {
        match &self.state {
            State::Up(up) => up.peer,
            _ => None,
        }
    }

    /// Where to put bytes that came, before [`open`](Secure::open).
    pub fn inbox(&mut self) -> &mut BytesMut {
        &mut self.inbox
    }

    /// Hands the plain bytes of what came whole to `deliver`, a record at a time; what is to be
    /// answered goes to `out`. After an error the stream is of no use.
    pub fn open(
        &mut self,
        out: &mut Vec<u8>,
        mut deliver: impl FnMut(&[u8]),
    ) -> Result<(), RecordError> {
        if let State::Failed(error) = self.state {
            return Err(error);
        }
        let result = self.open_all(out, &mut deliver);
        if let Err(error) = result {
            self.state = State::Failed(error);
        }
        result
    }

    fn open_all(
        &mut self,
        out: &mut Vec<u8>,
        deliver: &mut impl FnMut(&[u8]),
    ) -> Result<(), RecordError> {
        while !(self.bare && self.is_up())
            && let Some(head) = self.inbox.first_chunk::<LENGTH>().copied()
        {
            let length = usize::from(u16::from_be_bytes(head));
            if !self.state.expects(length) {
                return Err(RecordError::Length(length));
            }
            if self.inbox.len() < LENGTH + length {
                break;
            }
            let message = &mut self.inbox[LENGTH..LENGTH + length];
            match &mut self.state {
                State::Up(up) => deliver(up.open.open(head, message)?),
                State::Dialled(noise) => {
                    noise.read_message(message, &mut []).map_err(|_| RecordError::Forged)?;
                    self.state = State::Up(Box::new(Up::new(noise, true)));
                }
                State::Listening(noise, peers) => {
                    noise.read_message(message, &mut []).map_err(|_| RecordError::Forged)?;
                    known(noise, peers)?;
                    say(noise, SECOND, out)?;
                    self.state = State::Up(Box::new(Up::new(noise, false)));
                }
                State::Failed(error) => return Err(*error),
            }
            self.inbox.advance(LENGTH + length);
        }
        if self.bare && self.is_up() && !self.inbox.is_empty() {
            deliver(&self.inbox.split());
        }
        Ok(())
    }

    /// Appends records of `plain` to `out`; nothing while the handshake is not done.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        if let State::Up(up) = &mut self.state {
            if self.bare {
                return out.extend_from_slice(plain);
            }
            plain.chunks(MOST_RECORD).for_each(|chunk| up.seal.seal(chunk, out));
        }
    }
}

impl State {
    /// Whether the next message may be so long.
    fn expects(&self, length: usize) -> bool {
        match self {
            State::Dialled(_) => length == SECOND,
            State::Listening(..) => length == FIRST,
            State::Up(_) => (TAG + 1..=TAG + MOST_RECORD).contains(&length),
            State::Failed(_) => false,
        }
    }
}

impl Up {
    fn new(noise: &mut HandshakeState, dialled: bool) -> Up {
        let peer = noise.get_remote_static().and_then(|key| key.try_into().ok());
        let (first, second) = noise.dangerously_get_raw_split();
        let (seal, open) = if dialled { (first, second) } else { (second, first) };
        Up {
            peer: peer.map(PublicKey::from_bytes),
            seal: Direction::new(seal),
            open: Direction::new(open),
        }
    }
}

fn builder<'a>(prologue: &'a [u8], secret: &'a SecretKey, entropy: Entropy) -> Builder<'a> {
    let params = PATTERN.parse().expect("the pattern is a constant");
    Builder::with_resolver(params, Box::new(Resolver(entropy)))
        .local_private_key(secret.as_bytes())
        .and_then(|builder| builder.prologue(prologue))
        .expect("each is set once")
}

/// Appends the next handshake message, which has `length` bytes.
fn say(noise: &mut HandshakeState, length: usize, out: &mut Vec<u8>) -> Result<(), RecordError> {
    let mut message = [0; FIRST];
    let written = noise.write_message(&[], &mut message).map_err(|_| RecordError::Forged)?;
    debug_assert_eq!(written, length);
    out.extend((length as u16).to_be_bytes());
    out.extend_from_slice(&message[..written]);
    Ok(())
}

/// Whether the dialler is one of the peers.
fn known(noise: &HandshakeState, peers: &[PublicKey]) -> Result<(), RecordError> {
    let key = noise.get_remote_static().and_then(|key| key.try_into().ok());
    let key = PublicKey::from_bytes(key.ok_or(RecordError::Forged)?);
    if peers.contains(&key) { Ok(()) } else { Err(RecordError::Unknown(key)) }
}

impl std::fmt::Debug for Secure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Secure").field("up", &self.is_up()).finish_non_exhaustive()
    }
}

//! Messages of the handshake, and the keys that it accepts.

use snow::{Builder, HandshakeState};

use super::refusal::{self, Refusal};
use super::{Parameters, RecordError};
use crate::keys::{Entropy, PublicKey, Resolver, SecretKey};
use crate::tunnel::wire::VERSION;

/// Buffer size in bytes: enough for any message of the handshake and a tag.
pub(super) const LONGEST: usize = 128;

pub(super) struct Handshake {
    pub(super) noise: HandshakeState,
    /// Keys that the other end may have.
    peers: Vec<PublicKey>,
    /// Number of messages sent and received.
    pub(super) done: usize,
    /// Reason why the dialler is refused.
    pub(super) refuses: Option<RecordError>,
}

impl Handshake {
    /// Creates a handshake with one of `peers`.
    pub(super) fn new(noise: HandshakeState, peers: Vec<PublicKey>) -> Handshake {
        Handshake { noise, peers, done: 0, refuses: None }
    }

    pub(super) fn write_message(
        &mut self,
        parameters: &Parameters,
        out: &mut Vec<u8>,
    ) -> Result<(), RecordError> {
        let refusal = self.refuses.map(|error| match error {
            RecordError::Version(_) => Refusal::Version(VERSION),
            _ => Refusal::UnknownKey,
        });
        let said = [VERSION, refusal::verdict(refusal)];
        let payload = match (parameters.confirms, self.noise.is_initiator()) {
            (false, _) => &said[..0],
            (true, true) => &said[..1],
            (true, false) => &said[..],
        };
        // `snow` requires room for a tag even where there is none.
        let mut message = [0; LONGEST];
        let written = self.noise.write_message(payload, &mut message);
        let written = written.map_err(|_| RecordError::Forged)?;
        debug_assert_eq!(written, parameters.messages[self.done]);
        out.extend((written as u16).to_be_bytes());
        out.extend_from_slice(&message[..written]);
        self.done += 1;
        Ok(())
    }

    /// Processes the other end's message.
    pub(super) fn read_message(
        &mut self,
        parameters: &Parameters,
        message: &[u8],
    ) -> Result<(), RecordError> {
        let mut payload = [0; LONGEST];
        let read = self.noise.read_message(message, &mut payload);
        let payload = &payload[..read.map_err(|_| RecordError::Forged)?];
        self.done += 1;
        let unknown = remote(&self.noise).filter(|key| !self.peers.contains(key));
        let unknown = unknown.map(RecordError::Unknown);
        match (parameters.confirms, payload) {
            // A refusal is not an error here: the answer reports the reason to the dialler.
            (true, &[version]) => {
                let other = (version != VERSION).then_some(RecordError::Version(version));
                self.refuses = unknown.or(other);
                Ok(())
            }
            (true, &[version, verdict]) => Ok(refusal::check(version, verdict)?),
            _ => unknown.map_or(Ok(()), Err),
        }
    }
}

/// Key of the other end, once it is known.
pub(super) fn remote(noise: &HandshakeState) -> Option<PublicKey> {
    noise.get_remote_static()?.try_into().ok().map(PublicKey::from_bytes)
}

/// Builder of a handshake by `parameters`, bound to `prologue`.
pub(super) fn builder<'a>(
    parameters: &Parameters,
    prologue: &'a [u8],
    secret: &'a SecretKey,
    entropy: Entropy,
) -> Builder<'a> {
    let params = parameters.pattern.parse().expect("the pattern is a constant");
    Builder::with_resolver(params, Box::new(Resolver(entropy)))
        .local_private_key(secret.as_bytes())
        .and_then(|builder| builder.prologue(prologue))
        .expect("each is set once")
}

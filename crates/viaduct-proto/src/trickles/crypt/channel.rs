//! Channel of a request and of its answers: unencrypted, or encrypted under a key.

use aes_siv::KeyInit as _;
use aes_siv::siv::Aes128Siv;

use super::{HELLO, ID, KEY, RESPONSE, SIV, kind};
use crate::trickles::bytes::Reader;
use crate::trickles::keys::KeyRing;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::trickles) enum Channel {
    #[default]
    Clear,
    Sealed {
        /// Number of the secret from which the key is derived.
        secret: u8,
        id: [u8; ID],
        /// Head of the answers to an opening, with Noise's second message; `None` for a
        /// later request.
        hello: Option<[u8; HELLO]>,
    },
}

impl Channel {
    /// Replaces the contents of `out` by `message`, encrypted if the channel is. Returns false if
    /// the secret is no longer in the ring.
    pub(in crate::trickles) fn seal(
        &self,
        ring: &KeyRing,
        message: &[u8],
        out: &mut Vec<u8>,
    ) -> bool {
        out.clear();
        let Channel::Sealed { secret, id, hello } = self else {
            out.extend_from_slice(message);
            return true;
        };
        match hello {
            Some(hello) => out.extend_from_slice(hello),
            None => {
                out.push(kind::RESPONSE);
                out.extend_from_slice(&id[..4]);
            }
        }
        ring.channel_key(*secret, id).is_some_and(|key| seal(&key, message, out).is_some())
    }

    /// Returns whether `ring` has the secret from which the answers' key is derived.
    pub(in crate::trickles) fn is_answerable(&self, ring: &KeyRing) -> bool {
        match self {
            Channel::Clear => true,
            Channel::Sealed { secret, .. } => ring.get(*secret).is_some(),
        }
    }

    /// Serializes the channel for an extracted event.
    pub(in crate::trickles) fn emit(&self) -> Vec<u8> {
        match self {
            Channel::Clear => Vec::new(),
            Channel::Sealed { secret, id, hello } => {
                [&[*secret][..], &id[..], hello.as_ref().map_or(&[][..], |hello| &hello[..])]
                    .concat()
            }
        }
    }

    /// Parses a serialized channel; `None` if it is invalid.
    pub(in crate::trickles) fn parse(bytes: &[u8]) -> Option<Channel> {
        let mut reader = Reader(bytes);
        let Some(secret) = reader.u8() else { return Some(Channel::Clear) };
        let id = reader.array()?;
        let hello = match reader.0 {
            [] => None,
            hello => Some(hello.try_into().ok()?),
        };
        Some(Channel::Sealed { secret, id, hello })
    }

    /// Overhead of an answer in bytes.
    pub(in crate::trickles) fn overhead(&self) -> usize {
        match self {
            Channel::Clear => 0,
            Channel::Sealed { hello: None, .. } => RESPONSE,
            Channel::Sealed { hello: Some(_), .. } => HELLO + SIV,
        }
    }
}

/// Appends `message`, encrypted under `key`, to `out`. The bytes already in `out` are authenticated
/// as well.
pub(in crate::trickles) fn seal(key: &[u8; KEY], message: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let head = out.len();
    out.extend_from_slice(&[0; SIV]);
    out.extend_from_slice(message);
    let (before, rest) = out.split_at_mut(head);
    let (place, body) = rest.split_at_mut(SIV);
    let siv = Aes128Siv::new(key.into()).encrypt_in_place_detached([&*before], body).ok()?;
    place.copy_from_slice(&siv);
    Some(())
}

/// Decrypts a message with `head` bytes before the SIV; `None` if it was not encrypted under `key`.
pub(in crate::trickles) fn open(key: &[u8; KEY], message: &[u8], head: usize) -> Option<Vec<u8>> {
    let (before, rest) = message.split_at_checked(head)?;
    let (siv, body) = rest.split_first_chunk::<SIV>()?;
    let mut body = body.to_vec();
    let mut cipher = Aes128Siv::new(key.into());
    cipher.decrypt_in_place_detached([before], &mut body, siv.into()).ok()?;
    Some(body)
}

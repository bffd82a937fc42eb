//! The handshake between two sites: Noise KK over Curve25519, ChaCha20-Poly1305 and BLAKE2s, one
//! round trip, fresh keys for each session.
//!
//! Both sites know each other's public key from their config. An initiation begins with a hint that
//! only the two sites can derive, so one look-up finds the peer. Every handshake message carries a
//! MAC under a key that depends on the two sites and on the direction. A datagram from a third
//! party thus costs a look-up, and also an HMAC if it repeats an overheard hint, but no curve
//! operation. A site's own messages fail authentication if an attacker sends them back to the site.
//! The timestamps of initiations must increase, so replayed initiations are refused.

use ring::hmac;
use snow::{Builder, HandshakeState};

use super::lanes::LaneOffer;
use super::wire::{Datagram, Hint, INITIATION_HEAD, MAC, NOISE, RESPONSE_HEAD};
use crate::keys::{Entropy, PublicKey, Resolver, SecretKey, SharedSecret};

const PATTERN: &str = "Noise_KK_25519_ChaChaPoly_BLAKE2s";

/// Keys from a handshake, for sending and for receiving.
#[derive(Clone, Copy)]
pub(super) struct Keys {
    pub(super) send: [u8; 32],
    pub(super) receive: [u8; 32],
}

/// Long-term keys for handshakes with one peer.
pub(super) struct Identities {
    secret: SecretKey,
    peer: PublicKey,
    /// Authenticates messages to the peer.
    mac_out: hmac::Key,
    /// Authenticates messages from the peer.
    mac_in: hmac::Key,
    /// Identifies this site to the peer.
    hint_out: Hint,
    /// Identifies the peer to this site, at the start of its initiations.
    pub(super) hint_in: Hint,
    pub(super) entropy: Entropy,
}

pub(super) struct Initiation(HandshakeState);

impl Identities {
    pub(super) fn new(
        secret: SecretKey,
        peer: PublicKey,
        shared: &SharedSecret,
        entropy: Entropy,
    ) -> Self {
        let own = secret.public();
        let derive = |purpose: &[u8], from: &PublicKey, to: &PublicKey| {
            shared.derive(&[purpose, from.as_bytes(), to.as_bytes()].concat())
        };
        let mac = |from, to| {
            hmac::Key::new(hmac::HMAC_SHA256, &derive(b"viaduct handshake mac", from, to))
        };
        let hint = |from, to| {
            let key = derive(b"viaduct handshake hint", from, to);
            let mut hint = Hint::default();
            hint.copy_from_slice(&key[..8]);
            hint
        };
        Identities {
            mac_out: mac(&own, &peer),
            mac_in: mac(&peer, &own),
            hint_out: hint(&own, &peer),
            hint_in: hint(&peer, &own),
            secret,
            peer,
            entropy,
        }
    }

    /// Appends an initiation to `out`.
    pub(super) fn initiate(
        &self,
        offer: LaneOffer,
        sender: u32,
        unix_nanos: u64,
        out: &mut Vec<u8>,
    ) -> Option<Initiation> {
        let start = out.len();
        Datagram::Initiation { offer, hint: self.hint_out, sender, unix_nanos }.emit(out);
        let mut noise = self.noise(&out[start..]).build_initiator().ok()?;
        self.write(&mut noise, start, out)?;
        Some(Initiation(noise))
    }

    /// Returns whether the MAC is valid: then the peer has sent the message, and sent it to this
    /// site.
    pub(super) fn authentic(&self, datagram: &[u8]) -> bool {
        let Some((message, mac)) = datagram.split_last_chunk::<MAC>() else { return false };
        hmac::verify(&self.mac_in, message, mac).is_ok()
    }

    /// Answers an authentic initiation: appends the response to `out`.
    pub(super) fn respond(&self, bytes: &[u8], head: Datagram, out: &mut Vec<u8>) -> Option<Keys> {
        let (prologue, message) = bytes.split_at_checked(INITIATION_HEAD)?;
        let mut noise = self.noise(prologue).build_responder().ok()?;
        noise.read_message(message.get(..NOISE)?, &mut []).ok()?;
        let start = out.len();
        head.emit(out);
        self.write(&mut noise, start, out)?;
        let (receive, send) = noise.dangerously_get_raw_split();
        Some(Keys { send, receive })
    }

    fn noise<'a>(&'a self, prologue: &'a [u8]) -> Builder<'a> {
        let params = PATTERN.parse().expect("the pattern is a constant");
        let resolver = Box::new(Resolver(self.entropy.clone()));
        Builder::with_resolver(params, resolver)
            .local_private_key(self.secret.as_bytes())
            .and_then(|b| b.remote_public_key(self.peer.as_bytes()))
            .and_then(|b| b.prologue(prologue))
            .expect("each is set once")
    }

    /// Appends the next Noise message and the MAC over all bytes since `start`.
    fn write(&self, noise: &mut HandshakeState, start: usize, out: &mut Vec<u8>) -> Option<()> {
        let mut message = [0; NOISE];
        let written = noise.write_message(&[], &mut message).ok()?;
        out.extend_from_slice(&message[..written]);
        let mac = hmac::sign(&self.mac_out, &out[start..]);
        out.extend_from_slice(mac.as_ref());
        Some(())
    }
}

impl Initiation {
    /// Completes the handshake with an authentic response.
    pub(super) fn finish(mut self, response: &[u8]) -> Option<Keys> {
        let message = response.get(RESPONSE_HEAD..RESPONSE_HEAD + NOISE)?;
        self.0.read_message(message, &mut []).ok()?;
        let (send, receive) = self.0.dangerously_get_raw_split();
        Some(Keys { send, receive })
    }
}

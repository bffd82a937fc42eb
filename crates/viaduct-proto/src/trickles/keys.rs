//! The keys that only a server and its replicas know, and their rotation (2.2).
//!
//! Each secret has a number, which what it protects carries along. New things are made with the
//! newest; older ones are accepted as long as their secret is in the ring. So a rotation breaks no
//! connection, and what a secret protects ends when the secret is dropped.

use std::net::SocketAddr;

use aes::Aes128;
use aes::cipher::{Key, KeyInit};
use aes_siv::siv::Aes128Siv;
use cmac::digest::Update;
use cmac::{Cmac, Mac};
use ring::hmac;

use super::nonce::Nonces;

/// Bytes of a message authentication code: AES-CMAC (NIST SP 800-38B).
pub const MAC: usize = 16;

/// The secrets in use, newest first; never empty.
#[derive(Clone, Debug)]
pub struct KeyRing(Vec<Keys>);

/// All that is derived from one secret.
#[derive(Clone, Debug)]
pub struct Keys {
    number: u8,
    transport: Cmac<Aes128>,
    user: Cmac<Aes128>,
    standard: Cmac<Aes128>,
    event: [u8; 32],
    channel: Cmac<Aes128>,
    address: Cmac<Aes128>,
    nonces: Aes128,
    again: Aes128,
}

impl KeyRing {
    /// A ring with one secret, which replicas share under the same number.
    pub fn new(number: u8, secret: &[u8; 32]) -> Self {
        KeyRing(vec![Keys::derive(number, secret)])
    }

    /// From now on `secret` makes what is new. Of the ring's secrets the newest `keep` stay, this
    /// one among them (at least 1). A secret of the same number is replaced.
    pub fn rotate(&mut self, number: u8, secret: &[u8; 32], keep: usize) {
        self.0.retain(|keys| keys.number != number);
        self.0.insert(0, Keys::derive(number, secret));
        self.0.truncate(keep.max(1));
    }

    /// The newest secret's keys.
    pub fn newest(&self) -> &Keys {
        &self.0[0]
    }

    /// The keys of secret `number`, if it is in the ring.
    pub fn get(&self, number: u8) -> Option<&Keys> {
        self.0.iter().find(|keys| keys.number == number)
    }

    /// Appends `state` to `out` as a sealed user continuation, which [`KeyRing::open_user`] reads.
    pub fn seal_user(&self, state: &[u8], out: &mut Vec<u8>) {
        let keys = self.newest();
        out.push(keys.number);
        out.extend_from_slice(&code(&keys.user, state));
        out.extend_from_slice(state);
    }

    /// The state in a sealed user continuation; None if no secret of the ring has sealed it.
    pub fn open_user<'a>(&self, sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (&number, sealed) = sealed.split_first()?;
        let (mac, state) = sealed.split_first_chunk::<MAC>()?;
        is_code(&self.get(number)?.user, state, mac).then_some(state)
    }
}

/// Those that have a part in clear, and events that travel.
impl KeyRing {
    /// Ends a standard continuation, of which `out` holds what both sides read, and nothing else.
    pub(super) fn seal_standard(&self, state: &[u8], out: &mut Vec<u8>) {
        let keys = self.newest();
        let mac = over_both(&keys.standard, &[out, state]).finalize().into_bytes();
        out.push(keys.number);
        out.extend_from_slice(&mac);
        out.extend_from_slice(state);
    }

    /// The state that was `sealed` behind what both sides read; None if no secret of the ring did.
    pub(super) fn open_standard<'a>(&self, clear: &[u8], sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (&number, sealed) = sealed.split_first()?;
        let (mac, state) = sealed.split_first_chunk::<MAC>()?;
        let right = over_both(&self.get(number)?.standard, &[clear, state]);
        right.verify(mac.into()).is_ok().then_some(state)
    }

    /// Encrypts an event that is to be sent to another server: what its request says is nobody else's
    /// matter. By AES-SIV (RFC 5297): number of the secret 1 | synthetic IV 16 | the event.
    pub(super) fn seal_event(&self, event: &[u8]) -> Vec<u8> {
        let keys = self.newest();
        let mut out = [&[keys.number], &[0; MAC][..], event].concat();
        let (head, body) = out.split_at_mut(1 + MAC);
        let mut cipher = Aes128Siv::new(&keys.event.into());
        if let Ok(siv) = cipher.encrypt_in_place_detached([&head[..1]], body) {
            head[1..].copy_from_slice(&siv);
        }
        out
    }

    /// An event, and what it is known by; None if no secret of the ring has sealed it.
    pub(super) fn open_event(&self, sealed: &[u8]) -> Option<(Vec<u8>, u64)> {
        let (&number, rest) = sealed.split_first()?;
        let (siv, body) = rest.split_first_chunk::<MAC>()?;
        let mut event = body.to_vec();
        let mut cipher = Aes128Siv::new(&self.get(number)?.event.into());
        cipher.decrypt_in_place_detached([&[number]], &mut event, siv.into()).ok()?;
        Some((event, first_word(siv)))
    }

    /// The key that a connection's messages are under; None if there is no such secret.
    pub(super) fn channel_key(&self, secret: u8, id: &[u8; 12]) -> Option<[u8; 32]> {
        let keys = self.get(secret)?;
        let half = |n: u8| code(&keys.channel, &[&[n], &id[..]].concat());
        let mut key = [0; 32];
        key[..16].copy_from_slice(&half(0));
        key[16..].copy_from_slice(&half(1));
        Some(key)
    }
}

/// Bytes that sealing adds to a user continuation.
pub const USER_OVERHEAD: usize = 1 + MAC;

impl Keys {
    fn derive(number: u8, secret: &[u8; 32]) -> Self {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let wide = |label: &[u8]| {
            let mut key = [0; 32];
            key.copy_from_slice(hmac::sign(&secret, label).as_ref());
            key
        };
        let key = |label: &[u8]| Key::<Aes128>::clone_from_slice(&wide(label)[..16]);
        let code = |label: &[u8]| <Cmac<Aes128> as KeyInit>::new(&key(label));
        Keys {
            number,
            transport: code(b"trickles transport continuation"),
            user: code(b"trickles user continuation"),
            standard: code(b"trickles standard continuation"),
            event: wide(b"trickles extracted event"),
            channel: code(b"trickles encryption"),
            address: code(b"trickles address"),
            nonces: Aes128::new(&key(b"trickles nonces")),
            again: Aes128::new(&key(b"trickles nonces of retransmissions")),
        }
    }

    /// The number of the secret.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// The code of a transport continuation's bytes.
    pub(super) fn transport(&self, body: &[u8]) -> [u8; MAC] {
        code(&self.transport, body)
    }

    /// Whether that is its code.
    pub(super) fn is_transport(&self, body: &[u8], mac: &[u8; MAC]) -> bool {
        is_code(&self.transport, body, mac)
    }

    /// Eight bytes that stand for an address and port, and say nothing of them.
    pub(super) fn address(&self, address: SocketAddr) -> u64 {
        let mut text = [0; 18];
        let ip = match address {
            SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped(),
            SocketAddr::V6(v6) => *v6.ip(),
        };
        text[..16].copy_from_slice(&ip.octets());
        text[16..].copy_from_slice(&address.port().to_be_bytes());
        first_word(&code(&self.address, &text))
    }

    /// A connection's number, from what its client chose, its address and the time.
    pub(super) fn connection(&self, token: u64, address: u64, now: u64) -> u64 {
        let words = [token, address, now, 0].map(u64::to_be_bytes);
        first_word(&code(&self.address, words.as_flattened()))
    }

    /// The nonces of a connection's packets.
    pub(super) fn nonces(&self, connection: u64) -> Nonces<'_> {
        Nonces::new(&self.nonces, connection)
    }

    /// The nonces of those that are sent again (K′).
    pub(super) fn nonces_again(&self, connection: u64) -> Nonces<'_> {
        Nonces::new(&self.again, connection)
    }
}

fn code(key: &Cmac<Aes128>, text: &[u8]) -> [u8; MAC] {
    key.clone().chain(text).finalize().into_bytes().into()
}

/// The code of two parts, with the length of the first before them, is made of this.
fn over_both(key: &Cmac<Aes128>, parts: &[&[u8]; 2]) -> Cmac<Aes128> {
    let length = (parts[0].len() as u64).to_be_bytes();
    key.clone().chain(length).chain(parts[0]).chain(parts[1])
}

/// Compared in constant time.
fn is_code(key: &Cmac<Aes128>, text: &[u8], mac: &[u8; MAC]) -> bool {
    key.clone().chain(text).verify(mac.into()).is_ok()
}

fn first_word(digest: &[u8]) -> u64 {
    digest.first_chunk().map_or(0, |word| u64::from_be_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_old_secret_sealed_is_opened_until_it_is_dropped() {
        let mut ring = KeyRing::new(1, &[1; 32]);
        let mut sealed = Vec::new();
        ring.seal_user(b"GET /", &mut sealed);
        ring.rotate(2, &[2; 32], 2);
        assert_eq!(ring.open_user(&sealed), Some(&b"GET /"[..]));
        assert_eq!((ring.newest().number(), sealed.len()), (2, 5 + USER_OVERHEAD));
        ring.rotate(3, &[3; 32], 2);
        assert_eq!(ring.open_user(&sealed), None, "its secret is gone");
    }

    #[test]
    fn no_other_byte_will_do() {
        let ring = KeyRing::new(1, &[1; 32]);
        let mut sealed = Vec::new();
        ring.seal_user(b"state", &mut sealed);
        for i in 0..sealed.len() {
            sealed[i] ^= 1;
            assert_eq!(ring.open_user(&sealed), None, "byte {i}");
            sealed[i] ^= 1;
        }
        assert!(ring.open_user(&sealed[..USER_OVERHEAD - 1]).is_none());
    }

    #[test]
    fn addresses_differ_by_port_and_family() {
        let ring = KeyRing::new(1, &[1; 32]);
        let tag = |text: &str| ring.newest().address(text.parse().unwrap());
        let tags = [tag("1.2.3.4:5"), tag("1.2.3.4:6"), tag("1.2.3.5:5"), tag("[102:304::]:5")];
        assert!(tags.iter().enumerate().all(|(i, a)| tags[..i].iter().all(|b| a != b)));
    }
}

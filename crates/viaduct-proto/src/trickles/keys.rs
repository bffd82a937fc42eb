//! Secret keys of a server and its replicas, and their rotation (2.2).
//!
//! Each secret has a number, which is part of all data sealed with the secret. New data are sealed
//! with the newest secret; older data are accepted as long as their secret is in the ring. So a
//! rotation breaks no connection, and sealed data expire when their secret is dropped.

use std::net::SocketAddr;

use aes::Aes128;
use aes::cipher::{Key, KeyInit};
use cmac::digest::Update;
use cmac::{Cmac, Mac};
use ring::hmac;

use super::crypt::{open, seal};
use super::nonce::Nonces;

/// Length of a message authentication code in bytes: AES-CMAC (NIST SP 800-38B).
pub const MAC: usize = 16;

/// The secrets in use, newest first; never empty.
#[derive(Clone, Debug)]
pub struct KeyRing(Vec<Keys>);

/// Keys derived from one secret.
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
    /// Creates a ring with one secret, which has the same number at all replicas.
    pub fn new(number: u8, secret: &[u8; 32]) -> Self {
        KeyRing(vec![Keys::derive(number, secret)])
    }

    /// Adds `secret` as the newest, and replaces a secret of the same number. The newest `keep`
    /// secrets stay in the ring (at least 1, which is `secret`).
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

    /// Opens a sealed user continuation; `None` if it was not sealed with a secret of the ring.
    pub fn open_user<'a>(&self, sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (&number, sealed) = sealed.split_first()?;
        let (mac, state) = sealed.split_first_chunk::<MAC>()?;
        is_code(&self.get(number)?.user, state, mac).then_some(state)
    }
}

/// Standard continuations, whose first part is public; extracted events; keys of encrypted
/// connections.
impl KeyRing {
    /// Completes a standard continuation: `out` contains its public part, and nothing else.
    pub(super) fn seal_standard(&self, state: &[u8], out: &mut Vec<u8>) {
        let keys = self.newest();
        let mac = over_both(&keys.standard, &[out, state]).finalize().into_bytes();
        out.push(keys.number);
        out.extend_from_slice(&mac);
        out.extend_from_slice(state);
    }

    /// Verifies the part `sealed`, which follows the public part `clear`, and returns the state;
    /// `None` if it was not sealed with a secret of the ring.
    pub(super) fn open_standard<'a>(&self, clear: &[u8], sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (&number, sealed) = sealed.split_first()?;
        let (mac, state) = sealed.split_first_chunk::<MAC>()?;
        let right = over_both(&self.get(number)?.standard, &[clear, state]);
        right.verify(mac.into()).is_ok().then_some(state)
    }

    /// Encrypts an event for another server, because the event contains a confidential request. The
    /// cipher is AES-SIV (RFC 5297). Format: number of the secret 1 | synthetic IV 16 | the event.
    pub(super) fn seal_event(&self, event: &[u8]) -> Vec<u8> {
        let keys = self.newest();
        let mut out = vec![keys.number];
        seal(&keys.event, event, &mut out);
        out
    }

    /// Decrypts an event. Returns the event and its identifier, which is the first half of the
    /// synthetic IV. `None` if the event was not sealed with a secret of the ring.
    pub(super) fn open_event(&self, sealed: &[u8]) -> Option<(Vec<u8>, u64)> {
        let (number, siv) = sealed.split_first()?;
        let event = open(&self.get(*number)?.event, sealed, 1)?;
        Some((event, first_word(siv)))
    }

    /// Key of a connection's messages; `None` if there is no such secret.
    pub(super) fn channel_key(&self, secret: u8, id: &[u8; 12]) -> Option<[u8; 32]> {
        let keys = self.get(secret)?;
        let half = |n: u8| code(&keys.channel, &[&[n], &id[..]].concat());
        let mut key = [0; 32];
        key[..16].copy_from_slice(&half(0));
        key[16..].copy_from_slice(&half(1));
        Some(key)
    }
}

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

    /// Number of the secret.
    pub fn number(&self) -> u8 {
        self.number
    }

    pub(super) fn transport(&self, body: &[u8]) -> [u8; MAC] {
        code(&self.transport, body)
    }

    /// Returns whether `mac` is the MAC of the transport continuation `body`.
    pub(super) fn is_transport(&self, body: &[u8], mac: &[u8; MAC]) -> bool {
        is_code(&self.transport, body, mac)
    }

    /// Eight-byte keyed hash of an address and port.
    pub(super) fn address(&self, address: SocketAddr) -> u64 {
        first_word(&code(&self.address, &address_bytes(address)))
    }

    /// Number of a connection, derived from the client's token, its address and the time.
    pub(super) fn connection(&self, token: u64, address: u64, now: u64) -> u64 {
        let words = [token, address, now, 0].map(u64::to_be_bytes);
        first_word(&code(&self.address, words.as_flattened()))
    }

    /// Number of the series of nonces of a connection's packets in one generation, sent to the
    /// address `client`. The other hashes under this key have inputs of other lengths.
    pub(super) fn series(&self, connection: u64, generation: u16, client: SocketAddr) -> u64 {
        let mut text = [0; 28];
        text[..8].copy_from_slice(&connection.to_be_bytes());
        text[8..10].copy_from_slice(&generation.to_be_bytes());
        text[10..].copy_from_slice(&address_bytes(client));
        first_word(&code(&self.address, &text))
    }

    /// Nonces of the packets of a [series](Keys::series).
    pub(super) fn nonces(&self, series: u64) -> Nonces<'_> {
        Nonces::new(&self.nonces, series)
    }

    /// Nonces of a series' retransmissions (K′).
    pub(super) fn nonces_again(&self, series: u64) -> Nonces<'_> {
        Nonces::new(&self.again, series)
    }
}

/// The IP address (16 bytes; an IPv4 address is mapped to IPv6) and the port.
fn address_bytes(address: SocketAddr) -> [u8; 18] {
    let mut bytes = [0; 18];
    let ip = match address {
        SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped(),
        SocketAddr::V6(v6) => *v6.ip(),
    };
    bytes[..16].copy_from_slice(&ip.octets());
    bytes[16..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

fn code(key: &Cmac<Aes128>, text: &[u8]) -> [u8; MAC] {
    key.clone().chain(text).finalize().into_bytes().into()
}

/// MAC over the length of the first part, and over both parts.
fn over_both(key: &Cmac<Aes128>, parts: &[&[u8]; 2]) -> Cmac<Aes128> {
    let length = (parts[0].len() as u64).to_be_bytes();
    key.clone().chain(length).chain(parts[0]).chain(parts[1])
}

/// Verifies a MAC in constant time.
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
    fn data_sealed_with_an_old_secret_open_until_the_secret_is_dropped() {
        let mut ring = KeyRing::new(1, &[1; 32]);
        let mut sealed = Vec::new();
        ring.seal_user(b"GET /", &mut sealed);
        ring.rotate(2, &[2; 32], 2);
        assert_eq!(ring.open_user(&sealed), Some(&b"GET /"[..]));
        assert_eq!((ring.newest().number(), sealed.len()), (2, 5 + 1 + MAC));
        ring.rotate(3, &[3; 32], 2);
        assert_eq!(ring.open_user(&sealed), None, "the secret was dropped");
    }

    #[test]
    fn data_with_a_changed_byte_are_refused() {
        let ring = KeyRing::new(1, &[1; 32]);
        let mut sealed = Vec::new();
        ring.seal_user(b"state", &mut sealed);
        for i in 0..sealed.len() {
            sealed[i] ^= 1;
            assert_eq!(ring.open_user(&sealed), None, "byte {i}");
            sealed[i] ^= 1;
        }
        assert!(ring.open_user(&sealed[..MAC]).is_none());
    }

    #[test]
    fn addresses_differ_by_port_and_family() {
        let ring = KeyRing::new(1, &[1; 32]);
        let tag = |text: &str| ring.newest().address(text.parse().unwrap());
        let tags = [tag("1.2.3.4:5"), tag("1.2.3.4:6"), tag("1.2.3.5:5"), tag("[102:304::]:5")];
        assert!(tags.iter().enumerate().all(|(i, a)| tags[..i].iter().all(|b| a != b)));
    }
}

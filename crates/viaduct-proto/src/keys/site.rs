//! Keys of sites: Curve25519 key pairs, and the secrets that two sites derive from them.

use std::fmt;
use std::str::FromStr;

use ring::hkdf;
use snow::params::DHChoice;
use snow::resolvers::{CryptoResolver, DefaultResolver};

/// Secret key of a site: 32 bytes, written as 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey([u8; 32]);

/// Public key of a site: 32 bytes, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct PublicKey([u8; 32]);

/// Reason why a text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key is 64 hexadecimal digits; this has {digits} \
    characters{}", if *.bad { ", some of them not hexadecimal" } else { "" })]
pub struct KeyError {
    digits: usize,
    bad: bool,
}

impl SecretKey {
    /// Creates a key from 32 random bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        SecretKey(bytes)
    }

    /// Bytes of the key.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Public key of this secret key.
    pub fn public(&self) -> PublicKey {
        let mut public = [0; 32];
        public.copy_from_slice(curve(self).pubkey());
        PublicKey(public)
    }

    /// Static Diffie-Hellman secret of the two sites; `None` if `peer` is a point of small order.
    pub(crate) fn shared(&self, peer: &PublicKey) -> Option<SharedSecret> {
        let mut secret = [0; 32];
        curve(self).dh(&peer.0, &mut secret).ok()?;
        (secret != [0; 32]).then_some(SharedSecret(secret))
    }

    /// Returns whether `peer` is a point of small order, with which no secret can be shared.
    pub fn is_weak(&self, peer: &PublicKey) -> bool {
        self.shared(peer).is_none()
    }

    /// Derives a key of this site for one purpose, which `label` names. The result is
    /// deterministic, and does not reveal the secret key.
    pub fn derive(&self, label: &[u8]) -> [u8; 32] {
        expand(&self.0, label)
    }

    /// Hexadecimal digits of the key, for a key file.
    pub fn to_text(&self) -> String {
        to_hex(&self.0)
    }
}

fn curve(key: &SecretKey) -> Box<dyn snow::types::Dh> {
    let mut dh =
        DefaultResolver.resolve_dh(&DHChoice::Curve25519).expect("Cargo.toml enables Curve25519");
    dh.set(&key.0);
    dh
}

/// Static Diffie-Hellman secret of two sites.
pub(crate) struct SharedSecret([u8; 32]);

impl SharedSecret {
    /// Derives a key for one purpose, which `label` names.
    pub(crate) fn derive(&self, label: &[u8]) -> [u8; 32] {
        expand(&self.0, label)
    }
}

fn expand(secret: &[u8; 32], label: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    hkdf::Salt::new(hkdf::HKDF_SHA256, b"viaduct 1")
        .extract(secret)
        .expand(&[label], hkdf::HKDF_SHA256)
        .and_then(|okm| okm.fill(&mut out))
        .expect("32 bytes are one block of SHA-256");
    out
}

impl PublicKey {
    /// Creates a public key from its bytes, without validating it.
    pub(crate) fn from_bytes(bytes: [u8; 32]) -> Self {
        PublicKey(bytes)
    }

    /// Bytes of the key.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl FromStr for SecretKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        from_hex(text).map(SecretKey)
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;
    fn from_str(text: &str) -> Result<Self, KeyError> {
        from_hex(text).map(PublicKey)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&to_hex(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

fn to_hex(bytes: &[u8; 32]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn from_hex(text: &str) -> Result<[u8; 32], KeyError> {
    let text = text.trim();
    let error = KeyError {
        digits: text.chars().count(),
        bad: !text.bytes().all(|b| b.is_ascii_hexdigit()),
    };
    if error.digits != 64 || error.bad {
        return Err(error);
    }
    let mut key = [0; 32];
    for (byte, pair) in key.iter_mut().zip(text.as_bytes().as_chunks::<2>().0) {
        let digit = |c: u8| (c as char).to_digit(16).unwrap_or(0) as u8;
        *byte = digit(pair[0]) << 4 | digit(pair[1]);
    }
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_derive_the_same_secret_and_a_third_site_does_not() {
        let [a, b, c] = [1, 2, 3].map(|n| SecretKey::from_bytes([n; 32]));
        let ab = a.shared(&b.public()).unwrap().derive(b"test");
        assert_eq!(ab, b.shared(&a.public()).unwrap().derive(b"test"));
        assert_ne!(ab, c.shared(&a.public()).unwrap().derive(b"test"));
    }

    #[test]
    fn derived_keys_are_deterministic_and_differ_by_label() {
        let [a, again, b] = [1, 1, 2].map(|n| SecretKey::from_bytes([n; 32]));
        assert_eq!(a.derive(b"test"), again.derive(b"test"));
        assert_ne!(a.derive(b"test"), a.derive(b"other"));
        assert_ne!(a.derive(b"test"), b.derive(b"test"));
        assert_ne!(&a.derive(b"test"), a.as_bytes());
    }

    #[test]
    fn keys_round_trip_through_text_and_errors_name_the_fault() {
        let key = SecretKey::from_bytes([0xa5; 32]);
        assert_eq!(key.to_text().parse(), Ok(key.clone()));
        assert_eq!(key.public().to_string().parse(), Ok(key.public()));
        let error = "zz".parse::<PublicKey>().unwrap_err().to_string();
        assert!(
            error.contains("64 hexadecimal digits") && error.contains("2 characters"),
            "{error}"
        );
    }

    #[test]
    fn a_point_of_small_order_is_not_a_key() {
        let key = SecretKey::from_bytes([9; 32]);
        assert!(key.shared(&PublicKey([0; 32])).is_none());
    }
}

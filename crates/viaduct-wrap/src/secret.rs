//! Secret of a run, which precedes each record that the run's programs send to one of the run's
//! abstract sockets.
//!
//! The name of an abstract socket is not secret: `/proc/net/unix` lists it for every user. The
//! run's programs get the secret from their environment, which only their own user and root can
//! read.
//!
//! ```text
//!   record    secret 16 │ request
//! ```

use std::fmt;

/// Bytes of a secret.
pub const SECRET: usize = 16;

/// Secret that all programs of one run share.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u8; SECRET]);

impl Secret {
    /// Creates a secret from random bytes.
    pub const fn new(bytes: [u8; SECRET]) -> Secret {
        Secret(bytes)
    }

    /// Returns the bytes that precede a record.
    pub fn bytes(&self) -> &[u8; SECRET] {
        &self.0
    }

    /// Parses 32 hexadecimal digits, as [`Secret::digits`] writes them.
    pub fn parse(text: &[u8]) -> Option<Secret> {
        let text = std::str::from_utf8(text).ok().filter(|text| text.len() == 2 * SECRET)?;
        let is_digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).ok().filter(|_| is_digits)?;
        Some(Secret(number.to_be_bytes()))
    }

    /// Returns the secret in hexadecimal digits, for the environment of programs.
    pub fn digits(&self) -> String {
        format!("{:032x}", u128::from_be_bytes(self.0))
    }

    /// Returns the rest of `record` after the secret; `None` if the record does not begin with the
    /// secret. The comparison takes constant time.
    pub fn open<'a>(&self, record: &'a [u8]) -> Option<&'a [u8]> {
        let (theirs, rest) = record.split_first_chunk::<SECRET>()?;
        let differs =
            self.0.iter().zip(theirs).fold(0, |all, (ours, theirs)| all | (ours ^ theirs));
        (differs == 0).then_some(rest)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_record_with_the_secret_is_opened() {
        let secret = Secret::new([7; SECRET]);
        let sealed = [secret.bytes(), &b"ask"[..]].concat();
        assert_eq!(secret.open(&sealed), Some(&b"ask"[..]));
        assert_eq!(secret.open(&sealed[1..]), None);
        assert_eq!(secret.open(b"ask"), None);
        for n in 0..SECRET {
            let mut wrong = sealed.clone();
            wrong[n] ^= 1;
            assert_eq!(secret.open(&wrong), None);
        }
    }

    #[test]
    fn digits_round_trip_and_other_texts_are_refused() {
        let secret = Secret::new(std::array::from_fn(|n| n as u8));
        assert_eq!(Secret::parse(secret.digits().as_bytes()), Some(secret));
        let spaced = format!("+{}", &secret.digits()[1..]);
        for text in ["", "00", &secret.digits()[1..], &spaced, &"g".repeat(32)] {
            assert_eq!(Secret::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(format!("{secret:?}"), "Secret");
    }
}

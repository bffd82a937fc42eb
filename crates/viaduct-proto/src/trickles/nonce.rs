//! Nonces of packets: p(i) = r(i) xor r(i + 1), where r(x) = f(K, x) (2.2).
//!
//! The nonces of packets m to n xored together are r(m) xor r(n + 1), so that a server makes one,
//! and checks the sum of a range, with two words of a keyed hash, however long the range is. One
//! hash yields four words.

use ring::hmac;

/// The nonces of one connection under one key.
#[derive(Debug)]
pub struct Nonces<'k> {
    key: &'k hmac::Key,
    connection: u64,
    /// The last hash: which, and its words.
    last: Option<(u64, [u64; 4])>,
}

impl<'k> Nonces<'k> {
    pub(super) fn new(key: &'k hmac::Key, connection: u64) -> Self {
        Nonces { key, connection, last: None }
    }

    /// The nonce of packet `number`.
    pub fn of(&mut self, number: u64) -> u64 {
        self.sum(number, number)
    }

    /// The nonces of packets `first` to `last`, xored together.
    pub fn sum(&mut self, first: u64, last: u64) -> u64 {
        self.word(first) ^ self.word(last.wrapping_add(1))
    }

    /// r(x).
    fn word(&mut self, x: u64) -> u64 {
        let block = x / 4;
        let words = match self.last {
            Some((known, words)) if known == block => words,
            _ => self.hash(block),
        };
        words[(x % 4) as usize]
    }

    fn hash(&mut self, block: u64) -> [u64; 4] {
        let text = [self.connection, block].map(u64::to_be_bytes);
        let digest = hmac::sign(self.key, text.as_flattened());
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(digest.as_ref().as_chunks().0) {
            *word = u64::from_be_bytes(*bytes);
        }
        self.last = Some((block, words));
        words
    }
}

#[cfg(test)]
mod tests {
    use crate::trickles::keys::KeyRing;

    #[test]
    fn a_range_is_the_sum_of_its_packets() {
        let ring = KeyRing::new(1, &[7; 32]);
        let mut nonces = ring.newest().nonces(99);
        for first in 1..20 {
            let mut sum = 0;
            for last in first..40 {
                sum ^= nonces.of(last);
                assert_eq!(nonces.sum(first, last), sum);
            }
        }
    }

    #[test]
    fn retransmissions_and_connections_have_nonces_of_their_own() {
        let ring = KeyRing::new(1, &[7; 32]);
        let keys = ring.newest();
        let all = [keys.nonces(1).of(5), keys.nonces(2).of(5), keys.nonces_again(1).of(5)];
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
    }
}

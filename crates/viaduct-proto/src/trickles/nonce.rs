//! Nonces of packets: p(i) = r(i) xor r(i + 1), where r(x) = f(K, x) (2.2).
//!
//! The xor of the nonces of packets m to n is r(m) xor r(n + 1). So two values of r are enough for
//! a server to make a nonce, or to verify the sum of a range of any length. One AES block, which
//! encrypts the number of a *series* and ⌊x / 2⌋, yields two values. Each generation of a
//! connection has its own series for each client address: two generations, or two addresses, may
//! use the same packet numbers, but a nonce of one series proves nothing in another.

use aes::Aes128;
use aes::cipher::BlockEncrypt;

/// The nonces of one series under one key.
#[derive(Debug)]
pub struct Nonces<'k> {
    key: &'k Aes128,
    series: u64,
    /// Number of the last block used, and its two words.
    last: Option<(u64, [u64; 2])>,
}

impl<'k> Nonces<'k> {
    pub(super) fn new(key: &'k Aes128, series: u64) -> Self {
        Nonces { key, series, last: None }
    }

    /// The nonce of packet `number`.
    pub fn of(&mut self, number: u64) -> u64 {
        self.sum(number, number)
    }

    /// Xor of the nonces of packets `first` to `last`.
    pub fn sum(&mut self, first: u64, last: u64) -> u64 {
        self.word(first) ^ self.word(last.wrapping_add(1))
    }

    fn word(&mut self, x: u64) -> u64 {
        let block = x / 2;
        let known = self.last.filter(|(last, _)| *last == block);
        let words = known.map_or_else(|| self.encrypt(block), |(_, words)| words);
        words[(x % 2) as usize]
    }

    fn encrypt(&mut self, block: u64) -> [u64; 2] {
        let mut text = [0; 16];
        text[..8].copy_from_slice(&self.series.to_be_bytes());
        text[8..].copy_from_slice(&block.to_be_bytes());
        let mut text = text.into();
        self.key.encrypt_block(&mut text);
        let (halves, _) = text.as_chunks();
        let words = [0, 1].map(|half: usize| u64::from_be_bytes(halves[half]));
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
    fn retransmissions_and_series_have_nonces_of_their_own() {
        let ring = KeyRing::new(1, &[7; 32]);
        let keys = ring.newest();
        let all = [keys.nonces(1).of(5), keys.nonces(2).of(5), keys.nonces_again(1).of(5)];
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
    }

    #[test]
    fn connections_generations_and_addresses_have_series_of_their_own() {
        let ring = KeyRing::new(1, &[7; 32]);
        let of = |connection, generation, client: &str| {
            ring.newest().series(connection, generation, client.parse().unwrap())
        };
        let all = [
            of(1, 1, "192.0.2.1:5"),
            of(2, 1, "192.0.2.1:5"),
            of(1, 2, "192.0.2.1:5"),
            of(1, 1, "192.0.2.1:6"),
            of(1, 1, "192.0.2.2:5"),
        ];
        assert!(all.iter().enumerate().all(|(i, a)| all[..i].iter().all(|b| a != b)));
        assert_eq!(all[0], of(1, 1, "192.0.2.1:5"));
    }
}

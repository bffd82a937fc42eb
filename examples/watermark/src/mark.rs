//! Watermark that names a picture's client, in the least significant bits of coefficients.
//!
//! ```text
//!   payload of 64 bits   client 4 | HMAC-SHA-256 of it, the first 4 bytes
//!   block n              its last nonzero AC coefficient is made odd or even:
//!                        bit n % 64 of the payload, xor bit n of a key stream
//! ```
//!
//! The coefficient's magnitude changes by one and never becomes 0, so runs of zeros are preserved.
//! The new value may need a Huffman code of another length, which shifts all bits that follow. A
//! block carries no bit if all its AC coefficients are 0, or if its table has no code for either
//! neighbouring value. The reader takes a majority vote over the blocks of each payload bit, so a
//! few altered blocks do not change the result.

use ring::hmac;

use crate::jpeg::{Block, Jpeg, Token};

/// Bits of the payload.
const BITS: usize = 64;
/// Largest coefficient of a baseline file.
const LARGEST: u16 = 1023;
/// Blocks covered by one HMAC of the key stream: one bit a block.
const STRIDE: usize = 256;

/// Secret key of the marks.
#[derive(Clone, Debug)]
pub struct Key(hmac::Key);

/// Result of reading a picture's mark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// Client that the picture was made for; `None` if the payload's HMAC does not match.
    pub client: Option<u32>,
    /// Number of blocks that carry a bit.
    pub blocks: usize,
    /// Share of these blocks that agree with the majority vote of their bit: about 0.5 in pictures
    /// without a mark of this key.
    pub agree: f64,
}

/// Writer of a client's mark. Blocks are passed in their order.
#[derive(Clone, Debug)]
pub struct Mark<'k> {
    key: &'k Key,
    payload: u64,
    stream: Stream,
}

/// 256 bits of the key stream.
#[derive(Clone, Debug, Default)]
struct Stream {
    of: Option<usize>,
    bytes: [u8; STRIDE / 8],
}

impl Key {
    /// Creates a key from a secret of 32 bytes.
    pub fn new(secret: &[u8; 32]) -> Key {
        Key(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Returns the mark of a client.
    pub fn mark(&self, client: u32) -> Mark<'_> {
        Mark { key: self, payload: self.payload(client), stream: Stream::default() }
    }

    fn payload(&self, client: u32) -> u64 {
        let code = hmac::sign(&self.0, &[b"client ", &client.to_be_bytes()[..]].concat());
        let code = code.as_ref().first_chunk().map_or(0, |code| u32::from_be_bytes(*code));
        u64::from(client) << 32 | u64::from(code)
    }

    /// Reads a picture's mark. `None` if the coded picture is damaged.
    pub fn read(&self, picture: &Jpeg) -> Option<Reading> {
        let (mut votes, mut stream) = ([[0_usize; 2]; BITS], Stream::default());
        let (mut at, mut n, mut blocks) = (0, 0, Vec::new());
        for _ in 0..picture.units() {
            at = picture.unit(at, &mut blocks)?;
            for block in &blocks {
                if let Some(token) = bearer(block).map(|place| block.tokens[place]) {
                    let bit = token.magnitude() % 2 == 1;
                    votes[n % BITS][usize::from(bit ^ stream.bit(self, n))] += 1;
                }
                n += 1;
            }
        }
        let payload = votes.iter().fold(0, |word, [no, yes]| word << 1 | u64::from(yes > no));
        let (total, most) = votes
            .iter()
            .fold((0, 0), |(total, most), &[no, yes]| (total + no + yes, most + no.max(yes)));
        let client = (payload >> 32) as u32;
        Some(Reading {
            client: (total > 0 && self.payload(client) == payload).then_some(client),
            blocks: total,
            agree: most as f64 / total.max(1) as f64,
        })
    }
}

impl Mark<'_> {
    /// Embeds the mark's bit in block `n` of the picture.
    pub fn put(&mut self, picture: &Jpeg, n: usize, block: &mut Block) {
        let Some(place) = bearer(block) else { return };
        let bit = self.payload >> (BITS - 1 - n % BITS) & 1 == 1;
        let odd = bit ^ self.stream.bit(self.key, n);
        let token = block.tokens[place];
        let magnitude = token.magnitude();
        if (magnitude % 2 == 1) == odd {
            return;
        }
        let neighbours = [magnitude + 1, magnitude - 1].into_iter();
        let sane = neighbours.filter(|value| (1..=LARGEST).contains(value));
        let mut there = sane.map(|value| token.with_magnitude(value));
        if let Some(other) = there.find(|&other| picture.has_code(block, other)) {
            block.tokens[place] = other;
        }
    }
}

impl Stream {
    fn bit(&mut self, key: &Key, n: usize) -> bool {
        if self.of != Some(n / STRIDE) {
            let text = [b"stream ", &((n / STRIDE) as u64).to_be_bytes()[..]].concat();
            self.bytes.copy_from_slice(hmac::sign(&key.0, &text).as_ref());
            self.of = Some(n / STRIDE);
        }
        self.bytes[n % STRIDE / 8] >> (n % 8) & 1 == 1
    }
}

/// Index of the token of a block's last nonzero AC coefficient.
fn bearer(block: &Block) -> Option<usize> {
    let bears = |token: &Token| token.magnitude() > 0;
    block.tokens.iter().skip(1).rposition(bears).map(|place| place + 1)
}

//! Content of a flow, which is derived from the flow's number.

use viaduct_proto::rng::Rng;

/// Bytes that are generated together: the payload of one segment.
pub(super) const BLOCK: usize = 1_400;

/// Endless content, and a position in this content.
#[derive(Debug)]
pub(super) struct Content {
    rng: Rng,
    block: [u8; BLOCK],
    /// Position in the block; always less than [`BLOCK`].
    at: usize,
}

impl Content {
    /// Creates the content of the flow `number`, positioned at its first byte.
    pub(super) fn of(number: u64) -> Content {
        let mut content = Content { rng: Rng::from_seed(number), block: [0; BLOCK], at: 0 };
        content.rng.fill(&mut content.block);
        content
    }

    /// Returns the next bytes, up to the end of the block: at least one.
    pub(super) fn next(&self) -> &[u8] {
        &self.block[self.at..]
    }

    /// Skips `count` bytes, at most those of [`Content::next`].
    pub(super) fn advance(&mut self, count: usize) {
        self.at += count;
        if self.at == BLOCK {
            self.rng.fill(&mut self.block);
            self.at = 0;
        }
    }

    /// Skips `bytes` if they are the next ones; returns false if they are not.
    pub(super) fn matches(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let count = bytes.len().min(self.next().len());
            let (now, later) = bytes.split_at(count);
            if now != &self.next()[..count] {
                return false;
            }
            self.advance(count);
            bytes = later;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_a_lost_byte_and_another_flow_are_detected() {
        let mut content = Content::of(7);
        let mut bytes = Vec::new();
        while bytes.len() < 3 * BLOCK {
            let count = content.next().len().min(1_000);
            bytes.extend_from_slice(&content.next()[..count]);
            content.advance(count);
        }
        assert!(bytes.chunks(333).try_fold(Content::of(7), check).is_ok());
        let mut wrong = bytes.clone();
        wrong[2 * BLOCK] ^= 1;
        assert!(!Content::of(7).matches(&wrong));
        wrong.remove(2 * BLOCK);
        assert!(!Content::of(7).matches(&wrong));
        assert!(!Content::of(8).matches(&bytes));
    }

    fn check(mut content: Content, bytes: &[u8]) -> Result<Content, ()> {
        if content.matches(bytes) { Ok(content) } else { Err(()) }
    }
}

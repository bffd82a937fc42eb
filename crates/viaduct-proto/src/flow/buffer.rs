//! Byte queue at one end of a chain.

use std::collections::VecDeque;

use bytes::Bytes;

/// Queue of bytes, kept in the chunks in which they arrived.
#[derive(Clone, Debug, Default)]
pub struct Buffer {
    pieces: VecDeque<Bytes>,
    len: usize,
}

impl Buffer {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds `piece` at the end.
    pub fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// Chunks in order, for a vectored write.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.pieces.iter().map(|piece| &piece[..])
    }

    /// Takes bytes from the front: at most `most`, and at most one chunk. `None` if there are none,
    /// or `most` is 0.
    pub fn pop(&mut self, most: usize) -> Option<Bytes> {
        let first = self.pieces.front_mut()?;
        let bytes = first.split_to(most.min(first.len()));
        if first.is_empty() {
            self.pieces.pop_front();
        }
        self.len -= bytes.len();
        (!bytes.is_empty()).then_some(bytes)
    }

    /// Drops the first `count` bytes, or all if there are fewer.
    pub fn advance(&mut self, count: usize) {
        let mut left = count;
        while left > 0
            && let Some(bytes) = self.pop(left)
        {
            left -= bytes.len();
        }
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        *self = Buffer::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_whatever_the_pieces() {
        let mut buffer = Buffer::default();
        for piece in ["ab", "", "cde", "f"] {
            buffer.push(Bytes::from_static(piece.as_bytes()));
        }
        buffer.advance(1);
        assert_eq!(buffer.pop(9).as_deref(), Some(&b"b"[..]));
        assert_eq!(buffer.pop(2).as_deref(), Some(&b"cd"[..]));
        assert_eq!((buffer.len(), buffer.pieces().count()), (2, 2));
        buffer.advance(100);
        assert!(buffer.is_empty() && buffer.pop(1).is_none());
    }
}

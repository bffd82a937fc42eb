//! Queue of the bytes that wait at a stream's end.

use bytes::{Bytes, BytesMut};

use crate::flow::Buffer;

/// Pieces shorter than this are merged, because each piece takes memory in addition to its bytes.
const SHORT: usize = 2048;

/// Queue of bytes, with memory proportional to their number even if the pieces are short.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pieces: Buffer,
    /// Bytes that follow the pieces.
    tail: BytesMut,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.pieces.len() + self.tail.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends a piece, without a copy if it has at least [`SHORT`] bytes.
    pub(super) fn push(&mut self, piece: Bytes) {
        if piece.len() < SHORT {
            return self.push_copy(&piece);
        }
        self.end_piece();
        self.pieces.push(piece);
    }

    /// Appends a copy of `bytes`.
    pub(super) fn push_copy(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
        if self.tail.len() >= 8 * SHORT {
            self.end_piece();
        }
    }

    /// Removes and returns the first piece, or `most` bytes of it.
    pub(super) fn pop(&mut self, most: usize) -> Option<Bytes> {
        if self.pieces.is_empty() {
            self.end_piece();
        }
        self.pieces.pop(most)
    }

    /// Moves the first `count` bytes to the end of `out`. The queue must have as many.
    pub(super) fn move_to(&mut self, mut count: usize, out: &mut Vec<u8>) {
        while count > 0
            && let Some(piece) = self.pop(count)
        {
            out.extend_from_slice(&piece);
            count -= piece.len();
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Queue::default();
    }

    fn end_piece(&mut self) {
        self.pieces.push(self.tail.split().freeze());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_whatever_the_pieces() {
        let mut queue = Queue::default();
        let data: Vec<u8> = (0..50_000_u32).map(|n| (n / 7) as u8).collect();
        let mut rest = &data[..];
        for size in [1, 5000, 1, 1, 2047, 2048, 10_000, 3, usize::MAX] {
            let (piece, after) = rest.split_at(size.min(rest.len()));
            queue.push(Bytes::copy_from_slice(piece));
            rest = after;
        }
        assert_eq!(queue.len(), data.len());
        let mut out = Vec::new();
        queue.move_to(6_000, &mut out);
        out.extend(queue.pop(usize::MAX).unwrap());
        queue.move_to(queue.len(), &mut out);
        assert!(out == data && queue.is_empty() && queue.pop(1).is_none());
    }

    #[test]
    fn single_bytes_do_not_cost_a_piece_each() {
        let mut queue = Queue::default();
        (0..100_000).for_each(|_| queue.push(Bytes::from_static(b"x")));
        let pieces = queue.pieces.pieces().count();
        assert!(pieces < 10, "{pieces}");
    }
}

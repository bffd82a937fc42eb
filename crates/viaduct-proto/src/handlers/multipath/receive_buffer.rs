//! Receive buffer: reorders data, and holds it while the application does not read.

use std::collections::BTreeMap;

use bytes::{Buf as _, Bytes};

use super::send_buffer::BLOCK_COST;

/// Pieces shorter than this are copied.
const SHORT: usize = 16 << 10;

pub(super) struct ReceiveBuffer {
    /// Offset before which everything has been delivered.
    next: u64,
    pieces: BTreeMap<u64, Bytes>,
    len: usize,
    /// Receive window advertised to the other end, in bytes.
    window: usize,
    end: Option<u64>,
    /// True if everything has been delivered, and the end was reported.
    pub(super) said_end: bool,
}

impl ReceiveBuffer {
    pub(super) fn new(window: usize) -> ReceiveBuffer {
        let pieces = BTreeMap::new();
        ReceiveBuffer { next: 0, pieces, len: 0, window, end: None, said_end: false }
    }

    /// Takes a piece. Returns false if it exceeds the window that was advertised to the other end.
    pub(super) fn push(&mut self, at: u64, data: Bytes) -> bool {
        if at.saturating_add(data.len() as u64) <= self.next || self.pieces.contains_key(&at) {
            return true;
        }
        let cost = data.len() + BLOCK_COST;
        if self.len + cost > self.window {
            return false;
        }
        self.len += cost;
        // A short piece would keep the memory of the read that it arrived in.
        let data = if data.len() < SHORT { Bytes::copy_from_slice(&data) } else { data };
        self.pieces.insert(at, data);
        true
    }

    /// Records the end of the flow: the last byte is the one before `at`.
    pub(super) fn end(&mut self, at: u64) {
        self.end.get_or_insert(at);
    }

    /// Returns the next bytes in order.
    pub(super) fn pop(&mut self) -> Option<Bytes> {
        loop {
            let first = self.pieces.first_entry().filter(|first| *first.key() <= self.next)?;
            let (at, mut data) = first.remove_entry();
            self.len -= data.len() + BLOCK_COST;
            let known = usize::try_from(self.next - at).unwrap_or(usize::MAX);
            if known < data.len() {
                data.advance(known);
                self.next += data.len() as u64;
                return Some(data);
            }
        }
    }

    pub(super) fn has_next(&self) -> bool {
        self.pieces.first_key_value().is_some_and(|(&at, _)| at <= self.next)
    }

    /// Returns whether all data has been delivered and the end is due. Returns true only once.
    pub(super) fn ends(&mut self) -> bool {
        let due = self.end == Some(self.next) && !self.said_end;
        self.said_end |= due;
        due
    }

    /// Offset to acknowledge to the other end.
    pub(super) fn next_offset(&self) -> u64 {
        self.next + u64::from(self.said_end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_put_in_order_and_repeated_ones_are_dropped() {
        let mut buffer = ReceiveBuffer::new(300);
        for (at, text) in [(3, "def"), (0, "ab"), (0, "abc"), (3, "def"), (1, "bcdefg")] {
            assert!(buffer.push(at, Bytes::from_static(text.as_bytes())));
        }
        buffer.end(7);
        let mut all = Vec::new();
        while let Some(data) = buffer.pop() {
            all.extend(data);
        }
        assert_eq!(all, b"abcdefg");
        assert_eq!((buffer.ends(), buffer.ends(), buffer.next_offset()), (true, false, 8));
        assert_eq!(buffer.len, 0);
        let taken = (0..9).take_while(|n| buffer.push(100 + n, Bytes::from_static(b"x"))).count();
        assert_eq!(taken, 4, "no more than the window");
        assert_eq!(buffer.pieces.len(), 4, "refused pieces are not kept");
    }
}

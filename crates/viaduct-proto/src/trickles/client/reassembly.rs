//! Reassembly of a stream.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

/// Chunks below this length are copied; otherwise each chunk would keep its packet's buffer
/// allocated.
const SHORT: usize = 512;

/// Reassembly buffer of a stream: data may arrive in any order and more than once, and are read
/// from the beginning. Each byte is stored once.
#[derive(Debug, Default)]
pub struct Reassembly {
    next: u64,
    /// Chunks by their position, without overlaps.
    pieces: BTreeMap<u64, Bytes>,
    /// Total bytes of the chunks.
    waiting: usize,
}

impl Reassembly {
    /// Inserts data at `position`.
    pub fn insert(&mut self, mut position: u64, mut data: Bytes) {
        let before = self.pieces.range(..=position).next_back();
        let before = before.map_or(0, |(start, piece)| start + piece.len() as u64);
        skip(&mut position, &mut data, self.next.max(before));
        while !data.is_empty() {
            let next = self.pieces.range(position..).next();
            let next = next.map(|(&start, piece)| (start, start + piece.len() as u64));
            let (start, end) = next.unwrap_or((u64::MAX, u64::MAX));
            let hole = (start - position).min(data.len() as u64);
            let piece = data.split_to(hole as usize);
            if !piece.is_empty() {
                let short = piece.len() < SHORT;
                let piece = if short { Bytes::copy_from_slice(&piece) } else { piece };
                self.waiting += piece.len();
                self.pieces.insert(position, piece);
            }
            position += hole;
            skip(&mut position, &mut data, end);
        }
    }

    /// The next data in order; `None` if they have not arrived.
    pub fn read(&mut self) -> Option<Bytes> {
        let entry = self.pieces.first_entry().filter(|entry| *entry.key() <= self.next)?;
        let (position, mut data) = entry.remove_entry();
        self.waiting -= data.len();
        let known = (self.next - position).min(data.len() as u64);
        let _read_already = data.split_to(known as usize);
        self.next += data.len() as u64;
        if data.is_empty() { self.read() } else { Some(data) }
    }

    /// Number of chunks in the buffer.
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Position of the next data to be read.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Returns whether data can be read.
    pub fn is_readable(&self) -> bool {
        self.pieces.first_key_value().is_some_and(|(&position, data)| {
            position <= self.next && position + data.len() as u64 > self.next
        })
    }

    /// The parts of `range` that have not arrived.
    pub fn missing(&self, range: Range<u64>) -> Vec<Range<u64>> {
        let (mut holes, mut at) = (Vec::new(), range.start.max(self.next));
        for (&start, data) in self.pieces.range(..range.end) {
            if start > at {
                holes.push(at..start);
            }
            at = at.max(start + data.len() as u64);
        }
        if at < range.end {
            holes.push(at..range.end);
        }
        holes
    }

    /// Bytes in the buffer.
    pub fn waiting(&self) -> usize {
        self.waiting
    }
}

/// Removes the part of `data` before `to`.
fn skip(position: &mut u64, data: &mut Bytes, to: u64) {
    let known = to.saturating_sub(*position).min(data.len() as u64);
    let _known = data.split_to(known as usize);
    *position += known;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn data_in_any_order_give_the_same_stream() {
        let whole: Vec<u8> = (0..5_000).map(|i| (i / 7) as u8).collect();
        let mut rng = Rng::from_seed(3);
        let (mut stream, mut read) = (Reassembly::default(), Vec::new());
        while read.len() < whole.len() {
            let at = rng.below(whole.len() as u64) as usize;
            let end = (at + 1 + rng.below(300) as usize).min(whole.len());
            stream.insert(at as u64, Bytes::copy_from_slice(&whole[at..end]));
            while let Some(data) = stream.read() {
                read.extend_from_slice(&data);
            }
            assert_eq!(stream.position(), read.len() as u64);
        }
        assert_eq!((read, stream.waiting()), (whole, 0));
    }

    #[test]
    fn each_byte_is_stored_once_however_often_it_arrives() {
        let mut stream = Reassembly::default();
        for start in (1..2_000).chain((1..2_000).rev()) {
            stream.insert(start, Bytes::from(vec![start as u8; 1_400]));
        }
        assert_eq!((stream.waiting(), stream.is_readable()), (3_398, false));
        stream.insert(0, Bytes::from_static(b"first"));
        let read: usize = std::iter::from_fn(|| stream.read()).map(|data| data.len()).sum();
        assert_eq!((read, stream.waiting()), (3_399, 0));
    }
}

//! A stream put in order.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

/// Data of a stream that arrive in any order, maybe twice, and are read from its beginning.
#[derive(Debug, Default)]
pub struct Reassembly {
    next: u64,
    pieces: BTreeMap<u64, Bytes>,
}

impl Reassembly {
    /// Data arrived for `position`.
    pub fn insert(&mut self, position: u64, mut data: Bytes) {
        let known = self.next.saturating_sub(position).min(data.len() as u64);
        let _read_already = data.split_to(known as usize);
        let position = position + known;
        // Of two pieces that begin together the longer holds all.
        if data.len() > self.pieces.get(&position).map_or(0, Bytes::len) {
            self.pieces.insert(position, data);
        }
    }

    /// The next data in order, until None.
    pub fn read(&mut self) -> Option<Bytes> {
        let entry = self.pieces.first_entry().filter(|entry| *entry.key() <= self.next)?;
        let (position, mut data) = entry.remove_entry();
        let known = (self.next - position).min(data.len() as u64);
        let _read_already = data.split_to(known as usize);
        self.next += data.len() as u64;
        if data.is_empty() { self.read() } else { Some(data) }
    }

    /// Where the next data to be read stand.
    pub fn position(&self) -> u64 {
        self.next
    }

    /// Whether there is something to read.
    pub fn is_readable(&self) -> bool {
        self.pieces.first_key_value().is_some_and(|(&position, data)| {
            position <= self.next && position + data.len() as u64 > self.next
        })
    }

    /// What of `range` has not come.
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

    /// Bytes that wait for those before them.
    pub fn waiting(&self) -> usize {
        self.pieces.values().map(Bytes::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn any_order_is_the_same_stream() {
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
}

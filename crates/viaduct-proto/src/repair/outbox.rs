//! Queue of outgoing byte strings, in reused memory.

/// Queue of datagrams or packets. The caller takes all entries and then clears the queue.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Outbox {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one entry with the bytes that `write` appends to the buffer; no entry if it appends
    /// none.
    pub fn push_with<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let start = self.bytes.len();
        let result = write(&mut self.bytes);
        if self.bytes.len() > start {
            self.ends.push(self.bytes.len());
        }
        result
    }

    /// Entries, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        (0..self.ends.len()).map(|i| {
            let start = i.checked_sub(1).map_or(0, |before| self.ends[before]);
            &self.bytes[start..self.ends[i]]
        })
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Total number of bytes in all entries.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Removes all entries, but keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_returned_unchanged_and_in_order() {
        let mut outbox = Outbox::new();
        outbox.push_with(|out| out.extend(b"one"));
        outbox.push_with(|_| ());
        outbox.push_with(|out| out.extend(b"two"));
        assert_eq!(outbox.iter().collect::<Vec<_>>(), [b"one", b"two"]);
        outbox.clear();
        assert!(outbox.is_empty() && outbox.iter().next().is_none());
    }
}

//! Byte buffers in the layout that the arithmetic of [`super::kernel`] needs.

use super::kernel::LINE;

/// Growable buffer that begins at the start of a cache line and is padded with zeros to the end of
/// its last line: no vector straddles two lines, and the last vector needs no special case.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// Storage; the bytes are `store[start..start + len]`.
    store: Vec<u8>,
    start: usize,
    len: usize,
    /// End of stale bytes, which begin at `len`; bytes beyond are zero.
    dirty: usize,
}

impl Buffer {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.store[self.start..self.start + self.len]
    }

    /// Returns the bytes, and the zeros up to the end of the last line. The zeros must not change,
    /// so the caller must not combine the bytes with a source that is longer than [`Buffer::len`].
    pub(super) fn lines(&mut self) -> &mut [u8] {
        let lines = self.len.next_multiple_of(LINE);
        &mut self.store[self.start..self.start + lines]
    }

    pub(super) fn memory(&self) -> usize {
        self.store.len()
    }

    /// Removes all bytes, keeping the memory.
    pub(super) fn clear(&mut self) {
        self.dirty = self.dirty.max(self.len);
        self.len = 0;
    }

    /// Replaces the contents with `bytes`.
    pub(super) fn set(&mut self, bytes: &[u8]) {
        self.clear();
        self.reserve(bytes.len());
        self.store[self.start..][..bytes.len()].copy_from_slice(bytes);
        self.len = bytes.len();
        self.scrub(self.len);
    }

    /// Appends zeros until there are `len` bytes or more.
    pub(super) fn grow(&mut self, len: usize) {
        if len > self.len {
            self.reserve(len);
            self.scrub(self.len);
            self.len = len;
        }
    }

    /// Zeroes stale bytes from `from` on.
    fn scrub(&mut self, from: usize) {
        if self.dirty > from {
            self.store[self.start + from..self.start + self.dirty].fill(0);
        }
        self.dirty = 0;
    }

    /// Makes room for `len` bytes and the zeros after them.
    fn reserve(&mut self, len: usize) {
        let needed = len.next_multiple_of(LINE);
        if self.store.len() >= self.start + needed {
            return;
        }
        let mut store = vec![0; needed + LINE - 1];
        let start = store.as_ptr().addr().wrapping_neg() % LINE;
        store[start..start + self.len].copy_from_slice(self.bytes());
        (self.store, self.start, self.dirty) = (store, start, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Comparison with a plain vector over random operations.
    #[test]
    fn has_the_same_content_as_a_vector() {
        let mut rng = crate::rng::Rng::from_seed(1);
        let (mut buffer, mut twin) = (Buffer::default(), Vec::new());
        for _ in 0..5000 {
            let len = rng.below(300) as usize;
            match rng.below(4) {
                0 => {
                    buffer.clear();
                    twin.clear();
                }
                1 => {
                    twin = vec![rng.next_u64() as u8; len];
                    buffer.set(&twin);
                }
                2 => {
                    buffer.grow(len);
                    twin.resize(twin.len().max(len), 0);
                }
                _ => {
                    let len = buffer.len();
                    buffer.lines()[..len].fill(7);
                    twin.fill(7);
                }
            }
            assert_eq!(buffer.bytes(), twin);
            assert!(buffer.lines()[twin.len()..].iter().all(|&byte| byte == 0));
            assert_eq!(buffer.lines().len() % LINE, 0);
            assert!(twin.is_empty() || buffer.bytes().as_ptr().addr().is_multiple_of(LINE));
        }
    }
}

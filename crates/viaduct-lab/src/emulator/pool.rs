//! Pool of buffers of equal size, addressed by number.

/// Slab of buffers, reused in last-in-first-out order, so that the memory touched is limited to
/// the maximum held at one time.
#[derive(Debug)]
pub(super) struct Pool {
    bytes: Vec<u8>,
    size: usize,
    free: Vec<u32>,
}

impl Pool {
    /// Creates as many buffers of `size` bytes as fit into `memory` bytes, at least one.
    pub(super) fn new(size: usize, memory: usize) -> Self {
        let count = (memory / size).clamp(1, u32::MAX as usize);
        let last = u32::try_from(count).unwrap_or(u32::MAX);
        // The kernel zeroes each page at its first use.
        Pool { bytes: vec![0; count * size], size, free: (0..last).rev().collect() }
    }

    /// Takes a free buffer; `None` if all are taken.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Returns a buffer to the pool.
    pub(super) fn give(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    /// Returns the bytes of a buffer.
    pub(super) fn bytes(&mut self, buffer: u32) -> &mut [u8] {
        let start = buffer as usize * self.size;
        &mut self.bytes[start..start + self.size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_do_not_overlap_and_run_out() {
        let mut pool = Pool::new(10, 25);
        let (a, b) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!(pool.take(), None);
        pool.bytes(a).fill(1);
        pool.bytes(b).fill(2);
        assert!(pool.bytes(a).iter().all(|&x| x == 1));
        pool.give(a);
        assert_eq!(pool.take(), Some(a));
    }
}

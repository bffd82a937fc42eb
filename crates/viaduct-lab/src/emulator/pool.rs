//! Buffers of equal size, named by number.

/// A slab of buffers. Those freed last are taken first, so that only as much of it is ever touched
/// as was once held at the same time.
#[derive(Debug)]
pub(super) struct Pool {
    bytes: Vec<u8>,
    size: usize,
    free: Vec<u32>,
}

impl Pool {
    /// As many buffers of `size` bytes as fit into `memory` bytes; at least one.
    pub(super) fn new(size: usize, memory: usize) -> Self {
        let count = (memory / size).clamp(1, u32::MAX as usize);
        let last = u32::try_from(count).unwrap_or(u32::MAX);
        // Zeroed by the kernel, page by page, at the first touch.
        Pool { bytes: vec![0; count * size], size, free: (0..last).rev().collect() }
    }

    /// A free buffer, if there is one.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Gives back a buffer that was taken.
    pub(super) fn give(&mut self, buffer: u32) {
        self.free.push(buffer);
    }

    /// A buffer's bytes.
    pub(super) fn bytes(&mut self, buffer: u32) -> &mut [u8] {
        let start = buffer as usize * self.size;
        &mut self.bytes[start..start + self.size]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_apart_and_run_out() {
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

//! Events from BPF programs to this process: a ring buffer that the kernel writes and we read.
//!
//! ```text
//!   page 0: our position │ page 1: the kernel's │ the ring, mapped twice: records are contiguous
//! ```
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::param::page_size;

use super::BpfError;
use super::kernel::{MapFd, new_ring};

/// Flag of a record that is still being written.
const BUSY: u32 = 1 << 31;
/// Flag of a record that was discarded.
const DISCARDED: u32 = 1 << 30;
/// Bytes before each record: its length, and a word that only the kernel uses.
const HEADER: usize = 8;

/// Events of `N` bytes each.
#[derive(Debug)]
pub(super) struct Events<const N: usize> {
    fd: OwnedFd,
    /// Page with our position, the only page that we may write.
    ours: Mapping,
    /// Pages with the kernel's position and the ring.
    theirs: Mapping,
    size: usize,
}

impl<const N: usize> Events<N> {
    /// Creates a ring of `size` bytes: a power of two, and a multiple of the page size.
    pub(super) fn new(size: usize) -> Result<Events<N>, BpfError> {
        let fd = new_ring(u32::try_from(size).unwrap_or(u32::MAX))?;
        let page = page_size();
        let map = |writable, length, at| {
            let mapped = Mapping::new(fd.as_fd(), writable, length, at);
            mapped.map_err(|source| BpfError::Denied { action: "map a ring buffer", source })
        };
        let (ours, theirs) = (map(true, page, 0)?, map(false, page + 2 * size, page)?);
        Ok(Events { fd, ours, theirs, size })
    }

    /// Returns the next event, if there is one.
    pub(super) fn poll(&mut self) -> Option<[u8; N]> {
        loop {
            let at = self.ours.position().load(Ordering::Relaxed);
            // Acquire: makes the records visible that the kernel wrote before it advanced its
            // position.
            if self.theirs.position().load(Ordering::Acquire) <= at {
                return None;
            }
            let place = page_size() + (at as usize & (self.size - 1));
            let length = self.theirs.word(place).load(Ordering::Acquire);
            if length & BUSY != 0 {
                return None;
            }
            let bytes = (length & !(BUSY | DISCARDED)) as usize;
            let event = (length & DISCARDED == 0 && bytes == N).then(|| self.theirs.read(place));
            let next = at + (bytes + HEADER).next_multiple_of(8) as u64;
            // Release: the record is read before the kernel may overwrite it.
            self.ours.position().store(next, Ordering::Release);
            if event.is_some() {
                return event;
            }
        }
    }
}

impl<const N: usize> MapFd for Events<N> {
    fn number(&self) -> c_int {
        self.fd.as_raw_fd()
    }
}

impl<const N: usize> AsFd for Events<N> {
    /// Readable when there is an event.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Pages shared with the kernel.
#[derive(Debug)]
struct Mapping {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and this is its only owner.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, writable: bool, length: usize, at: usize) -> io::Result<Mapping> {
        let protection =
            if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other memory.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                at as libc::off_t,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast())
            .ok_or_else(|| io::Error::other("the kernel mapped the ring at address 0"))?;
        Ok(Mapping { base, length })
    }

    /// Returns the position at the start of the mapping's first page.
    fn position(&self) -> &AtomicU64 {
        // SAFETY: aligned, and inside the mapping, which lives as long as `self`; both sides access
        // it atomically.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().cast()) }
    }

    /// Returns the first word of the header of the record at `place`.
    fn word(&self, place: usize) -> &AtomicU32 {
        assert!(place + HEADER <= self.length && place.is_multiple_of(8), "{place}");
        // SAFETY: aligned and inside, as asserted; the kernel writes it atomically.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(place).cast()) }
    }

    /// Returns the bytes of the record at `place`.
    fn read<const N: usize>(&self, place: usize) -> [u8; N] {
        assert!(place + HEADER + N <= self.length, "{place}");
        // SAFETY: inside, as asserted; the kernel has finished the record, and does not write to it
        // again until our position is beyond it.
        unsafe { self.base.as_ptr().add(place + HEADER).cast::<[u8; N]>().read_unaligned() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` mapped; nothing borrows the mapping any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}

//! The memory that the kernel and we share: equal slots, each owned by one side at a time.
//!
//! The first word of a slot says whose it is. The kernel fills a slot and then sets
//! `TP_STATUS_USER`; we read it and then store `TP_STATUS_KERNEL`. Neither side touches the rest
//! of a slot that is not its own. That handover is the whole of this file's safety.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{TP_STATUS_KERNEL, TP_STATUS_USER, sockaddr_ll, tpacket2_hdr};

/// Where the kernel puts the link address in a slot: after its header, aligned to 16.
const ADDRESS_AT: usize = align(size_of::<tpacket2_hdr>());

/// Bytes of a slot before the packet: header and address, aligned, and the 16 bytes that the
/// kernel keeps before the network header of a SOCK_DGRAM packet.
pub(super) const HEADROOM: usize = align(ADDRESS_AT + size_of::<sockaddr_ll>()) + 16;

const fn align(bytes: usize) -> usize {
    (bytes + 15) & !15
}

/// The mapped ring: `slots` slots of `slot_bytes` each, one after another.
#[derive(Debug)]
pub(super) struct Map {
    base: NonNull<u8>,
    slot_bytes: usize,
    slots: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and `Map` is its only owner; what
// it hands out borrows it mutably, so no two threads ever work on it at once.
unsafe impl Send for Map {}

impl Map {
    /// Maps the receive ring of packet socket `fd`, which has been given exactly this geometry.
    pub(super) fn new(fd: BorrowedFd<'_>, slot_bytes: usize, slots: usize) -> io::Result<Map> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing of ours.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                slot_bytes * slots,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast())
            .ok_or_else(|| io::Error::other("the kernel mapped the ring at address 0"))?;
        Ok(Map { base, slot_bytes, slots })
    }

    /// Slots in the ring.
    pub(super) fn slots(&self) -> usize {
        self.slots
    }

    /// Slot `index`, if the kernel has handed it over.
    ///
    /// # Panics
    /// If `index` is not below `slots()`.
    pub(super) fn take(&mut self, index: usize) -> Option<Slot<'_>> {
        assert!(index < self.slots, "slot {index} of {}", self.slots);
        // SAFETY: inside the mapping, by the assertion.
        let base = unsafe { self.base.add(index * self.slot_bytes) };
        let slot = Slot { base, bytes: self.slot_bytes, map: PhantomData };
        // Acquire: what the kernel wrote before it set the bit is seen by what we read after.
        (slot.status_word().load(Ordering::Acquire) & TP_STATUS_USER != 0).then_some(slot)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; slots borrow `self`, so none outlives it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.slot_bytes * self.slots) };
    }
}

/// A slot that is ours until [`Slot::give_back`].
///
/// It borrows the map mutably, so there is at most one at a time.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    base: NonNull<u8>,
    bytes: usize,
    map: PhantomData<&'a mut Map>,
}

impl<'a> Slot<'a> {
    /// The kernel's description of the packet.
    pub(super) fn header(&self) -> tpacket2_hdr {
        // SAFETY: the slot begins with this header, page-aligned and larger than it, and the
        // kernel does not write to a slot that is ours.
        unsafe { self.base.cast().read() }
    }

    /// The link address that came with the packet.
    pub(super) fn address(&self) -> sockaddr_ll {
        // SAFETY: within the slot, which is larger than HEADROOM; 16 is a multiple of the
        // alignment; the slot is ours.
        unsafe { self.base.add(ADDRESS_AT).cast().read() }
    }

    /// `length` bytes from `offset`, both cut to the slot.
    pub(super) fn into_bytes(self, offset: usize, length: usize) -> &'a mut [u8] {
        let offset = offset.min(self.bytes);
        let length = length.min(self.bytes - offset);
        // SAFETY: within the slot; initialised, since the kernel hands out zeroed pages; nobody
        // else reads or writes them: the kernel leaves a slot of ours alone, and `'a` keeps the
        // map borrowed so that no second slot is taken meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), length) }
    }

    /// The word that says whose the slot is; living as long as the map is borrowed.
    pub(super) fn status_word(&self) -> &'a AtomicU32 {
        // SAFETY: the first word of a page-aligned slot, in a mapping that `'a` keeps; both sides
        // only ever access it as one aligned word, we atomically.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().cast()) }
    }
}

/// Hands a slot back to the kernel. Nothing of it may be touched after.
pub(super) fn give_back(status: &AtomicU32) {
    // Release: our last reads and writes of the slot come before the kernel's next ones.
    status.store(TP_STATUS_KERNEL, Ordering::Release);
}

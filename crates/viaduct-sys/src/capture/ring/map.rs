//! The memory that the kernel and we share: equal blocks, each owned by one side at a time.
//!
//! A block begins with a header whose status word says which side owns it. The kernel fills a
//! block with packets, one after another, and then sets `TP_STATUS_USER`; we read them and then
//! store `TP_STATUS_KERNEL`. Neither side touches the rest of a block that it does not own. The
//! safety of this file rests on that handover.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{
    TP_STATUS_KERNEL, TP_STATUS_LOSING, TP_STATUS_USER, sockaddr_ll, tpacket_block_desc,
    tpacket_hdr_v1, tpacket3_hdr,
};

/// Offset of a packet's link-layer address: after its header, aligned to 16.
const ADDRESS_AT: usize = align(size_of::<tpacket3_hdr>());

/// Bytes of a packet in a block beside its own: header and address, aligned, the 16 bytes that
/// the kernel keeps before the network header of a SOCK_DGRAM packet, and those that align the
/// next.
pub(super) const HEADROOM: usize = align(ADDRESS_AT + size_of::<sockaddr_ll>()) + 24;

/// Offset of a block's own header.
const HEADER_AT: usize = offset_of!(tpacket_block_desc, hdr);

const fn align(bytes: usize) -> usize {
    (bytes + 15) & !15
}

/// The mapped ring: `blocks` blocks of `block_bytes` each.
#[derive(Debug)]
pub(super) struct Map {
    base: NonNull<u8>,
    block_bytes: usize,
    blocks: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and `Map` is its only owner; what
// it hands out borrows it mutably, so no two threads ever work on it at once.
unsafe impl Send for Map {}

impl Map {
    /// Maps the receive ring of packet socket `fd`, which has been given exactly this geometry.
    pub(super) fn new(fd: BorrowedFd<'_>, block_bytes: usize, blocks: usize) -> io::Result<Map> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing of ours.
        let base = unsafe {
            libc::mmap(
                ptr::null_mut(),
                block_bytes * blocks,
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
        Ok(Map { base, block_bytes, blocks })
    }

    /// Blocks in the ring.
    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Number of packets in block `index` and offset of the first; `None` while the kernel owns
    /// the block.
    pub(super) fn open(&self, index: usize) -> Option<(u32, usize)> {
        // Acquire: makes visible what the kernel wrote before it set the bit.
        if self.status(index).load(Ordering::Acquire) & TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: every block begins with this description, at a page, and is ours.
        let header: tpacket_hdr_v1 = unsafe { self.block(index).add(HEADER_AT).cast().read() };
        Some((header.num_pkts, header.offset_to_first_pkt as usize))
    }

    /// Returns whether packets had found the ring full when block `index`, which must be open,
    /// was handed over.
    pub(super) fn is_losing(&self, index: usize) -> bool {
        self.status(index).load(Ordering::Relaxed) & TP_STATUS_LOSING != 0
    }

    /// Packet at `offset` of block `index`, which must be open.
    pub(super) fn packet(&mut self, index: usize, offset: usize) -> Option<Packet<'_>> {
        let room = self.block_bytes.checked_sub(offset)?;
        if room < HEADROOM || !offset.is_multiple_of(align_of::<tpacket3_hdr>()) {
            return None;
        }
        // SAFETY: inside the block, checked above.
        let base = unsafe { self.block(index).add(offset) };
        Some(Packet { base, room, map: PhantomData })
    }

    /// Hands block `index` back to the kernel. It must not be accessed afterwards, which the
    /// exclusive borrow of each packet ensures.
    pub(super) fn give_back(&mut self, index: usize) {
        // Release: our last reads and writes of the block come before the kernel's next ones.
        self.status(index).store(TP_STATUS_KERNEL, Ordering::Release);
    }

    fn status(&self, index: usize) -> &AtomicU32 {
        let at = HEADER_AT + offset_of!(tpacket_hdr_v1, block_status);
        // SAFETY: an aligned word inside the mapping, which `self` keeps; both sides only ever
        // access it as one word, we atomically.
        unsafe { AtomicU32::from_ptr(self.block(index).add(at).cast().as_ptr()) }
    }

    fn block(&self, index: usize) -> NonNull<u8> {
        assert!(index < self.blocks, "block {index} of {}", self.blocks);
        // SAFETY: inside the mapping, by the assertion.
        unsafe { self.base.add(index * self.block_bytes) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly what `new` mapped; packets borrow `self`, so none outlives it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.blocks * self.block_bytes) };
    }
}

/// A packet in an open block. It borrows the map mutably, so there is at most one at a time.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    base: NonNull<u8>,
    /// Bytes from here to the end of the block.
    room: usize,
    map: PhantomData<&'a mut Map>,
}

impl<'a> Packet<'a> {
    /// The kernel's header of the packet.
    pub(super) fn header(&self) -> tpacket3_hdr {
        // SAFETY: `room` and the alignment were checked when this was made; the block is ours.
        unsafe { self.base.cast().read() }
    }

    /// Link-layer address of the packet.
    pub(super) fn address(&self) -> sockaddr_ll {
        // SAFETY: within HEADROOM, so within the block, at a multiple of 16 from a header.
        unsafe { self.base.add(ADDRESS_AT).cast().read() }
    }

    /// `N` bytes from `offset`; `None` unless they are within the block.
    pub(super) fn bytes_at<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let end = offset.checked_add(N)?;
        // SAFETY: within the block, checked; initialised, since the kernel hands out zeroed
        // pages; the block is ours.
        (end <= self.room).then(|| unsafe { self.base.add(offset).cast::<[u8; N]>().read() })
    }

    /// `length` bytes from `offset`, both limited to the block.
    pub(super) fn into_bytes(self, offset: usize, length: usize) -> &'a mut [u8] {
        let offset = offset.min(self.room);
        let length = length.min(self.room - offset);
        // SAFETY: within the block; initialised, since the kernel hands out zeroed pages;
        // without other readers or writers: the kernel leaves a block of ours alone, and `'a`
        // keeps the map borrowed so that no second packet is taken and no block given back
        // meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), length) }
    }
}

//! The memory shared with the kernel: blocks of equal size, each owned by one side at a time.
//!
//! A block begins with a header whose status word indicates which side owns the block. The kernel
//! fills a block with packets, one after another, and then sets `TP_STATUS_USER`; we read them and
//! then store `TP_STATUS_KERNEL`. Neither side accesses the rest of a block that it does not own.
//! The safety of this file depends on this handover.
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

/// Bytes of a block that each packet takes in addition to its own bytes: header and address,
/// aligned; the 16 bytes that the kernel keeps before the network header of a SOCK_DGRAM packet;
/// and the padding before the next packet.
pub(super) const HEADROOM: usize = align(ADDRESS_AT + size_of::<sockaddr_ll>()) + 24;

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

// SAFETY: the mapping belongs to the process, not to a thread, and `Map` is its only owner. Packets
// borrow it mutably, so two threads never use it at the same time.
unsafe impl Send for Map {}

impl Map {
    /// Maps the receive ring of the packet socket `fd`, set up with this geometry.
    pub(super) fn new(fd: BorrowedFd<'_>, block_bytes: usize, blocks: usize) -> io::Result<Map> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other memory.
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

    pub(super) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Returns the number of packets in block `index` and the offset of the first; `None` while the
    /// kernel owns the block.
    pub(super) fn open(&self, index: usize) -> Option<(u32, usize)> {
        // Acquire: makes visible what the kernel wrote before it set the bit.
        if self.status(index).load(Ordering::Acquire) & TP_STATUS_USER == 0 {
            return None;
        }
        // SAFETY: every block has this header at this offset. It is aligned, because a block begins
        // at a page, and the block is ours.
        let header: tpacket_hdr_v1 = unsafe { self.block(index).add(HEADER_AT).cast().read() };
        Some((header.num_pkts, header.offset_to_first_pkt as usize))
    }

    /// Returns whether the full ring dropped packets after the drop count was last read and before
    /// block `index` was handed over. The block must be open.
    pub(super) fn is_losing(&self, index: usize) -> bool {
        self.status(index).load(Ordering::Relaxed) & TP_STATUS_LOSING != 0
    }

    /// Returns the packet at `offset` of block `index`, which must be open.
    pub(super) fn packet(&mut self, index: usize, offset: usize) -> Option<Packet<'_>> {
        let room = self.block_bytes.checked_sub(offset)?;
        if room < HEADROOM || !offset.is_multiple_of(align_of::<tpacket3_hdr>()) {
            return None;
        }
        // SAFETY: inside the block, checked above.
        let base = unsafe { self.block(index).add(offset) };
        Some(Packet { base, room, map: PhantomData })
    }

    /// Gives block `index` back to the kernel. The block must not be accessed afterwards, which the
    /// exclusive borrow of each packet ensures.
    pub(super) fn give_back(&mut self, index: usize) {
        // Release: our last accesses to the block happen before the kernel's next ones.
        self.status(index).store(TP_STATUS_KERNEL, Ordering::Release);
    }

    fn status(&self, index: usize) -> &AtomicU32 {
        let at = HEADER_AT + offset_of!(tpacket_hdr_v1, block_status);
        // SAFETY: an aligned word inside the mapping, which lives as long as `self`. Our accesses
        // are atomic, except that `open` reads the whole header once; the block is then ours, and
        // the kernel does not write.
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
        // SAFETY: unmaps exactly what `new` mapped; packets borrow `self`, so none outlives the
        // mapping.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.blocks * self.block_bytes) };
    }
}

/// A packet in an open block. It borrows the map mutably, so there is at most one at a time.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    base: NonNull<u8>,
    /// Bytes from `base` to the end of the block.
    room: usize,
    map: PhantomData<&'a mut Map>,
}

impl<'a> Packet<'a> {
    pub(super) fn header(&self) -> tpacket3_hdr {
        // SAFETY: `room` and the alignment were checked when this value was created; the block is
        // ours.
        unsafe { self.base.cast().read() }
    }

    pub(super) fn address(&self) -> sockaddr_ll {
        // SAFETY: within HEADROOM, so within the block; aligned, because ADDRESS_AT is a multiple
        // of 16 and `base` is aligned for a header.
        unsafe { self.base.add(ADDRESS_AT).cast().read() }
    }

    /// Returns `N` bytes from `offset`; `None` unless they are within the block.
    pub(super) fn bytes_at<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let end = offset.checked_add(N)?;
        // SAFETY: within the block, as checked, and the block is ours. The bytes are initialised,
        // as the kernel maps zeroed pages.
        (end <= self.room).then(|| unsafe { self.base.add(offset).cast::<[u8; N]>().read() })
    }

    /// Returns `length` bytes from `offset`, both clamped to the block.
    pub(super) fn into_bytes(self, offset: usize, length: usize) -> &'a mut [u8] {
        let offset = offset.min(self.room);
        let length = length.min(self.room - offset);
        // SAFETY: within the block, and initialised, as the kernel maps zeroed pages. There are no
        // other readers or writers: the kernel does not access a block that we own, and `'a` keeps
        // the map borrowed, so that no second packet is taken and no block is given back while the
        // slice exists.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset), length) }
    }
}

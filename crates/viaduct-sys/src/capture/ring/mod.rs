//! A tap on one interface: copies of the packets of both directions, in one ordered stream.
//!
//! The kernel writes the copies, one after another, into a ring of blocks that it shares with us.
//! Reading a packet is a memory access in a block that we own; giving a block back is one store.
//! There is no system call per packet. When the ring is empty, its descriptor can be polled.
//!
//! ```text
//!                     the kernel forwards ------------------------> the wire
//!                            | a copy of each
//!                            v
//!    blocks:  [ ours ][ ours ][ kernel's ][ kernel's ][ kernel's ] ... and round again
//!               ^ next()       ^ the next copy goes here; if all blocks are ours: drops() + 1
//! ```
//!
//! Design decisions:
//! - `SOCK_DGRAM`: packets begin at the network header, whatever the link layer is (Ethernet, TUN,
//!   ...).
//! - `ETH_P_ALL`: a socket bound to `ETH_P_IP` does not get outgoing packets.
//! - `TPACKET_V3`: the kernel hands over a block when it is full, or when a timer expires. V2 hands
//!   over each packet separately, with a wake-up and accesses to cold memory while the packet is
//!   being forwarded. At 3 Gb/s on two cores, forwarding reached the full rate with V3 and a few
//!   per cent less with V2. The cost is a delay of up to twice [`RETIRE`] at low rates.
//! - `SOCK_RAW` with `PACKET_VNET_HDR` only if offloads are left on ([`Ring::open_with_offloads`]):
//!   the kernel then reports which work on a packet (segmentation, checksum) is left to a device.
//! - VLAN: tagged packets belong to another interface (`eth0.7`, not `eth0`) but are captured here
//!   too, with the tag removed. [`crate::capture::filter::TapFilter`] refuses them, except packets
//!   with VLAN 0, whose tag has only a priority.
#![allow(unsafe_code)]

mod frame;
mod map;
mod offload;

pub use frame::{Direction, Frame};

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use libc::{c_int, c_uint};

use crate::capture::filter::{self, BpfInsn};
use crate::os;
use crate::route::interface;
use map::{HEADROOM, Map};

/// Min and max bytes of a block. A small block fills within a fraction of a millisecond under load.
/// With small blocks, the ring also has many of them: at a low rate the timer hands over blocks
/// with one packet each, and the kernel needs free blocks while the reader is delayed. The minimum
/// holds several packets.
const BLOCK: (usize, usize) = (8 << 10, 128 << 10);
/// Minimum number of packets of maximum length that a block should hold.
const PACKETS: usize = 4;
/// Time after which the kernel hands over a block that is not full. A packet waits for one to two
/// times this value; on kernels before 6.18, for one to two ticks of the kernel's timer.
const RETIRE: Duration = Duration::from_millis(1);

/// Size of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingConfig {
    /// Length of the longest packet that must be captured whole, in bytes (68 to 65535): the
    /// interface's MTU.
    pub max_packet: usize,
    /// Size of the whole ring in bytes (256 KiB to 1 GiB), rounded down to whole blocks.
    pub bytes: usize,
}

impl RingConfig {
    /// Returns the bytes of one block: 8 KiB for packets of 1500 bytes, 64 KiB for 9000 bytes.
    pub fn block_bytes(&self) -> usize {
        let wanted = PACKETS * (self.max_packet + HEADROOM);
        wanted.next_power_of_two().clamp(BLOCK.0, BLOCK.1)
    }

    fn check(&self) -> Result<(), RingError> {
        if !(68..=65535).contains(&self.max_packet) {
            return Err(RingError::MaxPacket(self.max_packet));
        }
        if !(2 * BLOCK.1..=1 << 30).contains(&self.bytes) {
            return Err(RingError::Bytes(self.bytes));
        }
        Ok(())
    }
}

/// Errors of opening a ring.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// `max_packet` is out of range.
    #[error("max_packet is {0}: an interface's MTU, from 68 to 65535 bytes, is expected")]
    MaxPacket(usize),
    /// `bytes` is out of range.
    #[error("a ring of {0} bytes: between 256 KiB and 1 GiB is expected")]
    Bytes(usize),
    /// There is no such interface.
    #[error("there is no network interface named {name:?}")]
    Interface {
        /// Requested name.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// A packet socket cannot be opened or set up.
    #[error("cannot {action} on {name:?} (requires root or CAP_NET_RAW)")]
    Socket {
        /// The step that failed.
        action: &'static str,
        /// The interface.
        name: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The tap, to be moved to the thread that reads it.
#[derive(Debug)]
pub struct Ring {
    map: Map,
    /// Index of the block that is being read, or will be read next.
    block: usize,
    /// Number of unread packets in the block, and offset of the next one; `None` while the kernel
    /// owns the block.
    open: Option<(u32, usize)>,
    drops: u64,
    /// True if packets were dropped before the next packet.
    is_gap: bool,
    with_offloads: bool,
    socket: OwnedFd,
}

impl Ring {
    /// Taps every packet of interface `ifname`. Errors: the config is out of range, the interface
    /// does not exist, or CAP_NET_RAW is missing.
    pub fn open(ifname: &str, config: RingConfig) -> Result<Ring, RingError> {
        Ring::open_filtered(ifname, config, &[])
    }

    /// Taps only the packets of interface `ifname` that `program` accepts. No packet arrives
    /// unfiltered. An empty program accepts all packets. Errors: those of [`Ring::open`], or the
    /// kernel refuses the program.
    pub fn open_filtered(
        ifname: &str,
        config: RingConfig,
        program: &[BpfInsn],
    ) -> Result<Ring, RingError> {
        Ring::open_as(ifname, config, program, false)
    }

    /// Taps an interface whose offloads are on. A frame may be a packet that a device will segment,
    /// or whose checksum is missing ([`Frame::segment`], [`Frame::checksum`]). Such a frame has up
    /// to 65535 bytes. Errors: those of [`Ring::open_filtered`].
    pub fn open_with_offloads(
        ifname: &str,
        config: RingConfig,
        program: &[BpfInsn],
    ) -> Result<Ring, RingError> {
        let config = RingConfig { max_packet: u16::MAX.into(), ..config };
        Ring::open_as(ifname, config, program, true)
    }

    fn open_as(
        ifname: &str,
        config: RingConfig,
        program: &[BpfInsn],
        with_offloads: bool,
    ) -> Result<Ring, RingError> {
        config.check()?;
        let failed =
            |action| move |source| RingError::Socket { action, name: ifname.to_owned(), source };
        let index = interface::index(ifname)
            .map_err(|source| RingError::Interface { name: ifname.to_owned(), source })?;
        // Protocol 0: no packet arrives before the ring and the filter are set up.
        let kind = if with_offloads { libc::SOCK_RAW } else { libc::SOCK_DGRAM };
        let socket =
            os::socket(libc::AF_PACKET, kind, 0).map_err(failed("open a packet socket"))?;
        if with_offloads {
            offload::ask_for(socket.as_fd()).map_err(failed("enable reports of offloads"))?;
        }
        if !program.is_empty() {
            attach(socket.as_fd(), program, with_offloads).map_err(failed("attach a filter"))?;
        }
        let map = set_up(socket.as_fd(), config).map_err(failed("set up a packet ring"))?;
        os::bind_packet(socket.as_fd(), index).map_err(failed("bind a packet socket"))?;
        Ok(Ring { map, block: 0, open: None, drops: 0, is_gap: false, with_offloads, socket })
    }

    /// Stops capturing outgoing packets. Cheaper than a filter, which the kernel would run on each
    /// outgoing packet. Errors: `ENOPROTOOPT` before Linux 4.20.
    pub fn ignore_outgoing(&self) -> io::Result<()> {
        let yes: c_int = 1;
        os::setsockopt(self.socket.as_fd(), libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &yes)
    }

    /// Returns the next packet, if one has arrived; does not block.
    #[expect(clippy::should_implement_trait, reason = "a frame borrows the ring: no Iterator")]
    pub fn next(&mut self) -> Option<Frame<'_>> {
        let (left, offset) = self.unread()?;
        let packet = self.map.packet(self.block, offset)?;
        let step = packet.header().tp_next_offset as usize;
        self.open = Some((left - 1, offset + step));
        let frame =
            if self.with_offloads { Frame::with_offload(packet) } else { Frame::new(packet) };
        Some(frame.after(mem::take(&mut self.is_gap)))
    }

    /// Returns the number of packets left in the current block and the offset of the next. Gives
    /// the block back first if all its packets have been read.
    fn unread(&mut self) -> Option<(u32, usize)> {
        if self.open.is_some_and(|(left, _)| left == 0) {
            self.map.give_back(self.block);
            self.block = (self.block + 1) % self.map.blocks();
            self.open = None;
        }
        if self.open.is_none() {
            self.open = self.map.open(self.block);
            if self.open.is_some() && self.map.is_losing(self.block) {
                // The kernel sets the flag in each block until the drop count is read.
                self.drops();
                self.is_gap = true;
            }
        }
        self.open.filter(|&(left, _)| left > 0)
    }

    /// Returns the number of packets dropped so far because the ring was full.
    pub fn drops(&mut self) -> u64 {
        // Reading the kernel's count resets it. Reading cannot fail on a packet socket; if it did,
        // our count would stay as it is.
        let stats: io::Result<libc::tpacket_stats_v3> =
            os::getsockopt(self.socket.as_fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS);
        self.drops += stats.map_or(0, |stats| u64::from(stats.tp_drops));
        self.drops
    }

    /// Replaces the filter. Packets already in the ring stay. Errors: the kernel refuses the
    /// program.
    pub fn attach_filter(&mut self, program: &[BpfInsn]) -> io::Result<()> {
        let (socket, with_offloads) = (self.socket.as_fd(), self.with_offloads);
        match attach(socket, program, with_offloads) {
            // Until it is replaced, the old filter counts against the limit net.core.optmem_max.
            // If there is no room for both, packets are missed in between.
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                attach(socket, &[REFUSE_ALL], with_offloads)?;
                self.is_gap = true;
                attach(socket, program, with_offloads)
            }
            done => done,
        }
    }

    /// Returns whether the interface still exists. A later interface with the same name is a
    /// different interface, and needs a new ring.
    pub fn is_attached(&self) -> bool {
        // SAFETY: all zeros are a valid `sockaddr_ll`.
        let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
        let mut length = size_of_val(&address) as libc::socklen_t;
        let fd = self.socket.as_raw_fd();
        // SAFETY: the kernel writes at most `length` bytes to `address`, which is as long.
        let asked =
            os::check(unsafe { libc::getsockname(fd, (&raw mut address).cast(), &raw mut length) });
        asked.is_ok() && address.sll_ifindex > 0
    }

    /// Returns and clears the pending error of the socket, which poll reports as `POLLERR`.
    /// `ENETDOWN` means that the interface has gone down; capture continues when it is up again.
    pub fn take_error(&self) -> Option<io::Error> {
        let code: c_int =
            os::getsockopt(self.socket.as_fd(), libc::SOL_SOCKET, libc::SO_ERROR).ok()?;
        (code != 0).then(|| io::Error::from_raw_os_error(code))
    }
}

impl AsFd for Ring {
    /// Readable when a packet is available.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Filter that accepts no packet.
const REFUSE_ALL: BpfInsn = BpfInsn { code: 0x06, jt: 0, jf: 0, k: 0 };

/// Attaches a filter program whose offsets count from the network header.
fn attach(socket: BorrowedFd<'_>, program: &[BpfInsn], has_link_header: bool) -> io::Result<()> {
    if has_link_header {
        filter::attach(socket, &filter::from_network_header(program))
    } else {
        filter::attach(socket, program)
    }
}

/// Sets the ring's geometry and maps its memory.
fn set_up(socket: BorrowedFd<'_>, config: RingConfig) -> io::Result<Map> {
    let version = libc::tpacket_versions::TPACKET_V3 as c_int;
    os::setsockopt(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
    let block_bytes = config.block_bytes();
    let blocks = config.bytes / block_bytes;
    let request = libc::tpacket_req3 {
        tp_block_size: block_bytes as c_uint,
        tp_block_nr: blocks as c_uint,
        // TPACKET_V3 has no fixed slots for packets; the kernel only checks these two fields for
        // consistency.
        tp_frame_size: block_bytes as c_uint,
        tp_frame_nr: blocks as c_uint,
        tp_retire_blk_tov: RETIRE.as_millis() as c_uint,
        tp_sizeof_priv: 0,
        tp_feature_req_word: 0,
    };
    os::setsockopt(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)?;
    Map::new(socket, block_bytes, blocks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_their_packets() {
        assert_eq!(RingConfig { max_packet: 1500, bytes: 0 }.block_bytes(), 8 << 10);
        assert_eq!(RingConfig { max_packet: 9000, bytes: 0 }.block_bytes(), 64 << 10);
        assert_eq!(RingConfig { max_packet: 65535, bytes: 0 }.block_bytes(), 128 << 10);
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        let open = |max_packet, bytes| Ring::open("lo", RingConfig { max_packet, bytes });
        assert!(matches!(open(20, 1 << 20), Err(RingError::MaxPacket(20))));
        assert!(matches!(open(1500, 4096), Err(RingError::Bytes(4096))));
    }
}

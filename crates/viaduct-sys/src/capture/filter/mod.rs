//! Filters of taps: classic BPF programs that the kernel runs on every packet before it copies the
//! packet.
//!
//! ```text
//!   TapFilter   local prefixes, peer prefixes, own addresses
//!       | build      (prefix: minimal sets; asm: labels become jumps)
//!       v
//!   [BpfInsn]   --- attach ---> a socket: the ring, or a UDP socket
//!
//!   the program of a tap, whose binary searches take at most about 60 tests per packet:
//!     to another host, or tagged for a VLAN other than 0            -> no
//!     leaves:   source is local and destination a peer's            -> yes
//!     arrives:  source is a peer's and destination local            -> yes
//!     arrives:  unfragmented UDP, or packets that look like TCP,
//!               to one of our addresses and ports                   -> yes
//!     any other packet                                              -> no
//! ```
//!
//! Between sites only addresses are compared, so every fragment of a packet passes. A tap with
//! thousands of prefixes also passes other packets ([`TapFilter::build`]).
#![allow(unsafe_code)]

pub(crate) mod asm;
mod fanout;
mod option;
mod prefix;
mod share;
mod syn;
#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{
    ETH_P_IP, ETH_P_IPV6, IPPROTO_TCP, IPPROTO_UDP, PACKET_OTHERHOST, PACKET_OUTGOING,
    SKF_AD_PKTTYPE, SKF_AD_PROTOCOL, SKF_AD_VLAN_TAG, SKF_AD_VLAN_TAG_PRESENT,
};

use crate::os;
use asm::{Asm, Label, Test};
pub use fanout::FanoutProgram;
pub use option::{OptionFilter, OptionMark};
use prefix::PrefixSet;
pub use share::{Share, listener_of};
pub use syn::{SynFilter, no_syns};

/// Bits of a VLAN tag that identify the VLAN.
const VLAN_ID: u32 = 0x0fff;
/// Max instructions that the kernel accepts.
const MAX_INSNS: usize = 4096;

/// Max instructions of a tap's program: `net.core.optmem_max` limits the memory of a socket's
/// filter; its default is 20 KiB on kernels before 6.7.
pub const MAX_TAP_INSNS: usize = 1_500;

/// Max bytes that are kept of an accepted packet: more than any packet has.
const WHOLE: u32 = 0x4_0000;
/// Scratch cells for the offsets, in the packet, of our side's address and of the peer's.
const LOCAL_AT: u32 = 0;
const PEER_AT: u32 = 1;

/// An instruction of classic BPF, in the kernel's encoding.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpfInsn {
    /// Operation code.
    pub code: u16,
    /// Instructions to skip if a test holds.
    pub jt: u8,
    /// Instructions to skip if the test does not hold.
    pub jf: u8,
    /// Operand.
    pub k: u32,
}

/// Converts a program whose offsets count from the network header, for a socket whose packets begin
/// at the link header.
pub(crate) fn from_network_header(program: &[BpfInsn]) -> Vec<BpfInsn> {
    let moved = |insn: &BpfInsn| {
        let code = u32::from(insn.code);
        let (class, mode) = (code & 0x07, code & 0xe0);
        let is_load = class == libc::BPF_LD && [libc::BPF_ABS, libc::BPF_IND].contains(&mode)
            || class == libc::BPF_LDX && mode == libc::BPF_MSH;
        // Offsets of metadata are negative, that is, above `i32::MAX` as unsigned numbers.
        let is_offset = insn.k < i32::MAX.cast_unsigned();
        let k = insn.k.wrapping_add(libc::SKF_NET_OFF.cast_unsigned());
        if is_load && is_offset { BpfInsn { k, ..*insn } } else { *insn }
    };
    program.iter().map(moved).collect()
}

/// Returns the program that drops every packet.
pub(crate) fn drop_all() -> Vec<BpfInsn> {
    let mut asm = Asm::default();
    asm.keep(0);
    asm.finish()
}

/// Filter for a gateway's tap, on a socket whose packets begin at the network header.
#[derive(Clone, Debug, Default)]
pub struct TapFilter {
    /// Prefixes of this site: address and length; host bits are ignored.
    pub local: Vec<(IpAddr, u8)>,
    /// Prefixes of all peer sites.
    pub peers: Vec<(IpAddr, u8)>,
    /// Local addresses to which peers send UDP datagrams. `0.0.0.0` means any IPv4 address, and
    /// `[::]` any address of both families.
    pub listen: Vec<SocketAddr>,
    /// Local addresses to which peers send packets that look like TCP, in the same form.
    pub fake_tcp: Vec<SocketAddr>,
}

/// Errors of building a filter.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FilterError {
    /// A prefix is longer than an address.
    #[error("{address}/{length}: a prefix length of at most {} is expected",
            if address.is_ipv4() { 32 } else { 128 })]
    Length {
        /// The prefix's address.
        address: IpAddr,
        /// The prefix's length in bits.
        length: u8,
    },
    /// The number of shares of a fanout is not a power of two, or too large.
    #[error("{0} shares: a power of two up to {max} is expected", max = fanout::MAX_SHARES)]
    Shares(usize),
    /// The program is longer than the kernel accepts.
    #[error(
        "{prefixes} prefixes need a filter of {insns} instructions, and the kernel accepts \
         {MAX_INSNS}: about {fit} prefixes like these fit; merge neighbours into shorter ones"
    )]
    TooLong {
        /// Prefixes given.
        prefixes: usize,
        /// Instructions they need.
        insns: usize,
        /// Estimated number of prefixes that would fit.
        fit: usize,
    },
}

impl TapFilter {
    /// Builds the program for the kernel. To keep it within [`MAX_TAP_INSNS`] instructions,
    /// prefixes that are close to each other are merged, if necessary, into ranges that include the
    /// addresses between them. The tap then also copies packets that belong to no site. Only
    /// addresses to listen on can make the program longer. Errors: a prefix length is out of range.
    pub fn build(&self) -> Result<Vec<BpfInsn>, FilterError> {
        let mut local = PrefixSet::new(&self.local)?;
        let mut peers = PrefixSet::new(&self.peers)?;
        loop {
            let program = self.assemble(&local, &peers);
            if program.len() <= MAX_TAP_INSNS || local.len().max(peers.len()) <= 2 {
                return Ok(program);
            }
            let longer = if local.len() > peers.len() { &mut local } else { &mut peers };
            *longer = longer.coarser();
        }
    }

    fn assemble(&self, local: &PrefixSet, peers: &PrefixSet) -> Vec<BpfInsn> {
        let mut asm = Asm::default();
        let [v4, v6, yes, no] = [(); 4].map(|()| asm.label());
        let untagged = asm.label();
        asm.load_meta(SKF_AD_VLAN_TAG_PRESENT);
        asm.jump_if(Test::Equal(0), untagged);
        // VLAN 0 is not a VLAN: the tag has only a priority (IEEE 802.1Q), and the packet belongs
        // to this interface.
        asm.load_meta(SKF_AD_VLAN_TAG);
        asm.and(VLAN_ID);
        asm.jump_unless(Test::Equal(0), no);
        asm.place(untagged);
        asm.load_meta(SKF_AD_PROTOCOL);
        asm.jump_if(Test::Equal(ETH_P_IP as u32), v4);
        asm.branch(Test::Equal(ETH_P_IPV6 as u32), v6, no);

        asm.place(v4);
        let [has_local, other] = [(); 2].map(|()| asm.label());
        find_sides(&mut asm, 12, 16, no);
        asm.x_from(LOCAL_AT);
        local.test_v4(&mut asm, has_local, other);
        asm.place(has_local);
        asm.x_from(PEER_AT);
        peers.test_v4(&mut asm, yes, other);
        asm.place(other);
        self.test_listeners_v4(&mut asm, yes, no);

        asm.place(v6);
        let [has_local, other] = [(); 2].map(|()| asm.label());
        find_sides(&mut asm, 8, 24, no);
        asm.x_from(LOCAL_AT);
        local.test_v6(&mut asm, has_local, other);
        asm.place(has_local);
        asm.x_from(PEER_AT);
        peers.test_v6(&mut asm, yes, other);
        asm.place(other);
        self.test_listeners_v6(&mut asm, yes, no);

        asm.place(yes);
        asm.keep(WHOLE);
        asm.place(no);
        asm.keep(0);
        asm.finish()
    }

    /// Returns our addresses, by protocol.
    fn listeners(&self) -> [(libc::c_int, &[SocketAddr]); 2] {
        [(IPPROTO_UDP, &self.listen), (IPPROTO_TCP, &self.fake_tcp)]
    }

    /// Emits the test for IPv4 packets to us. Fragments (more-fragments flag, or an offset)
    /// are refused.
    fn test_listeners_v4(&self, asm: &mut Asm, yes: Label, no: Label) {
        only_incoming(asm, no);
        for (protocol, listeners) in self.listeners() {
            let other = asm.label();
            asm.load_byte(9);
            asm.jump_unless(Test::Equal(protocol.cast_unsigned()), other);
            asm.load_half(6);
            asm.jump_if(Test::AnyBit(0x3fff), no);
            asm.x_from_ipv4_header_length(0);
            for listen in listeners {
                let address = match listen.ip() {
                    IpAddr::V4(address) => address.to_bits(),
                    IpAddr::V6(address) if address.is_unspecified() => 0,
                    IpAddr::V6(_) => continue,
                };
                let next = asm.label();
                asm.load_half_at_x(2);
                asm.jump_unless(Test::Equal(listen.port().into()), next);
                if address != 0 {
                    asm.load_word(16);
                    asm.jump_unless(Test::Equal(address), next);
                }
                asm.goto(yes);
                asm.place(next);
            }
            asm.goto(no);
            asm.place(other);
        }
        asm.goto(no);
    }

    /// Emits the test for IPv6 packets to us. Packets with an extension header, such as fragments,
    /// are refused.
    fn test_listeners_v6(&self, asm: &mut Asm, yes: Label, no: Label) {
        only_incoming(asm, no);
        for (protocol, listeners) in self.listeners() {
            let other = asm.label();
            asm.load_byte(6);
            asm.jump_unless(Test::Equal(protocol.cast_unsigned()), other);
            for listen in listeners {
                let IpAddr::V6(address) = listen.ip() else { continue };
                let next = asm.label();
                asm.load_half(42);
                asm.jump_unless(Test::Equal(listen.port().into()), next);
                if !address.is_unspecified() {
                    for word in 0..4 {
                        asm.load_word(24 + 4 * word);
                        let part = (address.to_bits() >> (96 - 32 * word)) as u32;
                        asm.jump_unless(Test::Equal(part), next);
                    }
                }
                asm.goto(yes);
                asm.place(next);
            }
            asm.goto(no);
            asm.place(other);
        }
        asm.goto(no);
    }
}

/// Emits code that stores the offsets of our side's address and of the peer's in their scratch
/// cells. Our side is the source of an outgoing packet and the destination of an incoming packet.
/// Jumps to `no` if the packet is for another host.
fn find_sides(asm: &mut Asm, source: u32, destination: u32, no: Label) {
    let [leaves, known] = [(); 2].map(|()| asm.label());
    asm.load_meta(SKF_AD_PKTTYPE);
    asm.jump_if(Test::Equal(PACKET_OTHERHOST.into()), no);
    asm.jump_if(Test::Equal(PACKET_OUTGOING.into()), leaves);
    asm.store(LOCAL_AT, destination);
    asm.store(PEER_AT, source);
    asm.goto(known);
    asm.place(leaves);
    asm.store(LOCAL_AT, source);
    asm.store(PEER_AT, destination);
    asm.place(known);
}

fn only_incoming(asm: &mut Asm, no: Label) {
    asm.load_meta(SKF_AD_PKTTYPE);
    asm.jump_if(Test::Equal(PACKET_OUTGOING.into()), no);
}

/// Atomically replaces the socket's filter with `program`. Errors: `EINVAL` for a malformed or
/// empty program, `ENOMEM` for a program that is longer than `net.core.optmem_max` allows.
pub fn attach(socket: BorrowedFd<'_>, program: &[BpfInsn]) -> io::Result<()> {
    attach_as((libc::SOL_SOCKET, libc::SO_ATTACH_FILTER), socket, program)
}

/// Attaches `program` to the group of sockets that share an address and a port (`SO_REUSEPORT`), to
/// which `socket` belongs. For each packet the program returns the index of a socket, in the order
/// in which the sockets joined the group. If the index is out of range, the kernel chooses a
/// socket. Errors: those of [`attach`], or the socket does not share its address.
pub fn attach_to_group(socket: BorrowedFd<'_>, program: &[BpfInsn]) -> io::Result<()> {
    attach_as((libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF), socket, program)
}

/// Sets the program of the group of taps to which `socket` belongs. For each packet the program
/// returns the index of a member, modulo the number of members. Errors: those of [`attach`], or the
/// socket is not in a group.
pub(crate) fn attach_to_fanout(socket: BorrowedFd<'_>, program: &[BpfInsn]) -> io::Result<()> {
    attach_as((libc::SOL_PACKET, libc::PACKET_FANOUT_DATA), socket, program)
}

fn attach_as(
    (level, how): (libc::c_int, libc::c_int),
    socket: BorrowedFd<'_>,
    program: &[BpfInsn],
) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The kernel only reads the program: the cast away from const is due to the C interface.
    let fprog = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: `BpfInsn` has the layout of `sock_filter`; the kernel reads `len` instructions, and
    // `fprog` and `program` live through the call, which copies both.
    os::check(unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, how, (&raw const fprog).cast(), length)
    })
}

//! Groups of taps of one interface: the kernel gives each packet to one tap of the group
//! (fanout, packet(7)).
//!
//! ```text
//!   packet ─▶ program: share of the packet, member of the share ─▶ the member's filter ─▶ its ring
//! ```
//!
//! The program ([`filter::FanoutProgram`]) is classic BPF, like a tap's filter, so it needs no
//! further privilege. It is replaced atomically when shares move to other members. A member whose
//! ring was dropped stays in the group, so that the others keep their indices. Until the program is
//! replaced, no tap sees the packets of the dropped member's shares.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use libc::c_int;

use super::filter::{self, BpfInsn};
use super::ring::Ring;
use crate::os;

/// Type and flags of the groups, in the high half of the option's value.
const PROGRAM: c_int = libc::PACKET_FANOUT_CBPF.cast_signed();
const NEW_ID: c_int = libc::PACKET_FANOUT_FLAG_UNIQUEID.cast_signed();
const ONLY_INCOMING: c_int = libc::PACKET_FANOUT_FLAG_IGNORE_OUTGOING.cast_signed();

/// Directions of the packets of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directions {
    /// Incoming and outgoing packets.
    Both,
    /// Incoming packets only, on Linux 6.1 and later. Earlier kernels pass outgoing packets to the
    /// members' filters, too.
    Incoming,
}

/// A group of taps.
#[derive(Debug)]
pub struct Fanout {
    /// Sockets of the members, which stay in the group until it is dropped.
    members: Vec<OwnedFd>,
}

impl Fanout {
    /// Creates a group of `taps`, which must be of one interface; a tap's position is its index.
    /// Until a program is set, all packets go to the first tap. Packets that a tap received before
    /// this call may belong to other members' shares. Errors: there are no taps, or the kernel
    /// refuses.
    pub fn new(taps: &[&Ring], directions: Directions) -> io::Result<Fanout> {
        let flags = match directions {
            Directions::Both => 0,
            Directions::Incoming => ONLY_INCOMING,
        };
        let set = |tap: &Ring, id: c_int, flags: c_int| {
            let value = id | (PROGRAM | flags) << 16;
            os::setsockopt(tap.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT, &value)
        };
        let (first, others) = taps.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        set(first, 0, flags | NEW_ID)?;
        let group: c_int = os::getsockopt(first.as_fd(), libc::SOL_PACKET, libc::PACKET_FANOUT)?;
        others.iter().try_for_each(|tap| set(tap, group & 0xffff, flags))?;
        let members = taps.iter().map(|tap| tap.as_fd().try_clone_to_owned());
        Ok(Fanout { members: members.collect::<io::Result<_>>()? })
    }

    /// Sets or replaces the program ([`filter::FanoutProgram`]). Errors: the kernel refuses it.
    pub fn set_program(&self, program: &[BpfInsn]) -> io::Result<()> {
        filter::attach_to_fanout(self.members[0].as_fd(), program)
    }
}

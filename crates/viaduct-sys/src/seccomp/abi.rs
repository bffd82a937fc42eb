//! Numbers of the system calls with which a program could bypass an interposer: native, x32, and
//! those of the compatible architecture (i386, or ARM's EABI).
//!
//! All filters use these tables, so that none misses a call.

use crate::capture::filter::asm::{Asm, Label, Test};

/// Numbers of a call, native and on the compatible architecture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) native: libc::c_long,
    pub(super) other: u32,
}

const fn call(native: libc::c_long, other: u32) -> Call {
    Call { native, other }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::{Call, call};

    pub(in crate::seccomp) const NATIVE: u32 = 0xc000_003e;
    /// i386.
    pub(in crate::seccomp) const OTHER: u32 = 0x4000_0003;
    /// Bit that is set in the numbers of x32 calls.
    pub(in crate::seccomp) const X32: Option<u32> = Some(0x4000_0000);
    /// socketcall(2). Its first argument is the operation; the operation's arguments are in memory.
    pub(in crate::seccomp) const SOCKETCALL: Option<u32> = Some(102);
    pub(in crate::seccomp) const SOCKET: Call = call(libc::SYS_socket, 359);
    /// All calls that could bypass an interposer, except those that open a socket.
    pub(in crate::seccomp) const CALLS: [Call; 6] = [
        call(libc::SYS_connect, 362),
        call(libc::SYS_listen, 363),
        call(libc::SYS_sendto, 369),
        call(libc::SYS_sendmsg, 370),
        call(libc::SYS_sendmmsg, 345),
        call(libc::SYS_io_uring_setup, 425),
    ];
}

#[cfg(target_arch = "aarch64")]
mod machine {
    use super::{Call, call};

    pub(in crate::seccomp) const NATIVE: u32 = 0xc000_00b7;
    /// ARM's EABI.
    pub(in crate::seccomp) const OTHER: u32 = 0x4000_0028;
    pub(in crate::seccomp) const X32: Option<u32> = None;
    pub(in crate::seccomp) const SOCKETCALL: Option<u32> = None;
    pub(in crate::seccomp) const SOCKET: Call = call(libc::SYS_socket, 281);
    /// All calls that could bypass an interposer, except those that open a socket.
    pub(in crate::seccomp) const CALLS: [Call; 6] = [
        call(libc::SYS_connect, 283),
        call(libc::SYS_listen, 284),
        call(libc::SYS_sendto, 290),
        call(libc::SYS_sendmsg, 296),
        call(libc::SYS_sendmmsg, 374),
        call(libc::SYS_io_uring_setup, 425),
    ];
}

pub(super) use machine::{CALLS, NATIVE, OTHER, SOCKET, SOCKETCALL, X32};

/// The operation of socketcall(2) that opens a socket.
pub(super) const SYS_SOCKET: u32 = 1;
/// Address families that reach only this machine.
pub(super) const LOCAL: [libc::c_int; 3] = [libc::AF_UNIX, libc::AF_NETLINK, libc::AF_ALG];

/// Emits a jump to `to` if the loaded word is the number of one of `calls` in the compatible ABI.
pub(super) fn jump_if_other(asm: &mut Asm, calls: &[Call], to: Label) {
    for call in calls {
        asm.jump_if(Test::Equal(call.other), to);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_call_has_one_number_on_each_machine() {
        let all: Vec<Call> = CALLS.into_iter().chain([SOCKET]).collect();
        let native: BTreeSet<_> = all.iter().map(|call| call.native).collect();
        let other: BTreeSet<_> = all.iter().map(|call| call.other).chain(SOCKETCALL).collect();
        assert_eq!(native.len(), all.len());
        assert_eq!(other.len(), all.len() + SOCKETCALL.iter().len());
    }
}

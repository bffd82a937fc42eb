//! Filter against socket families that the cgroup and preload interposers do not see.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO};

use super::abi::{self, LOCAL};
use super::filter::{ARCH, NR, argument};
use super::set_filter;
use crate::capture::filter::BpfInsn;
use crate::capture::filter::asm::{Asm, Test};

/// Restricts `command` and its descendants to sockets of IP and local families. Opening any other
/// socket fails with `EPERM`. The filter needs no supervisor, and outlives this process. Sockets
/// that the program inherits or receives, or opens by io_uring, are not checked.
pub fn restrict_families(command: &mut Command) {
    let program = filter();
    // SAFETY: between fork and exec the closure makes system calls only; it neither allocates
    // nor takes a lock.
    unsafe { command.pre_exec(move || set_filter(0, &program).map(drop)) };
}

fn filter() -> Vec<BpfInsn> {
    let mut asm = Asm::default();
    let [native, socket, socketcall, allow] = [(); 4].map(|()| asm.label());
    asm.load_word(ARCH);
    asm.jump_if(Test::Equal(abi::NATIVE), native);
    asm.jump_unless(Test::Equal(abi::OTHER), allow);
    asm.load_word(NR);
    if let Some(nr) = abi::SOCKETCALL {
        asm.jump_if(Test::Equal(nr), socketcall);
    }
    asm.branch(Test::Equal(abi::SOCKET.other), socket, allow);

    asm.place(native);
    asm.load_word(NR);
    asm.and(!abi::X32.unwrap_or(0));
    asm.jump_unless(Test::Equal(abi::SOCKET.native as u32), allow);

    asm.place(socket);
    asm.load_word(argument(0).0);
    for family in LOCAL.into_iter().chain([libc::AF_INET, libc::AF_INET6]) {
        asm.jump_if(Test::Equal(family.cast_unsigned()), allow);
    }
    asm.keep(SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned());

    // The family is in memory, which a filter cannot read. On `ENOSYS` a C library uses socket(2)
    // instead.
    asm.place(socketcall);
    asm.load_word(argument(0).0);
    asm.jump_unless(Test::Equal(abi::SYS_SOCKET), allow);
    asm.keep(SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned());
    asm.place(allow);
    asm.keep(SECCOMP_RET_ALLOW);
    asm.finish()
}

//! Families of sockets that other means do not see: a program is kept from opening them.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use libc::{SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO};

use super::filter::{ARCH, LOCAL, NR, argument, machine};
use super::set_filter;
use crate::filter::BpfInsn;
use crate::filter::asm::{Asm, Test};

/// Numbers of socket(2) on another machine whose programs run here.
#[cfg(target_arch = "x86_64")]
const OTHER_SOCKET: u32 = 359;
#[cfg(target_arch = "aarch64")]
const OTHER_SOCKET: u32 = 281;

/// Has `command`, and all that it starts, open no sockets but those of IP and those that lead nowhere:
/// it may not (`EPERM`). Nobody has to answer for that, and it stays when this process ends. Sockets
/// that it inherits or is given are not looked at, nor those that io_uring opens.
pub fn keep_to_known_families(command: &mut Command) {
    let program = filter();
    // SAFETY: between fork and exec the closure makes system calls only; it neither allocates nor takes
    // a lock.
    unsafe { command.pre_exec(move || set_filter(0, &program).map(drop)) };
}

fn filter() -> Vec<BpfInsn> {
    let mut asm = Asm::default();
    let [native, socket, allow] = [(); 3].map(|()| asm.label());
    asm.load_word(ARCH);
    asm.jump_if(Test::Equal(machine::NATIVE), native);
    asm.jump_unless(Test::Equal(machine::OTHER.0), allow);
    asm.load_word(NR);
    asm.branch(Test::Equal(OTHER_SOCKET), socket, allow);

    asm.place(native);
    asm.load_word(NR);
    asm.and(!machine::X32.unwrap_or(0));
    asm.jump_unless(Test::Equal(libc::SYS_socket as u32), allow);

    asm.place(socket);
    asm.load_word(argument(0).0);
    for family in LOCAL.into_iter().chain([libc::AF_INET, libc::AF_INET6]) {
        asm.jump_if(Test::Equal(family.cast_unsigned()), allow);
    }
    asm.keep(SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned());
    asm.place(allow);
    asm.keep(SECCOMP_RET_ALLOW);
    asm.finish()
}

//! Symbol that glibc's loader has and musl's has not. The unwinder that is linked in (see
//! `build.rs`) asks the loader for the object that contains an address. Nothing here unwinds,
//! because a panic ends at the first of libc's functions, so the answer is always "none". The
//! symbol is hidden: programs use their loader's.

use std::arch::global_asm;

#[cfg(target_arch = "x86_64")]
global_asm!(
    ".hidden _dl_find_object",
    ".globl _dl_find_object",
    ".type _dl_find_object, @function",
    "_dl_find_object: mov eax, -1",
    "ret",
);
#[cfg(target_arch = "aarch64")]
global_asm!(
    ".hidden _dl_find_object",
    ".globl _dl_find_object",
    ".type _dl_find_object, %function",
    "_dl_find_object: mov w0, #-1",
    "ret",
);

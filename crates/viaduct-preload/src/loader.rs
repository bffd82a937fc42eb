//! Symbol of glibc's loader that musl's loader lacks. The statically linked unwinder (see
//! `build.rs`) calls it to find the object that contains an address. Nothing here needs to unwind,
//! because a panic aborts at the first `extern "C"` function, so this stub always reports that
//! there is no such object. The symbol is hidden, so that programs use the symbol of their own
//! loader.

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

//! System calls without libc: they do not set `errno`, are not cancellation points, and can pass
//! the word for seccomp in an unused argument.

use std::arch::asm;
use std::ffi::{c_int, c_long};

/// Makes a system call. A result from -4095 to -1 is a negated error number.
///
/// # Safety
/// As for the system call with these arguments.
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel preserves all other registers; the caller guarantees valid arguments.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b,
            in("rdx") c, in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _,
            options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel preserves all registers except the first; the caller guarantees valid
    // arguments.
    unsafe {
        asm!("svc 0", in("x8") number as isize, inlateout("x0") a as isize => result, in("x1") b,
            in("x2") c, in("x3") d, in("x4") e, in("x5") f, options(nostack));
    }
    result
}

/// Converts a result to libc's form: -1 and `errno` for an error.
pub(crate) fn returned(result: isize) -> isize {
    if (-4095..0).contains(&result) { failed(-result as c_int) as isize } else { result }
}

/// Sets `errno`.
pub(crate) fn failed(errno: c_int) -> c_int {
    // SAFETY: libc returns a valid pointer to this thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Reads a socket option whose value is a number, or an array of numbers.
pub(crate) fn option<T: Copy + Default>(fd: c_int, level: c_int, name: c_int) -> Option<T> {
    let mut value = T::default();
    let mut length = size_of::<T>() as libc::socklen_t;
    let [at, size] = [(&raw mut value) as usize, (&raw mut length) as usize];
    let arguments = [fd as usize, level as usize, name as usize, at, size, 0];
    // SAFETY: the kernel writes at most the size of the value, which lives through the call.
    let result = unsafe { call(libc::SYS_getsockopt, arguments) };
    (result == 0).then_some(value)
}

/// Returns whether the first and the last of these bytes are readable. The kernel checks:
/// `rt_sigprocmask` reads a signal set there before it rejects the invalid operation.
pub(crate) fn is_readable(at: *const u8, length: usize) -> bool {
    const SET: usize = 8;
    let readable = |at: usize| {
        // SAFETY: the kernel checks the address, and changes nothing.
        let result = unsafe { call(libc::SYS_rt_sigprocmask, [usize::MAX, at, 0, SET, 0, 0]) };
        result != -(libc::EFAULT as isize)
    };
    let at = at as usize;
    let last = at.saturating_add(length.saturating_sub(1));
    readable(at & !(SET - 1)) && readable(last & !(SET - 1))
}

pub(crate) fn close(fd: c_int) {
    // SAFETY: the descriptor is owned by this library, and not used again.
    unsafe { call(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

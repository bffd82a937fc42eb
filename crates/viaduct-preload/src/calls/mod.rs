//! The socket functions of libc that begin flows or return the addresses of sockets.
//!
//! | part | |
//! |---|---|
//! | here | functions that open, connect and send; `syscall`, which can make any call |
//! | `addresses` | functions that return a socket's addresses or its error |
//! | `decide` | decisions about calls |

mod addresses;
mod decide;

use std::ffi::{c_int, c_long, c_uint, c_void};

use libc::{mmsghdr, msghdr, sockaddr, socklen_t};
use viaduct_wrap::wire::Call;
use viaduct_wrap::{Errno, LONGEST, MSG_FASTOPEN, SOCKADDR, Socket, Verdict};

use self::addresses::{getpeername, getsockname, getsockopt};
use self::decide::{Decision, decide, needs_decision, report};
use crate::raw::{self, failed, returned};
use crate::real::real;
use crate::state::{Wrapped, state};

/// `socket(2)`.
///
/// # Safety
/// No requirements; the signature is libc's.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if let Wrapped::By(state) = state()
        && let Verdict::Refuse(errno) =
            state.welcome.rules.socket(Socket { domain, kind, protocol })
    {
        if errno == Errno::PERM {
            report(state, Call::Socket, false, None, errno);
        }
        return failed(errno.0);
    }
    let arguments = [domain as usize, kind as usize, protocol as usize, 0, 0, 0];
    // SAFETY: the call takes no pointers.
    returned(unsafe { raw::call(libc::SYS_socket, arguments) }) as c_int
}

/// `connect(2)`.
///
/// # Safety
/// `address` must point to `length` bytes.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn connect(
    fd: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> c_int {
    // An address that cannot be read is left to the kernel, which reports the error.
    let length_read = if raw::is_readable(address.cast(), length as usize) { length } else { 0 };
    // SAFETY: the caller guarantees a valid pointer; unreadable memory was excluded.
    let bytes = unsafe { bytes_of(address.cast(), length_read) };
    let word = match decide(fd, 0, bytes, Call::Connect) {
        (Decision::Done(0), _) => return 0,
        (Decision::Done(errno), _) => return failed(errno),
        (Decision::Pass, word) => word,
    };
    let arguments = [fd as usize, address as usize, length as usize, word as usize, 0, 0];
    // SAFETY: the caller guarantees valid arguments.
    returned(unsafe { raw::call(libc::SYS_connect, arguments) }) as c_int
}

/// `sendto(2)`.
///
/// # Safety
/// The pointers must be valid, as for `sendto(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendto(
    fd: c_int,
    data: *const c_void,
    size: usize,
    flags: c_int,
    address: *const sockaddr,
    length: socklen_t,
) -> isize {
    let (mut flags, mut address, mut length) = (flags, address, length);
    if !address.is_null() && needs_decision(flags) {
        // SAFETY: the caller guarantees valid arguments.
        let bytes = unsafe { bytes_of(address.cast(), length) };
        match decide(fd, flags, bytes, Call::Send).0 {
            Decision::Pass => {}
            Decision::Done(0) => {
                (flags, address, length) = (flags & !MSG_FASTOPEN, std::ptr::null(), 0);
            }
            Decision::Done(errno) => return failed(errno) as isize,
        }
    }
    real!(c"sendto" as fn(c_int, *const c_void, usize, c_int, *const sockaddr, socklen_t) -> isize;
        fd, data, size, flags, address, length)
}

/// `sendmsg(2)`.
///
/// # Safety
/// `message` must point to a valid `msghdr`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    if needs_decision(flags) && !message.is_null() {
        // SAFETY: the caller guarantees valid arguments.
        let mut copy = unsafe { *message };
        // SAFETY: the caller guarantees valid arguments.
        let bytes = unsafe { bytes_of(copy.msg_name, copy.msg_namelen) };
        match decide(fd, flags, bytes, Call::Send).0 {
            Decision::Pass => {}
            Decision::Done(0) => {
                (copy.msg_name, copy.msg_namelen) = (std::ptr::null_mut(), 0);
                let flags = flags & !MSG_FASTOPEN;
                return real!(c"sendmsg" as fn(c_int, *const msghdr, c_int) -> isize;
                    fd, &raw const copy, flags);
            }
            Decision::Done(errno) => return failed(errno) as isize,
        }
    }
    real!(c"sendmsg" as fn(c_int, *const msghdr, c_int) -> isize; fd, message, flags)
}

/// `sendmmsg(2)`.
///
/// # Safety
/// `messages` must point to `count` valid messages.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    let mut flags = flags;
    if needs_decision(flags) && !messages.is_null() {
        for n in 0..count as usize {
            // SAFETY: the caller guarantees valid arguments.
            let header = unsafe { &(*messages.add(n)).msg_hdr };
            // SAFETY: the caller guarantees valid arguments.
            let bytes = unsafe { bytes_of(header.msg_name, header.msg_namelen) };
            match decide(fd, flags, bytes, Call::Send).0 {
                Decision::Pass => {}
                // The first message has connected the socket; the others are plain data.
                Decision::Done(0) => {
                    flags &= !MSG_FASTOPEN;
                    break;
                }
                Decision::Done(errno) => return failed(errno),
            }
        }
    }
    real!(c"sendmmsg" as fn(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
        fd, messages, count, flags)
}

/// `syscall(2)`. The socket calls that this library defines are passed to its functions. C passes
/// variable arguments in the same registers as the arguments of a function with seven parameters.
///
/// # Safety
/// As for the call `number`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let fd = a as c_int;
    // SAFETY: the caller guarantees valid arguments.
    unsafe {
        match number {
            libc::SYS_socket => socket(fd, b as c_int, c as c_int) as c_long,
            libc::SYS_connect => connect(fd, b as *const _, c as socklen_t) as c_long,
            libc::SYS_getpeername => getpeername(fd, b as *mut _, c as *mut _) as c_long,
            libc::SYS_getsockname => getsockname(fd, b as *mut _, c as *mut _) as c_long,
            libc::SYS_getsockopt => {
                getsockopt(fd, b as c_int, c as c_int, d as *mut _, e as *mut _) as c_long
            }
            libc::SYS_sendto => {
                sendto(fd, b as *const _, c, d as c_int, e as *const _, f as socklen_t) as c_long
            }
            libc::SYS_sendmsg => sendmsg(fd, b as *const _, c as c_int) as c_long,
            libc::SYS_sendmmsg => sendmmsg(fd, b as *mut _, c as c_uint, d as c_int) as c_long,
            // io_uring would bypass this library. Programs that use io_uring have a fallback.
            libc::SYS_io_uring_setup
                if matches!(state(), Wrapped::By(_) | Wrapped::Unreachable) =>
            {
                failed(libc::ENOSYS) as c_long
            }
            _ => returned(raw::call(number, [a, b, c, d, e, f])) as c_long,
        }
    }
}

fn socket_of(fd: c_int) -> Option<Socket> {
    let ask = |name| raw::option::<c_int>(fd, libc::SOL_SOCKET, name);
    Some(Socket {
        domain: ask(libc::SO_DOMAIN)?,
        kind: ask(libc::SO_TYPE)?,
        protocol: ask(libc::SO_PROTOCOL)?,
    })
}

/// Returns the first `length` bytes at `at`, at most `SOCKADDR`, because no address of interest is
/// longer. Empty if `at` is null or the kernel refuses this length.
///
/// # Safety
/// `at` must be null or point to `length` bytes.
unsafe fn bytes_of<'a>(at: *const c_void, length: socklen_t) -> &'a [u8] {
    let length = length as usize;
    if at.is_null() || length > LONGEST {
        return &[];
    }
    // SAFETY: the caller guarantees valid arguments.
    unsafe { std::slice::from_raw_parts(at.cast(), SOCKADDR.min(length)) }
}

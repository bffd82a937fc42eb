//! Calls that return a socket's addresses or its error.

use std::ffi::{c_int, c_long, c_void};

use libc::{sockaddr, socklen_t};
use viaduct_wrap::wire::{Answer, Request};
use viaduct_wrap::{Errno, SOCKADDR, Sockaddr, Socket, parse_sockaddr};

use super::socket_of;
use crate::raw::{self, returned};
use crate::state::{State, Wrapped, state};

/// `getpeername(2)`.
///
/// # Safety
/// `address` must point to `*length` writable bytes, and `length` must be writable.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller guarantees valid pointers.
    unsafe { name(libc::SYS_getpeername, fd, address, length) }
}

/// `getsockname(2)`.
///
/// # Safety
/// `address` must point to `*length` writable bytes, and `length` must be writable.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getsockname(
    fd: c_int,
    address: *mut sockaddr,
    length: *mut socklen_t,
) -> c_int {
    // SAFETY: the caller guarantees valid pointers.
    unsafe { name(libc::SYS_getsockname, fd, address, length) }
}

/// `getsockopt(2)`.
///
/// # Safety
/// `value` must point to `*length` writable bytes, and `length` must be writable.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    // The master answers calls for these two options, because a listening socket has them set even
    // if the program has not set them.
    let shares = matches!(option, libc::SO_REUSEADDR | libc::SO_REUSEPORT);
    let word = match state() {
        Wrapped::By(state) if !(level == libc::SOL_SOCKET && shares) => state.word,
        _ => 0,
    };
    let is_error = (level, option) == (libc::SOL_SOCKET, libc::SO_ERROR);
    // The master is asked before the kernel: if the kernel already has an error at that time, the
    // master knows the reason.
    let refusal = if is_error { refusal(fd) } else { Ok(None) };
    // Without the word, seccomp reports the call to the master, which answers it.
    let word = if refusal.is_err() { 0 } else { word };
    let at = [value as usize, length as usize];
    let arguments = [fd as usize, level as usize, option as usize, at[0], at[1], word as usize];
    // SAFETY: the caller guarantees valid pointers.
    let result = unsafe { raw::call(libc::SYS_getsockopt, arguments) };
    if result == 0
        && let Ok(Some(errno)) = refusal
    {
        // SAFETY: the kernel has just written the value, up to `*length` bytes.
        unsafe {
            let room = size_of::<c_int>().min(*length as usize);
            let mut own = [0u8; size_of::<c_int>()];
            std::ptr::copy_nonoverlapping(value.cast(), own.as_mut_ptr(), room);
            // A value of 0 means that the program has already read the error by another call.
            if own != [0; size_of::<c_int>()] {
                std::ptr::copy_nonoverlapping((&raw const errno).cast::<u8>(), value.cast(), room);
            }
        }
    }
    returned(result) as c_int
}

/// Returns the master's error for this socket's flow; `None` if the flow has not failed. Fails if
/// no descriptor is left.
fn refusal(fd: c_int) -> Result<Option<c_int>, c_int> {
    let Wrapped::By(state) = state() else { return Ok(None) };
    if peer_of(fd, state.word).is_some() || !socket_of(fd).is_some_and(Socket::is_of_ip) {
        return Ok(None);
    }
    let Some(cookie) = raw::option(fd, libc::SOL_SOCKET, libc::SO_COOKIE) else {
        return Ok(None);
    };
    match crate::ask::ask(state, &Request::Error { cookie }, None) {
        Ok(Answer::Done(errno)) if errno != Errno::NONE => Ok(Some(errno.0)),
        Err(errno) if crate::ask::is_full(errno) => Err(errno),
        _ => Ok(None),
    }
}

/// Returns the kernel's address of a socket's peer, and its length; `None` if not connected.
fn peer_of(fd: c_int, word: u64) -> Option<([u8; SOCKADDR], usize)> {
    let (mut bytes, mut length) = ([0u8; SOCKADDR], SOCKADDR as socklen_t);
    let [at, size] = [bytes.as_mut_ptr() as usize, (&raw mut length) as usize];
    let arguments = [fd as usize, at, size, word as usize, 0, 0];
    // SAFETY: the kernel writes at most `length` bytes, to memory that lives through the call.
    let connected = unsafe { raw::call(libc::SYS_getpeername, arguments) } == 0;
    connected.then_some((bytes, length as usize))
}

/// Returns an address of the socket: the master's answer if the socket belongs to a flow, and
/// otherwise the kernel's.
///
/// # Safety
/// `address` must point to `*length` writable bytes, and `length` must be writable.
unsafe fn name(call: c_long, fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int {
    let mut word = if let Wrapped::By(state) = state() { state.word } else { 0 };
    let flow = flow_name(call, fd);
    if flow.is_err() {
        // Without the word, seccomp reports the call to the master, which answers it.
        word = 0;
    }
    if let Ok(Some((bytes, size))) = flow
        && !address.is_null()
        && !length.is_null()
    {
        // SAFETY: the caller guarantees valid pointers; at most `*length` bytes are written.
        unsafe {
            let room = size.min(*length as usize);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), address.cast(), room);
            *length = size as socklen_t;
        }
        return 0;
    }
    let arguments = [fd as usize, address as usize, length as usize, word as usize, 0, 0];
    // SAFETY: the caller guarantees valid pointers.
    returned(unsafe { raw::call(call, arguments) }) as c_int
}

/// Returns the address of a socket that belongs to a flow; `None` for any other socket. Fails if
/// this process has no descriptor left for the request.
fn flow_name(call: c_long, fd: c_int) -> Result<Option<([u8; SOCKADDR], usize)>, c_int> {
    let Some((state, socket, cookie)) = flow_of(fd) else { return Ok(None) };
    match crate::ask::ask(state, &Request::Names { cookie }, None) {
        Ok(Answer::Named { peer, own }) => {
            let name = if call == libc::SYS_getpeername { peer } else { own };
            Ok(name.map(|name| socket.sockaddr(name)))
        }
        Err(errno) if crate::ask::is_full(errno) => Err(errno),
        _ => Ok(None),
    }
}

/// Returns the state from the master, the socket and its cookie, if the socket belongs to a flow.
fn flow_of(fd: c_int) -> Option<(&'static State, Socket, u64)> {
    let Wrapped::By(state) = state() else { return None };
    let (bytes, length) = peer_of(fd, state.word)?;
    let Sockaddr::Ip(peer) = parse_sockaddr(bytes.get(..length)?) else { return None };
    if !state.welcome.rendezvous.contains(&Some(peer)) {
        return None;
    }
    Some((state, socket_of(fd)?, raw::option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)?))
}

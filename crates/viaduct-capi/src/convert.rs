//! Conversion of C values.
#![allow(unsafe_code)] // C pointers

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};

use viaduct_trickles::PortError;

/// Returns the `length` bytes at `data`; none if `data` is null.
///
/// # Safety
/// Either `data` is null, or `length` bytes at `data` are readable and not modified during `'a`.
pub(crate) unsafe fn bytes<'a>(data: *const u8, length: usize) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: the caller upholds the safety section above.
    unsafe { std::slice::from_raw_parts(data, length) }
}

/// Returns the `count` values at `first`; none if `first` is null or `count` is negative.
///
/// # Safety
/// Either `first` is null, or `count` values at `first` are aligned, readable and not modified
/// during `'a`.
pub(crate) unsafe fn list<'a, T>(first: *const T, count: c_int) -> &'a [T] {
    match usize::try_from(count) {
        // SAFETY: the caller upholds the safety section above.
        Ok(count) if !first.is_null() => unsafe { std::slice::from_raw_parts(first, count) },
        _ => &[],
    }
}

/// Returns the `count` values at `first` for writing; none if `first` is null or `count` is
/// negative.
///
/// # Safety
/// Either `first` is null, or `count` values at `first` are aligned, readable and writable, and
/// nothing else accesses them during `'a`.
pub(crate) unsafe fn values<'a, T>(first: *mut T, count: c_int) -> &'a mut [T] {
    match usize::try_from(count) {
        // SAFETY: the caller upholds the safety section above.
        Ok(count) if !first.is_null() => unsafe { std::slice::from_raw_parts_mut(first, count) },
        _ => &mut [],
    }
}

/// Returns the string at `text`; `None` if it is null or not UTF-8.
///
/// # Safety
/// `text` is null, or points to a NUL-terminated string that is readable and not modified during
/// `'a`.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Option<&'a str> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller upholds the safety section above.
    unsafe { CStr::from_ptr(text) }.to_str().ok()
}

/// Resolves the addresses in a list such as `[::]:80,0.0.0.0:80`; names are allowed.
pub(crate) fn addresses(text: &str) -> io::Result<Vec<SocketAddr>> {
    let all = text.split(',').map(|one| one.trim().to_socket_addrs());
    Ok(all.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
}

/// Converts a count to the result of a C function; saturates.
pub(crate) fn count(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// Converts an error to `-errno`.
pub(crate) fn code(error: &io::Error) -> c_int {
    -error.raw_os_error().unwrap_or(libc::EIO)
}

/// Converts the reason why a Trickles port (not a TCP or UDP port) could not be opened to `-errno`.
pub(crate) fn port_code(error: &PortError) -> c_int {
    match error {
        PortError::Socket { source, .. } => code(source),
        PortError::NoAddress | PortError::Mtu(_) => -libc::EINVAL,
        PortError::Rules(_) if error.is_privilege() => -libc::EPERM,
        PortError::Rules(_) => -libc::EADDRINUSE,
    }
}

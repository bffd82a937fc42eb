//! Addresses in the kernel's format.
#![allow(unsafe_code)]

use std::net::SocketAddr;
use std::ptr;

use rustix::net::SocketAddrAny;

/// Converts an address that the kernel has stored; `None` if it is not an IP address.
pub(crate) fn address(from: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let length = size_of_val(from) as libc::socklen_t;
    // SAFETY: the storage is initialised, and its family tells which address it holds, if any.
    let address = unsafe { SocketAddrAny::read(ptr::from_ref(from).cast(), length) };
    address.try_into().ok()
}

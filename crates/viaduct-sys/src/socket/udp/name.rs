//! Addresses in the kernel's format.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::net::{SocketAddr, SocketAddrV6};
use std::{mem, ptr};

/// An address in the kernel's format.
pub(crate) struct Name {
    pub(crate) storage: libc::sockaddr_storage,
    pub(crate) length: libc::socklen_t,
}

impl Name {
    pub(crate) fn new(address: SocketAddr) -> Name {
        // SAFETY: all zeros are a valid `sockaddr_storage`.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let length = match address {
            SocketAddr::V4(v4) => {
                // SAFETY: all zeros are a valid `sockaddr_in`.
                let mut name: libc::sockaddr_in = unsafe { mem::zeroed() };
                name.sin_family = libc::AF_INET as libc::sa_family_t;
                name.sin_port = v4.port().to_be();
                name.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                // SAFETY: the storage is large enough and aligned for every kind of address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(name) };
                size_of_val(&name)
            }
            SocketAddr::V6(v6) => {
                // SAFETY: all zeros are a valid `sockaddr_in6`.
                let mut name: libc::sockaddr_in6 = unsafe { mem::zeroed() };
                name.sin6_family = libc::AF_INET6 as libc::sa_family_t;
                name.sin6_port = v6.port().to_be();
                name.sin6_addr.s6_addr = v6.ip().octets();
                name.sin6_flowinfo = v6.flowinfo();
                name.sin6_scope_id = v6.scope_id();
                // SAFETY: the storage is large enough and aligned for every kind of address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(name) };
                size_of_val(&name)
            }
        };
        Name { storage, length: length as libc::socklen_t }
    }
}

/// Parses an address that the kernel has written.
pub(crate) fn address(from: &libc::sockaddr_storage) -> Option<SocketAddr> {
    match c_int::from(from.ss_family) {
        libc::AF_INET => {
            // SAFETY: the storage is large enough and aligned for every kind of address, and the
            // family tells that it holds this one.
            let name = unsafe { ptr::from_ref(from).cast::<libc::sockaddr_in>().read() };
            let ip = name.sin_addr.s_addr.to_ne_bytes();
            Some((ip, u16::from_be(name.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let name = unsafe { ptr::from_ref(from).cast::<libc::sockaddr_in6>().read() };
            let (ip, port) = (name.sin6_addr.s6_addr.into(), u16::from_be(name.sin6_port));
            let scope = name.sin6_scope_id;
            Some(SocketAddrV6::new(ip, port, name.sin6_flowinfo, scope).into())
        }
        _ => None,
    }
}

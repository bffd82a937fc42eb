//! Messages in the kernel's format: destination, payload, segment length.

use std::ffi::{c_int, c_void};
use std::io::IoSlice;
use std::net::{SocketAddr, SocketAddrV6};
use std::{mem, ptr};

/// Control space for one 16-bit number, in words that align it.
const CONTROL_WORDS: usize = 3;

/// An address in the kernel's format.
pub(crate) struct Name {
    pub(crate) storage: libc::sockaddr_storage,
    pub(crate) length: libc::socklen_t,
}

impl Name {
    pub(crate) fn new(address: SocketAddr) -> Name {
        // SAFETY: all zeros is a `sockaddr_storage`.
        let mut storage: libc::sockaddr_storage = unsafe { mem::zeroed() };
        let length = match address {
            SocketAddr::V4(v4) => {
                // SAFETY: all zeros is a `sockaddr_in`.
                let mut name: libc::sockaddr_in = unsafe { mem::zeroed() };
                name.sin_family = libc::AF_INET as libc::sa_family_t;
                name.sin_port = v4.port().to_be();
                name.sin_addr.s_addr = u32::from_ne_bytes(v4.ip().octets());
                // SAFETY: the storage is large enough and aligned for every kind of address.
                unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(name) };
                size_of_val(&name)
            }
            SocketAddr::V6(v6) => {
                // SAFETY: all zeros is a `sockaddr_in6`.
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
            // family says that it is this one.
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

/// Builds the control message with the segment length.
pub(super) fn segment_control(length: u16) -> [u64; CONTROL_WORDS] {
    let mut words = [0; CONTROL_WORDS];
    // SAFETY: takes no pointers.
    let cmsg_len = unsafe { libc::CMSG_LEN(size_of::<u16>() as u32) } as _;
    let head = libc::cmsghdr { cmsg_len, cmsg_level: libc::SOL_UDP, cmsg_type: libc::UDP_SEGMENT };
    // SAFETY: `words` has room for the header and the number (asserted below) and is aligned.
    unsafe {
        let head_at = words.as_mut_ptr().cast::<libc::cmsghdr>();
        head_at.write(head);
        libc::CMSG_DATA(head_at).cast::<u16>().write_unaligned(length);
    }
    words
}

const _: () = assert!(size_of::<libc::cmsghdr>() + size_of::<u16>() <= CONTROL_WORDS * 8);

/// Builds a message of the slices, with the control words if there is more than one.
pub(super) fn header(
    name: &mut Name,
    slices: &[IoSlice<'_>],
    control: &mut [u64; CONTROL_WORDS],
) -> libc::mmsghdr {
    // SAFETY: all zeros is a `mmsghdr` that points nowhere.
    let mut message: libc::mmsghdr = unsafe { mem::zeroed() };
    let header = &mut message.msg_hdr;
    header.msg_name = ptr::from_mut(&mut name.storage).cast::<c_void>();
    header.msg_namelen = name.length;
    // The kernel only reads the slices; `IoSlice` is an `iovec`, as its documentation
    // guarantees.
    header.msg_iov = slices.as_ptr().cast_mut().cast();
    header.msg_iovlen = slices.len() as _;
    if slices.len() > 1 {
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: takes no pointers.
        header.msg_controllen = unsafe { libc::CMSG_SPACE(size_of::<u16>() as c_int as u32) } as _;
    }
    message
}

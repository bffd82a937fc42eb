//! A program's send, made on a duplicate of its socket with a copy of its message.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// A message that a program sends, read from its memory.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// Destination in the kernel's format; empty if there is none.
    pub sockaddr: Vec<u8>,
    /// Payload.
    pub data: Vec<u8>,
    /// Control messages in the kernel's format.
    pub control: Vec<u8>,
}

/// Sends `message` without blocking. Returns the number of bytes sent. Errors: those of
/// `sendmsg(2)`, including `EAGAIN`.
pub fn sendmsg(socket: &OwnedFd, message: &Message, flags: i32) -> io::Result<usize> {
    let Message { sockaddr, data, control } = message;
    // No `MSG_ZEROCOPY`, as the data is a temporary copy.
    let flags = flags & !libc::MSG_ZEROCOPY | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // Control messages have to be aligned to 8 bytes.
    let mut aligned = vec![0u64; control.len().div_ceil(8)];
    let mut piece = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: all zeros are a `msghdr` with null pointers.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    if !sockaddr.is_empty() {
        header.msg_name = sockaddr.as_ptr().cast_mut().cast();
        header.msg_namelen = sockaddr.len() as _;
    }
    if !control.is_empty() {
        // SAFETY: `aligned` has at least the length of `control`.
        unsafe {
            let to = aligned.as_mut_ptr().cast::<u8>();
            std::ptr::copy_nonoverlapping(control.as_ptr(), to, control.len());
        }
        header.msg_control = aligned.as_mut_ptr().cast();
        header.msg_controllen = control.len() as _;
    }
    // SAFETY: the kernel reads the message and what it points to, all of which live through the
    // call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

//! A program's send, done for it on a duplicate of its socket, with a copy of what it said.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// A message that a program has sent, as it was read from its memory.
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// The address that it goes to, as the kernel reads it; empty if it has none.
    pub sockaddr: Vec<u8>,
    /// Its bytes.
    pub data: Vec<u8>,
    /// Its control messages, as the kernel reads them.
    pub control: Vec<u8>,
}

/// Sends `message` without waiting; how many bytes have gone.
///
/// # Errors
/// What the kernel says; `EAGAIN` where it would have waited.
pub fn send_for(socket: &OwnedFd, message: &Message, flags: i32) -> io::Result<usize> {
    let Message { sockaddr, data, control } = message;
    // What it sends is a copy that does not stay.
    let flags = flags & !libc::MSG_ZEROCOPY | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // Control messages begin where numbers of 8 bytes may.
    let mut aligned = vec![0u64; control.len().div_ceil(8)];
    let mut piece = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: all zeros is a message that points nowhere.
    let mut header: libc::msghdr = unsafe { mem::zeroed() };
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    if !sockaddr.is_empty() {
        header.msg_name = sockaddr.as_ptr().cast_mut().cast();
        header.msg_namelen = sockaddr.len() as _;
    }
    if !control.is_empty() {
        // SAFETY: there is as much room as is copied.
        unsafe {
            let to = aligned.as_mut_ptr().cast::<u8>();
            std::ptr::copy_nonoverlapping(control.as_ptr(), to, control.len());
        }
        header.msg_control = aligned.as_mut_ptr().cast();
        header.msg_controllen = control.len() as _;
    }
    // SAFETY: the kernel reads the message and what it points to, all of which live through the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, flags) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

//! Control messages (`cmsg(3)`), sent and received.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::slice;

use crate::os::Plain;

/// Sizes of the control buffers to send and receive, in words of 8 bytes for alignment.
const SENT_WORDS: usize = 8;
const RECEIVED_WORDS: usize = 32;

/// Control messages to send, at most two: an address (20 bytes) and a number, or two numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Controls {
    words: [u64; SENT_WORDS],
    length: usize,
}

impl Controls {
    pub(crate) fn push<T: Plain>(&mut self, level: c_int, kind: c_int, value: T) {
        let size = size_of::<T>() as u32;
        // SAFETY: takes no pointers.
        let (length, space) = unsafe { (libc::CMSG_LEN(size), libc::CMSG_SPACE(size) as usize) };
        assert!(self.length + space <= size_of_val(&self.words), "more than two control messages");
        // SAFETY: there is room for a header and the value, as asserted. The header is aligned,
        // because the space of each message is a multiple of a word.
        unsafe {
            let at = self.words.as_mut_ptr().byte_add(self.length).cast::<libc::cmsghdr>();
            at.write(libc::cmsghdr { cmsg_len: length as _, cmsg_level: level, cmsg_type: kind });
            libc::CMSG_DATA(at).cast::<T>().write_unaligned(value);
        }
        self.length += space;
    }

    /// Makes the message `header` point to the control messages.
    pub(crate) fn attach(&mut self, header: &mut libc::msghdr) {
        if self.length > 0 {
            header.msg_control = self.words.as_mut_ptr().cast();
            header.msg_controllen = self.length as _;
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Control<'a> {
    /// Level and type.
    pub(crate) kind: (c_int, c_int),
    data: &'a [u8],
}

impl Control<'_> {
    /// Returns the value; `None` if the data is shorter than a `T`.
    pub(crate) fn value<T: Plain>(&self) -> Option<T> {
        let at = self.data.as_ptr().cast::<T>();
        // SAFETY: the data has at least the size of a `T`, for which every bit pattern is valid.
        (self.data.len() >= size_of::<T>()).then(|| unsafe { at.read_unaligned() })
    }
}

/// Iterates over the control messages of a received message.
///
/// # Safety
/// The kernel must have filled in the header, and the control buffer must live as long as the
/// header.
pub(crate) unsafe fn controls(header: &libc::msghdr) -> impl Iterator<Item = Control<'_>> {
    // SAFETY: the caller guarantees a valid header.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    std::iter::from_fn(move || {
        // SAFETY: the macros return null, or a header that is within the control buffer with its
        // data.
        unsafe {
            let head = at.as_ref()?;
            let length = head.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let data = slice::from_raw_parts(libc::CMSG_DATA(at), length);
            at = libc::CMSG_NXTHDR(header, at);
            Some(Control { kind: (head.cmsg_level, head.cmsg_type), data })
        }
    })
}

/// Receives a message into `bytes`, and passes its control messages to `control`. Returns the
/// message's length, and its sender in the kernel's format. Errors: those of `recvmsg(2)`.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: c_int,
    control: impl FnMut(Control<'_>),
) -> io::Result<(usize, libc::sockaddr_storage)> {
    // SAFETY: all zeros are a valid `sockaddr_storage`, and a `msghdr` with null pointers.
    let (mut name, mut message): (libc::sockaddr_storage, libc::msghdr) =
        unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut words = [0u64; RECEIVED_WORDS];
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of_val(&name) as _;
    (message.msg_iov, message.msg_iovlen) = (&raw mut piece, 1);
    message.msg_control = words.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&words) as _;
    // SAFETY: the kernel writes to the address, the words and `bytes`, which live through the call
    // and have the lengths that are given in the message.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled in the message, and the control buffer still lives.
    unsafe { controls(&message) }.for_each(control);
    Ok((got, name))
}

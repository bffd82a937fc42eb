//! Control messages (`cmsg(3)`): those of a message to send, and those of a received one.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::slice;

use crate::os::Plain;

/// Room for the control messages of a message, in words that align them: to send, to receive.
const SENT_WORDS: usize = 8;
const RECEIVED_WORDS: usize = 32;

/// Control messages to send: one with an address (20 bytes) and one with a number, or two numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Controls {
    words: [u64; SENT_WORDS],
    length: usize,
}

impl Controls {
    /// Adds a control message.
    pub(crate) fn push<T: Plain>(&mut self, level: c_int, kind: c_int, value: T) {
        let size = size_of::<T>() as u32;
        // SAFETY: takes no pointers.
        let (length, space) = unsafe { (libc::CMSG_LEN(size), libc::CMSG_SPACE(size) as usize) };
        assert!(self.length + space <= size_of_val(&self.words), "room for two messages");
        // SAFETY: there is room for a header and the value, as asserted, and the words align the
        // header, as the length of each message is a multiple of theirs.
        unsafe {
            let at = self.words.as_mut_ptr().byte_add(self.length).cast::<libc::cmsghdr>();
            at.write(libc::cmsghdr { cmsg_len: length as _, cmsg_level: level, cmsg_type: kind });
            libc::CMSG_DATA(at).cast::<T>().write_unaligned(value);
        }
        self.length += space;
    }

    /// Makes a message point to these.
    pub(crate) fn attach(&mut self, header: &mut libc::msghdr) {
        if self.length > 0 {
            header.msg_control = self.words.as_mut_ptr().cast();
            header.msg_controllen = self.length as _;
        }
    }
}

/// A received control message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Control<'a> {
    /// Level and type.
    pub(crate) kind: (c_int, c_int),
    data: &'a [u8],
}

impl Control<'_> {
    /// Returns the value; `None` if it is shorter than that.
    pub(crate) fn value<T: Plain>(&self) -> Option<T> {
        let at = self.data.as_ptr().cast::<T>();
        // SAFETY: the data has the bytes of a `T`, and any bytes are one.
        (self.data.len() >= size_of::<T>()).then(|| unsafe { at.read_unaligned() })
    }
}

/// Iterates over the control messages of a received message.
///
/// # Safety
/// The kernel has filled in the header, and its control words live as long.
pub(crate) unsafe fn controls(header: &libc::msghdr) -> impl Iterator<Item = Control<'_>> {
    // SAFETY: the caller's promise.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(header) };
    std::iter::from_fn(move || {
        // SAFETY: the macros return a whole header within the control words, with its data, or
        // null.
        unsafe {
            let head = at.as_ref()?;
            let length = head.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
            let data = slice::from_raw_parts(libc::CMSG_DATA(at), length);
            at = libc::CMSG_NXTHDR(header, at);
            Some(Control { kind: (head.cmsg_level, head.cmsg_type), data })
        }
    })
}

/// Receives a message into `bytes`, and passes its control messages to `control`. Returns its
/// length, and its sender in the kernel's format.
///
/// # Errors
/// The kernel's.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: c_int,
    control: impl FnMut(Control<'_>),
) -> io::Result<(usize, libc::sockaddr_storage)> {
    // SAFETY: all zeros is an address, and a message that points nowhere.
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
    // and are as long as the message says.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the kernel has filled it in, and the words live.
    unsafe { controls(&message) }.for_each(control);
    Ok((got, name))
}

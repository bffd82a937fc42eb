//! Which packets the tap is shown: programs in classic BPF that the kernel runs on every packet
//! before it copies it.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::os;

/// One instruction of classic BPF, as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BpfInsn {
    /// What to do.
    pub code: u16,
    /// Instructions to skip if a test holds.
    pub jt: u8,
    /// Instructions to skip if it does not.
    pub jf: u8,
    /// The operand.
    pub k: u32,
}

/// Puts `program` in place of the socket's filter, in one step.
///
/// # Errors
/// `EINVAL` for a malformed or empty program, `ENOMEM` for one that is too long for the socket.
pub fn attach(socket: BorrowedFd<'_>, program: &[BpfInsn]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    // The kernel only reads it: the cast away from const is the C interface's.
    let fprog = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    let length = size_of::<libc::sock_fprog>() as libc::socklen_t;
    // SAFETY: `BpfInsn` has the layout of `sock_filter`; the kernel reads `len` of them, and
    // `fprog` and `program` live through the call, which copies both.
    os::check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const fprog).cast(),
            length,
        )
    })
}

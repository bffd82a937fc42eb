//! Requests to the master, with a connection for each request and its answer.

use std::ffi::c_int;

use viaduct_wrap::wire::{Answer, Request, WELCOME};

use crate::raw;
use crate::state::State;

/// Seconds that the library waits for the master's answer beyond the program's time limit.
const SLACK: i64 = 10;

/// Sends a request with the descriptor `attached`, and waits for the answer. Errors: the `errno`
/// for the program's call, for example because a signal has arrived, the program's time limit has
/// passed, or the master has ended.
pub(crate) fn ask(
    state: &State,
    request: &Request,
    attached: Option<c_int>,
) -> Result<Answer, c_int> {
    let socket = Socket::connect(state.name(), state.word)?;
    socket.send([state.secret.bytes(), &request.emit()], attached)?;
    let mut bytes = [0; WELCOME];
    if let Some([seconds, micros]) = attached.and_then(send_limit) {
        // The master enforces the limit. This socket also has a timeout, so that the kernel does
        // not restart the wait after a signal (signal(7)), just as it would not restart the
        // program's call.
        socket.limit(&[seconds.saturating_add(SLACK), micros]);
    }
    let length = socket.receive(&mut bytes)?;
    Answer::parse(&bytes[..length]).ok_or(libc::ENETUNREACH)
}

/// Returns whether a request failed because the process or the system has no descriptor left.
pub(crate) fn is_full(errno: c_int) -> bool {
    matches!(errno, libc::EMFILE | libc::ENFILE)
}

pub(crate) fn notify(state: &State, request: &Request) {
    // If this fails, the master has ended, and no longer needs the report.
    let _ = Socket::connect(state.name(), state.word)
        .and_then(|socket| socket.send([state.secret.bytes(), &request.emit()], None));
}

/// Returns the time limit of the program's calls on this socket, if the program has set one.
fn send_limit(fd: c_int) -> Option<[i64; 2]> {
    let limit: [i64; 2] = raw::option(fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO)?;
    (limit != [0; 2]).then_some(limit)
}

struct Socket(c_int);

impl Socket {
    fn connect(name: &[u8], word: u64) -> Result<Socket, c_int> {
        let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
        let arguments = [libc::AF_UNIX as usize, kind as usize, 0, word as usize, 0, 0];
        // SAFETY: the call takes no pointers.
        let fd = checked(unsafe { raw::call(libc::SYS_socket, arguments) })?;
        let socket = Socket(fd as c_int);
        // SAFETY: all zeros are a valid `sockaddr_un`.
        let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as u16;
        for (to, from) in address.sun_path.iter_mut().zip(name) {
            *to = from.cast_signed() as _;
        }
        if name.first() == Some(&b'@') {
            address.sun_path[0] = 0;
        }
        let length = 2 + name.len().min(address.sun_path.len() - 1);
        let at = (&raw const address) as usize;
        // SAFETY: the kernel reads `length` bytes of the address, which lives through the call.
        let done =
            unsafe { raw::call(libc::SYS_connect, [fd as usize, at, length, word as usize, 0, 0]) };
        checked(done).map_err(|_| libc::ENETUNREACH)?;
        Ok(socket)
    }

    fn send(&self, pieces: [&[u8]; 2], attached: Option<c_int>) -> Result<(), c_int> {
        #[repr(C)]
        struct Control {
            head: libc::cmsghdr,
            fd: c_int,
            padding: c_int,
        }
        // SAFETY: all zeros are a valid `cmsghdr`, even in C libraries whose structure has padding.
        let mut control = Control { head: unsafe { std::mem::zeroed() }, fd: 0, padding: 0 };
        control.head.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<c_int>()) as _;
        control.head.cmsg_level = libc::SOL_SOCKET;
        control.head.cmsg_type = libc::SCM_RIGHTS;
        let mut pieces = pieces.map(|bytes| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        });
        // SAFETY: all zeros are a `msghdr` with null pointers.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = pieces.len() as _;
        if let Some(fd) = attached {
            control.fd = fd;
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = size_of::<Control>() as _;
        }
        let flags = libc::MSG_NOSIGNAL as usize;
        let at = (&raw const message) as usize;
        // SAFETY: the kernel reads the message and what it points to, all of which live through the
        // call.
        checked(unsafe { raw::call(libc::SYS_sendmsg, [self.0 as usize, at, flags, 0, 0, 0]) })
            .map(drop)
            .map_err(|_| libc::ENETUNREACH)
    }

    fn limit(&self, limit: &[i64; 2]) {
        let (level, name) = (libc::SOL_SOCKET as usize, libc::SO_RCVTIMEO as usize);
        let at = (&raw const *limit) as usize;
        // SAFETY: the kernel reads the limit, which lives through the call.
        unsafe { raw::call(libc::SYS_setsockopt, [self.0 as usize, level, name, at, 16, 0]) };
    }

    fn receive(&self, bytes: &mut [u8; WELCOME]) -> Result<usize, c_int> {
        let at = bytes.as_mut_ptr() as usize;
        let arguments = [self.0 as usize, at, WELCOME, 0, 0, 0];
        // SAFETY: the kernel writes at most the length of `bytes`, which live through the call.
        let length = checked(unsafe { raw::call(libc::SYS_recvfrom, arguments) })?;
        if length == 0 { Err(libc::ECONNRESET) } else { Ok(length as usize) }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        raw::close(self.0);
    }
}

/// Converts a kernel result below 0 to an error number. `EAGAIN` means that the program's time
/// limit has passed, and becomes `EINPROGRESS`, because the connect continues.
fn checked(result: isize) -> Result<isize, c_int> {
    match -result as c_int {
        libc::EAGAIN if result < 0 => Err(libc::EINPROGRESS),
        errno if result < 0 => Err(errno),
        _ => Ok(result),
    }
}

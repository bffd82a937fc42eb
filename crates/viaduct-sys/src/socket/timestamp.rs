//! Receive timestamps: the kernel's time at which a datagram reached this machine's network
//! stack. The delay until its reader is scheduled does not count.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;
use std::time::{Duration, SystemTime};

use crate::os;

/// Enables receive timestamps on `socket` (`SO_TIMESTAMPNS`). If no other socket of the machine
/// has enabled them before, they begin some milliseconds later; until then they are the time of
/// reading.
pub fn enable(socket: impl AsFd) -> io::Result<()> {
    os::setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)
}

/// Receives a datagram and the time of its arrival. Needs [`enable`] before; a datagram without
/// a timestamp is `InvalidData`.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, SystemTime)> {
    receive_from(socket, buffer, None)
}

/// Receives like [`receive`]; writes the sender's address to `from`.
pub(crate) fn receive_from(
    socket: impl AsFd,
    buffer: &mut [u8],
    from: Option<&mut libc::sockaddr_storage>,
) -> io::Result<(usize, SystemTime)> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = [0u64; 16];
    // SAFETY: every field of msghdr is an integer or a pointer, for which zero is a value.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    if let Some(from) = from {
        message.msg_namelen = size_of_val(from) as libc::socklen_t;
        message.msg_name = ptr::from_mut(from).cast();
    }
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: `message` points to `part`, `control` and perhaps `from`, and `part` to `buffer`, all
    // live and writable for the lengths given.
    let length = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    let timestamp = timestamp_of(&message).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, "a datagram without a time stamp")
    })?;
    Ok((length, timestamp))
}

fn timestamp_of(message: &libc::msghdr) -> Option<SystemTime> {
    // SAFETY: `message` is as recvmsg filled it in, with its control buffer alive and aligned;
    // a header found there is followed by the data that its level and type name.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message).as_ref()?;
        if (header.cmsg_level, header.cmsg_type) != (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            return None;
        }
        let time: libc::timespec =
            libc::CMSG_DATA(header).cast::<libc::timespec>().read_unaligned();
        let since = Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).ok()?);
        Some(SystemTime::UNIX_EPOCH + since)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_stamp_tells_the_arrival_and_not_the_reading() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        enable(&socket).unwrap();
        std::thread::sleep(Duration::from_millis(200));
        let before = SystemTime::now();
        socket.send_to(b"now", socket.local_addr().unwrap()).unwrap();
        let after = SystemTime::now();
        std::thread::sleep(Duration::from_millis(20));
        let (length, timestamp) = receive(&socket, &mut [0; 8]).unwrap();
        assert_eq!(length, 3);
        assert!(before <= timestamp && timestamp <= after, "{before:?} {timestamp:?} {after:?}");
    }
}

//! Receive timestamps: the time at which a datagram reached this machine's network stack, which
//! does not include the delay until its reader is scheduled.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use crate::os;
use crate::socket::control;

/// Enables receive timestamps on `socket` (`SO_TIMESTAMPNS`). If no other socket of the machine has
/// them enabled, the kernel starts them some milliseconds later; until then a timestamp is the time
/// of reading.
pub fn enable(socket: impl AsFd) -> io::Result<()> {
    os::setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)
}

/// Receives a datagram and the time of its arrival. [`enable`] must have been called: without a
/// timestamp the call fails with `InvalidData`.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<(usize, SystemTime)> {
    receive_from(socket, buffer).map(|(length, _, at)| (length, at))
}

/// Receives like [`receive`], with the sender's address in the kernel's format.
pub(crate) fn receive_from(
    socket: impl AsFd,
    buffer: &mut [u8],
) -> io::Result<(usize, libc::sockaddr_storage, SystemTime)> {
    let mut at = None;
    let (length, from) = control::receive(socket.as_fd(), buffer, 0, |control| {
        if control.kind == (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) {
            at = control.value().and_then(system_time);
        }
    })?;
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, "the datagram has no timestamp");
    Ok((length, from, at.ok_or_else(unknown)?))
}

fn system_time(time: libc::timespec) -> Option<SystemTime> {
    let since = Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).ok()?);
    Some(SystemTime::UNIX_EPOCH + since)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn a_timestamp_is_the_time_of_arrival_not_of_reading() {
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

//! Limits and measurements of sending on a TCP connection.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use crate::os;

/// Limits the pacing rate to `bytes` a second (`SO_MAX_PACING_RATE`).
pub fn pace(stream: impl AsFd, bytes: u64) -> io::Result<()> {
    os::setsockopt(stream.as_fd(), libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &bytes)
}

/// Limits the unsent bytes in the send buffer (`TCP_NOTSENT_LOWAT`), and thereby the delay of
/// later data.
pub fn set_notsent_lowat(socket: impl AsFd, bytes: i32) -> io::Result<()> {
    os::setsockopt(socket.as_fd(), libc::SOL_TCP, libc::TCP_NOTSENT_LOWAT, &bytes)
}

/// Returns the number of bytes that were written but not sent yet (`SIOCOUTQNSD`).
pub fn unsent(socket: impl AsFd) -> io::Result<usize> {
    os::unsent(socket.as_fd())
}

/// Returns the kernel's pacing rate in bytes per second; `None` before a measurement.
pub fn pacing_rate(socket: impl AsFd) -> io::Result<Option<u64>> {
    let info: os::TcpInfo = os::getsockopt(socket.as_fd(), libc::SOL_TCP, libc::TCP_INFO)?;
    Ok(Some(info.pacing_rate).filter(|rate| (1..u64::MAX).contains(rate)))
}

/// Measurements of a connection that sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sending {
    /// Bytes that the peer has acknowledged.
    pub acked: u64,
    /// Bytes that were written but not acknowledged yet.
    pub held: u64,
    /// Bytes of `held` that were not sent yet.
    pub unsent: u64,
    /// Retransmitted segments.
    pub again: u64,
    /// Smoothed round-trip time; 0 if not measured.
    pub rtt: Duration,
    /// Minimum round-trip time of the last minutes; 0 if not measured.
    pub shortest: Duration,
    /// Bytes of a full segment.
    pub segment: u32,
}

/// Returns a connection's measurements (`TCP_INFO`, `SIOCOUTQ`). Errors: the socket is not a
/// TCP connection.
pub fn sending(stream: impl AsFd) -> io::Result<Sending> {
    let fd = stream.as_fd();
    let info: os::TcpInfo = os::getsockopt(fd, libc::SOL_TCP, libc::TCP_INFO)?;
    let micros = |of: u32| Duration::from_micros(if of == u32::MAX { 0 } else { of.into() });
    Ok(Sending {
        acked: info.bytes_acked,
        held: os::unacknowledged(fd)? as u64,
        unsent: info.unsent.into(),
        again: info.retransmits().into(),
        // The value is all ones before anything was acknowledged.
        rtt: micros(info.rtt()),
        shortest: micros(info.min_rtt),
        segment: info.mss(),
    })
}

/// Options of a connection across a long link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LongHaul {
    /// Name of the congestion control; the kernel's default if `None`.
    pub congestion_control: Option<String>,
    /// Size of the send buffer: max bytes that are unsent or unacknowledged; the kernel's choice if
    /// `None`. It may exceed `net.core.wmem_max` if this process is root.
    pub buffer: Option<usize>,
}

impl LongHaul {
    /// Applies the options to `stream`. Errors: the kernel has no such congestion control.
    pub fn apply(&self, stream: impl AsFd) -> io::Result<()> {
        let socket = stream.as_fd();
        if let Some(name) = &self.congestion_control {
            sockopt::set_tcp_congestion(socket, name)?;
        }
        if let Some(bytes) = self.buffer {
            // The kernel doubles the value, for its own bookkeeping.
            let half = libc::c_int::try_from(bytes / 2).unwrap_or(libc::c_int::MAX);
            let forced = os::setsockopt(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &half);
            forced.or_else(|_| os::setsockopt(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &half))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_connections_measurements_are_read() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut other, _) = listener.accept().unwrap();
        stream.write_all(&[7; 5_000]).unwrap();
        other.read_exact(&mut [0; 5_000]).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(5);
        while sending(&stream).unwrap().held > 0 && std::time::Instant::now() < deadline {}
        let Sending { acked, held, unsent, again, rtt, shortest, segment } =
            sending(&stream).unwrap();
        // The SYN counts as one byte.
        assert_eq!((acked, held, unsent, again), (5_001, 0, 0, 0));
        assert!(rtt >= shortest && shortest > Duration::ZERO && rtt < Duration::from_secs(1));
        assert!(segment >= 536);
        assert!(pacing_rate(&stream).unwrap() > Some(0));
    }
}

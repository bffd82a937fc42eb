//! System calls that several modules share.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint};
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt;

/// Kernel ABI types that consist of numbers: every bit pattern is valid, and there is no padding.
///
/// # Safety
/// Every bit pattern must be a valid value of the type, and it must hold no pointer that the kernel
/// keeps.
pub(crate) unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($type:ty),*) => {
        $(
            // SAFETY: the type is an integer, or consists of integers and IP addresses.
            unsafe impl Plain for $type {}
        )*
    };
}

plain!(c_int, u8, u16, u64, libc::timespec, libc::ucred, libc::in_pktinfo, libc::in6_pktinfo);
plain!(libc::sock_extended_err, libc::tpacket_auxdata, libc::tpacket_req3, libc::tpacket_stats_v3);

/// First fields of `struct tcp_info` (`linux/tcp.h`), up to the last field that is used.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TcpInfo {
    states: [u8; 8],
    words: [u32; 24],
    /// Bytes per second; all ones if not measured.
    pub(crate) pacing_rate: u64,
    pub(crate) max_pacing_rate: u64,
    pub(crate) bytes_acked: u64,
    pub(crate) bytes_received: u64,
    pub(crate) segments: [u32; 2],
    pub(crate) unsent: u32,
    /// Microseconds; all ones if not measured.
    pub(crate) min_rtt: u32,
}

impl TcpInfo {
    /// Smoothed round-trip time in microseconds.
    pub(crate) fn rtt(&self) -> u32 {
        self.words[15]
    }

    pub(crate) fn retransmits(&self) -> u32 {
        self.words[23]
    }

    pub(crate) fn mss(&self) -> u32 {
        self.words[2]
    }

    /// Segments that were sent and not acknowledged.
    pub(crate) fn unacknowledged(&self) -> u32 {
        self.words[4]
    }

    /// Time since data was last sent; window probes do not count.
    pub(crate) fn last_sent(&self) -> Duration {
        Duration::from_millis(self.words[9].into())
    }

    /// Window or keepalive probes that are not answered yet.
    pub(crate) fn unanswered_probes(&self) -> u8 {
        self.states[3]
    }
}

// The kernel only adds fields at the end. The struct in `libc` differs from release to release.
const _: () = assert!(mem::offset_of!(TcpInfo, pacing_rate) == 104 && size_of::<TcpInfo>() == 152);
// SAFETY: integers without padding, as the assertion above checks.
unsafe impl Plain for TcpInfo {}

/// Opens a close-on-exec, non-blocking socket.
pub(crate) fn socket(domain: c_int, kind: c_int, protocol: c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd =
        unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds a packet socket to all protocols of an interface; 0 means all interfaces.
pub(crate) fn bind_packet(socket: BorrowedFd<'_>, index: c_uint) -> io::Result<()> {
    // SAFETY: all zeros are a valid `sockaddr_ll`.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as c_int;
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `address`, which lives through the call.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })
}

pub(crate) fn setsockopt<T: Plain>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes from `value`, which lives through the call.
    check(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast(), length)
    })
}

/// Sets a socket option to a value in the kernel's format.
pub(crate) fn setsockopt_bytes(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &[u8],
) -> io::Result<()> {
    let length = value.len() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `value`, which lives through the call.
    check(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, value.as_ptr().cast(), length) })
}

/// Sets the size of a socket's send buffer. Without CAP_NET_ADMIN, `net.core.wmem_max` limits it.
pub(crate) fn set_send_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    Ok(sockopt::set_socket_send_buffer_size_force(&socket, bytes)
        .or_else(|_| sockopt::set_socket_send_buffer_size(&socket, bytes))?)
}

/// Sets the size of a socket's receive buffer, like [`set_send_buffer`].
pub(crate) fn set_receive_buffer(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    Ok(sockopt::set_socket_recv_buffer_size_force(&socket, bytes)
        .or_else(|_| sockopt::set_socket_recv_buffer_size(&socket, bytes))?)
}

/// Reads a socket option.
pub(crate) fn getsockopt<T: Plain>(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<T> {
    // SAFETY: `Plain` types are valid when all bytes are zero.
    let mut value: T = unsafe { mem::zeroed() };
    let mut length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `value`, for whose type every bit pattern
    // is valid.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut length)
    })?;
    Ok(value)
}

/// Opens a pidfd of the peer of a Unix socket. Errors: `ENOPROTOOPT` on Linux before 6.5; the peer
/// has ended.
pub(crate) fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    /// Socket option, the same on all architectures for which `libc` lacks it.
    const SO_PEERPIDFD: c_int = 77;
    let fd: c_int = getsockopt(socket, libc::SOL_SOCKET, SO_PEERPIDFD)?;
    // SAFETY: the kernel has just opened the descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns whether the next byte of a TCP socket is the urgent byte.
pub(crate) fn at_mark(fd: BorrowedFd<'_>) -> io::Result<bool> {
    /// Request number, the same on all architectures for which `libc` lacks it.
    const SIOCATMARK: libc::Ioctl = 0x8905;
    let mut answer: c_int = 0;
    // SAFETY: the kernel writes one `int`, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), SIOCATMARK, &raw mut answer) })?;
    Ok(answer != 0)
}

/// Converts a libc call's result of -1 into `errno`.
pub(crate) fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the number of bytes of a stream that have not been sent yet.
pub(crate) fn unsent(fd: BorrowedFd<'_>) -> io::Result<usize> {
    queued(fd, SIOCOUTQNSD)
}

/// Returns the number of bytes of a stream that are not acknowledged yet.
pub(crate) fn unacknowledged(fd: BorrowedFd<'_>) -> io::Result<usize> {
    queued(fd, libc::TIOCOUTQ)
}

/// Returns the number of a stream's received, unread bytes. A reset does not discard them.
pub(crate) fn unread(fd: BorrowedFd<'_>) -> io::Result<usize> {
    queued(fd, libc::FIONREAD)
}

fn queued(fd: BorrowedFd<'_>, question: libc::Ioctl) -> io::Result<usize> {
    let mut bytes: c_int = 0;
    // SAFETY: the kernel writes one integer, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), question, &raw mut bytes) })?;
    Ok(usize::try_from(bytes).unwrap_or(0))
}

/// Constant of `linux/sockios.h`; not in `libc`.
const SIOCOUTQNSD: libc::Ioctl = 0x894B;

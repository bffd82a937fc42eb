//! TCP sockets for a proxy: bound to another host's address, connected without blocking, with
//! additional content in the SYN, or closed by a reset.
//!
//! | part | content |
//! |---|---|
//! | `listening` | listening sockets |
//! | `connecting` | connects, and the content of their SYNs |
//! | `sending` | limits and measurements of sending |
//! | `liveness` | detection of vanished peers |
//! | `mirrored` | options that a program sets on its own socket |
//!
//! This file has the set-up of a socket and the end of a connection.
#![allow(unsafe_code)]

mod connecting;
mod listening;
mod liveness;
mod mirrored;
mod sending;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};

use crate::os;

pub use connecting::{SynContent, bound, connect, connect_bound, connect_with};
pub use listening::{
    adopt, check_free, defer_accept, distribute, drop_syns, listen, listen_on_free_port,
    listen_silently,
};
pub use liveness::{ZeroWindow, has_dead_after, set_dead_after, set_dead_after_quiet};
pub(crate) use mirrored::MIRRORED_OPTIONS;
pub use mirrored::{MIRRORED, Mirrored};
pub use sending::{LongHaul, Sending, pace, pacing_rate, sending, set_notsent_lowat, unsent};

const TCP_SAVE_SYN: libc::c_int = 27;
const TCP_SAVED_SYN: libc::c_int = 28;
/// Max bytes of a SYN's headers: IPv6 with some extensions, and TCP with options of maximum length.
const SYN_HEADERS: usize = 256;

/// Options of a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Allows addresses of other hosts (`IP_TRANSPARENT`); requires CAP_NET_ADMIN.
    pub transparent: bool,
    /// Bytes of the send buffer; the kernel's choice if `None`.
    pub send_buffer: Option<usize>,
    /// Bytes of the receive buffer; the kernel's choice if `None`.
    pub receive_buffer: Option<usize>,
    /// Keeps the headers of an accepted connection's SYN, for [`saved_syn`].
    pub save_syn: bool,
    /// Allows other sockets of this user at the same address (`SO_REUSEPORT`), for the listeners of
    /// this process's event loops ([`distribute`]) and for [rendezvous
    /// sockets](crate::socket::rendezvous).
    pub shared: bool,
    /// Marks a socket between a wrapped program and this process, so that an outer run does not
    /// treat the socket's connection as a flow. The mark requires CAP_NET_ADMIN. If this process
    /// lacks it, no outer run can wrap this process by a cgroup, so the mark is not needed.
    pub inside: bool,
    /// Options that a program has set on its own socket.
    pub mirrored: Mirrored,
}

/// Mark of sockets that are [inside](TcpOptions::inside).
pub(crate) const INSIDE: libc::c_int = 0x7665_0003;

/// Number of unanswered probes after which a connection fails.
const PROBES: u32 = 4;

/// Returns the IP and TCP headers of an accepted connection's SYN; empty if not saved, or on a
/// second call.
pub fn saved_syn(stream: impl AsFd) -> io::Result<Vec<u8>> {
    let mut syn = vec![0u8; SYN_HEADERS];
    let mut length = SYN_HEADERS as libc::socklen_t;
    let fd = stream.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` bytes to `syn`, which is that long.
    os::check(unsafe {
        libc::getsockopt(fd, libc::SOL_TCP, TCP_SAVED_SYN, syn.as_mut_ptr().cast(), &raw mut length)
    })?;
    syn.truncate(length as usize);
    Ok(syn)
}

/// Returns whether a socket listens or is connected, and can therefore not connect.
pub fn is_in_use(socket: impl AsFd) -> bool {
    let socket = socket.as_fd();
    sockopt::socket_acceptconn(socket).unwrap_or(false) || rustix::net::getpeername(socket).is_ok()
}

/// Makes `close` send a reset.
pub fn reset_on_close(stream: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(stream, Some(Duration::ZERO))?)
}

/// Undoes [`reset_on_close`]: `close` sends a FIN.
pub fn fin_on_close(stream: impl AsFd) -> io::Result<()> {
    Ok(sockopt::set_socket_linger(stream, None)?)
}

/// Enables keepalive probes after `quiet` without data, in whole seconds. The interval between
/// probes is `quiet`, but at most 75 s. The connection fails when four probes in a row are not
/// answered. Errors: the socket is not a TCP socket.
pub fn keep_alive(stream: impl AsFd, quiet: Duration) -> io::Result<()> {
    // The kernel counts seconds.
    let quiet = Duration::from_secs(quiet.as_secs().clamp(1, 32_767));
    let socket = stream.as_fd();
    sockopt::set_tcp_keepidle(socket, quiet)?;
    sockopt::set_tcp_keepintvl(socket, quiet.min(Duration::from_secs(75)))?;
    sockopt::set_tcp_keepcnt(socket, PROBES)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// Returns the number of received unread bytes, which can be read even after a reset.
pub fn unread(stream: impl AsFd) -> io::Result<usize> {
    os::unread(stream.as_fd())
}

fn socket(address: SocketAddr, options: TcpOptions) -> io::Result<rustix::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    apply(socket.as_fd(), address.is_ipv4(), options)?;
    Ok(socket)
}

fn apply(socket: BorrowedFd<'_>, v4: bool, options: TcpOptions) -> io::Result<()> {
    // The urgent byte stays in the stream (`SO_OOBINLINE`). Nagle's algorithm is off, as writers
    // pass all available data in one call. Accepted sockets inherit both options.
    sockopt::set_socket_oobinline(socket, true)?;
    sockopt::set_tcp_nodelay(socket, true)?;
    if options.transparent {
        set_transparent(socket, v4)?;
    }
    if options.inside {
        // Fails without CAP_NET_ADMIN, in which case the mark is not needed.
        let _ = os::setsockopt(socket, libc::SOL_SOCKET, libc::SO_MARK, &INSIDE);
    }
    options.mirrored.apply(socket);
    if options.save_syn {
        os::setsockopt(socket, libc::SOL_TCP, TCP_SAVE_SYN, &1)?;
    }
    if let Some(bytes) = options.send_buffer {
        os::set_send_buffer(socket, bytes)?;
    }
    if let Some(bytes) = options.receive_buffer {
        os::set_receive_buffer(socket, bytes)?;
    }
    Ok(())
}

fn set_transparent(socket: BorrowedFd<'_>, v4: bool) -> io::Result<()> {
    let on: libc::c_int = 1;
    let (level, name) = match v4 {
        true => (libc::SOL_IP, libc::IP_TRANSPARENT),
        false => (libc::SOL_IPV6, libc::IPV6_TRANSPARENT),
    };
    os::setsockopt(socket, level, name, &on)
}

//! Sockets that listen.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use super::{TcpOptions, apply, socket};
use crate::{filter, os};

/// Listens at `address`, not blocking, alone unless the options say otherwise. What it accepts has no
/// Nagle's delay.
///
/// # Errors
/// The address is in use or not this machine's, or a right is missing.
pub fn listen(address: SocketAddr, backlog: u32, options: TcpOptions) -> io::Result<TcpListener> {
    let socket = socket(address, options)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, options.shared)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Listens at a port of the kernel's choice at `ip`, not blocking; nobody else has that port. Sockets of
/// this user may share it from then on.
///
/// # Errors
/// No port is free, or the address is not this machine's.
pub fn listen_anywhere(ip: IpAddr, backlog: u32, options: TcpOptions) -> io::Result<TcpListener> {
    let at = SocketAddr::new(ip, 0);
    let socket = socket(at, options)?;
    rustix::net::bind(&socket, &at)?;
    // Not before: the kernel would choose a port that another who shares has.
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Has a listener hand out connections only when their clients have said something, at the latest
/// after about `patience` (`TCP_DEFER_ACCEPT`).
///
/// # Errors
/// It is no TCP socket.
pub fn await_words(listener: impl AsFd, patience: Duration) -> io::Result<()> {
    let seconds = libc::c_int::try_from(patience.as_secs()).unwrap_or(libc::c_int::MAX);
    os::setsockopt(listener.as_fd(), libc::SOL_TCP, libc::TCP_DEFER_ACCEPT, &seconds)
}

/// Sees that nobody listens at `address`, not even somebody who would share it.
///
/// # Errors
/// Somebody does, or the address is not this machine's.
pub fn check_free(address: SocketAddr, options: TcpOptions) -> io::Result<()> {
    let socket = socket(address, options)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(rustix::net::bind(&socket, &address)?)
}

/// Has the kernel hand connections to so many listeners as [`filter::Share`] says, in the order in which
/// [`listen`] has opened them at one address, where nobody else listens; `listener` is one of them.
///
/// # Errors
/// It is no such listener.
pub fn share_out(listener: impl AsFd, of: u32) -> io::Result<()> {
    filter::attach_to_group(listener.as_fd(), &filter::listener_of(of))
}

/// Has a listener take no new connections; those whose handshake has begun still come about.
///
/// # Errors
/// It is no TCP socket.
pub fn take_no_more(listener: impl AsFd) -> io::Result<()> {
    filter::attach(listener.as_fd(), &filter::no_syns())
}

/// Sets up a listener that somebody else has opened as [`listen`] would have: what it accepts
/// follows.
///
/// # Errors
/// It is no TCP socket, or a right is missing.
pub fn adopt(listener: TcpListener, options: TcpOptions) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    apply(listener.as_fd(), listener.local_addr()?.is_ipv4(), options)?;
    Ok(listener)
}

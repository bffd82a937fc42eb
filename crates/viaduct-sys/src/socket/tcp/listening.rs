//! Listening sockets.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use super::{TcpOptions, apply, socket};
use crate::capture::filter;
use crate::os;

/// Opens a non-blocking listener at `address`. Other sockets may share the address only if
/// `options.shared` is set. Accepted sockets have Nagle's algorithm off. Errors: the address is in
/// use or not this machine's, or a privilege that the options require is missing.
pub fn listen(address: SocketAddr, backlog: u32, options: TcpOptions) -> io::Result<TcpListener> {
    let socket = socket(address, options)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, options.shared)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Opens a non-blocking listener at `ip`, with a port that the kernel chooses and that no other
/// socket has. Afterwards, other sockets of this user may share the port. Errors: no port is free,
/// or the address is not this machine's.
pub fn listen_on_free_port(
    ip: IpAddr,
    backlog: u32,
    options: TcpOptions,
) -> io::Result<TcpListener> {
    let at = SocketAddr::new(ip, 0);
    let socket = socket(at, options)?;
    rustix::net::bind(&socket, &at)?;
    // Set after bind, as the kernel might otherwise choose the port of another socket with this
    // option.
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::listen(&socket, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// Opens a listener that drops every packet to its port; a tap reads the packets instead. The
/// kernel thus answers no packet with a reset, and no program can take the port. Port 0 stands for
/// a port that the kernel chooses.
///
/// # Errors
/// The address is in use or not this machine's.
pub fn listen_silently(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = socket(address, TcpOptions::default())?;
    rustix::net::bind(&socket, &address)?;
    // Attached before the first SYN can be answered.
    filter::attach(socket.as_fd(), &filter::drop_all())?;
    rustix::net::listen(&socket, 1)?;
    Ok(socket.into())
}

/// Delays accept until a client has sent data, but for at most about `limit` (`TCP_DEFER_ACCEPT`),
/// in whole seconds. Errors: the socket is not a TCP socket.
pub fn defer_accept(listener: impl AsFd, limit: Duration) -> io::Result<()> {
    let seconds = libc::c_int::try_from(limit.as_secs()).unwrap_or(libc::c_int::MAX);
    os::setsockopt(listener.as_fd(), libc::SOL_TCP, libc::TCP_DEFER_ACCEPT, &seconds)
}

/// Checks that no socket listens at `address`, not even one that shares it. Errors: a socket
/// listens there, or the address is not this machine's.
pub fn check_free(address: SocketAddr, options: TcpOptions) -> io::Result<()> {
    let socket = socket(address, options)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    Ok(rustix::net::bind(&socket, &address)?)
}

/// Distributes the connections to one address over its `of` listeners, one of which is
/// `listener`, by [`filter::listener_of`]. The listeners are numbered in the order in which
/// [`listen`] has opened them; no other socket may listen at the address. Errors: the socket is
/// not a shared listener.
pub fn distribute(listener: impl AsFd, of: u32) -> io::Result<()> {
    filter::attach_to_group(listener.as_fd(), &filter::listener_of(of))
}

/// Makes a listener drop new SYNs; handshakes in progress complete. Errors: the socket is not a
/// TCP socket.
pub fn drop_syns(listener: impl AsFd) -> io::Result<()> {
    filter::attach(listener.as_fd(), &filter::no_syns())
}

/// Applies `options`, as [`listen`] does, to a listener that another process has opened. Accepted
/// sockets inherit the options. Errors: the socket is not a TCP socket, or a privilege that the
/// options require is missing.
pub fn adopt(listener: TcpListener, options: TcpOptions) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    apply(listener.as_fd(), listener.local_addr()?.is_ipv4(), options)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_silent_listener_neither_accepts_nor_resets() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let listener = listen_silently(ip.parse().unwrap()).unwrap();
            let at = listener.local_addr().unwrap();
            let error = TcpStream::connect_timeout(&at, Duration::from_millis(200)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
            assert!(listen_silently(at).is_err(), "the port is taken");
            drop(listener);
            let error = TcpStream::connect_timeout(&at, Duration::from_secs(9)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused, "{error}");
        }
    }
}

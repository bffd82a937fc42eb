//! Non-blocking connects.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendFlags, sockopt};

use super::{TcpOptions, socket};
use crate::bpf::{OPTION, Offers, SynOption};
use crate::os;

const TCP_FASTOPEN_NO_COOKIE: libc::c_int = 34;
const TCP_REPAIR: libc::c_int = 19;
/// Value that leaves repair mode without a window probe.
const TCP_REPAIR_OFF: libc::c_int = -1;
const MSG_FASTOPEN: SendFlags = SendFlags::from_bits_retain(0x2000_0000);

/// Additional content of a SYN.
#[derive(Clone, Copy, Debug)]
pub enum SynContent<'a> {
    /// Nothing.
    Nothing,
    /// A TCP option.
    Option(&'a SynOption, &'a [u8; OPTION]),
    /// The TCP option of [`Offers`]; the peer's answer is known when the stream is connected.
    Offer(&'a Offers),
    /// Data, by Fast Open without a cookie (RFC 7413, 4.1.3.1). A peer without Fast Open does not
    /// acknowledge the data, and the kernel sends it again after the handshake.
    Data(&'a [u8]),
}

/// Begins to connect to `to`, from the address `from` if it is given. When the stream is writable,
/// [`take_error`](TcpStream::take_error) returns the result. Errors: the connect cannot begin, for
/// example because there is no route or no free port.
pub fn connect(
    to: SocketAddr,
    from: Option<SocketAddr>,
    options: TcpOptions,
) -> io::Result<TcpStream> {
    connect_with(to, from, options, SynContent::Nothing).map(|(stream, _)| stream)
}

/// Opens a socket bound to `from`, for [`connect_bound`]; port 0 lets the kernel choose. Errors:
/// the address is not this machine's, or in use.
pub fn bound(from: SocketAddr, options: TcpOptions) -> io::Result<TcpStream> {
    let socket = socket(from, options)?;
    if from.port() != 0 {
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_reuseport(&socket, options.shared)?;
    }
    rustix::net::bind(&socket, &from)?;
    Ok(TcpStream::from(socket))
}

/// Begins to connect a socket of [`bound`], as [`connect`] does. Errors: the connect cannot begin,
/// for example because a recent connection between the same two addresses still exists
/// (`TIME-WAIT`).
pub fn connect_bound(socket: &TcpStream, to: SocketAddr) -> io::Result<()> {
    match rustix::net::connect(socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Begins to connect like [`connect`], with `content` in the SYN. Also returns the number of bytes
/// of data in the SYN, which is 0 if Fast Open is off (`net.ipv4.tcp_fastopen`). If the port of
/// `from` is in use or requires a privilege, another port is used, unless
/// [`TcpOptions::transparent`] is set. Errors: those of [`connect`] and [`SynOption::set`].
pub fn connect_with(
    to: SocketAddr,
    from: Option<SocketAddr>,
    options: TcpOptions,
    content: SynContent<'_>,
) -> io::Result<(TcpStream, usize)> {
    let begun = begin(to, from, options, content);
    let is_taken = |error: &io::Error| {
        let errno = Errno::from_io_error(error);
        matches!(errno, Some(Errno::ADDRINUSE | Errno::ADDRNOTAVAIL | Errno::ACCESS))
    };
    match (begun, from) {
        (Err(error), Some(at)) if at.port() != 0 && !options.transparent && is_taken(&error) => {
            let from = (!at.ip().is_unspecified()).then(|| SocketAddr::new(at.ip(), 0));
            begin(to, from, options, content)
        }
        (begun, _) => begun,
    }
}

/// Binds `socket` to `from` even if another socket, which does not allow sharing, is bound to the
/// same address. In repair mode, which requires CAP_NET_ADMIN, the kernel does not check for
/// conflicts. Without this capability the other socket must allow sharing.
fn bind_despite_conflict(socket: &OwnedFd, from: SocketAddr) -> io::Result<()> {
    let repairs = |on: libc::c_int| os::setsockopt(socket.as_fd(), libc::SOL_TCP, TCP_REPAIR, &on);
    let is_repaired = repairs(1).is_ok();
    let bound = rustix::net::bind(socket, &from);
    if is_repaired {
        repairs(TCP_REPAIR_OFF)?;
        // Leaving repair mode clears `SO_REUSEADDR`.
        sockopt::set_socket_reuseaddr(socket, true)?;
    }
    Ok(bound?)
}

fn begin(
    to: SocketAddr,
    from: Option<SocketAddr>,
    options: TcpOptions,
    content: SynContent<'_>,
) -> io::Result<(TcpStream, usize)> {
    let socket = socket(to, options)?;
    if let Some(from) = from {
        sockopt::set_socket_reuseaddr(&socket, true)?;
        sockopt::set_socket_reuseport(&socket, options.shared)?;
        if from.port() != 0 && !options.transparent {
            bind_despite_conflict(&socket, from)?;
        } else if from.port() == 0 {
            // The kernel chooses the port when it knows the peer, so that one port can be used for
            // several peers.
            os::setsockopt(socket.as_fd(), libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, &1)?;
            rustix::net::bind(&socket, &from)?;
        } else {
            rustix::net::bind(&socket, &from)?;
        }
    }
    if let SynContent::Data(data) = content
        && os::setsockopt(socket.as_fd(), libc::SOL_TCP, TCP_FASTOPEN_NO_COOKIE, &1).is_ok()
    {
        match rustix::net::sendto(&socket, data, MSG_FASTOPEN, &to) {
            Ok(said) => return Ok((socket.into(), said)),
            Err(Errno::INPROGRESS) => return Ok((socket.into(), 0)),
            Err(Errno::OPNOTSUPP) => {} // switched off
            Err(error) => return Err(error.into()),
        }
    }
    if let SynContent::Option(program, option) = content {
        program.set(socket.as_fd(), option)?;
    }
    if let SynContent::Offer(offers) = content {
        offers.offer(socket.as_fd())?;
    }
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok((socket.into(), 0)),
        Err(error) => {
            if let SynContent::Option(program, _) = content {
                program.clear(socket.as_fd());
            }
            Err(error.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn a_taken_port_is_shared_if_possible_and_replaced_by_another_otherwise() {
        let options = TcpOptions::default();
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = server.local_addr().unwrap();
        let taken = socket(to, options).unwrap();
        rustix::net::bind(&taken, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))).unwrap();
        let port = SocketAddr::try_from(rustix::net::getsockname(&taken).unwrap()).unwrap().port();
        let come = |from: SocketAddr| {
            let stream = connect(to, Some(from), options).unwrap();
            (stream, server.accept().unwrap())
        };
        let from = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        sockopt::set_socket_reuseaddr(&taken, true).unwrap();
        let one = come(from);
        assert_eq!(one.1.1.port(), port);
        sockopt::set_socket_reuseaddr(&taken, false).unwrap();
        // The same two addresses are connected already.
        assert_ne!(come(from).1.1.port(), port);
        let elsewhere = TcpListener::bind("127.0.0.2:0").unwrap();
        let to = elsewhere.local_addr().unwrap();
        let _stream = connect(to, Some(from), options).unwrap();
        let is_same = elsewhere.accept().unwrap().1.port() == port;
        assert_eq!(is_same, rustix::process::geteuid().is_root(), "root only");
    }
}

//! Completion of a wrapped program's connect through a duplicate of its socket. The duplicate
//! shares all state with the program's descriptor.
//!
//! ```text
//!   Pending::begin     the program's socket connects to the rendezvous socket: in progress
//!        │
//!        ├─▶ finish    Rendezvous::connect_to was called, and a blocking connect returns
//!        ├─▶ crossed   Rendezvous::connect_to was called, and the next connect of the
//!        │             non-blocking socket returns 0
//!        ├─▶ refuse    the program sees that its peer refused: EPOLLERR, SO_ERROR
//!        └─▶ forget    the socket is unchanged, and a blocking connect returns the exact error
//! ```
//!
//! Each outcome closes the duplicate, so that the program's own close is the last one; only
//! `finish` returns the duplicate instead.
//!
//! MPTCP sockets cannot wait at a rendezvous: such a socket falls back to TCP, but is not reported
//! as connected before the first byte arrives (kernel 6.18). Programs are therefore not allowed to
//! open MPTCP sockets. As on a kernel without MPTCP, they use TCP instead.

#![allow(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::os;
use crate::socket::tcp::INSIDE;

/// Max time for the kernel to complete a loopback connection that both ends have begun.
const COMPLETION_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
const TCP_FASTOPEN_CONNECT: libc::c_int = 30;

/// A connect in progress.
#[derive(Debug)]
pub struct Pending {
    socket: OwnedFd,
    at: SocketAddr,
    /// True if the program has bound its port.
    is_bound: bool,
    /// True if we have set `SO_REUSEADDR` on the socket while the connect waits.
    is_shared: bool,
}

impl Pending {
    /// Connects `socket`, a duplicate of a program's TCP socket, to the rendezvous address `at`.
    /// Errors are those of the program's connect: a connect is in progress already (`EALREADY`),
    /// the socket is connected (`EISCONN`), or it is bound to an address that cannot reach `at`.
    pub fn begin(socket: OwnedFd, at: SocketAddr) -> io::Result<Begun> {
        let at = within(&socket, at)?;
        let own: SocketAddr = rustix::net::getsockname(&socket)?.try_into()?;
        let is_bound = own.port() != 0;
        // Data in the SYN would be lost at the rendezvous socket.
        let _ = os::setsockopt(socket.as_fd(), libc::SOL_TCP, TCP_FASTOPEN_CONNECT, &0);
        match with_inside_mark(&socket, || rustix::net::connect(&socket, &at))? {
            Ok(()) => Ok(Begun::Connected),
            Err(Errno::INPROGRESS) => {
                // The real connection must be able to use the program's port.
                let is_shared = is_bound && !sockopt::socket_reuseaddr(&socket)?;
                if is_shared {
                    sockopt::set_socket_reuseaddr(&socket, true)?;
                }
                Ok(Begun::Waits(Pending { socket, at, is_bound, is_shared }))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns whether the program has bound its socket to a port.
    pub fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Restores the program's value of `SO_REUSEADDR`.
    fn restore_reuseaddr(&self) -> io::Result<()> {
        if self.is_shared {
            sockopt::set_socket_reuseaddr(&self.socket, false)?;
        }
        Ok(())
    }

    /// Returns the local address of the program's socket.
    pub fn program(&self) -> io::Result<SocketAddr> {
        let own: SocketAddr = rustix::net::getsockname(&self.socket)?.try_into()?;
        Ok(SocketAddr::new(own.ip().to_canonical(), own.port()))
    }

    /// Waits until the program's socket is connected, after the rendezvous socket has connected to
    /// it. The program has not seen the success yet: its next connect returns 0, once. Errors: the
    /// socket is not connected, because another connection has the same two addresses, or because
    /// the program has disconnected the socket.
    pub fn crossed(self) -> io::Result<()> {
        self.restore_reuseaddr()?;
        poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&COMPLETION_TIMEOUT))?;
        rustix::net::getpeername(&self.socket)?;
        Ok(())
    }

    /// Completes a blocking connect, after the rendezvous socket has connected to the program's
    /// socket. Returns the duplicate. Errors: the socket is not connected, because another
    /// connection has the same two addresses, or because the program has disconnected the socket.
    pub fn finish(self) -> io::Result<OwnedFd> {
        self.restore_reuseaddr()?;
        loop {
            // A second connect returns the outcome of the first.
            match with_inside_mark(&self.socket, || rustix::net::connect(&self.socket, &self.at))? {
                Ok(()) | Err(Errno::ISCONN) => return Ok(self.socket),
                Err(Errno::ALREADY) => {
                    let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
                    if poll(&mut fds, Some(&COMPLETION_TIMEOUT))? == 0 {
                        return Err(Errno::TIMEDOUT.into());
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Makes the program's connect fail with `ECONNREFUSED`. Errors: the program has changed the
    /// state of its socket meanwhile.
    pub fn refuse(self, closed: &ClosedPorts) -> io::Result<()> {
        self.restore_reuseaddr()?;
        let at = within(&self.socket, closed.at(self.at.ip().to_canonical().is_ipv4())?)?;
        // Between the two calls, a program that polls may see a disconnected socket, so nothing
        // else is done between them.
        let refuse = || {
            rustix::net::connect_unspec(&self.socket)?;
            rustix::net::connect(&self.socket, &at)
        };
        match with_inside_mark(&self.socket, refuse)? {
            Err(Errno::INPROGRESS) => {
                let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
                poll(&mut fds, Some(&COMPLETION_TIMEOUT))?;
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Restores the socket's state from before the connect; the interposer returns the error.
    pub fn forget(self) -> io::Result<()> {
        self.restore_reuseaddr()?;
        rustix::net::connect_unspec(&self.socket)?;
        // The disconnect itself leaves an error on the socket.
        Ok(sockopt::socket_error(&self.socket)?.or(Ok::<(), Errno>(()))?)
    }
}

impl AsFd for Pending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Connects a duplicate of a program's socket to an address that we have checked and copied, so
/// that the program cannot change the address. Does not block. Errors: those of `connect(2)`,
/// including `EINPROGRESS` on a blocking socket.
pub fn connect_for(socket: &OwnedFd, sockaddr: &[u8]) -> io::Result<()> {
    let length = sockaddr.len() as libc::socklen_t;
    nonblocking(socket, || {
        // SAFETY: the kernel reads `length` bytes of `sockaddr`, which lives through the call.
        os::check(unsafe { libc::connect(socket.as_raw_fd(), sockaddr.as_ptr().cast(), length) })
    })?
}

/// Sets a socket option for a program, on a duplicate of its socket. Errors: those of
/// `setsockopt(2)`.
pub fn set_option_for(socket: &OwnedFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    os::setsockopt_bytes(socket.as_fd(), level, name, value)
}

/// Returns whether calls on this descriptor block.
pub fn is_blocking(socket: impl AsFd) -> io::Result<bool> {
    Ok(!fcntl_getfl(socket)?.contains(OFlags::NONBLOCK))
}

/// Outcome of [`Pending::begin`].
#[derive(Debug)]
pub enum Begun {
    /// The connect is in progress.
    Waits(Pending),
    /// An earlier connect has completed, and this call reports it.
    Connected,
}

/// Loopback ports that stay bound without a listener, so that connects to them are refused.
#[derive(Debug)]
pub struct ClosedPorts {
    v4: OwnedFd,
    v6: Option<OwnedFd>,
}

impl ClosedPorts {
    /// Binds a port of the kernel's choice for each family. Errors: no loopback, or no free port.
    pub fn open() -> io::Result<ClosedPorts> {
        let bound = |family, ip| -> io::Result<OwnedFd> {
            let flags = rustix::net::SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
            rustix::net::bind(&socket, &SocketAddr::new(ip, 0))?;
            Ok(socket)
        };
        let v6 = bound(AddressFamily::INET6, Ipv6Addr::LOCALHOST.into()).ok();
        Ok(ClosedPorts { v4: bound(AddressFamily::INET, Ipv4Addr::LOCALHOST.into())?, v6 })
    }

    /// Returns the address of the IPv4 port, or of the IPv6 port if `v4` is false. Errors: the
    /// machine lacks the family.
    pub fn at(&self, v4: bool) -> io::Result<SocketAddr> {
        let socket = if v4 { Some(&self.v4) } else { self.v6.as_ref() };
        let socket = socket.ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(rustix::net::getsockname(socket)?.try_into()?)
    }
}

/// Converts `at` to the address family of `socket`.
fn within(socket: &OwnedFd, at: SocketAddr) -> io::Result<SocketAddr> {
    Ok(match at {
        SocketAddr::V4(v4) if sockopt::socket_domain(socket)? == AddressFamily::INET6 => {
            SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port())
        }
        _ => at,
    })
}

/// Runs `act` on the socket in non-blocking mode, with our mark: a connect to an address of ours is
/// not the program's own connect, so the cgroup programs of another run must ignore it. Without the
/// privilege to set the mark, `act` runs unmarked.
fn with_inside_mark<T>(socket: &OwnedFd, act: impl FnOnce() -> T) -> io::Result<T> {
    let fd = socket.as_fd();
    let mark = os::getsockopt::<libc::c_int>(fd, libc::SOL_SOCKET, libc::SO_MARK)?;
    let marked = os::setsockopt(fd, libc::SOL_SOCKET, libc::SO_MARK, &INSIDE).is_ok();
    let done = nonblocking(socket, act);
    if marked {
        os::setsockopt(fd, libc::SOL_SOCKET, libc::SO_MARK, &mark)?;
    }
    done
}

/// Runs `act` on the socket in non-blocking mode, and restores the mode, which the program's
/// descriptor shares.
fn nonblocking<T>(socket: &OwnedFd, act: impl FnOnce() -> T) -> io::Result<T> {
    let flags = fcntl_getfl(socket)?;
    if flags.contains(OFlags::NONBLOCK) {
        return Ok(act());
    }
    fcntl_setfl(socket, flags | OFlags::NONBLOCK)?;
    let done = act();
    fcntl_setfl(socket, flags)?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;

    use rustix::net::SocketFlags;

    use super::*;
    use crate::socket::rendezvous::Rendezvous;

    /// Opens a program's socket and our duplicate of it.
    fn program(family: AddressFamily, flags: SocketFlags) -> (OwnedFd, OwnedFd) {
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap();
        let ours = socket.try_clone().unwrap();
        (socket, ours)
    }

    fn begin(ours: OwnedFd, at: SocketAddr) -> Pending {
        match Pending::begin(ours, at).unwrap() {
            Begun::Waits(pending) => pending,
            Begun::Connected => panic!("the socket is connected already"),
        }
    }

    fn events(socket: &OwnedFd) -> PollFlags {
        let mut fds = [PollFd::new(socket, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())).unwrap();
        fds[0].revents()
    }

    #[test]
    fn a_blocking_socket_is_connected_and_blocks_again() {
        let rendezvous = Rendezvous::open().unwrap();
        for (family, at) in [
            (AddressFamily::INET, rendezvous.at(true)),
            (AddressFamily::INET6, rendezvous.at(true)),
            (AddressFamily::INET6, rendezvous.at(false)),
        ] {
            let Some(at) = at else { continue };
            let (socket, ours) = program(family, SocketFlags::empty());
            let pending = begin(ours, at);
            assert_eq!(events(&socket), PollFlags::empty());
            let mut met = rendezvous.connect_to(pending.program().unwrap()).unwrap();
            pending.finish().unwrap();
            assert!(!fcntl_getfl(&socket).unwrap().contains(OFlags::NONBLOCK));
            met.write_all(b"there").unwrap();
            let mut words = [0; 5];
            TcpStream::from(socket).read_exact(&mut words).unwrap();
            assert_eq!(&words, b"there");
        }
    }

    #[test]
    fn a_refusal_is_visible_on_the_programs_socket() {
        let (rendezvous, closed) = (Rendezvous::open().unwrap(), ClosedPorts::open().unwrap());
        for v4 in [true, false] {
            let Some(at) = rendezvous.at(v4) else { continue };
            let family = if v4 { AddressFamily::INET } else { AddressFamily::INET6 };
            let (socket, ours) = program(family, SocketFlags::NONBLOCK);
            begin(ours, at).refuse(&closed).unwrap();
            assert!(events(&socket).contains(PollFlags::ERR | PollFlags::HUP));
            assert_eq!(sockopt::socket_error(&socket).unwrap(), Err(Errno::CONNREFUSED));
        }
    }

    #[test]
    fn a_forgotten_socket_can_connect_again() {
        let rendezvous = Rendezvous::open().unwrap();
        let at = rendezvous.at(true).unwrap();
        let (socket, ours) = program(AddressFamily::INET, SocketFlags::empty());
        begin(ours, at).forget().unwrap();
        assert_eq!(sockopt::socket_error(&socket).unwrap(), Ok(()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
    }

    #[test]
    fn a_second_connect_gets_the_kernels_error() {
        let rendezvous = Rendezvous::open().unwrap();
        let at = rendezvous.at(true).unwrap();
        let (socket, ours) = program(AddressFamily::INET, SocketFlags::NONBLOCK);
        let again = || Pending::begin(socket.try_clone().unwrap(), at);
        let pending = begin(ours, at);
        assert_eq!(again().unwrap_err().raw_os_error(), Some(libc::EALREADY));
        let _met = rendezvous.connect_to(pending.program().unwrap()).unwrap();
        pending.crossed().unwrap();
        assert!(matches!(again().unwrap(), Begun::Connected));
        assert_eq!(again().unwrap_err().raw_os_error(), Some(libc::EISCONN));
    }

    #[test]
    fn a_connect_that_waited_is_reported_once() {
        let rendezvous = Rendezvous::open().unwrap();
        let at = rendezvous.at(true).unwrap();
        let (socket, ours) = program(AddressFamily::INET, SocketFlags::empty());
        let pending = begin(ours, at);
        let _met = rendezvous.connect_to(pending.program().unwrap()).unwrap();
        pending.finish().unwrap();
        let again = Pending::begin(socket.try_clone().unwrap(), at);
        assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EISCONN));
    }

    #[test]
    fn crossed_fails_if_the_program_has_disconnected_its_socket() {
        let rendezvous = Rendezvous::open().unwrap();
        let (socket, ours) = program(AddressFamily::INET, SocketFlags::NONBLOCK);
        let pending = begin(ours, rendezvous.at(true).unwrap());
        rustix::net::connect_unspec(&socket).unwrap();
        assert!(pending.crossed().is_err());
    }
}

//! A wrapped program's connect, by a duplicate of its socket: it shares everything with the program's
//! descriptor, so what we do to it happens to the program.
//!
//! ```text
//!   Pending::begin     the program's socket connects to the meeting: for the kernel it is in progress
//!        │
//!        ├─▶ finish    Meeting::meet has been called: a blocking connect returns
//!        ├─▶ crossed   the same where no connect waits: the program's next connect is told 0, as by the kernel
//!        ├─▶ refuse    the program learns it as from a far end that is not there: EPOLLERR, SO_ERROR
//!        └─▶ forget    a blocking connect is answered with the exact error: the socket is as it was
//! ```
//!
//! Each of them gives the duplicate up: the last close must be the program's.
//!
//! Sockets of MPTCP cannot wait so: one that is met falls back to TCP, but is not told that it is
//! connected before the first byte comes (kernel 6.18). They are refused when they are opened, as by a
//! kernel that has none, and programs take TCP.

#![allow(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};

use crate::os;
use crate::tcp::INSIDE;

/// How long the kernel may take to complete a connection over loopback that both ends have begun.
const CROSSING: Duration = Duration::from_millis(200);
const TCP_FASTOPEN_CONNECT: libc::c_int = 30;

/// A connect in progress.
#[derive(Debug)]
pub struct Pending {
    socket: OwnedFd,
    at: SocketAddr,
    /// The program has bound it to its port.
    is_bound: bool,
    /// It may be shared, for as long as it waits.
    is_shared: bool,
}

impl Pending {
    /// Has `socket`, a duplicate of a program's TCP socket, connect to the meeting `at`.
    ///
    /// # Errors
    /// What the kernel says to the program's connect: it has begun one before (`EALREADY`), it is
    /// connected (`EISCONN`), or bound to what does not reach the meeting.
    pub fn begin(socket: OwnedFd, at: SocketAddr) -> io::Result<Begun> {
        let at = within(&socket, at)?;
        let own: SocketAddr = rustix::net::getsockname(&socket)?.try_into()?;
        let is_bound = own.port() != 0;
        // Data in the SYN would be lost at the meeting.
        let _ = os::setsockopt(socket.as_fd(), libc::SOL_TCP, TCP_FASTOPEN_CONNECT, &0);
        match as_ours(&socket, || rustix::net::connect(&socket, &at))? {
            Ok(()) => Ok(Begun::Connected),
            Err(Errno::INPROGRESS) => {
                // The real connection is to have its port.
                let is_shared = is_bound && !sockopt::socket_reuseaddr(&socket)?;
                if is_shared {
                    sockopt::set_socket_reuseaddr(&socket, true)?;
                }
                Ok(Begun::Waits(Pending { socket, at, is_bound, is_shared }))
            }
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether the program has bound its socket to a port.
    pub fn is_bound(&self) -> bool {
        self.is_bound
    }

    /// Has the socket share its address as the program has set it.
    fn share_no_more(&self) -> io::Result<()> {
        if self.is_shared {
            sockopt::set_socket_reuseaddr(&self.socket, false)?;
        }
        Ok(())
    }

    /// The program's end of it.
    ///
    /// # Errors
    /// None are known.
    pub fn program(&self) -> io::Result<SocketAddr> {
        let own: SocketAddr = rustix::net::getsockname(&self.socket)?.try_into()?;
        Ok(SocketAddr::new(own.ip().to_canonical(), own.port()))
    }

    /// Waits until the program's socket is connected, when the meeting has met it. The program has still to hear of
    /// it: by its next connect, which succeeds once.
    ///
    /// # Errors
    /// It is not connected: another socket has the same two addresses, or the program has disconnected it.
    pub fn crossed(self) -> io::Result<()> {
        self.share_no_more()?;
        let timeout = Timespec { tv_sec: 0, tv_nsec: CROSSING.subsec_nanos().into() };
        poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], Some(&timeout))?;
        rustix::net::getpeername(&self.socket)?;
        Ok(())
    }

    /// Completes a connect that its program waits for, when the meeting has met its socket; the duplicate.
    ///
    /// # Errors
    /// It is not: somebody else has the same two addresses, or the program has disconnected it.
    pub fn finish(self) -> io::Result<OwnedFd> {
        self.share_no_more()?;
        let timeout = Timespec { tv_sec: 0, tv_nsec: CROSSING.subsec_nanos().into() };
        loop {
            // A second connect says it, as it does to programs.
            match as_ours(&self.socket, || rustix::net::connect(&self.socket, &self.at))? {
                Ok(()) | Err(Errno::ISCONN) => return Ok(self.socket),
                Err(Errno::ALREADY) => {
                    let mut fds = [PollFd::new(&self.socket, PollFlags::OUT)];
                    if poll(&mut fds, Some(&timeout))? == 0 {
                        return Err(Errno::TIMEDOUT.into());
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Tells the program, which waits for its socket, that the connection is refused.
    ///
    /// # Errors
    /// The program has done something else with its socket meanwhile.
    pub fn refuse(self, closed: &Closed) -> io::Result<()> {
        self.share_no_more()?;
        let at = within(&self.socket, closed.at(self.at.ip().to_canonical().is_ipv4())?)?;
        // In between it is reset, which a program that polls may see: so the two calls follow each other at once.
        let refuse = || {
            rustix::net::connect_unspec(&self.socket)?;
            rustix::net::connect(&self.socket, &at)
        };
        match as_ours(&self.socket, refuse)? {
            Err(Errno::INPROGRESS) => {
                let timeout = Timespec { tv_sec: 0, tv_nsec: CROSSING.subsec_nanos().into() };
                let mut fds = [PollFd::new(&self.socket, PollFlags::empty())];
                poll(&mut fds, Some(&timeout))?;
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Makes the socket what it was before the connect: its program is told the error by other means.
    ///
    /// # Errors
    /// None are known.
    pub fn forget(self) -> io::Result<()> {
        self.share_no_more()?;
        rustix::net::connect_unspec(&self.socket)?;
        // The disconnect itself leaves an error behind.
        Ok(sockopt::socket_error(&self.socket)?.or(Ok::<(), Errno>(()))?)
    }
}

impl AsFd for Pending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Does a program's connect for it, on a duplicate of its socket, with the address that we have seen:
/// the program cannot change it meanwhile. It does not wait.
///
/// # Errors
/// What the kernel says; `EINPROGRESS` where it would have waited.
pub fn connect_for(socket: &OwnedFd, sockaddr: &[u8]) -> io::Result<()> {
    let length = sockaddr.len() as libc::socklen_t;
    without_waiting(socket, || {
        // SAFETY: the kernel reads `length` bytes of `sockaddr`, which lives through the call.
        os::check(unsafe { libc::connect(socket.as_raw_fd(), sockaddr.as_ptr().cast(), length) })
    })?
}

/// Sets a socket option for a program, on a duplicate of its socket.
///
/// # Errors
/// What the kernel says.
pub fn set_option_for(socket: &OwnedFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let length = value.len() as libc::socklen_t;
    let at = value.as_ptr().cast();
    // SAFETY: the kernel reads `length` bytes of `value`, which lives through the call.
    os::check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, at, length) })
}

/// Whether calls on this descriptor wait for what they ask for.
///
/// # Errors
/// None are known.
pub fn blocks(socket: impl AsFd) -> io::Result<bool> {
    Ok(!fcntl_getfl(socket)?.contains(OFlags::NONBLOCK))
}

/// What became of a connect that was to begin.
#[derive(Debug)]
pub enum Begun {
    /// It is in progress.
    Waits(Pending),
    /// It was in progress already, and is connected now; the program has asked again.
    Connected,
}

/// Ports of ours where nobody listens, and nobody else will: what connects to them is refused.
#[derive(Debug)]
pub struct Closed {
    v4: OwnedFd,
    v6: Option<OwnedFd>,
}

impl Closed {
    /// At ports of the kernel's choice.
    ///
    /// # Errors
    /// There is no loopback interface, or no port is free.
    pub fn open() -> io::Result<Closed> {
        let bound = |family, ip| -> io::Result<OwnedFd> {
            let flags = rustix::net::SocketFlags::CLOEXEC;
            let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
            rustix::net::bind(&socket, &SocketAddr::new(ip, 0))?;
            Ok(socket)
        };
        let v6 = bound(AddressFamily::INET6, Ipv6Addr::LOCALHOST.into()).ok();
        Ok(Closed { v4: bound(AddressFamily::INET, Ipv4Addr::LOCALHOST.into())?, v6 })
    }

    /// That of IPv4, or else of IPv6.
    ///
    /// # Errors
    /// The machine has no such family.
    pub fn at(&self, v4: bool) -> io::Result<SocketAddr> {
        let socket = if v4 { Some(&self.v4) } else { self.v6.as_ref() };
        let socket = socket.ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(rustix::net::getsockname(socket)?.try_into()?)
    }
}

/// `at` as a socket of this family is told it.
fn within(socket: &OwnedFd, at: SocketAddr) -> io::Result<SocketAddr> {
    Ok(match at {
        SocketAddr::V4(v4) if sockopt::socket_domain(socket)? == AddressFamily::INET6 => {
            SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port())
        }
        _ => at,
    })
}

/// Does it without waiting, and unseen by another run's cgroup that the program may be in: what leads
/// to us is not the program's connect. To be unseen takes a right.
fn as_ours<T>(socket: &OwnedFd, act: impl FnOnce() -> T) -> io::Result<T> {
    let fd = socket.as_fd();
    let mark = os::getsockopt::<libc::c_int>(fd, libc::SOL_SOCKET, libc::SO_MARK)?;
    let marked = os::setsockopt(fd, libc::SOL_SOCKET, libc::SO_MARK, &INSIDE).is_ok();
    let done = without_waiting(socket, act);
    if marked {
        os::setsockopt(fd, libc::SOL_SOCKET, libc::SO_MARK, &mark)?;
    }
    done
}

/// Does it as on a socket that does not block; the flag is the program's too, and put back.
fn without_waiting<T>(socket: &OwnedFd, act: impl FnOnce() -> T) -> io::Result<T> {
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
    use crate::meeting::Meeting;

    /// The program's socket, and our duplicate.
    fn program(family: AddressFamily, flags: SocketFlags) -> (OwnedFd, OwnedFd) {
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None).unwrap();
        let ours = socket.try_clone().unwrap();
        (socket, ours)
    }

    fn begin(ours: OwnedFd, at: SocketAddr) -> Pending {
        match Pending::begin(ours, at).unwrap() {
            Begun::Waits(pending) => pending,
            Begun::Connected => panic!("it was never begun"),
        }
    }

    fn events(socket: &OwnedFd) -> PollFlags {
        let mut fds = [PollFd::new(socket, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())).unwrap();
        fds[0].revents()
    }

    #[test]
    fn a_blocking_socket_is_met_and_blocks_again() {
        let meeting = Meeting::open().unwrap();
        for (family, at) in [
            (AddressFamily::INET, meeting.at(true)),
            (AddressFamily::INET6, meeting.at(true)),
            (AddressFamily::INET6, meeting.at(false)),
        ] {
            let Some(at) = at else { continue };
            let (socket, ours) = program(family, SocketFlags::empty());
            let pending = begin(ours, at);
            assert_eq!(events(&socket), PollFlags::empty());
            let mut met = meeting.meet(pending.program().unwrap()).unwrap();
            pending.finish().unwrap();
            assert!(!fcntl_getfl(&socket).unwrap().contains(OFlags::NONBLOCK));
            met.write_all(b"there").unwrap();
            let mut words = [0; 5];
            TcpStream::from(socket).read_exact(&mut words).unwrap();
            assert_eq!(&words, b"there");
        }
    }

    #[test]
    fn one_that_is_refused_learns_it_by_its_socket() {
        let (meeting, closed) = (Meeting::open().unwrap(), Closed::open().unwrap());
        for v4 in [true, false] {
            let Some(at) = meeting.at(v4) else { continue };
            let family = if v4 { AddressFamily::INET } else { AddressFamily::INET6 };
            let (socket, ours) = program(family, SocketFlags::NONBLOCK);
            begin(ours, at).refuse(&closed).unwrap();
            assert!(events(&socket).contains(PollFlags::ERR | PollFlags::HUP));
            assert_eq!(sockopt::socket_error(&socket).unwrap(), Err(Errno::CONNREFUSED));
        }
    }

    #[test]
    fn one_that_is_forgotten_can_connect_again() {
        let meeting = Meeting::open().unwrap();
        let at = meeting.at(true).unwrap();
        let (socket, ours) = program(AddressFamily::INET, SocketFlags::empty());
        begin(ours, at).forget().unwrap();
        assert_eq!(sockopt::socket_error(&socket).unwrap(), Ok(()));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        rustix::net::connect(&socket, &listener.local_addr().unwrap()).unwrap();
    }

    #[test]
    fn a_second_connect_is_told_what_the_kernel_says() {
        let meeting = Meeting::open().unwrap();
        let at = meeting.at(true).unwrap();
        let (socket, ours) = program(AddressFamily::INET, SocketFlags::NONBLOCK);
        let again = || Pending::begin(socket.try_clone().unwrap(), at);
        let pending = begin(ours, at);
        assert_eq!(again().unwrap_err().raw_os_error(), Some(libc::EALREADY));
        let _met = meeting.meet(pending.program().unwrap()).unwrap();
        pending.crossed().unwrap();
        assert!(matches!(again().unwrap(), Begun::Connected));
        assert_eq!(again().unwrap_err().raw_os_error(), Some(libc::EISCONN));
    }

    #[test]
    fn one_that_waited_is_not_told_twice() {
        let meeting = Meeting::open().unwrap();
        let at = meeting.at(true).unwrap();
        let (socket, ours) = program(AddressFamily::INET, SocketFlags::empty());
        let pending = begin(ours, at);
        let _met = meeting.meet(pending.program().unwrap()).unwrap();
        pending.finish().unwrap();
        let again = Pending::begin(socket.try_clone().unwrap(), at);
        assert_eq!(again.unwrap_err().raw_os_error(), Some(libc::EISCONN));
    }

    #[test]
    fn one_that_was_disconnected_has_not_crossed() {
        let meeting = Meeting::open().unwrap();
        let (socket, ours) = program(AddressFamily::INET, SocketFlags::NONBLOCK);
        let pending = begin(ours, meeting.at(true).unwrap());
        rustix::net::connect_unspec(&socket).unwrap();
        assert!(pending.crossed().is_err());
    }
}

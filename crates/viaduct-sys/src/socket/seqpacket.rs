//! Messages between processes of this host, each with up to four descriptors (`SOCK_SEQPACKET`,
//! `SCM_RIGHTS`), or up to 253 with [`send_many`] and [`receive_many`].

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::os;

/// Max descriptors of a message.
const MAX_DESCRIPTORS: usize = 4;
/// Size of the control buffer for the descriptors.
const SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS));
/// Max descriptors that the kernel passes in one message (`SCM_MAX_FD`).
const MAX_MANY: usize = 253;
/// Size of the control buffer for [`MAX_MANY`] descriptors.
const MANY_SPACE: usize = rustix::cmsg_space!(ScmRights(MAX_MANY));
/// Max connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Creates a connected pair of sockets. Errors: no descriptor is left.
pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Opens a non-blocking listener at `name`. A name that begins with `@` is abstract: it has no
/// file, and belongs to this network namespace. Errors: the name is in use or too long, or its
/// directory does not exist.
pub fn listen(name: &str) -> io::Result<OwnedFd> {
    let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::bind(&socket, &address(name)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// User and process of a peer when it connected, or when it began to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Effective user ID.
    pub user: u32,
    /// Process ID in this process's PID namespace; 0 if the peer is outside that namespace.
    pub process: u32,
}

/// Accepts the next connection to `listener`. Returns the socket, which is non-blocking, and its
/// peer. Errors: no connection is pending ([`io::ErrorKind::WouldBlock`]), or no descriptor is
/// left.
pub fn accept(listener: impl AsFd) -> io::Result<(OwnedFd, Peer)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::accept_with(listener, flags)?;
    let peer = peer(socket.as_fd())?;
    Ok((socket, peer))
}

fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    // rustix is not used, because it rejects the process ID 0.
    let of: libc::ucred = os::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
    Ok(Peer { user: of.uid, process: of.pid.cast_unsigned() })
}

/// Returns the user of the process that listens at the other end of `socket`, a connected Unix
/// socket of any type, and a pidfd of the process. Errors: the process has ended, or is outside
/// this PID namespace.
pub fn listener(socket: BorrowedFd<'_>) -> io::Result<(u32, OwnedFd)> {
    let peer = peer(socket)?;
    let pid = Pid::from_raw(peer.process.cast_signed()).ok_or(io::ErrorKind::NotFound)?;
    let pidfd = match os::peer_pidfd(socket) {
        // On Linux before 6.5, the ID may be that of a later process if the listener has ended and
        // another process has inherited its socket.
        Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
            pidfd_open(pid, PidfdFlags::empty())?
        }
        opened => opened?,
    };
    Ok((peer.user, pidfd))
}

/// Connects to `name`. Errors: no process listens at `name`.
pub fn connect(name: &str) -> io::Result<OwnedFd> {
    let socket = socket(SocketFlags::CLOEXEC)?;
    rustix::net::connect(&socket, &address(name)?)?;
    Ok(socket)
}

/// Sends a message. Neither allocates nor takes a lock. Errors: the other end is closed, or a
/// non-blocking socket's buffer is full.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: Option<BorrowedFd<'_>>) -> io::Result<()> {
    send_with_fds(socket, bytes, fds.as_slice())
}

/// Sends a message with up to four descriptors. Errors: those of [`send`].
pub fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_in(socket, bytes, fds, &mut [MaybeUninit::uninit(); SPACE])
}

/// Sends a message with up to 253 descriptors.
///
/// # Errors
/// Those of [`send`], or there are too many descriptors.
pub fn send_many(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    send_in(socket, bytes, fds, &mut [MaybeUninit::uninit(); MANY_SPACE])
}

fn send_in(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    space: &mut [MaybeUninit<u8>],
) -> io::Result<()> {
    let mut control = SendAncillaryBuffer::new(space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let bytes = [IoSlice::new(bytes)];
    rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// A received message, with its descriptors.
#[derive(Debug)]
pub struct Received {
    /// Bytes of the message; 0 if the other end is closed.
    pub length: usize,
    /// Descriptors of the message.
    pub fds: Vec<OwnedFd>,
    /// True if the message was longer than the buffer, and therefore not of the expected format.
    pub is_truncated: bool,
    /// True if descriptors were lost, because the message had too many or because this process has
    /// reached its limit.
    pub lost_fds: bool,
}

/// Receives a message. Returns its length (0 if the other end is closed) and its first descriptor.
/// Errors: no message is queued on a non-blocking socket ([`io::ErrorKind::WouldBlock`]), or the
/// message is longer than `bytes` ([`io::ErrorKind::InvalidData`]).
pub fn receive(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let received = receive_with_fds(socket, bytes)?;
    if received.is_truncated {
        let what = format!(
            "the message is longer than {} bytes, so another version has sent it",
            bytes.len()
        );
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok((received.length, received.fds.into_iter().next()))
}

/// Receives a message with all its descriptors, and reports whether it is complete. Errors: no
/// message is queued on a non-blocking socket ([`io::ErrorKind::WouldBlock`]).
pub fn receive_with_fds(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<Received> {
    receive_in(socket, bytes, &mut [MaybeUninit::uninit(); SPACE])
}

/// Receives a message with up to 253 descriptors.
///
/// # Errors
/// Those of [`receive_with_fds`], and `TimedOut` once the time of [`set_timeout`] has passed.
pub fn receive_many(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<Received> {
    match receive_in(socket, bytes, &mut [MaybeUninit::uninit(); MANY_SPACE]) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(io::ErrorKind::TimedOut.into())
        }
        received => received,
    }
}

/// Limits the time of each later call on a blocking socket.
///
/// # Errors
/// None are known.
pub fn set_timeout(socket: &OwnedFd, limit: Duration) -> io::Result<()> {
    for of in [Timeout::Recv, Timeout::Send] {
        sockopt::set_socket_timeout(socket, of, Some(limit))?;
    }
    Ok(())
}

fn receive_in(
    socket: impl AsFd,
    bytes: &mut [u8],
    space: &mut [MaybeUninit<u8>],
) -> io::Result<Received> {
    let mut control = RecvAncillaryBuffer::new(space);
    let mut bytes = [IoSliceMut::new(bytes)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let message = rustix::net::recvmsg(socket, &mut bytes, &mut control, flags)?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(of) = message {
            fds.extend(of);
        }
    }
    let is_truncated = message.flags.contains(ReturnFlags::TRUNC);
    let lost_fds = message.flags.contains(ReturnFlags::CTRUNC);
    Ok(Received { length: message.bytes, fds, is_truncated, lost_fds })
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn address(name: &str) -> io::Result<SocketAddrUnix> {
    Ok(match name.strip_prefix('@') {
        Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        None => SocketAddrUnix::new(name)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_carry_descriptors() {
        let name = format!("@viaduct-records-{}", std::process::id());
        let listener = listen(&name).unwrap();
        let ours = connect(&name).unwrap();
        let (theirs, peer) = accept(&listener).unwrap();
        let user = rustix::process::getuid().as_raw();
        assert_eq!(peer, Peer { user, process: std::process::id() });
        let (one, other) = pair().unwrap();
        send(&ours, b"with", Some(one.as_fd())).unwrap();
        send(&ours, b"without", None).unwrap();
        let mut bytes = [0; 16];
        let (length, fds) = receive(&theirs, &mut bytes).unwrap();
        assert_eq!(&bytes[..length], b"with");
        send(fds.unwrap(), b"it works", None).unwrap();
        assert_eq!(receive(&other, &mut bytes).unwrap().0, 8);
        let (length, fds) = receive(&theirs, &mut bytes).unwrap();
        assert!(&bytes[..length] == b"without" && fds.is_none());
        send_with_fds(&ours, b"both", &[ours.as_fd(), theirs.as_fd()]).unwrap();
        assert_eq!(receive_with_fds(&theirs, &mut bytes).unwrap().fds.len(), 2);
        drop(ours);
        assert_eq!(receive(&theirs, &mut bytes).unwrap().0, 0);
    }

    #[test]
    fn a_message_has_as_many_descriptors_as_the_kernel_allows() {
        let (ours, theirs) = pair().unwrap();
        let many = |count: usize| vec![ours.as_fd(); count];
        send_many(&ours, b"all", &many(MAX_MANY)).unwrap();
        let mut bytes = [0; 16];
        let received = receive_many(&theirs, &mut bytes).unwrap();
        assert_eq!((received.length, received.fds.len()), (3, MAX_MANY));
        assert!(!received.lost_fds && !received.is_truncated);
        assert!(send_many(&ours, b"more", &many(MAX_MANY + 1)).is_err());
        set_timeout(&theirs, Duration::from_millis(20)).unwrap();
        let error = receive_many(&theirs, &mut bytes).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}

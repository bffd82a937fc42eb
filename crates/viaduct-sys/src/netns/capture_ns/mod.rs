//! Capture namespace: a network namespace in which programs listen out of reach of other hosts.
//! Its only interface is the loopback, and every address is local.
//!
//! A listener in the namespace may be bound to any address, and connections to it may come from any
//! address. The listener's program sees the same addresses as it would outside, but only the
//! process that created the namespace can reach it. No privilege is needed if the kernel allows
//! unprivileged user namespaces.
//!
//! ```text
//!   clients ══▶ public listener :80 ── handlers ─┐            the namespace: lo, and a route
//!                                                ▼            that makes every address local
//!                 a socket bound to the client's address ──▶ the program's listener, 192.0.2.1:80
//! ```
#![allow(unsafe_code)]

mod close_watch;
mod datagrams;
mod link_scope;
mod listeners;
mod routes;
mod source_routes;
mod uplink;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, sockopt};
use serde::{Deserialize, Serialize};

pub use close_watch::CloseWatch;
pub use datagrams::{LoopbackSocket, Uplinks, datagram_socket, enter_for_datagrams, udp_ports};
pub use link_scope::add_link;
pub use listeners::{Listener, Listeners};
pub use source_routes::{SourceRoute, SourceRoutes, SourceRoutesWatch};
pub use uplink::Uplink;

use crate::netns::{self, NetnsError, enter_user_namespace};
use crate::os;
use crate::route::interface::Interface;
use crate::socket::tcp;

const LOOPBACK: &str = "lo";
/// Disables TIME-WAIT: on loopback no segment is late, so addresses may be reused immediately.
const NO_TIME_WAIT: (&str, &str) = ("/proc/sys/net/ipv4/tcp_max_tw_buckets", "0");

/// Purpose of a socket in the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// Listener of a program; an IPv6 listener may accept IPv4 connections too.
    Listener {
        /// True for an IPv6 socket.
        v6: bool,
        /// True if an IPv6 socket accepts no IPv4 connections (`IPV6_V6ONLY`).
        alone: bool,
    },
    /// Socket to be connected to a listener from a client's address.
    BoundSocket,
}

/// Errors of creating a capture namespace.
#[derive(Debug, thiserror::Error)]
pub enum CaptureNsError {
    /// The namespace cannot be created.
    #[error(transparent)]
    Namespace(#[from] NetnsError),
    /// The namespace cannot be set up.
    #[error("cannot set up a network namespace: {0}")]
    SetUp(String),
}

/// Moves this process, which must have one thread, into a new capture namespace. All sockets that
/// it opens later are in the namespace. Returns access to the namespace's listening sockets.
/// Errors: this user may not create a network namespace.
pub fn enter() -> Result<Listeners, CaptureNsError> {
    enter_network()?;
    let lo = Interface::new(LOOPBACK).and_then(|lo| lo.set_up());
    lo.map_err(|error| set_up("the loopback interface", error))?;
    routes::make_all_local(Ipv4Addr::UNSPECIFIED.into(), LOOPBACK, libc::RT_TABLE_LOCAL)
        .map_err(|error| set_up("a route", error))?;
    // Fails if the machine has no IPv6.
    let _ = routes::make_all_local(Ipv6Addr::UNSPECIFIED.into(), LOOPBACK, libc::RT_TABLE_LOCAL);
    // If the setting is not writable, a client's port is free again only after a minute.
    let _ = std::fs::write(NO_TIME_WAIT.0, NO_TIME_WAIT.1);
    Listeners::open().map_err(|error| set_up("notification of closed sockets", error))
}

fn enter_network() -> Result<(), CaptureNsError> {
    // Tried in the calling thread, because the kernel refuses a user namespace to a process with
    // several threads, and would still count a second thread for a moment after its end.
    if netns::move_to_new().is_err() {
        enter_user_namespace()?;
    }
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "it is called in map_err")]
fn set_up(what: &str, why: impl ToString) -> CaptureNsError {
    CaptureNsError::SetUp(format!("{what}: {}", why.to_string()))
}

/// Opens a TCP socket in this process's capture namespace, bound to `at`, which may be the address
/// of any host. Several sockets may be bound to one address. Errors: the machine lacks the address
/// family, or no descriptor is left.
pub fn socket(purpose: Purpose, at: SocketAddr) -> io::Result<OwnedFd> {
    let (v6, alone) = match purpose {
        Purpose::Listener { v6, alone } => (v6, alone),
        Purpose::BoundSocket => (at.is_ipv6(), true),
    };
    let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
    if v6 {
        sockopt::set_ipv6_v6only(&socket, alone)?;
        os::setsockopt(socket.as_fd(), libc::SOL_IPV6, libc::IPV6_FREEBIND, &1)?;
    }
    if purpose == Purpose::BoundSocket {
        // As on all connections to programs: see `tcp`.
        sockopt::set_socket_oobinline(&socket, true)?;
        sockopt::set_tcp_nodelay(&socket, true)?;
        // The cgroup programs of an enclosing run ignore sockets with this mark.
        let _ = os::setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &tcp::INSIDE);
    }
    // A client may have the same port as a listener. A port that the kernel chooses is never
    // shared.
    let named = at.port() != 0 || purpose != Purpose::BoundSocket;
    sockopt::set_socket_reuseaddr(&socket, named)?;
    sockopt::set_socket_reuseport(&socket, named)?;
    rustix::net::bind(&socket, &to_family(at, v6))?;
    Ok(socket)
}

/// Converts `at` to a socket's address family. Link-local addresses keep their
/// interface ([`add_link`]).
pub fn to_family(at: SocketAddr, v6: bool) -> SocketAddr {
    match at {
        SocketAddr::V4(v4) if v6 => {
            let ip = if v4.ip().is_unspecified() {
                Ipv6Addr::UNSPECIFIED
            } else {
                v4.ip().to_ipv6_mapped()
            };
            SocketAddr::new(ip.into(), v4.port())
        }
        SocketAddr::V6(v6) => {
            let scope = if v6.ip().is_unicast_link_local() { v6.scope_id() } else { 0 };
            SocketAddrV6::new(*v6.ip(), v6.port(), 0, scope).into()
        }
        at => at,
    }
}

/// Options that a program may set on a socket before it calls listen(2): level and number.
const OPTIONS: [(libc::c_int, libc::c_int); 15] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT),
    (libc::SOL_SOCKET, libc::SO_PRIORITY),
    (libc::SOL_TCP, libc::TCP_NODELAY),
    (libc::SOL_TCP, libc::TCP_CORK),
    (libc::SOL_TCP, libc::TCP_KEEPIDLE),
    (libc::SOL_TCP, libc::TCP_KEEPINTVL),
    (libc::SOL_TCP, libc::TCP_KEEPCNT),
    (libc::SOL_TCP, libc::TCP_USER_TIMEOUT),
    (libc::SOL_TCP, libc::TCP_NOTSENT_LOWAT),
    (libc::SOL_TCP, libc::TCP_CONGESTION),
];
const ASYNC: OFlags = OFlags::from_bits_retain(libc::O_ASYNC as u32);
const BUFFERS: [libc::c_int; 2] = [libc::SO_RCVBUF, libc::SO_SNDBUF];

/// Copies the options of `like` to `socket`, and sets the blocking mode of `socket` from `flags`.
/// Accepted sockets inherit the options. Errors: either descriptor is not a socket.
pub fn set_up_like(socket: BorrowedFd<'_>, like: BorrowedFd<'_>, flags: OFlags) -> io::Result<()> {
    fcntl_setfl(socket, flags & (OFlags::NONBLOCK | ASYNC))?;
    for (level, name) in OPTIONS {
        let (Some(theirs), Some(ours)) = (option(like, level, name), option(socket, level, name))
        else {
            continue;
        };
        if theirs != ours {
            // An option that the kernel refuses stays unchanged: the program could not have set it
            // either.
            let _ = os::setsockopt_bytes(socket, level, name, &theirs);
        }
    }
    for name in BUFFERS {
        let size = |of| os::getsockopt::<libc::c_int>(of, libc::SOL_SOCKET, name);
        let theirs = size(like)?;
        if theirs != size(socket)? {
            // The kernel doubles the value, for its own bookkeeping.
            os::setsockopt(socket, libc::SOL_SOCKET, name, &(theirs / 2))?;
        }
    }
    Ok(())
}

fn option(socket: BorrowedFd<'_>, level: libc::c_int, name: libc::c_int) -> Option<Vec<u8>> {
    let (mut value, mut length) = ([0u8; 16], 16);
    let at = value.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `length` bytes to `value`, which is that long.
    let got = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, at, &raw mut length) };
    (got == 0).then(|| value[..length as usize].to_vec())
}

/// Returns the inode number by which `/proc` identifies a socket.
pub fn inode(socket: impl AsFd) -> io::Result<u64> {
    Ok(rustix::fs::fstat(socket)?.st_ino)
}

/// Returns whether a socket belongs to the thread's namespace; true if unknown (before 5.14).
pub fn is_in_this_netns(socket: impl AsFd) -> bool {
    match (network(socket), netns::cookie()) {
        (Ok(theirs), Ok(ours)) => theirs == ours,
        _ => true,
    }
}

/// Returns whether two sockets share a namespace; false if unknown (before 5.14).
pub fn share_netns(one: impl AsFd, other: impl AsFd) -> bool {
    matches!((network(one), network(other)), (Ok(one), Ok(other)) if one == other)
}

fn network(socket: impl AsFd) -> io::Result<u64> {
    os::getsockopt(socket.as_fd(), libc::SOL_SOCKET, netns::NETNS_COOKIE)
}

/// Stops a listener: it accepts no more connections. Errors: the socket does not listen.
pub fn stop_listening(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, rustix::net::Shutdown::Read)?)
}

/// Listens on `socket`, a duplicate of a program's socket, with the program's backlog. Errors: the
/// kernel refuses, for example because the address is in use.
pub fn listen(socket: impl AsFd, backlog: i32) -> io::Result<()> {
    Ok(rustix::net::listen(socket, backlog)?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::socket::tcp;
    use rustix::fs::fcntl_getfl;

    /// Runs `work` in a capture namespace, in a new thread: the test's own thread stays outside.
    fn in_capture_ns<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            enter().unwrap();
            work()
        };
        std::thread::scope(|scope| scope.spawn(inside).join().unwrap())
    }

    #[test]
    fn any_source_reaches_any_address() {
        for (client, own, at) in [
            ("203.0.113.7:4321", "192.0.2.1:80", "0.0.0.0:80"),
            ("203.0.113.7:80", "192.0.2.1:80", "192.0.2.1:80"),
            ("[2001:db8::7]:4321", "[2001:db8:1::1]:80", "[::]:80"),
            ("[fe80::7%1]:4321", "[fe80::1%1]:80", "[::]:80"),
            ("[fe80::7%9]:4321", "[fe80::1%9]:80", "[::]:80"),
            ("[fe80::7%9]:4321", "[fe80::1%9]:80", "[fe80::1%9]:80"),
            ("[fe80::7%11]:80", "[fe80::1%11]:80", "[::]:80"),
            ("203.0.113.7:4321", "127.0.0.1:80", "[::]:80"),
        ] {
            let [client, own, at] = [client, own, at].map(|of| of.parse::<SocketAddr>().unwrap());
            let purpose = Purpose::Listener { v6: at.is_ipv6(), alone: false };
            let (listener, place) = in_capture_ns(|| {
                if let SocketAddr::V6(v6) = own
                    && v6.scope_id() > 1
                {
                    [v6.scope_id(), 90].into_iter().for_each(|number| add_link(number).unwrap());
                }
                let place = || socket(Purpose::BoundSocket, client).unwrap();
                (socket(purpose, at).unwrap(), [place(), place()])
            });
            listen(&listener, 8).unwrap();
            let listener = TcpListener::from(listener);
            listener.set_nonblocking(false).unwrap();
            for place in place {
                let mut place = TcpStream::from(place);
                tcp::connect_bound(&place, to_family(own, own.is_ipv6())).unwrap();
                let (mut stream, from) = listener.accept().unwrap();
                let local = stream.local_addr().unwrap();
                let scope = |at: SocketAddr| match at {
                    SocketAddr::V6(v6) => v6.scope_id(),
                    SocketAddr::V4(_) => 0,
                };
                let canonical = |at: SocketAddr| (at.ip().to_canonical(), at.port(), scope(at));
                assert_eq!(canonical(from), canonical(client));
                assert_eq!(canonical(local), canonical(own));
                place.write_all(b"there").unwrap();
                let mut words = [0; 5];
                stream.read_exact(&mut words).unwrap();
            }
        }
    }

    #[test]
    fn a_socket_is_set_up_like_another() {
        let one = TcpListener::bind("127.0.0.1:0").unwrap();
        sockopt::set_tcp_nodelay(&one, true).unwrap();
        sockopt::set_socket_send_buffer_size(&one, 40_000).unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let untouched = sockopt::socket_recv_buffer_size(&other).unwrap();
        set_up_like(other.as_fd(), one.as_fd(), fcntl_getfl(&one).unwrap()).unwrap();
        assert!(sockopt::tcp_nodelay(&other).unwrap());
        assert_eq!(sockopt::socket_send_buffer_size(&other).unwrap(), 80_000);
        assert_eq!(sockopt::socket_recv_buffer_size(&other).unwrap(), untouched);
        let flags = || fcntl_getfl(&other).unwrap().contains(OFlags::NONBLOCK);
        assert!(!flags());
        one.set_nonblocking(true).unwrap();
        set_up_like(other.as_fd(), one.as_fd(), fcntl_getfl(&one).unwrap()).unwrap();
        assert!(flags());
    }
}

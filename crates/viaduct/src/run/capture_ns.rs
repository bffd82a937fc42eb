//! Holder of a capture namespace, in which wrapped programs listen
//! ([`viaduct_sys::netns::capture_ns`]): a process in that network namespace, which opens sockets
//! for the master. The master stays in its own namespace.
//!
//! ```text
//!   master ── Request: a listener at [::]:80, a socket at 192.0.2.9:4711 ──▶ viaduct run,
//!          ◀───────────── a socket, an error number ───────────────────────  as the holder
//! ```

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use viaduct_sys::netns::capture_ns::{
    self, CloseWatch, Listeners, LoopbackSocket, Purpose, SourceRoutes, Uplink, Uplinks,
};
use viaduct_sys::process::{inherited_fds, memory};
use viaduct_sys::socket::lookup::SocketLookup;
use viaduct_sys::socket::seqpacket;

/// Maximum length of an answer in bytes; an answer may be an error text.
const MAX_ANSWER: usize = 512;
/// Maximum length of a request in bytes; the request with the routes is the longest.
const MAX_REQUEST: usize = 32 << 10;
/// Message to which a socket is attached; the answer follows in the next message.
const SOCKET: &[u8] = b"socket";

/// First byte of the holder's first answer if a namespace was opened, followed by the kind of each
/// attached descriptor. Any other first answer is an error text.
const READY: u8 = b'!';
/// Kind of a descriptor: the namespace's uplink.
const OUT: u8 = b'o';
/// Kind of a descriptor: the namespace's loopback interface, for IPv6.
const V6: u8 = b'6';
/// Kind of a descriptor: notices of closed UDP sockets.
const GONE: u8 = b'g';
/// Kind of a descriptor: lookup of UDP sockets.
const LOOKUP: u8 = b'l';
/// Kind of a descriptor: notices of closed listeners.
const CLOSED: u8 = b'c';
/// Kind of a descriptor: lookup of listeners.
const FIND: u8 = b'f';

#[derive(Debug, Serialize, Deserialize)]
enum Request {
    /// Opens a socket for a listening program, or for a connection to one.
    Socket(Purpose, SocketAddr),
    /// Opens a UDP socket for IPv6 or for IPv4.
    Datagrams { v6: bool },
    /// Sets the routes to those of the host, given as text.
    Routes(String),
    /// Creates an interface with this index in the namespace.
    Link(u32),
}

/// A capture namespace, represented by the connection to its holder.
#[derive(Debug)]
pub struct CaptureNs {
    socket: OwnedFd,
    request_lock: Mutex<()>,
    /// Process ID of the holder.
    pub holder: u32,
    /// Requested interfaces: the index of each on the host, and whether the namespace has an
    /// interface with the same index.
    links: Mutex<HashMap<u32, bool>>,
}

impl CaptureNs {
    /// Opens a capture namespace, and the source of events about listeners in the namespace. The
    /// namespace ends when the returned [`CaptureNs`] is dropped. Errors: this user cannot create a
    /// network namespace; the error gives the reason.
    pub fn open() -> Result<(CaptureNs, Listeners)> {
        let (netns, mut given) = CaptureNs::start(false)?;
        let (closed, find) = given
            .remove(&CLOSED)
            .zip(given.remove(&FIND))
            .context("the holder of the capture namespace has sent no event sockets")?;
        Ok((netns, Listeners::of([closed, find])))
    }

    /// Opens a capture namespace for datagrams, which leave and enter the namespace through its
    /// uplink and, if there is IPv6, its loopback interface. Errors: those of [`CaptureNs::open`],
    /// or the namespace has no uplink.
    pub fn open_for_datagrams() -> Result<(CaptureNs, Uplinks)> {
        let (netns, mut given) = CaptureNs::start(true)?;
        let out = given.remove(&OUT).map(Uplink::of);
        let uplinks = Uplinks {
            out: out.context("the holder of the capture namespace has sent no uplink")?,
            v6: given.remove(&V6).map(LoopbackSocket::of),
            gone: given.remove(&GONE).map(CloseWatch::of),
            lookup: given.remove(&LOOKUP).map(SocketLookup::of),
        };
        Ok((netns, uplinks))
    }

    /// Starts the holder. Returns the descriptors that it sends, by their kinds.
    fn start(datagrams: bool) -> Result<(CaptureNs, HashMap<u8, OwnedFd>)> {
        let (ours, theirs) = seqpacket::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["run", &format!("--netns-fd={}", theirs.as_raw_fd())]);
        if datagrams {
            command.arg("--netns-datagrams");
        }
        inherited_fds::leave_open(&mut command, &[theirs.as_fd()]);
        // The holder must neither get terminal signals nor keep pipes of the program open.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let holder =
            command.spawn().context("cannot start the holder of the capture namespace")?.id();
        drop(theirs);
        let mut answer = [0; MAX_ANSWER];
        let received = seqpacket::receive_with_fds(&ours, &mut answer)?;
        match received.length {
            _ if received.lost_fds => bail!("{}", rustix::io::Errno::MFILE),
            0 => bail!("the holder of the capture namespace has ended"),
            length if answer[0] == READY => {
                let given = answer[1..length].iter().copied().zip(received.fds).collect();
                let (request_lock, links) = (Mutex::default(), Mutex::default());
                Ok((CaptureNs { socket: ours, request_lock, holder, links }, given))
            }
            length => bail!("{}", String::from_utf8_lossy(&answer[..length])),
        }
    }

    /// Opens a non-blocking socket in the namespace.
    pub fn socket(&self, purpose: Purpose, at: SocketAddr) -> io::Result<OwnedFd> {
        self.request_socket(&Request::Socket(purpose, self.with_ns_scope(at)))
    }

    /// Translates the scope of a link-local address to an interface in the namespace: the interface
    /// with the same index, or loopback if such an interface cannot be created. Other addresses are
    /// unchanged.
    pub fn with_ns_scope(&self, at: SocketAddr) -> SocketAddr {
        let SocketAddr::V6(v6) = at else { return at };
        if !v6.ip().is_unicast_link_local() {
            return at;
        }
        let scope = v6.scope_id();
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = || self.request(&Request::Link(scope)).is_ok();
        let is_there = *links.entry(scope).or_insert_with(link);
        SocketAddrV6::new(*v6.ip(), v6.port(), 0, if is_there { scope } else { 1 }).into()
    }

    /// Opens a blocking UDP socket in the namespace, for IPv6 or for IPv4.
    pub fn datagram_socket(&self, v6: bool) -> io::Result<OwnedFd> {
        self.request_socket(&Request::Datagrams { v6 })
    }

    /// Sets the routes of the namespace to those of this host.
    pub fn set_routes(&self, own: &SourceRoutes) -> io::Result<()> {
        self.request(&Request::Routes(own.text())).map(drop)
    }

    fn request_socket(&self, request: &Request) -> io::Result<OwnedFd> {
        // The holder has attached a socket. If none has arrived, this process is out of
        // descriptors.
        self.request(request)?.ok_or(rustix::io::Errno::MFILE.into())
    }

    fn request(&self, request: &Request) -> io::Result<Option<OwnedFd>> {
        let _one_at_a_time = self.request_lock.lock().unwrap_or_else(PoisonError::into_inner);
        seqpacket::send(&self.socket, &serde_json::to_vec(request)?, None)?;
        let mut answer = [0; MAX_ANSWER];
        let (mut length, beside) = seqpacket::receive(&self.socket, &mut answer)?;
        if answer[..length] == *SOCKET {
            (length, _) = seqpacket::receive(&self.socket, &mut answer)?;
        }
        let errno = answer[..length].first_chunk().copied().map(i32::from_ne_bytes);
        match (errno, beside) {
            (Some(0), socket) => Ok(socket),
            (Some(errno), _) => Err(io::Error::from_raw_os_error(errno)),
            (None, _) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }
}

/// Runs the holder of a capture namespace, for datagrams if `datagrams`, until the other end of
/// `fd` is closed.
pub fn hold(fd: RawFd, datagrams: bool) -> Result<()> {
    let socket = inherited_fds::take(fd).context("cannot take the master's socket")?;
    drop(inherited_fds::take_rest().context("cannot list the open descriptors")?);
    let entered = match datagrams {
        true => capture_ns::enter_for_datagrams().map(|uplinks| (Some(uplinks), None)),
        false => capture_ns::enter().map(|listeners| (None, Some(listeners))),
    };
    match &entered {
        Ok((uplinks, listeners)) => send_fds(&socket, uplinks.as_ref(), listeners.as_ref())?,
        Err(error) => return Ok(seqpacket::send(&socket, error.to_string().as_bytes(), None)?),
    }
    // After a failure the process only uses more memory.
    let _ = memory::drop_clean_pages();
    let (mut request, mut routes) = ([0; MAX_REQUEST], SourceRoutes::default());
    loop {
        let length = match seqpacket::receive(&socket, &mut request) {
            Ok((0, _)) => return Ok(()),
            Ok((length, _)) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        let done = execute(&request[..length], &mut routes);
        let errno = errno_of(&done);
        // The answer is sent after this process has closed its duplicate of the socket, which would
        // keep the port in use after the program has closed the socket.
        if let Ok(Some(made)) = done {
            seqpacket::send(&socket, SOCKET, Some(made.as_fd()))?;
        }
        seqpacket::send(&socket, &errno.to_ne_bytes(), None)?;
    }
}

/// Sends the descriptors of the namespace, with their kinds, to the master.
fn send_fds(
    socket: &OwnedFd,
    uplinks: Option<&Uplinks>,
    listeners: Option<&Listeners>,
) -> io::Result<()> {
    let mut given = Vec::new();
    if let Some(listeners) = listeners {
        given.extend([CLOSED, FIND].into_iter().zip(listeners.parts()));
    }
    if let Some(Uplinks { out, v6, gone, lookup }) = uplinks {
        given.push((OUT, out.as_fd()));
        given.extend(v6.as_ref().map(|v6| (V6, v6.as_fd())));
        given.extend(gone.as_ref().map(|gone| (GONE, gone.as_fd())));
        given.extend(lookup.as_ref().map(|lookup| (LOOKUP, lookup.as_fd())));
    }
    let (kinds, fds): (Vec<u8>, Vec<_>) = given.into_iter().unzip();
    seqpacket::send_with_fds(socket, &[&[READY], &kinds[..]].concat(), &fds)
}

/// Executes a request in the namespace, whose routes are `routes`. Returns the socket, if one was
/// requested.
fn execute(request: &[u8], routes: &mut SourceRoutes) -> io::Result<Option<OwnedFd>> {
    match serde_json::from_slice::<Request>(request)? {
        Request::Socket(purpose, at) => capture_ns::socket(purpose, at).map(Some),
        Request::Datagrams { v6 } => capture_ns::datagram_socket(v6).map(Some),
        Request::Routes(text) => {
            let own = SourceRoutes::parse(&text).ok_or(io::ErrorKind::InvalidInput)?;
            let before = std::mem::replace(routes, own);
            routes.apply(&before).map(|()| None)
        }
        Request::Link(index) => capture_ns::add_link(index).map(|()| None),
    }
}

fn errno_of<T>(done: &io::Result<T>) -> i32 {
    let invalid = rustix::io::Errno::INVAL.raw_os_error();
    done.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(invalid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_keep_the_interface_of_an_address() {
        let request = Request::Socket(Purpose::BoundSocket, "[fe80::1%7]:80".parse().unwrap());
        let bytes = serde_json::to_vec(&request).unwrap();
        let Request::Socket(purpose, at) = serde_json::from_slice(&bytes).unwrap() else {
            panic!("another request")
        };
        assert_eq!((purpose, at.to_string()), (Purpose::BoundSocket, "[fe80::1%7]:80".to_owned()));
    }
}

//! Holder of a capture namespace, in which wrapped programs listen
//! ([`viaduct_sys::netns::capture_ns`]): a process in that network namespace that opens
//! sockets for the master, which stays in its own.
//!
//! ```text
//!   master ── "listener [::]:80", "place 192.0.2.9:4711" ──▶ viaduct run, as the holder
//!          ◀───────────── an error's number, a socket ─────┘
//! ```

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use viaduct_sys::netns::capture_ns::{
    self, CloseWatch, Listeners, LoopbackSocket, Purpose, SocketLookup, SourceRoutes, Uplink,
    Uplinks,
};
use viaduct_sys::process::{inherited_fds, memory};
use viaduct_sys::socket::seqpacket;

/// Length of an error text in an answer, at most.
const MAX_ANSWER: usize = 512;
/// Length of a request, at most: the one with the routes is long.
const MAX_REQUEST: usize = 32 << 10;

/// First byte of the holder's first answer, followed by a byte for each descriptor that comes
/// with it. Any other answer is an error text.
const READY: u8 = b'!';
/// Kinds of descriptors: the output, the loopback interface of IPv6, notices of closed UDP
/// sockets, and the lookup of UDP sockets.
const OUT: u8 = b'o';
const V6: u8 = b'6';
const GONE: u8 = b'g';
const LOOKUP: u8 = b'l';
/// Notices of closed listeners, and the lookup of listeners.
const CLOSED: u8 = b'c';
const FIND: u8 = b'f';

/// A capture namespace, by the connection to its holder.
#[derive(Debug)]
pub struct CaptureNs {
    socket: OwnedFd,
    request_lock: Mutex<()>,
    holder: u32,
    /// Interfaces of the host that were asked for, and whether the namespace has one of the
    /// same index.
    links: Mutex<HashMap<u32, bool>>,
}

impl CaptureNs {
    /// Opens a capture namespace, and the source of events about listeners in it. It is gone
    /// when this is dropped.
    ///
    /// # Errors
    /// The kernel gives this user no network namespace; the error says why.
    pub fn open() -> Result<(CaptureNs, Listeners)> {
        let (netns, given) = CaptureNs::start(false)?;
        let (mut closed, mut find) = (None, None);
        for (which, fd) in given {
            match which {
                CLOSED => closed = Some(fd),
                FIND => find = Some(fd),
                _ => {}
            }
        }
        let (closed, find) = closed
            .zip(find)
            .context("the holder of the capture namespace has sent no event sockets")?;
        Ok((netns, Listeners::of([closed, find])))
    }

    /// Opens a capture namespace for datagrams. They leave and enter it by its output, and by
    /// its loopback interface if there is IPv6.
    ///
    /// # Errors
    /// Those of [`CaptureNs::open`]; or it can have no output.
    pub fn open_for_datagrams() -> Result<(CaptureNs, Uplinks)> {
        let (netns, given) = CaptureNs::start(true)?;
        let (mut out, mut v6, mut gone, mut lookup) = (None, None, None, None);
        for (which, fd) in given {
            match which {
                OUT => out = Some(Uplink::of(fd)),
                V6 => v6 = Some(LoopbackSocket::of(fd)),
                GONE => gone = Some(CloseWatch::of(fd)),
                LOOKUP => lookup = Some(SocketLookup::of(fd)),
                _ => {}
            }
        }
        let out = out.context("the holder of the capture namespace has sent no output")?;
        Ok((netns, Uplinks { out, v6, gone, lookup }))
    }

    /// Starts the holder. Returns the descriptors that it sends, with their kinds.
    fn start(datagrams: bool) -> Result<(CaptureNs, Vec<(u8, OwnedFd)>)> {
        let (ours, theirs) = seqpacket::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["run", &format!("--netns-fd={}", theirs.as_raw_fd())]);
        if datagrams {
            command.arg("--netns-datagrams");
        }
        inherited_fds::leave_open(&mut command, &[theirs.as_fd()]);
        // Terminal signals are not for it, and it must not hold pipes of the program open.
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let holder = command.spawn().context("start the holder of the capture namespace")?.id();
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
    ///
    /// # Errors
    /// The kernel's error.
    pub fn socket(&self, purpose: Purpose, at: SocketAddr) -> io::Result<OwnedFd> {
        self.request_socket(&format!("{} {}", verb(purpose), self.with_ns_scope(at)))
    }

    /// Returns `at` with an interface of the namespace: that of the same index, or the loopback
    /// interface if there can be none.
    pub fn with_ns_scope(&self, at: SocketAddr) -> SocketAddr {
        let SocketAddr::V6(v6) = at else { return at };
        if !v6.ip().is_unicast_link_local() {
            return at;
        }
        let scope = v6.scope_id();
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = || self.request(format!("{ADD_LINK}{scope}").as_bytes()).is_ok();
        let is_there = *links.entry(scope).or_insert_with(link);
        SocketAddrV6::new(*v6.ip(), v6.port(), 0, if is_there { scope } else { 1 }).into()
    }

    /// Opens a blocking UDP socket in the namespace, of IPv6 or of IPv4.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn datagram_socket(&self, v6: bool) -> io::Result<OwnedFd> {
        self.request_socket(DATAGRAMS[usize::from(v6)])
    }

    /// Sets the routes of the namespace to those of this host.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn set_routes(&self, own: &SourceRoutes) -> io::Result<()> {
        let request = [SET_ROUTES, own.text().as_bytes()].concat();
        self.request(&request).map(drop)
    }

    fn request_socket(&self, request: &str) -> io::Result<OwnedFd> {
        // Without a descriptor it was sent, but this process had no room for it.
        self.request(request.as_bytes())?.ok_or(rustix::io::Errno::MFILE.into())
    }

    fn request(&self, request: &[u8]) -> io::Result<Option<OwnedFd>> {
        let _one_at_a_time = self.request_lock.lock().unwrap_or_else(PoisonError::into_inner);
        seqpacket::send(&self.socket, request, None)?;
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

    /// Returns the ports of UDP sockets in the namespace.
    ///
    /// # Errors
    /// The holder has ended.
    pub fn udp_ports(&self) -> io::Result<BTreeSet<u16>> {
        capture_ns::udp_ports(self.holder)
    }
}

/// Holds a capture namespace, or one for datagrams, until the other end of `fd` is closed.
pub fn hold(fd: RawFd, datagrams: bool) -> Result<()> {
    let socket = inherited_fds::take(fd).context("take the master's socket")?;
    drop(inherited_fds::take_rest().context("look at what is open")?);
    let entered = match datagrams {
        true => capture_ns::enter_for_datagrams().map(|ways| (Some(ways), None)),
        false => capture_ns::enter().map(|listeners| (None, Some(listeners))),
    };
    match &entered {
        Ok((ways, listeners)) => {
            let mut given = Vec::new();
            if let Some(listeners) = listeners {
                given.extend([CLOSED, FIND].into_iter().zip(listeners.parts()));
            }
            if let Some(Uplinks { out, v6, gone, lookup }) = ways {
                given.push((OUT, out.as_fd()));
                given.extend(v6.as_ref().map(|v6| (V6, v6.as_fd())));
                given.extend(gone.as_ref().map(|gone| (GONE, gone.as_fd())));
                given.extend(lookup.as_ref().map(|lookup| (LOOKUP, lookup.as_fd())));
            }
            let (kinds, fds): (Vec<u8>, Vec<_>) = given.into_iter().unzip();
            seqpacket::send_with_fds(&socket, &[&[READY], &kinds[..]].concat(), &fds)?;
        }
        Err(error) => return Ok(seqpacket::send(&socket, error.to_string().as_bytes(), None)?),
    }
    // On failure, more memory stays in use.
    let _ = memory::drop_clean_pages();
    let mut request = [0; MAX_REQUEST];
    let mut current = SourceRoutes::default();
    loop {
        let length = match seqpacket::receive(&socket, &mut request) {
            Ok((0, _)) => return Ok(()),
            Ok((length, _)) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        if let Some(own) = request[..length].strip_prefix(SET_ROUTES) {
            let own = str::from_utf8(own).ok().and_then(SourceRoutes::parse);
            let done = own.ok_or(io::ErrorKind::InvalidInput.into()).and_then(|own| {
                let before = std::mem::replace(&mut current, own);
                current.apply(&before)
            });
            seqpacket::send(&socket, &errno_of(&done).to_ne_bytes(), None)?;
            continue;
        }
        if let Some(number) = request[..length].strip_prefix(ADD_LINK.as_bytes()) {
            let number = str::from_utf8(number).ok().and_then(|number| number.parse().ok());
            let done =
                number.ok_or(io::ErrorKind::InvalidInput.into()).and_then(capture_ns::add_link);
            seqpacket::send(&socket, &errno_of(&done).to_ne_bytes(), None)?;
            continue;
        }
        let made = match parse(&request[..length]) {
            Some((purpose, at)) => capture_ns::socket(purpose, at),
            None => match DATAGRAMS.iter().position(|of| request[..length] == *of.as_bytes()) {
                Some(v6) => capture_ns::datagram_socket(v6 == 1),
                None => Err(io::ErrorKind::InvalidInput.into()),
            },
        };
        // The answer comes once the socket is closed here: as long as it is open, the program's
        // own close does not free its port.
        let errno = errno_of(&made);
        if let Ok(made) = made {
            seqpacket::send(&socket, SOCKET, Some(made.as_fd()))?;
        }
        seqpacket::send(&socket, &errno.to_ne_bytes(), None)?;
    }
}

fn errno_of<T>(done: &io::Result<T>) -> i32 {
    let invalid = rustix::io::Errno::INVAL.raw_os_error();
    done.as_ref().err().map_or(0, |error| error.raw_os_error().unwrap_or(invalid))
}

/// Message with a socket, before the answer.
const SOCKET: &[u8] = b"socket";
/// Prefix of the request that sets routes.
const SET_ROUTES: &[u8] = b"reach ";
/// Prefix of the request for an interface of a given index.
const ADD_LINK: &str = "link ";
/// Requests for a UDP socket, of IPv4 and of IPv6.
const DATAGRAMS: [&str; 2] = ["datagrams4", "datagrams6"];

fn verb(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Listener { v6: false, .. } => "listener4",
        Purpose::Listener { v6: true, alone: false } => "listener",
        Purpose::Listener { v6: true, alone: true } => "listener6",
        Purpose::BoundSocket => "place",
    }
}

fn parse(request: &[u8]) -> Option<(Purpose, SocketAddr)> {
    let (what, at) = str::from_utf8(request).ok()?.split_once(' ')?;
    let purposes = [(false, false), (true, false), (true, true)];
    let purposes = purposes.map(|(v6, alone)| Purpose::Listener { v6, alone });
    let purpose =
        purposes.into_iter().chain([Purpose::BoundSocket]).find(|of| verb(*of) == what)?;
    Some((purpose, at.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_parse_as_formatted() {
        for (purpose, at) in [
            (Purpose::Listener { v6: false, alone: false }, "192.0.2.1:80"),
            (Purpose::Listener { v6: true, alone: false }, "[::]:80"),
            (Purpose::Listener { v6: true, alone: true }, "[2001:db8::1]:80"),
            (Purpose::BoundSocket, "[fe80::1%7]:80"),
        ] {
            let at: SocketAddr = at.parse().unwrap();
            let text = format!("{} {at}", verb(purpose));
            assert_eq!(parse(text.as_bytes()), Some((purpose, at)));
        }
        assert_eq!(parse(b"place nowhere"), None);
        assert_eq!(parse(b"place"), None);
    }
}

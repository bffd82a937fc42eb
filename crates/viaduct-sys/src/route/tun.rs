//! TUN: a network interface whose other side is a file. Every read returns one IP packet that the
//! kernel sends through the interface; every write is one packet that the kernel receives on the
//! interface.
//!
//! ```text
//!   host's IP ──▶ interface ──▶ queue (SIOCSIFTXQLEN packets) ──▶ Tun::read
//!   host's IP ◀── interface ◀──────────────────────────────────── Tun::write
//! ```
//!
//! There is no Ethernet header, no packet information header and no offload: the kernel segments
//! packets and fills in checksums before they are read. The queue drops packets that do not fit;
//! [`Tun::drops`] counts them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use libc::c_short;
use rustix::fs::{Mode, OFlags};

use crate::route::interface::{Interface, InterfaceError, Request};

/// Counters of the interfaces in the calling thread's network namespace.
const COUNTERS: &str = "/proc/thread-self/net/dev";

/// A TUN interface, which exists until this value is dropped. It belongs to the network namespace
/// that the calling thread was in when the interface was created. Every method acts in that
/// namespace, from any thread.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    interface: Interface,
    /// The namespace's `/proc/net/dev`.
    counters: File,
}

/// Errors of creating a TUN interface.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The name is invalid, or a setting failed.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The kernel refused a step.
    #[error("TUN {name}: cannot {step}")]
    Kernel {
        /// Interface name.
        name: String,
        /// The step that failed, and what it requires.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Packets that the interface dropped, according to the kernel's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunDrops {
    /// Packets that the host sent while the queue towards [`Tun::read`] was full.
    pub unread: u64,
    /// Packets written by [`Tun::write`] that the host did not accept.
    pub refused: u64,
}

impl Tun {
    /// Creates the interface `name` in the calling thread's network namespace: down, without
    /// addresses, with non-blocking reads and writes. Needs CAP_NET_ADMIN in that namespace.
    pub fn create(name: &str) -> Result<Tun, TunError> {
        let failed = |step| move |source| TunError::Kernel { name: name.to_owned(), step, source };
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(io::Error::from)
            .map_err(failed("open /dev/net/tun (requires the tun module)"))?;
        let mut request = Request::new(name)?;
        request.value.flags = (libc::IFF_TUN | libc::IFF_NO_PI) as c_short;
        request
            .call(fd.as_fd(), libc::TUNSETIFF)
            .map_err(failed("create it (requires root or CAP_NET_ADMIN, and a free name)"))?;
        Tun::inherited(fd, name)
    }

    /// Uses the interface `name` of another process, which has sent the interface's descriptor. The
    /// interface exists until both processes have dropped it.
    ///
    /// # Errors
    /// The name is invalid, or there is no `/proc`.
    pub fn inherited(fd: OwnedFd, name: &str) -> Result<Tun, TunError> {
        let failed = |step| move |source| TunError::Kernel { name: name.to_owned(), step, source };
        let interface = Interface::new(name)?;
        let counters = File::open(COUNTERS).map_err(failed("open /proc/thread-self/net/dev"))?;
        Ok(Tun { fd, interface, counters })
    }

    /// Returns the interface, for its settings.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        self.interface.name()
    }

    /// Reads the host's next packet, truncated to `packet`'s length; `WouldBlock` if there is none.
    pub fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.fd, packet)?)
    }

    /// Injects a packet into the host. Returns once the host's IP layer has processed it; a
    /// forwarded packet has then been passed to the next interface.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.fd, packet)?;
        Ok(())
    }

    /// Returns the drops since the interface was created.
    pub fn drops(&self) -> io::Result<TunDrops> {
        let mut text = vec![0; 64 * 1024];
        let length = self.counters.read_at(&mut text, 0)?;
        parse_drops(&String::from_utf8_lossy(&text[..length]), self.name())
    }
}

/// Returns the drops of the interface `name`, in the calling thread's network namespace. Errors:
/// there is no such interface, or no `/proc`.
pub fn drops(name: &str) -> io::Result<TunDrops> {
    parse_drops(&std::fs::read_to_string(COUNTERS)?, name)
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Parses `name: rx (8 numbers: bytes packets errs drop …) tx (bytes packets errs drop …)`.
fn parse_drops(text: &str, name: &str) -> io::Result<TunDrops> {
    let find = || {
        let line =
            text.lines().find_map(|l| l.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
        let mut numbers = line.split_whitespace().map(|n| n.parse().ok());
        let refused = numbers.nth(3)??;
        let unread = numbers.nth(7)??;
        Some(TunDrops { unread, refused })
    };
    let missing =
        || io::Error::new(io::ErrorKind::NotFound, format!("{name} is not in {COUNTERS}"));
    find().ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop\n\
                    \u{20}   lo: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n\
                    \u{20} tun0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        assert_eq!(parse_drops(text, "tun0").unwrap(), TunDrops { refused: 4, unread: 12 });
        assert!(parse_drops(text, "tun").is_err());
    }
}

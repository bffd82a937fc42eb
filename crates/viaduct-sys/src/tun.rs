//! TUN: a network interface whose other side is a file. Every read is one IP packet that the
//! kernel sends out of the interface, every write one that comes in by it.
//!
//! ```text
//!   host's IP ──▶ interface ──▶ queue (SIOCSIFTXQLEN packets) ──▶ Tun::read
//!   host's IP ◀── interface ◀──────────────────────────────────── Tun::write
//! ```
//!
//! No Ethernet header, no packet information header, no offloads: the kernel segments and
//! checksums before a packet is read. The queue drops what does not fit, unseen by the reader;
//! [`Tun::drops`] counts that.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use libc::{c_char, c_int, c_short, c_ulong};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// A TUN interface that lasts as long as this value. It belongs to the network namespace in which
/// its thread was when it made it; every method acts there, whichever thread calls it.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    name: String,
    /// A socket of the interface's namespace, for settings.
    control: OwnedFd,
    /// The namespace's `/proc/net/dev`.
    counters: File,
}

/// A TUN interface that could not be made or set up.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// The kernel takes names of 1 to 15 bytes.
    #[error("interface name '{0}': 1 to 15 bytes without '/' or blanks, such as wan0")]
    Name(String),
    /// A step that the kernel refused.
    #[error("TUN {name}: {step}: {source}")]
    Kernel {
        /// The interface.
        name: String,
        /// What was tried, and what it takes.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// Packets that the interface dropped, as the kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunDrops {
    /// Sent by the host, but the queue towards [`Tun::read`] was full.
    pub unread: u64,
    /// Written by [`Tun::write`], but not taken by the host.
    pub refused: u64,
}

impl Tun {
    /// Makes the interface `name` in the calling thread's network namespace: down, without
    /// addresses, reads and writes not blocking. Needs CAP_NET_ADMIN there.
    pub fn create(name: &str) -> Result<Tun, TunError> {
        let failed = |step| {
            move |source: rustix::io::Errno| TunError::Kernel {
                name: name.to_owned(),
                step,
                source: source.into(),
            }
        };
        let mut request = Request::new(name)?;
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(failed("open /dev/net/tun (needs the tun module)"))?;
        request.value.flags = (libc::IFF_TUN | libc::IFF_NO_PI) as c_short;
        request
            .call(fd.as_fd(), libc::TUNSETIFF)
            .map_err(failed("create the interface (needs CAP_NET_ADMIN and a free name)"))?;
        let control = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(failed("open a socket for its settings"))?;
        let counters =
            File::open("/proc/thread-self/net/dev").map_err(|source| TunError::Kernel {
                name: name.to_owned(),
                step: "open /proc/thread-self/net/dev",
                source,
            })?;
        Ok(Tun { fd, name: name.to_owned(), control, counters })
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes the next packet that the host sent, whole if `packet` holds the MTU, else cut off.
    /// `WouldBlock` when there is none.
    pub fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.fd, packet)?)
    }

    /// Hands the host a packet. Returns once its IP layer has taken it, which for forwarded
    /// packets includes the next interface.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        rustix::io::write(&self.fd, packet)?;
        Ok(())
    }

    /// How many packets may wait for [`Tun::read`]; the kernel's default is 500. In a user namespace
    /// the kernel refuses this call, but not `ip link set NAME txqueuelen N`.
    pub fn set_queue_len(&self, packets: u32) -> Result<(), TunError> {
        let packets = c_int::try_from(packets).unwrap_or(c_int::MAX);
        self.set("set the queue's length", libc::SIOCSIFTXQLEN, Value { int: packets })
    }

    /// How many packets may wait for [`Tun::read`].
    pub fn queue_len(&self) -> Result<u32, TunError> {
        let mut request = Request::new(&self.name)?;
        self.ask("read the queue's length", libc::SIOCGIFTXQLEN, &mut request)?;
        // SAFETY: SIOCGIFTXQLEN succeeded, so the kernel filled in the union's int; and any bytes
        // are an int.
        Ok(unsafe { request.value.int }.unsigned_abs())
    }

    /// The largest packet, 68 to 65535 bytes.
    pub fn set_mtu(&self, bytes: u32) -> Result<(), TunError> {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        self.set("set the MTU (68 to 65535)", libc::SIOCSIFMTU, Value { int: bytes })
    }

    /// The largest packet in bytes.
    pub fn mtu(&self) -> Result<u32, TunError> {
        let mut request = Request::new(&self.name)?;
        self.ask("read the MTU", libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: SIOCGIFMTU succeeded, so the kernel filled in the union's int; and any bytes
        // are an int.
        Ok(unsafe { request.value.int }.unsigned_abs())
    }

    /// Brings the interface up.
    pub fn set_up(&self) -> Result<(), TunError> {
        let flags = (libc::IFF_UP | libc::IFF_POINTOPOINT | libc::IFF_NOARP) as c_short;
        self.set("bring it up", libc::SIOCSIFFLAGS, Value { flags })
    }

    /// What the interface has dropped since it was made.
    pub fn drops(&self) -> io::Result<TunDrops> {
        let mut text = vec![0; 64 * 1024];
        let length = self.counters.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(&text[..length]);
        parse_drops(&text, &self.name).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{} is not in /proc/net/dev", self.name),
            )
        })
    }

    fn set(&self, step: &'static str, operation: c_ulong, value: Value) -> Result<(), TunError> {
        let mut request = Request::new(&self.name)?;
        request.value = value;
        self.ask(step, operation, &mut request)
    }

    fn ask(
        &self,
        step: &'static str,
        operation: c_ulong,
        request: &mut Request,
    ) -> Result<(), TunError> {
        request.call(self.control.as_fd(), operation).map_err(|source| TunError::Kernel {
            name: self.name.clone(),
            step,
            source: source.into(),
        })
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// `struct ifreq`: what every interface ioctl here takes.
#[repr(C)]
struct Request {
    name: [c_char; libc::IFNAMSIZ],
    value: Value,
}

/// The union in `struct ifreq`, as far as it is used here, and as large as the kernel's.
#[repr(C)]
union Value {
    flags: c_short,
    int: c_int,
    whole: [u64; 3],
}

impl Request {
    fn new(name: &str) -> Result<Request, TunError> {
        let unfit = |b: u8| b == 0 || b == b'/' || b == b':' || b.is_ascii_whitespace();
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.bytes().any(unfit) {
            return Err(TunError::Name(name.to_owned()));
        }
        let mut bytes = [0; libc::IFNAMSIZ];
        for (to, from) in bytes.iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        Ok(Request { name: bytes, value: Value { whole: [0; 3] } })
    }

    fn call(&mut self, fd: BorrowedFd<'_>, operation: c_ulong) -> rustix::io::Result<()> {
        // SAFETY: `self` has the layout and size of `struct ifreq` (asserted below), which is what
        // each operation used in this file reads and writes; it outlives the call.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), operation, std::ptr::from_mut(self)) };
        if result < 0 {
            let error = io::Error::last_os_error();
            return Err(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO));
        }
        Ok(())
    }
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

/// The line `name: rx (bytes packets errs drop …8 in all) tx (bytes packets errs drop …)`.
fn parse_drops(text: &str, name: &str) -> Option<TunDrops> {
    let line = text.lines().find_map(|l| l.trim_start().strip_prefix(name)?.strip_prefix(':'))?;
    let mut numbers = line.split_whitespace().map(|n| n.parse().ok());
    let refused = numbers.nth(3)??;
    let unread = numbers.nth(7)??;
    Some(TunDrops { unread, refused })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_by_name() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets errs drop\n\
                    \u{20}   lo: 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\n\
                    \u{20} tun0: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        assert_eq!(parse_drops(text, "tun0"), Some(TunDrops { refused: 4, unread: 12 }));
        assert_eq!(parse_drops(text, "tun"), None);
    }

    #[test]
    fn names_are_checked_before_the_kernel_sees_them() {
        for name in ["", "sixteen-bytes-xx", "a/b", "a b"] {
            assert!(matches!(Tun::create(name), Err(TunError::Name(_))), "{name}");
        }
    }
}

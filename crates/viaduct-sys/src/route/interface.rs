//! Settings of a network interface. MTU, flags and queue length are read and set by ioctl;
//! addresses of a given scope are added, and VLANs looked up, by netlink.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use libc::{c_char, c_int, c_short, c_ulong};
use netlink_packet_route::address::AddressScope;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use crate::route::link_message::{IFLA_LINK, LinkMessage};
use crate::route::rtnetlink::{self, RouteSocket};

/// An interface of the network namespace that the calling thread was in when this value was
/// created. Every method acts in that namespace, from any thread. The interface may appear and
/// disappear at any time.
#[derive(Debug)]
pub struct Interface {
    name: String,
    /// Socket for the ioctls, opened in the interface's network namespace.
    control: OwnedFd,
}

/// Errors of an interface's settings.
#[derive(Debug, thiserror::Error)]
pub enum InterfaceError {
    /// The name is invalid: the kernel accepts names of 1 to 15 bytes without '/', ':' or blanks.
    #[error("interface name {0:?}: 1 to 15 bytes without '/', ':' or blanks are expected")]
    Name(String),
    /// The kernel refused a step.
    #[error("interface {interface}: cannot {step}")]
    Kernel {
        /// Interface name.
        interface: String,
        /// The step that failed.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl Interface {
    /// Opens the interface `name`, which need not exist yet. Errors: the name is invalid, or the
    /// socket for the ioctls cannot be opened.
    pub fn new(name: &str) -> Result<Interface, InterfaceError> {
        Request::new(name)?;
        let dgram = SocketType::DGRAM;
        let control =
            rustix::net::socket_with(AddressFamily::INET, dgram, SocketFlags::CLOEXEC, None)
                .map_err(|source| InterfaceError::Kernel {
                    interface: name.to_owned(),
                    step: "open a socket for its settings",
                    source: source.into(),
                })?;
        Ok(Interface { name: name.to_owned(), control })
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the MTU in bytes. Errors: there is no such interface.
    pub fn mtu(&self) -> Result<u32, InterfaceError> {
        let answer = self.ask("read the MTU", libc::SIOCGIFMTU)?;
        // SAFETY: SIOCGIFMTU succeeded, so the kernel has filled in the union's int, for which
        // every bit pattern is valid.
        Ok(unsafe { answer.int }.unsigned_abs())
    }

    /// Sets the MTU, 68 to 65535 bytes. Errors: the driver does not support this MTU, CAP_NET_ADMIN
    /// is missing, or there is no such interface.
    pub fn set_mtu(&self, bytes: u32) -> Result<(), InterfaceError> {
        let bytes = c_int::try_from(bytes).unwrap_or(c_int::MAX);
        self.set("set the MTU", libc::SIOCSIFMTU, Value { int: bytes })
    }

    /// Returns whether the interface is administratively up. Errors: there is no such interface.
    pub fn is_up(&self) -> Result<bool, InterfaceError> {
        Ok(c_int::from(self.flags()?) & libc::IFF_UP != 0)
    }

    /// Returns whether the interface is up, with a carrier. Errors: there is no such interface.
    pub fn is_running(&self) -> Result<bool, InterfaceError> {
        Ok(c_int::from(self.flags()?) & libc::IFF_RUNNING != 0)
    }

    /// Returns whether this is a loopback interface. Errors: there is no such interface.
    pub fn is_loopback(&self) -> Result<bool, InterfaceError> {
        Ok(c_int::from(self.flags()?) & libc::IFF_LOOPBACK != 0)
    }

    /// Brings the interface up. Errors: CAP_NET_ADMIN is missing, or there is no such interface.
    pub fn set_up(&self) -> Result<(), InterfaceError> {
        let flags = self.flags()? | libc::IFF_UP as c_short;
        self.set("bring it up", libc::SIOCSIFFLAGS, Value { flags })
    }

    /// Returns the transmit queue's length in packets. Errors: there is no such interface.
    pub fn queue_len(&self) -> Result<u32, InterfaceError> {
        let answer = self.ask("read the queue's length", libc::SIOCGIFTXQLEN)?;
        // SAFETY: SIOCGIFTXQLEN succeeded, so the kernel has filled in the union's int, for which
        // every bit pattern is valid.
        Ok(unsafe { answer.int }.unsigned_abs())
    }

    /// Sets the transmit queue's length in packets; the kernel's default is 500 for a TUN. In a
    /// user namespace the kernel refuses this call, but not `ip link set NAME txqueuelen N`.
    /// Errors: CAP_NET_ADMIN is missing, or there is no such interface.
    pub fn set_queue_len(&self, packets: u32) -> Result<(), InterfaceError> {
        let packets = c_int::try_from(packets).unwrap_or(c_int::MAX);
        self.set("set the queue's length", libc::SIOCSIFTXQLEN, Value { int: packets })
    }

    fn flags(&self) -> Result<c_short, InterfaceError> {
        let answer = self.ask("read its flags", libc::SIOCGIFFLAGS)?;
        // SAFETY: SIOCGIFFLAGS succeeded, so the kernel has filled in the union's short, for which
        // every bit pattern is valid.
        Ok(unsafe { answer.flags })
    }

    fn set(
        &self,
        step: &'static str,
        operation: c_ulong,
        value: Value,
    ) -> Result<(), InterfaceError> {
        self.call(step, operation, value).map(drop)
    }

    fn ask(&self, step: &'static str, operation: c_ulong) -> Result<Value, InterfaceError> {
        self.call(step, operation, Value { whole: [0; 3] })
    }

    fn call(
        &self,
        step: &'static str,
        operation: c_ulong,
        value: Value,
    ) -> Result<Value, InterfaceError> {
        let mut request = Request { value, ..Request::new(&self.name)? };
        match request.call(self.control.as_fd(), operation) {
            Ok(()) => Ok(request.value),
            Err(source) => {
                Err(InterfaceError::Kernel { interface: self.name.clone(), step, source })
            }
        }
    }
}

/// `struct ifreq`, the argument of every interface ioctl.
#[repr(C)]
pub(crate) struct Request {
    name: [c_char; libc::IFNAMSIZ],
    pub(crate) value: Value,
}

/// The union in `struct ifreq`: the members used here, padded to the kernel's size.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) union Value {
    pub(crate) flags: c_short,
    int: c_int,
    whole: [u64; 3],
}

impl Request {
    pub(crate) fn new(name: &str) -> Result<Request, InterfaceError> {
        let unfit = |b: u8| b == 0 || b == b'/' || b == b':' || b.is_ascii_whitespace();
        if name.is_empty() || name.len() >= libc::IFNAMSIZ || name.bytes().any(unfit) {
            return Err(InterfaceError::Name(name.to_owned()));
        }
        let mut bytes = [0; libc::IFNAMSIZ];
        for (to, from) in bytes.iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        Ok(Request { name: bytes, value: Value { whole: [0; 3] } })
    }

    /// Calls the ioctl `operation`, whose argument must be a `struct ifreq`.
    pub(crate) fn call(&mut self, fd: BorrowedFd<'_>, operation: c_ulong) -> io::Result<()> {
        // SAFETY: `self` has the layout and size of `struct ifreq` (asserted below), which is what
        // each operation used in this crate reads and writes; it outlives the call.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), operation, std::ptr::from_mut(self)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

const _: () = assert!(size_of::<Request>() == size_of::<libc::ifreq>());

/// Returns the index of the interface `name` in the calling thread's network namespace. Errors:
/// there is no interface of that name.
pub fn index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: a NUL-terminated string that lives through the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Returns the name of interface `index` in the thread's network namespace, if there is one.
pub fn name(index: u32) -> Option<String> {
    let mut name = [0; libc::IFNAMSIZ];
    // SAFETY: `name` has `IFNAMSIZ` bytes, which is all that the function may fill.
    if unsafe { libc::if_indextoname(index, name.as_mut_ptr()) }.is_null() {
        return None;
    }
    // SAFETY: the function succeeded, so `name` holds a NUL-terminated string.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    Some(name.to_string_lossy().into_owned())
}

/// Adds an address of link scope to the interface `name` of the calling thread's network namespace.
/// Errors: CAP_NET_ADMIN is missing, there is no such interface, or it already has the address.
pub fn add_link_address(name: &str, own: IpAddr) -> io::Result<()> {
    rtnetlink::add_address(index(name)?, own, AddressScope::Link)
}

/// Returns whether the interface `name` of the calling thread's network namespace is a VLAN on the
/// interface `trunk`. Errors: one of the interfaces does not exist, or the netlink request fails.
pub fn is_vlan_of(name: &str, trunk: &str) -> io::Result<bool> {
    let (question, below) = (LinkMessage::of(index(name)?), index(trunk)?);
    let link = RouteSocket::open()?.get(&question, 0)?;
    let is_on =
        |link: LinkMessage| link.kind() == Some("vlan") && link.number(IFLA_LINK) == Some(below);
    Ok(link.is_some_and(is_on))
}

/// Returns the index of the only interface with IPv6 link-local addresses, if there is exactly one.
pub fn only_link() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/thread-self/net/if_inet6").ok()?;
    only_link_in(&text)
}

/// Does the same as [`only_link`], for the text of `/proc/net/if_inet6`. Each line has address,
/// index, prefix length, scope and flags, all hexadecimal, and a name.
fn only_link_in(text: &str) -> Option<u32> {
    const LINK: &str = "20";
    let link = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let index = u32::from_str_radix(fields.get(1)?, 16).ok()?;
        (*fields.get(3)? == LINK).then_some(index)
    };
    let mut links = text.lines().filter_map(link);
    let first = links.next()?;
    links.all(|other| other == first).then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_returned_only_if_exactly_one_has_link_local_addresses() {
        let lo = "00000000000000000000000000000001 01 80 10 80       lo\n";
        let eth = "fe800000000000000000000000000001 0a 40 20 80     eth0\n";
        let more = "fe800000000000000000000000000002 0a 40 20 80     eth0\n";
        let other = "fe800000000000000000000000000003 0b 40 20 80     eth1\n";
        assert_eq!(only_link_in(lo), None);
        assert_eq!(only_link_in(&[lo, eth, more].concat()), Some(10));
        assert_eq!(only_link_in(&[eth, other].concat()), None);
    }

    #[test]
    fn names_are_checked_before_the_kernel_sees_them() {
        for name in ["", "sixteen-bytes-xx", "a/b", "a b"] {
            assert!(matches!(Interface::new(name), Err(InterfaceError::Name(_))), "{name}");
        }
    }

    #[test]
    fn loopback_is_recognised() {
        let loopback = Interface::new("lo").unwrap();
        assert!(loopback.is_loopback().unwrap() && loopback.mtu().unwrap() >= 1280);
        let error = Interface::new("no-such-one").unwrap().mtu().unwrap_err();
        assert_eq!(error.to_string(), "interface no-such-one: cannot read the MTU");
    }
}

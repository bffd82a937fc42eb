//! Raw IP packets that are sent through this machine's stack.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, Protocol, SendFlags, SocketFlags, SocketType};

use crate::os;

/// `IPPROTO_RAW`: packets are sent with their IP header, and none is received.
const RAW: u8 = 255;

/// Raw sockets of both families.
#[derive(Debug)]
pub struct RawSockets {
    v4: OwnedFd,
    /// `None` without IPv6.
    v6: Option<OwnedFd>,
}

impl RawSockets {
    /// Opens the sockets. Errors: CAP_NET_RAW is missing.
    pub fn open() -> io::Result<RawSockets> {
        let open = |family| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let raw = Protocol::from_raw(std::num::NonZeroU32::from(
                std::num::NonZeroU8::new(RAW).expect("not zero"),
            ));
            rustix::net::socket_with(family, SocketType::RAW, flags, Some(raw))
        };
        Ok(RawSockets { v4: open(AddressFamily::INET)?, v6: open(AddressFamily::INET6).ok() })
    }

    /// Returns a family's socket, for [`crate::socket::mmsg::Outbox`]; `None` without IPv6.
    pub fn socket(&self, is_ipv4: bool) -> Option<BorrowedFd<'_>> {
        if is_ipv4 { Some(self.v4.as_fd()) } else { self.v6.as_ref().map(|fd| fd.as_fd()) }
    }

    /// Returns whether the sockets are bound to one interface, as in a VRF.
    pub fn is_bound(&self) -> io::Result<bool> {
        let number: libc::c_int =
            os::getsockopt(self.v4.as_fd(), libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX)?;
        Ok(number != 0)
    }

    /// Sets the size of the send buffers to `bytes`, or to the kernel's maximum.
    pub fn set_buffers(&self, bytes: usize) -> io::Result<()> {
        let mut sockets = [Some(&self.v4), self.v6.as_ref()].into_iter().flatten();
        sockets.try_for_each(|socket| os::set_send_buffer(socket, bytes))
    }

    /// Sets the mark of all packets sent, by which this machine's rules and queues recognise them.
    /// Errors: CAP_NET_ADMIN is missing.
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        let (mut sockets, mark) =
            ([Some(&self.v4), self.v6.as_ref()].into_iter(), mark.cast_signed());
        sockets.by_ref().flatten().try_for_each(|socket| {
            os::setsockopt(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MARK, &mark)
        })
    }

    /// Makes the IPv4 socket ignore path MTUs, which any host can lower to 552 bytes with a forged
    /// ICMP message. The socket then ignores the `mtu` of routes, too (IP_PMTUDISC_PROBE). The
    /// interface's MTU still applies.
    pub fn ignore_path_mtu(&self) -> io::Result<()> {
        let (option, probe) = (libc::IP_MTU_DISCOVER, &libc::IP_PMTUDISC_PROBE);
        os::setsockopt(self.v4.as_fd(), libc::IPPROTO_IP, option, probe)
    }

    /// Sends `packet` to `to`, which must also be the destination in its header. Errors: there is
    /// no route to `to`.
    pub fn send(&self, packet: &[u8], to: IpAddr) -> io::Result<()> {
        let socket = if to.is_ipv4() { Some(&self.v4) } else { self.v6.as_ref() };
        let socket = socket.ok_or(io::ErrorKind::AddrNotAvailable)?;
        rustix::net::sendto(socket, packet, SendFlags::empty(), &SocketAddr::new(to, 0))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ipv4_socket_ignores_path_mtus() {
        // Without privilege there are no raw sockets.
        let Ok(raw) = RawSockets::open() else { return };
        raw.ignore_path_mtu().unwrap();
        let (level, option) = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER);
        let mode: libc::c_int = os::getsockopt(raw.v4.as_fd(), level, option).unwrap();
        assert_eq!(mode, libc::IP_PMTUDISC_PROBE);
    }
}

//! The way out of a capture namespace for datagrams: a TUN interface or, where only root may
//! make one, a veth pair with both ends in the namespace, one of which is read and written by a
//! packet socket. That takes no privilege beyond those of the namespace's maker inside it.
//!
//! ```text
//!   sockets ── route ──▶ datagrams ══ TUN ══▶ read
//!           ◀──────────────────────────────── write
//!
//!   sockets ── route ──▶ datagrams ══▶ outside ──▶ read
//!           ◀───────────────────────────────────── write
//! ```

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::net::sockopt;

use super::routes;
use crate::interface::{self, Interface};
use crate::netlink::{Attributes, Message, NLM_F_ACK, NLM_F_CREATE};
use crate::offload::OffloadState;
use crate::os;
use crate::tun::Tun;

/// The interface that datagrams leave by, and the other end of the pair.
pub(super) const INSIDE: &str = "datagrams";
const OUTSIDE: &str = "outside";
/// Max bytes of a packet: no datagram is too long.
const MTU: u32 = 65_535;
/// Max packets that wait to be read, and a limit of their bytes where the kernel counts bytes.
const QUEUE: u32 = 8192;
const ROOM: usize = 8 << 20;
/// MAC addresses of the pair, locally administered: inside, outside.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// Bytes of the Ethernet header.
const HEAD: usize = 14;

const IFLA_ADDRESS: u16 = 1;
pub(super) const IFLA_IFNAME: u16 = 3;
pub(super) const IFLA_LINKINFO: u16 = 18;
pub(super) const INFO_KIND: u16 = 1;
pub(super) const INFO_DATA: u16 = 2;
pub(super) const VETH_PEER: u16 = 1;
/// Setting that keeps the outer interface from sending IPv6 packets of its own.
const QUIET: &str = "/proc/sys/net/ipv6/conf/outside/disable_ipv6";

/// Whole packets that leave a capture namespace, and that come in.
#[derive(Debug)]
pub struct Way {
    fd: OwnedFd,
    /// True if packets are in Ethernet frames.
    frames: bool,
}

impl Way {
    /// Makes a way out of this thread's network namespace, up and without addresses.
    ///
    /// # Errors
    /// Neither kind can be made: the reasons.
    pub(super) fn make() -> Result<Way, String> {
        Way::by_tun().or_else(|no_tun| {
            Way::by_pair().map_err(|why| format!("{no_tun}; nor a pair of interfaces: {why}"))
        })
    }

    fn by_tun() -> Result<Way, String> {
        let tun = Tun::create(INSIDE).map_err(|error| error.to_string())?;
        // A longer queue takes a privilege on the host.
        let _ = tun.interface().set_queue_len(QUEUE);
        raise(tun.interface())?;
        let fd = tun.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        Ok(Way { fd, frames: false })
    }

    fn by_pair() -> Result<Way, String> {
        pair().map_err(|error| error.to_string())?;
        // Missing without IPv6, where the interface sends nothing anyway.
        let _ = std::fs::write(QUIET, "1");
        for name in [OUTSIDE, INSIDE] {
            // With offloads, packets that are cut later would be read whole.
            let _ = OffloadState::read(name).and_then(|state| state.switch_off());
            raise(&Interface::new(name).map_err(|error| error.to_string())?)?;
        }
        let fd = packets(OUTSIDE).map_err(|error| error.to_string())?;
        // As much as an unprivileged user may have.
        let _ = sockopt::set_socket_recv_buffer_size(&fd, ROOM);
        Ok(Way { fd, frames: true })
    }

    /// Wraps a descriptor that another process has opened.
    pub fn of(fd: OwnedFd) -> Way {
        let frames = sockopt::socket_type(&fd).is_ok();
        Way { fd, frames }
    }

    /// Reads the next packet that leaves into `packet`, and returns its length.
    ///
    /// # Errors
    /// No packet waits ([`io::ErrorKind::WouldBlock`]).
    pub fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        if !self.frames {
            return Ok(rustix::io::read(&self.fd, packet)?);
        }
        let mut head = [0; HEAD];
        let mut pieces = [IoSliceMut::new(&mut head), IoSliceMut::new(packet)];
        Ok(rustix::io::readv(&self.fd, &mut pieces)?.saturating_sub(HEAD))
    }

    /// Injects a packet that comes in.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        if !self.frames {
            return Ok(rustix::io::write(&self.fd, packet).map(drop)?);
        }
        let v6 = packet.first().is_some_and(|first| first >> 4 == 6);
        let kind = if v6 { libc::ETH_P_IPV6 } else { libc::ETH_P_IP } as u16;
        let head = [&MACS[0][..], &MACS[1], &kind.to_be_bytes()].concat();
        Ok(rustix::io::writev(&self.fd, &[IoSlice::new(&head), IoSlice::new(packet)]).map(drop)?)
    }
}

impl AsFd for Way {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn raise(interface: &Interface) -> Result<(), String> {
    let raised = interface.set_mtu(MTU).and_then(|()| interface.set_up());
    raised.map_err(|error| error.to_string())
}

/// Makes a veth pair. The first interface does no neighbour discovery.
fn pair() -> io::Result<()> {
    let head = |flags: libc::c_int| {
        // `struct ifinfomsg`: of any family, type and number; flags, and which of them are meant.
        let mut head = vec![0; 8];
        head.extend(flags.to_ne_bytes());
        head.extend(flags.to_ne_bytes());
        head
    };
    let name = |name: &str| [name.as_bytes(), b"\0"].concat();
    let peer =
        Attributes::behind(&head(0)).with(IFLA_IFNAME, &name(OUTSIDE)).with(IFLA_ADDRESS, &MACS[1]);
    let info = Attributes::default()
        .with(INFO_KIND, b"veth")
        .nest(INFO_DATA, &Attributes::default().nest(VETH_PEER, &peer));
    let flags = NLM_F_ACK | NLM_F_CREATE;
    let message = Message::of_routing(libc::RTM_NEWLINK, flags, &head(libc::IFF_NOARP))
        .with(IFLA_IFNAME, &name(INSIDE))
        .with(IFLA_ADDRESS, &MACS[0])
        .nest(IFLA_LINKINFO, &info);
    routes::say(message)
}

/// Opens a packet socket on an interface, non-blocking.
fn packets(interface: &str) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // Protocol 0: receives nothing until it is bound to the interface.
    // SAFETY: it takes numbers alone.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    os::check(fd)?;
    // SAFETY: the kernel has just opened it for us.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all zeros is an address.
    let mut at: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    (at.sll_family, at.sll_protocol) = (libc::AF_PACKET as u16, (libc::ETH_P_ALL as u16).to_be());
    at.sll_ifindex = interface::index(interface)?.cast_signed();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel reads the address, which lives through the call.
    os::check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const at).cast(), length) })?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::time::Duration;

    use super::*;
    use crate::hall::datagrams::{datagram_socket, set_up_for};
    use crate::hall::own::Own;

    /// Checks sending and receiving through a way in a namespace of its own.
    fn leaves_and_comes_in(make: fn() -> Result<Way, String>) {
        let own = Ipv4Addr::new(198, 51, 100, 7);
        let hall = move || {
            crate::hall::enter_network().unwrap();
            let ways = set_up_for(make().unwrap()).unwrap();
            let all = Own::parse(&format!("0.0.0.0/0={own}")).unwrap();
            all.apply(&Own::default()).unwrap();
            (ways.out, [(); 2].map(|()| UdpSocket::from(datagram_socket(false).unwrap())))
        };
        let (way, sockets) = std::thread::spawn(hall).join().unwrap();
        let ends = [("192.0.2.1", own), ("127.0.0.1", Ipv4Addr::LOCALHOST)];
        for ((to, from), socket) in ends.into_iter().zip(sockets) {
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            socket.connect((to, 53)).unwrap();
            assert_eq!(socket.local_addr().unwrap().ip(), from);
            socket.send(b"question").unwrap();
            let mut packet = vec![0; 2000];
            // IPv6's own packets, such as neighbour discovery, leave too.
            let length = loop {
                let length = way.read(&mut packet).unwrap();
                if packet[0] >> 4 == 4 {
                    break length;
                }
            };
            packet.truncate(length);
            assert_eq!((&packet[12..16], &packet[28..]), (&from.octets()[..], &b"question"[..]));
            // The answer: the same with its ends swapped, without a checksum.
            let addresses = [&packet[16..20], &packet[12..16]].concat();
            packet[12..20].copy_from_slice(&addresses);
            let ports = [&packet[22..24], &packet[20..22]].concat();
            packet[20..24].copy_from_slice(&ports);
            packet[26..28].fill(0);
            way.write(&packet).unwrap();
            let mut answer = [0; 20];
            assert_eq!(
                socket.recv_from(&mut answer).unwrap(),
                (8, (to.parse::<Ipv4Addr>().unwrap(), 53).into())
            );
        }
    }

    #[test]
    fn what_leaves_by_a_tun_is_read_and_what_is_written_comes_in() {
        leaves_and_comes_in(Way::by_tun);
    }

    #[test]
    fn without_a_tun_it_is_the_same_by_a_pair_of_interfaces() {
        leaves_and_comes_in(Way::by_pair);
    }
}

//! Uplink of a capture namespace for datagrams: a TUN interface or, where only root may create TUN
//! interfaces, a veth pair. Both ends of the pair are in the namespace; a packet socket reads and
//! writes the outer end. The pair needs no privilege on the host.
//!
//! ```text
//!   sockets ── route ──▶ datagrams ══ TUN ══▶ read
//!           ◀──────────────────────────────── write
//!
//!   sockets ── route ──▶ datagrams ══▶ outside ──▶ read
//!           ◀───────────────────────────────────── write
//! ```

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt;

use super::routes;
use crate::capture::offload::OffloadState;
use crate::os;
use crate::route::interface::{self, Interface};
use crate::route::link_message::{IFLA_ADDRESS, LinkMessage};
use crate::route::tun::Tun;

/// The interface that outbound packets are routed to. [`OUTER`] is the other end of the pair.
pub(super) const INNER: &str = "datagrams";
const OUTER: &str = "outside";
/// Max bytes of a packet, large enough for every datagram.
const MTU: u32 = 65_535;
/// Max packets queued for reading. With a veth pair, the limit is [`MAX_QUEUED_BYTES`].
const MAX_QUEUED: u32 = 8192;
const MAX_QUEUED_BYTES: usize = 8 << 20;
/// Locally administered MAC addresses of the pair's inner and outer end.
const MACS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
/// Bytes of the Ethernet header.
const HEAD: usize = 14;
/// Setting that keeps the outer interface from sending IPv6 packets of its own.
const OUTER_NO_IPV6: &str = "/proc/sys/net/ipv6/conf/outside/disable_ipv6";

/// Far end of the interface through which all packets enter and leave a capture namespace.
#[derive(Debug)]
pub struct Uplink {
    fd: OwnedFd,
    /// True if packets are in Ethernet frames.
    frames: bool,
}

impl Uplink {
    /// Creates the uplink of this thread's network namespace. The interface is up and has no
    /// addresses. Errors: neither a TUN interface nor a veth pair can be created; the text has both
    /// reasons.
    pub(super) fn make() -> Result<Uplink, String> {
        Uplink::by_tun().or_else(|no_tun| {
            Uplink::by_veth()
                .map_err(|why| format!("{no_tun}; cannot create a veth pair either: {why}"))
        })
    }

    fn by_tun() -> Result<Uplink, String> {
        let tun = Tun::create(INNER).map_err(|error| error.to_string())?;
        // A longer queue requires a privilege on the host.
        let _ = tun.interface().set_queue_len(MAX_QUEUED);
        raise(tun.interface())?;
        let fd = tun.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        Ok(Uplink { fd, frames: false })
    }

    fn by_veth() -> Result<Uplink, String> {
        pair().map_err(|error| error.to_string())?;
        // Without IPv6 there is no such setting, and the interface sends no packets of its own.
        let _ = std::fs::write(OUTER_NO_IPV6, "1");
        for name in [OUTER, INNER] {
            // With offloads, packets would be read before they are segmented.
            let _ = OffloadState::read(name).and_then(|state| state.switch_off());
            raise(&Interface::new(name).map_err(|error| error.to_string())?)?;
        }
        let fd = packets(OUTER).map_err(|error| error.to_string())?;
        // The kernel limits the size to what an unprivileged user may have.
        let _ = sockopt::set_socket_recv_buffer_size(&fd, MAX_QUEUED_BYTES);
        Ok(Uplink { fd, frames: true })
    }

    /// Wraps a descriptor that another process has opened.
    pub fn of(fd: OwnedFd) -> Uplink {
        let frames = sockopt::socket_type(&fd).is_ok();
        Uplink { fd, frames }
    }

    /// Reads the next outbound packet into `packet`, and returns its length. Errors: no packet is
    /// queued ([`io::ErrorKind::WouldBlock`]).
    pub fn read(&self, packet: &mut [u8]) -> io::Result<usize> {
        if !self.frames {
            return Ok(rustix::io::read(&self.fd, packet)?);
        }
        let mut head = [0; HEAD];
        let mut pieces = [IoSliceMut::new(&mut head), IoSliceMut::new(packet)];
        Ok(rustix::io::readv(&self.fd, &mut pieces)?.saturating_sub(HEAD))
    }

    /// Injects an inbound packet. Errors: the kernel has no room for the packet.
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

impl AsFd for Uplink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn raise(interface: &Interface) -> Result<(), String> {
    let raised = interface.set_mtu(MTU).and_then(|()| interface.set_up());
    raised.map_err(|error| error.to_string())
}

/// Creates the veth pair. The inner end does no neighbour discovery.
fn pair() -> io::Result<()> {
    let no_arp = libc::IFF_NOARP as u32;
    let mut inner = LinkMessage::default().named(INNER).with(IFLA_ADDRESS, &MACS[0]);
    (inner.flags, inner.changes) = (no_arp, no_arp);
    let outer = LinkMessage::default().named(OUTER).with(IFLA_ADDRESS, &MACS[1]);
    routes::make_pair(inner, &outer)
}

/// Opens a packet socket on an interface, non-blocking.
fn packets(interface: &str) -> io::Result<OwnedFd> {
    // Protocol 0: receives nothing until it is bound to the interface.
    let socket = os::socket(libc::AF_PACKET, libc::SOCK_RAW, 0)?;
    os::bind_packet(socket.as_fd(), interface::index(interface)?)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::time::Duration;

    use super::*;
    use crate::netns::capture_ns::datagrams::{datagram_socket, set_up_for};
    use crate::netns::capture_ns::source_routes::SourceRoutes;

    /// Checks sending and receiving through an uplink in a new namespace.
    fn check_uplink(make: fn() -> Result<Uplink, String>) {
        let own = Ipv4Addr::new(198, 51, 100, 7);
        let inside = move || {
            crate::netns::capture_ns::enter_network().unwrap();
            let uplinks = set_up_for(make().unwrap()).unwrap();
            let all = SourceRoutes::parse(&format!("0.0.0.0/0={own}")).unwrap();
            all.apply(&SourceRoutes::default()).unwrap();
            (uplinks.out, [(); 2].map(|()| UdpSocket::from(datagram_socket(false).unwrap())))
        };
        let (uplink, sockets) = std::thread::spawn(inside).join().unwrap();
        let ends = [("192.0.2.1", own), ("127.0.0.1", Ipv4Addr::LOCALHOST)];
        for ((to, from), socket) in ends.into_iter().zip(sockets) {
            socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            socket.connect((to, 53)).unwrap();
            assert_eq!(socket.local_addr().unwrap().ip(), from);
            socket.send(b"question").unwrap();
            let mut packet = vec![0; 2000];
            // The namespace also sends IPv6 packets of its own, such as neighbour discovery.
            let length = loop {
                let length = uplink.read(&mut packet).unwrap();
                if packet[0] >> 4 == 4 {
                    break length;
                }
            };
            packet.truncate(length);
            assert_eq!((&packet[12..16], &packet[28..]), (&from.octets()[..], &b"question"[..]));
            // The answer is the same packet with its ends swapped and without a checksum.
            let addresses = [&packet[16..20], &packet[12..16]].concat();
            packet[12..20].copy_from_slice(&addresses);
            let ports = [&packet[22..24], &packet[20..22]].concat();
            packet[20..24].copy_from_slice(&ports);
            packet[26..28].fill(0);
            uplink.write(&packet).unwrap();
            let mut answer = [0; 20];
            assert_eq!(
                socket.recv_from(&mut answer).unwrap(),
                (8, (to.parse::<Ipv4Addr>().unwrap(), 53).into())
            );
        }
    }

    #[test]
    fn datagrams_pass_in_both_directions_over_a_tun() {
        check_uplink(Uplink::by_tun);
    }

    #[test]
    fn datagrams_pass_in_both_directions_over_a_veth_pair() {
        check_uplink(Uplink::by_veth);
    }
}

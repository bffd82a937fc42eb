//! Egress of both ends: sends packets over raw sockets and datagrams over UDP sockets, and records
//! path MTUs.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use viaduct_proto::time::Instant;
use viaduct_proto::trickles::packet::PathMtu;
use viaduct_proto::trickles::packet::icmp::{MIN_MTU_V4, MIN_MTU_V6};
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::clock;
use viaduct_sys::socket::mmsg::{self, Outbox};

use crate::gso::GsoSender;
use crate::stats::PortStats;

/// Sender with a queue of packets in TCP's format for each family, and known path MTUs.
#[derive(Debug)]
pub(crate) struct Egress {
    raw: Option<RawSockets>,
    gso: Option<GsoSender>,
    packets: [Outbox; 2],
    paths: PathMtu,
    pub(crate) stats: PortStats,
}

impl Egress {
    /// Creates the egress. With `gso`, packets to one peer are sent as GSO runs if possible.
    pub(crate) fn new(raw: Option<RawSockets>, gso: Option<GsoSender>, mtu: usize) -> Egress {
        let (packets, stats) = Default::default();
        Egress { raw, gso, packets, paths: PathMtu::new(mtu), stats }
    }

    /// Maximum packet length to `ip` in bytes.
    pub(crate) fn mtu(&self, ip: IpAddr) -> usize {
        self.paths.get(now(), ip)
    }

    /// Queues a whole IP packet. Without a raw socket of its family, the packet is dropped and
    /// counted as refused.
    pub(crate) fn packet(&mut self, packet: &[u8], to: IpAddr) {
        if self.raw.as_ref().and_then(|raw| raw.socket(to.is_ipv4())).is_none() {
            self.stats.sent.refused += 1;
            return;
        }
        let queue = &mut self.packets[usize::from(to.is_ipv6())];
        queue.push(packet, SocketAddr::new(to, 0), None);
        if queue.is_full() {
            self.flush();
        }
    }

    pub(crate) fn has_queued(&self) -> bool {
        self.packets.iter().any(|queue| !queue.is_empty())
    }

    /// Sends the queued packets.
    pub(crate) fn flush(&mut self) {
        for is_ipv4 in [true, false] {
            let queue = &mut self.packets[usize::from(!is_ipv4)];
            if let Some(gso) = &mut self.gso {
                self.stats.together(gso.flush(now(), queue));
            }
            let socket = self.raw.as_ref().and_then(|raw| raw.socket(is_ipv4));
            if let Some(socket) = socket.filter(|_| !queue.is_empty()) {
                self.stats.add(queue.flush(socket));
                for ip in queue.too_long().to_vec() {
                    self.ask_kernel(ip);
                }
            }
        }
    }

    /// Sends the datagrams in `queue` over `socket`.
    pub(crate) fn flush_datagrams(&mut self, queue: &mut Outbox, socket: BorrowedFd<'_>) {
        if !queue.is_empty() {
            self.stats.add(queue.flush(socket));
            for &ip in queue.too_long() {
                self.ask_kernel(ip);
            }
        }
    }

    /// Records an ICMP error about packets to `ip`; true if the MTU is less than before.
    pub(crate) fn too_big(&mut self, ip: IpAddr, mtu: usize) -> bool {
        self.stats.too_big += 1;
        self.paths.learn(now(), ip, mtu)
    }

    /// Records the MTU that peer `ip` states, raised to the minimum if it is lower, as the value
    /// may be forged. Returns whether the recorded MTU is less than the present value.
    pub(crate) fn learn(&mut self, ip: IpAddr, mtu: usize) -> bool {
        let least = if ip.is_ipv4() { MIN_MTU_V4 } else { MIN_MTU_V6 };
        self.paths.learn(now(), ip, mtu.max(least))
    }

    /// Records the kernel's path MTU to `ip`: that of the interface, or one reported by a router.
    /// Returns whether it is less than the present value.
    pub(crate) fn ask_kernel(&mut self, ip: IpAddr) -> bool {
        mmsg::path_mtu(ip).is_ok_and(|mtu| self.learn(ip, mtu))
    }
}

pub(crate) fn now() -> Instant {
    Instant::from_nanos(clock::now())
}

//! The way out, which both ends share: packets by raw sockets, datagrams by a UDP socket; and how long
//! they may be.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use viaduct_proto::time::Instant;
use viaduct_proto::trickles::packet::PathMtu;
use viaduct_proto::trickles::packet::icmp::{LEAST_V4, LEAST_V6};
use viaduct_sys::clock;
use viaduct_sys::mmsg::{self, Outbox};
use viaduct_sys::raw::Raw;

use super::runs::Runs;
use super::stats::PortStats;

/// Packets in TCP's format that wait for the end of the batch, IPv4 and IPv6, and what is known of paths.
#[derive(Debug)]
pub(super) struct Door {
    raw: Option<Raw>,
    runs: Option<Runs>,
    packets: [Outbox; 2],
    paths: PathMtu,
    pub(super) stats: PortStats,
}

impl Door {
    /// With `runs` packets to one peer leave together where they can.
    pub(super) fn new(raw: Option<Raw>, runs: Option<Runs>, mtu: usize) -> Door {
        let (packets, stats) = Default::default();
        Door { raw, runs, packets, paths: PathMtu::new(mtu), stats }
    }

    /// Bytes of the longest packet to `ip`.
    pub(super) fn mtu(&self, ip: IpAddr) -> usize {
        self.paths.get(now(), ip)
    }

    /// A whole IP packet, to leave with the batch; without a raw socket of its family it counts as refused.
    pub(super) fn packet(&mut self, packet: &[u8], to: IpAddr) {
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

    /// Whether packets wait.
    pub(super) fn waits(&self) -> bool {
        self.packets.iter().any(|queue| !queue.is_empty())
    }

    /// Sends what waits.
    pub(super) fn flush(&mut self) {
        for is_ipv4 in [true, false] {
            let queue = &mut self.packets[usize::from(!is_ipv4)];
            if let Some(runs) = &mut self.runs {
                self.stats.together(runs.flush(now(), queue));
            }
            let socket = self.raw.as_ref().and_then(|raw| raw.socket(is_ipv4));
            if let Some(socket) = socket.filter(|_| !queue.is_empty()) {
                self.stats.add(queue.flush(socket));
                ask_kernel_of(&mut self.paths, queue);
            }
        }
    }

    /// Sends datagrams by `socket`.
    pub(super) fn flush_datagrams(&mut self, queue: &mut Outbox, socket: BorrowedFd<'_>) {
        if !queue.is_empty() {
            self.stats.add(queue.flush(socket));
            ask_kernel_of(&mut self.paths, queue);
        }
    }

    /// A router has said so of packets to `ip`. Whether that is less than was known.
    pub(super) fn too_big(&mut self, ip: IpAddr, mtu: usize) -> bool {
        self.stats.too_big += 1;
        self.paths.learn(now(), ip, mtu)
    }

    /// Packets to and from `ip` may have so many bytes, as the far end says. Whether that is less than was known.
    pub(super) fn learn(&mut self, ip: IpAddr, mtu: usize) -> bool {
        learn(&mut self.paths, ip, mtu)
    }

    /// What the kernel knows of the way to `ip`: its interface's MTU, or a router's word. Whether that is less
    /// than was known.
    pub(super) fn ask_kernel(&mut self, ip: IpAddr) -> bool {
        ask_kernel(&mut self.paths, ip)
    }
}

/// The kernel may know a way better than we do.
fn ask_kernel(paths: &mut PathMtu, ip: IpAddr) -> bool {
    mmsg::path_mtu(ip).is_ok_and(|mtu| learn(paths, ip, mtu))
}

fn ask_kernel_of(paths: &mut PathMtu, queue: &Outbox) {
    for &ip in queue.too_long() {
        ask_kernel(paths, ip);
    }
}

/// Nobody is cut off by what is said of his way.
fn learn(paths: &mut PathMtu, ip: IpAddr, mtu: usize) -> bool {
    let least = if ip.is_ipv4() { LEAST_V4 } else { LEAST_V6 };
    paths.learn(now(), ip, mtu.max(least))
}

pub(super) fn now() -> Instant {
    Instant::from_nanos(clock::now())
}

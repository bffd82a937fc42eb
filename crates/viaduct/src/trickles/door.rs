//! The way out, which both ends share: packets by raw sockets, datagrams by a UDP socket; and how long
//! they may be.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use viaduct_proto::time::Instant;
use viaduct_proto::trickles::packet::PathMtu;
use viaduct_proto::trickles::packet::too_big::{LEAST_V4, LEAST_V6, TooBig};
use viaduct_sys::clock;
use viaduct_sys::mmsg::{self, Outbox};
use viaduct_sys::raw::Raw;

use super::stats::PortStats;

/// Packets in TCP's format that wait for the end of the batch, IPv4 and IPv6, and what is known of paths.
#[derive(Debug)]
pub(super) struct Door {
    raw: Option<Raw>,
    packets: [Outbox; 2],
    paths: PathMtu,
    pub(super) stats: PortStats,
}

impl Door {
    pub(super) fn new(raw: Option<Raw>, mtu: usize) -> Door {
        let (packets, stats) = Default::default();
        Door { raw, packets, paths: PathMtu::new(mtu), stats }
    }

    /// Bytes of the longest packet to `ip`.
    pub(super) fn mtu(&self, ip: IpAddr) -> usize {
        self.paths.get(now(), ip)
    }

    /// A whole IP packet, to leave with the batch.
    pub(super) fn packet(&mut self, packet: &[u8], to: IpAddr) {
        let queue = &mut self.packets[usize::from(to.is_ipv6())];
        queue.push(packet, SocketAddr::new(to, 0), None);
        if queue.is_full() {
            self.flush();
        }
    }

    /// Sends what waits.
    pub(super) fn flush(&mut self) {
        for is_ipv4 in [true, false] {
            let queue = &mut self.packets[usize::from(!is_ipv4)];
            let socket = self.raw.as_ref().and_then(|raw| raw.socket(is_ipv4));
            if let Some(socket) = socket.filter(|_| !queue.is_empty()) {
                self.stats.add(queue.flush(socket));
                learn(&mut self.paths, queue);
            }
        }
    }

    /// Sends datagrams by `socket`.
    pub(super) fn flush_datagrams(&mut self, queue: &mut Outbox, socket: BorrowedFd<'_>) {
        if !queue.is_empty() {
            self.stats.add(queue.flush(socket));
            learn(&mut self.paths, queue);
        }
    }

    /// A router has said so.
    pub(super) fn too_big(&mut self, said: &TooBig) {
        self.stats.too_big += 1;
        self.paths.learn(now(), said.destination.ip(), said.mtu);
    }
}

/// The kernel knows a path on which something was too long better than we did.
fn learn(paths: &mut PathMtu, queue: &Outbox) {
    for &ip in queue.too_long() {
        if let Ok(mtu) = mmsg::path_mtu(ip) {
            paths.learn(now(), ip, mtu.max(if ip.is_ipv4() { LEAST_V4 } else { LEAST_V6 }));
        }
    }
}

pub(super) fn now() -> Instant {
    Instant::from_nanos(clock::now())
}

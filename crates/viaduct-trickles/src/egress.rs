//! Egress of both ends: sends packets over raw sockets and datagrams over UDP sockets, and records
//! path MTUs.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use viaduct_proto::time::Instant;
use viaduct_proto::trickles::packet::icmp::{MIN_MTU_V4, MIN_MTU_V6};
use viaduct_proto::trickles::packet::{Format, PathMtu};
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::clock;
use viaduct_sys::socket::mmsg::{self, Outbox};

use crate::gso::GsoSender;
use crate::stats::PortStats;

/// Sender with a queue of packets in TCP's format for each family, and known path MTUs.
///
/// The kernel's path MTU may come from a forged ICMP message, and the kernel's minimum for IPv4 is
/// 552 bytes. Datagrams must not exceed the kernel's path MTU. Packets in TCP's format may exceed
/// it, because their socket ignores it ([`RawSockets::ignore_path_mtu`]). So for them a value below
/// 1,280 bytes counts as 1,280, unless the interface refuses even packets of this length.
#[derive(Debug)]
pub(crate) struct Egress {
    raw: Option<RawSockets>,
    gso: Option<GsoSender>,
    packets: [Outbox; 2],
    /// Path MTUs of packets in TCP's format, and of datagrams.
    paths: [PathMtu; 2],
    pub(crate) stats: PortStats,
}

impl Egress {
    /// Creates the egress. With `gso`, packets to one peer are sent as GSO runs if possible.
    pub(crate) fn new(raw: Option<RawSockets>, gso: Option<GsoSender>, mtu: usize) -> Egress {
        let (packets, stats) = Default::default();
        Egress { raw, gso, packets, paths: [mtu; 2].map(PathMtu::new), stats }
    }

    /// Maximum length in bytes of packets to `ip` in this format.
    pub(crate) fn mtu(&self, format: Format, ip: IpAddr) -> usize {
        self.paths[usize::from(format == Format::Udp)].get(now(), ip)
    }

    /// Maximum length in bytes of packets to `ip` that may be sent in either format.
    pub(crate) fn least_mtu(&self, ip: IpAddr) -> usize {
        self.mtu(Format::Tcp, ip).min(self.mtu(Format::Udp, ip))
    }

    /// Queues a complete IP packet. Without a raw socket of its family, the packet is dropped and
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
            let mut too_long = Vec::new();
            if let Some(gso) = &mut self.gso {
                self.stats.together(gso.flush(now(), queue));
                too_long = gso.take_too_long();
            }
            let socket = self.raw.as_ref().and_then(|raw| raw.socket(is_ipv4));
            if let Some(socket) = socket.filter(|_| !queue.is_empty()) {
                self.stats.add(queue.flush(socket));
                let mut refused = queue.too_long().to_vec();
                refused.sort_unstable();
                refused.dedup();
                refused.into_iter().for_each(|ip| self.ask_about_interface(ip));
            }
            // The raw socket does not refuse packets that are longer than the MTU of a route.
            for ip in too_long {
                if self.mtu(Format::Tcp, ip) > MIN_MTU_V6 {
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

    /// Records an ICMP error about packets to `ip`. Returns whether the MTU has decreased.
    pub(crate) fn too_big(&mut self, ip: IpAddr, mtu: usize) -> bool {
        self.stats.too_big += 1;
        self.record(ip, [mtu; 2])
    }

    /// Records the MTU that peer `ip` states, raised to the minimum if it is lower, because the
    /// value may be forged. Returns whether the MTU has decreased.
    pub(crate) fn learn(&mut self, ip: IpAddr, mtu: usize) -> bool {
        self.record(ip, [mtu.max(least(ip)); 2])
    }

    /// Records the kernel's path MTU to `ip`: the MTU of the interface, or an MTU reported by a
    /// router. Returns whether the MTU has decreased.
    pub(crate) fn ask_kernel(&mut self, ip: IpAddr) -> bool {
        mmsg::path_mtu(ip).is_ok_and(|mtu| self.learn_reported(ip, mtu))
    }

    /// Records the kernel's path MTU to `ip`, which may come from a forged report.
    fn learn_reported(&mut self, ip: IpAddr, mtu: usize) -> bool {
        self.record(ip, [mtu.max(MIN_MTU_V6), mtu.max(least(ip))])
    }

    /// Records the kernel's path MTU after a raw socket has refused a packet to `ip` as longer than
    /// the interface's MTU.
    fn ask_about_interface(&mut self, ip: IpAddr) {
        if let Ok(mtu) = mmsg::path_mtu(ip) {
            self.learn_of_interface(ip, mtu);
        }
    }

    fn learn_of_interface(&mut self, ip: IpAddr, mtu: usize) {
        // If even packets of 1,280 bytes are refused, the interface's MTU is smaller.
        if self.mtu(Format::Tcp, ip) <= MIN_MTU_V6 {
            self.learn(ip, mtu);
        } else {
            self.learn_reported(ip, mtu);
        }
    }

    /// Records the path MTUs of both formats. The MTU of datagrams is never the higher one. Returns
    /// whether it has decreased.
    fn record(&mut self, ip: IpAddr, [tcp, udp]: [usize; 2]) -> bool {
        let (now, [packets, datagrams]) = (now(), &mut self.paths);
        packets.learn(now, ip, tcp);
        datagrams.learn(now, ip, udp)
    }
}

/// Minimum of a path MTU to `ip` in bytes.
fn least(ip: IpAddr) -> usize {
    if ip.is_ipv4() { MIN_MTU_V4 } else { MIN_MTU_V6 }
}

pub(crate) fn now() -> Instant {
    Instant::from_nanos(clock::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reported_mtu_below_1280_bytes_counts_only_for_datagrams() {
        let (mut egress, ip) = (Egress::new(None, None, 1500), IpAddr::from([192, 0, 2, 1]));
        assert!(egress.learn_reported(ip, 552));
        let mtus = |egress: &Egress| [Format::Tcp, Format::Udp].map(|of| egress.mtu(of, ip));
        assert_eq!(mtus(&egress), [1280, 552]);
        // The interface refuses even packets of 1,280 bytes.
        egress.learn_of_interface(ip, 1000);
        assert_eq!(mtus(&egress), [1000, 552]);
    }

    #[test]
    fn an_interface_that_refuses_longer_packets_may_still_take_1280_bytes() {
        let (mut egress, ip) = (Egress::new(None, None, 1500), IpAddr::from([192, 0, 2, 1]));
        egress.learn_of_interface(ip, 552);
        assert_eq!(egress.mtu(Format::Tcp, ip), 1280);
        egress.learn_of_interface(ip, 552);
        assert_eq!(egress.mtu(Format::Tcp, ip), 552);
    }
}

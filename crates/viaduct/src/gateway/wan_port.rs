//! Port of a packet thread to a WAN: its taps and its socket.

use std::net::SocketAddr;

use viaduct_sys::route::qdisc::QdiscDrops;
use viaduct_sys::socket::udp::UdpBatch;

use super::taps::Taps;

/// Port of a packet thread to a WAN.
pub struct WanPort {
    /// Copies of the packets that cross the WAN.
    pub taps: Taps,
    /// Socket that sends repairs.
    pub udp: UdpBatch,
    /// Address to which peers send their datagrams.
    pub listen: SocketAddr,
    /// Queueing discipline of the WAN, in which repairs wait with all other outgoing packets.
    pub own_queue: QdiscDrops,
    /// Packets that earlier taps have dropped: outgoing, incoming.
    pub earlier_drops: [u64; 2],
}

impl WanPort {
    /// Replaces the taps. Packets that are still in the old ones are never read.
    pub fn replace_taps(&mut self, taps: Taps) {
        self.earlier_drops = self.tap_drops();
        self.taps = taps;
    }

    /// Number of packets dropped so far because a tap was full: outgoing, incoming.
    pub fn tap_drops(&mut self) -> [u64; 2] {
        let [outgoing, incoming] = self.earlier_drops;
        [outgoing + self.taps.outgoing.drops(), incoming + self.taps.incoming.drops()]
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use viaduct_sys::capture::ring::{Ring, RingConfig};
    use viaduct_sys::netns::Netns;
    use viaduct_sys::process::tool;

    use super::*;

    fn small_taps() -> Taps {
        let open = || Ring::open("lo", RingConfig { max_packet: 1500, bytes: 256 << 10 }).unwrap();
        Taps { outgoing: open(), incoming: open() }
    }

    #[test]
    fn drops_of_earlier_taps_count() {
        let work = || {
            tool::run("ip", &["link", "set", "lo", "up"], "").unwrap();
            let listen: SocketAddr = "127.0.0.1:7400".parse().unwrap();
            let mut port = WanPort {
                taps: small_taps(),
                udp: UdpBatch::bind(listen).unwrap(),
                listen,
                own_queue: QdiscDrops::of("lo").unwrap(),
                earlier_drops: [0; 2],
            };
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            for _ in 0..1_000 {
                socket.send_to(&[0; 1_400], listen).unwrap();
            }
            let before = port.tap_drops();
            assert!(before.iter().all(|drops| *drops > 0), "{before:?}");
            port.replace_taps(small_taps());
            assert_eq!(port.tap_drops(), before);
        };
        Netns::new().unwrap().enter(work).unwrap();
    }
}

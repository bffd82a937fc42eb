//! Floods of packets, such as SYNs from unused addresses, which a machine receives as if from a
//! wire.
//!
//! ```text
//!   flood ── TUN "flood" ──▶ node ─▶ …      each SYN from another address of 198.18.0.0/15
//!                 ◀── SYN-ACKs to them, not read
//! ```

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use viaduct_proto::rng::Rng;
use viaduct_proto::wire::ip::internet_checksum;
use viaduct_sys::route::tun::Tun;

use crate::topology::{Node, TopologyError};

/// First address of the range for benchmarks (RFC 2544).
const FIRST: u32 = 0xc612_0000;
/// Number of host bits of that range.
const FREE_BITS: u32 = 17;
const EVERY: Duration = Duration::from_millis(1);
const MAX_PACKETS: u64 = 40_000_000;
/// SYN flag of a segment.
pub const SYN: u8 = 0x02;
const TCP: u8 = 6;

/// Running flood; stopped when dropped.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    begun: Instant,
    thread: Option<thread::JoinHandle<()>>,
}

impl Flood {
    /// Sends `rate` SYNs per second to `to`, for at most `longest`. The SYNs arrive at `node` from
    /// outside. Fails if the device cannot be created in the node.
    pub fn start(
        node: &Node,
        to: SocketAddrV4,
        rate: u64,
        longest: Duration,
        seed: u64,
    ) -> Result<Flood, TopologyError> {
        let tun = node
            .netns()
            .enter(|| Tun::create("flood"))?
            .map_err(|source| TopologyError::Tun { node: node.name().into(), source })?;
        let network = format!("{}/{}", Ipv4Addr::from_bits(FIRST), 32 - FREE_BITS);
        node.ip(&["link set flood up".into(), format!("route add {network} dev flood")])?;
        let (mut rng, mut sent) = (Rng::from_seed(seed), 0);
        Ok(Flood::of(longest, move |passed| {
            let due = (passed.as_secs_f64() * rate as f64) as u64;
            let count = due.saturating_sub(sent);
            for _ in 0..count {
                // A full queue drops the packet; the flood continues.
                let _ = tun.write(&syn(unused_address(&mut rng), to, rng.next_u64() as u32));
            }
            sent = due;
            thread::sleep(EVERY);
            count
        }))
    }

    /// Calls `send` repeatedly with the time since the start, until `longest` has passed or
    /// [`MAX_PACKETS`] are sent. `send` sends packets and returns their number.
    pub(crate) fn of(
        longest: Duration,
        mut send: impl FnMut(Duration) -> u64 + Send + 'static,
    ) -> Flood {
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (asked, count, begun) = (stop.clone(), sent.clone(), Instant::now());
        let run = move || {
            let mut sent = 0;
            while !asked.load(Ordering::Relaxed) && begun.elapsed() < longest && sent < MAX_PACKETS
            {
                sent += send(begun.elapsed());
                count.store(sent, Ordering::Relaxed);
            }
        };
        Flood { stop, sent, begun, thread: Some(thread::spawn(run)) }
    }

    /// Returns the packets per second, averaged since the start. For [`Flood::start`], the rate
    /// includes packets that the device did not accept.
    pub fn rate(&self) -> f64 {
        self.sent.load(Ordering::Relaxed) as f64 / self.begun.elapsed().as_secs_f64()
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().map(thread::JoinHandle::join);
    }
}

/// Returns a random unused address.
pub(crate) fn unused_address(rng: &mut Rng) -> SocketAddrV4 {
    let ip = FIRST | (rng.next_u64() as u32 & ((1 << FREE_BITS) - 1));
    SocketAddrV4::new(Ipv4Addr::from_bits(ip), 1024 | rng.next_u64() as u16)
}

/// Returns a SYN with the options of a typical host: MSS, SACK, window scale.
pub(crate) fn syn(from: SocketAddrV4, to: SocketAddrV4, seq: u32) -> Vec<u8> {
    segment((from, to), (seq, 0), SYN, (&[2, 4, 5, 180, 1, 3, 3, 7], b""))
}

/// Returns a TCP segment with these sequence and acknowledgement numbers and flags; the length of
/// `options` must be a multiple of four.
pub fn segment(
    (from, to): (SocketAddrV4, SocketAddrV4),
    (seq, ack): (u32, u32),
    flags: u8,
    (options, payload): (&[u8], &[u8]),
) -> Vec<u8> {
    let head = 20 + options.len();
    let length = (head + payload.len()) as u16;
    let mut packet = vec![0x45, 0];
    packet.extend((20 + length).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 60, TCP, 0, 0]);
    packet.extend(from.ip().octets());
    packet.extend(to.ip().octets());
    let sum = internet_checksum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend(from.port().to_be_bytes());
    packet.extend(to.port().to_be_bytes());
    packet.extend(seq.to_be_bytes());
    packet.extend(ack.to_be_bytes());
    packet.extend([(head as u8 / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend_from_slice(options);
    packet.extend_from_slice(payload);
    let [high, low] = length.to_be_bytes();
    let pseudo = [&packet[12..20], &[0, TCP, high, low], &packet[20..]].concat();
    let sum = internet_checksum(&pseudo);
    packet[36..38].copy_from_slice(&sum.to_be_bytes());
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Journal;
    use std::net::TcpListener;

    #[test]
    fn the_kernel_accepts_the_packets_as_syns() {
        let node = Node::new("host", &Journal::new()).unwrap();
        let to = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 7000);
        // The kernel drops packets to loopback addresses that arrive from another device.
        let to = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), to.port());
        node.ip(&["addr add 10.0.0.1/32 dev lo".into()]).unwrap();
        let _listener = node.netns().enter(|| TcpListener::bind(to).unwrap()).unwrap();
        let flood = Flood::start(&node, to, 1_000, Duration::from_secs(5), 1).unwrap();
        let half_open = || {
            let read = || std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
            let table = node.netns().enter(read).unwrap();
            table.lines().filter(|row| row.split_whitespace().nth(3) == Some("03")).count()
        };
        let deadline = Instant::now() + Duration::from_secs(4);
        while half_open() < 50 {
            assert!(Instant::now() < deadline, "{} half-open connections", half_open());
            thread::sleep(Duration::from_millis(20));
        }
        assert!(flood.rate() > 500.0, "{}", flood.rate());
    }
}

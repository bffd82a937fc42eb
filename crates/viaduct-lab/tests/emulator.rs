//! Emulator between two network namespaces, compared with its model. Requires root.
//!
//! ```text
//!   namespace A                                   namespace B
//!   10.9.0.1 on TUN ── emulator: Link<A to B> ──▶ TUN with 10.9.0.2
//!            sender ◀─ emulator: Link<B to A> ─── receiver
//! ```
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::net::UdpSocket;
use std::process::Command;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};
use rustix::time::{ClockId, clock_gettime};
use viaduct_lab::emulator::{Direction, Emulator, EmulatorConfig};
use viaduct_proto::link::{LinkConfig, Reason};
use viaduct_sys::process::thread::set_fifo;
use viaduct_sys::route::tun::Tun;

/// Serializes the tests, because they measure time.
static ALONE: Mutex<()> = Mutex::new(());

/// Two namespaces and the link between them.
struct World {
    a: File,
    b: File,
    link: Emulator,
}

impl World {
    fn new(link: &str, spin: bool) -> World {
        let (a, b) = (namespace(), namespace());
        let tuns = [(&a, "10.9.0.1", "10.9.0.2"), (&b, "10.9.0.2", "10.9.0.1")]
            .map(|(ns, own, peer)| inside(ns, || tun(own, peer)));
        let [tun_a, tun_b] = tuns;
        let config = EmulatorConfig { spin, ..EmulatorConfig::symmetric(config(link), 1) };
        let link = Emulator::start(tun_a, tun_b, config).unwrap();
        World { a, b, link }
    }

    /// Sends `packets` UDP packets of `len` bytes (headers included) from A to B, one every
    /// `gap`, or without pause if that is zero. Returns the packets that arrived and their
    /// delays in seconds.
    fn send(&self, packets: u32, len: usize, gap: Duration) -> Vec<(u32, f64)> {
        let receiver = inside(&self.b, || socket("10.9.0.2:9"));
        let sender = inside(&self.a, || socket("10.9.0.1:9"));
        sender.connect("10.9.0.2:9").unwrap();
        viaduct_sys::socket::timestamp::enable(&receiver).unwrap();
        let send = || {
            if !gap.is_zero() {
                // Prevents a delay between the timestamp and the transmission.
                assert!(set_fifo(20), "real-time priority");
            }
            let began = Instant::now();
            let mut packet = vec![0u8; len - 28];
            for i in 0..packets {
                // A sender that is behind its schedule does not sleep until it has caught up.
                thread::sleep((gap * i).saturating_sub(began.elapsed()));
                packet[..4].copy_from_slice(&i.to_be_bytes());
                packet[4..12].copy_from_slice(&nanos(SystemTime::now()).to_be_bytes());
                sender.send(&packet).unwrap();
            }
        };
        thread::scope(|scope| {
            let received = scope.spawn(|| receive(&receiver, packets));
            scope.spawn(send);
            received.join().unwrap()
        })
    }
}

/// Receives packets until the last one, or until none arrives for half a second. A delay ends at
/// the kernel's receive timestamp, so that the receiver's wake-up time does not count.
fn receive(socket: &UdpSocket, packets: u32) -> Vec<(u32, f64)> {
    let mut arrived = Vec::new();
    let mut packet = [0u8; 2000];
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    while let Ok((_, stamp)) = viaduct_sys::socket::timestamp::receive(socket, &mut packet) {
        let number = u32::from_be_bytes(packet[..4].try_into().unwrap());
        let sent = u64::from_be_bytes(packet[4..12].try_into().unwrap());
        arrived.push((number, nanos(stamp).saturating_sub(sent) as f64 / 1e9));
        if number + 1 == packets {
            break;
        }
    }
    arrived
}

fn nanos(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64
}

#[allow(deprecated, reason = "the thread shares no files that others rely on")]
fn namespace() -> File {
    let made = || {
        rustix::thread::unshare(UnshareFlags::NEWNET).expect("a namespace; run as root");
        File::open("/proc/thread-self/ns/net").unwrap()
    };
    thread::spawn(made).join().unwrap()
}

fn inside<T: Send>(namespace: &File, work: impl FnOnce() -> T + Send) -> T {
    let entered = || {
        let network = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(rustix::fd::AsFd::as_fd(namespace), network).unwrap();
        work()
    };
    thread::scope(|scope| scope.spawn(entered).join().unwrap())
}

fn tun(own: &str, peer: &str) -> Tun {
    // IPv6 neighbour discovery would send packets over the link, which would be counted.
    fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
    let tun = Tun::create("wan0").unwrap();
    tun.interface().set_mtu(1500).unwrap();
    let address = ["addr", "add", own, "peer", peer, "dev", "wan0"];
    assert!(Command::new("ip").args(address).status().unwrap().success());
    tun.interface().set_up().unwrap();
    assert_eq!(tun.interface().mtu().unwrap(), 1500);
    tun
}

fn socket(address: &str) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    set_socket_recv_buffer_size_force(&socket, 64 << 20).unwrap();
    socket
}

fn config(text: &str) -> LinkConfig {
    text.parse().unwrap()
}

/// Returns the quantile `q` (0 to 1) of `values`.
fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * q) as usize]
}

fn delays(arrived: &[(u32, f64)]) -> Vec<f64> {
    arrived.iter().map(|&(_, delay)| delay).collect()
}

#[test]
fn packets_are_delayed_and_the_record_lists_exactly_the_lost_ones() {
    let _alone = ALONE.lock();
    let world = World::new("delay=20ms,loss=2%x3", false);
    let arrived = world.send(3000, 1200, Duration::from_micros(500));
    let median = quantile(&delays(&arrived), 0.5);
    assert!((0.0199..0.0205).contains(&median), "{median}");
    let earliest = quantile(&delays(&arrived), 0.0);
    assert!(earliest >= 0.0199, "{earliest}");

    let record = world.link.take_record(Direction::AtoB).unwrap();
    let mut seen = vec![false; 3000];
    arrived.iter().for_each(|&(i, _)| seen[i as usize] = true);
    let missing: Vec<u64> = (0..3000).filter(|&i| !seen[i as usize]).collect();
    let noted: Vec<u64> = record.drops.iter().map(|d| d.ordinal).collect();
    assert_eq!(missing, noted);
    assert!(record.drops.iter().all(|d| d.reason == Reason::Loss));
    assert!(!noted.is_empty());
    let stats = world.link.stats().unwrap();
    assert_eq!(stats.a_to_b.delivered, arrived.len() as u64);
    assert_eq!((stats.tun_a.unread, stats.tun_b.refused, stats.unwritable), (0, 0, 0));
}

#[test]
fn the_rate_and_the_queue_drops_match_the_model() {
    let _alone = ALONE.lock();
    let world = World::new("rate=40M,delay=5ms,queue=20ms", false);
    // 60 Mb/s offered for a second.
    let arrived = world.send(5000, 1500, Duration::from_micros(200));
    let stats = world.link.stats().unwrap();
    let rate = arrived.len() as f64 * 12_000.0 / 1.02;
    assert!((rate / 40e6 - 1.0).abs() < 0.02, "{rate}");
    assert_eq!(stats.a_to_b.queue_dropped + stats.a_to_b.delivered, 5000);
    // The queue fills within 40 ms; a thread that runs late delays single packets.
    let full = quantile(&delays(&arrived), 0.5);
    assert!((0.0245..0.0265).contains(&full), "{full}");
}

#[test]
fn a_link_changes_while_it_runs() {
    let _alone = ALONE.lock();
    let world = World::new("delay=1ms", false);
    assert_eq!(world.send(100, 200, Duration::from_micros(500)).len(), 100);
    world.link.set(Direction::AtoB, config("delay=30ms,corrupt=100%")).unwrap();
    // UDP's checksum detects every flipped bit after the first twelve bytes of payload.
    assert_eq!(world.send(100, 1000, Duration::from_micros(500)).len(), 0);
    world.link.set(Direction::AtoB, config("delay=30ms,duplicate=100%")).unwrap();
    let arrived = world.send(100, 200, Duration::from_micros(500));
    assert!(arrived.len() >= 199, "{}", arrived.len());
    assert!(quantile(&delays(&arrived), 0.5) > 0.0299);
    let stats = world.link.stats().unwrap();
    assert_eq!((stats.a_to_b.corrupted, stats.a_to_b.duplicated), (100, 100));
}

#[test]
fn a_deleted_interface_does_not_keep_the_thread_busy() {
    let _alone = ALONE.lock();
    let world = World::new("delay=1ms", false);
    let deleted = || Command::new("ip").args(["link", "del", "wan0"]).status().unwrap();
    assert!(inside(&world.a, deleted).success());
    let used = || clock_gettime(ClockId::ProcessCPUTime).tv_nsec;
    let before = used();
    thread::sleep(Duration::from_millis(300));
    let used = (used() - before).rem_euclid(1_000_000_000);
    assert!(used < 60_000_000, "{used} ns of 300 ms");
}

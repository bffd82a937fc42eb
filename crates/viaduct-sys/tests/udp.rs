//! The UDP socket on a real veth pair: no datagram is fragmented, and a run is sent as one
//! message.

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use common::{is_root, pair};
use viaduct_sys::capture::ring::{Direction, Ring, RingConfig};
use viaduct_sys::socket::udp::{SendReport, UdpBatch};

#[test]
fn datagrams_are_never_fragmented() {
    if !is_root() {
        return;
    }
    let (left, right) = pair();
    for (from, to, fits) in
        [("10.9.0.1:0", "10.9.0.2:9", 1472), ("[fd09::1]:0", "[fd09::2]:9", 1452)]
    {
        let _sink = right.run(move || UdpSocket::bind(to).expect("bind"));
        let mut ring = left.run(|| {
            let config = RingConfig { max_packet: 1500, bytes: 1 << 20 };
            Ring::open("va", config).expect("ring")
        });
        let report = left.run(move || {
            let to: SocketAddr = to.parse().expect("an address");
            let mut socket = UdpBatch::bind(from.parse().expect("an address")).expect("bind");
            let (whole, long, short) = (vec![1; fits], vec![2; fits + 1], [3; 50]);
            // Single datagrams, and then a run that the kernel refuses as a whole; its short last
            // datagram is still sent.
            socket.send(&[
                (to, &whole),
                (to, &long),
                (to, &whole),
                (to, &long),
                (to, &long),
                (to, &short),
            ])
        });
        assert_eq!(report, SendReport { sent: 3, too_long: 3, ..Default::default() });
        // The first datagrams are delayed until the neighbour is resolved.
        let (mut lengths, start) = (Vec::new(), Instant::now());
        while lengths.len() < 3 && start.elapsed() < Duration::from_secs(5) {
            let Some(frame) = ring.next() else { continue };
            let v4 = frame[0] >> 4 == 4;
            if frame.direction() == Direction::Outgoing && frame[if v4 { 9 } else { 6 }] == 17 {
                assert!(!v4 || frame[6] & 0x40 != 0, "DF");
                lengths.push(frame.len());
            }
        }
        assert_eq!(lengths, [1500, 1500, 1500 - fits + 50]);
    }
}

#[test]
fn a_run_is_one_message_to_the_device() {
    if !is_root() {
        return;
    }
    let (left, right) = pair();
    let sink = right.run(|| UdpSocket::bind("10.9.0.2:9").expect("bind"));
    let mut ring = left.run(|| {
        let config = RingConfig { max_packet: 65535, bytes: 8 << 20 };
        Ring::open("va", config).expect("ring")
    });
    let mut socket =
        left.run(|| UdpBatch::bind("10.9.0.1:0".parse().expect("an address")).expect("bind"));
    let to: SocketAddr = "10.9.0.2:9".parse().expect("an address");
    let payloads: Vec<[u8; 1400]> = (0..20).map(|i| [i; 1400]).collect();
    let datagrams: Vec<_> = payloads.iter().map(|bytes| (to, &bytes[..])).collect();
    let sent = |count| SendReport { sent: count, ..Default::default() };
    assert_eq!(socket.send(&datagrams), sent(20));
    let mut buffer = [0; 2000];
    for payload in &payloads {
        assert_eq!(sink.recv(&mut buffer).expect("receive"), 1400);
        assert_eq!(buffer[..1400], payload[..]);
    }
    let longest = |ring: &mut Ring| {
        // The kernel hands over a block that is not full when a timer expires.
        std::thread::sleep(Duration::from_millis(30));
        let mut longest = 0;
        while let Some(frame) = ring.next() {
            longest = longest.max(frame.original_len());
        }
        longest
    };
    assert_eq!(longest(&mut ring), 20 * 1400 + 28);

    left.sh("ethtool -K va tx off tso off gso off tx-udp-segmentation off");
    assert_eq!(socket.send(&datagrams), sent(20), "without segmentation by the device");
    for payload in &payloads {
        assert_eq!(sink.recv(&mut buffer).expect("receive"), 1400);
        assert_eq!(buffer[..1400], payload[..]);
    }
    assert_eq!(longest(&mut ring), 1428);
}

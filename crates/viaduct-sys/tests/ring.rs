//! The ring on a real veth pair: order, directions, sizes, overload, recovery of a full ring.

mod common;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use common::{is_root, pair};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use viaduct_sys::capture::fanout::{Directions, Fanout};
use viaduct_sys::capture::filter::FanoutProgram;
use viaduct_sys::capture::ring::{Direction, Ring, RingConfig, RingError};

const UDP: u8 = 17;

fn config(bytes: usize) -> RingConfig {
    RingConfig { max_packet: 1500, bytes }
}

/// Passes packets to `seen` until it returns true, for at most five seconds.
fn read_until(
    ring: &mut Ring,
    mut seen: impl FnMut(&viaduct_sys::capture::ring::Frame<'_>) -> bool,
) {
    let end = Instant::now() + Duration::from_secs(5);
    while Instant::now() < end {
        while let Some(frame) = ring.next() {
            if seen(&frame) {
                return;
            }
        }
        let wait = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        poll(&mut [PollFd::new(ring, PollFlags::IN)], Some(&wait)).expect("poll");
    }
    panic!("the packets did not arrive within five seconds");
}

/// Returns the number in the payload, if the frame is one of our UDP datagrams over IPv4 to
/// `port`.
fn number(frame: &[u8], port: u16) -> Option<u32> {
    let ours = frame[0] >> 4 == 4 && frame[9] == UDP && frame[22..24] == port.to_be_bytes();
    ours.then(|| u32::from_be_bytes(frame[28..32].try_into().expect("four bytes")))
}

#[test]
fn both_directions_in_one_ordered_stream() {
    if !is_root() {
        return;
    }
    let (left, right) = pair();
    let mut ring = left.run(|| Ring::open("va", config(BYTES)).expect("ring"));
    let echo = right.run(|| UdpSocket::bind("10.9.0.2:7").expect("bind"));
    let client = left.run(|| UdpSocket::bind("10.9.0.1:7").expect("bind"));
    const COUNT: u32 = 3000;
    const BYTES: usize = 256 << 10;
    assert!(
        COUNT as usize * 2 * 128 > 2 * BYTES,
        "the packets fit into the ring, which must wrap around"
    );

    let mut frames = Vec::new();
    for i in 0..COUNT {
        let mut payload = [0xab; 100];
        payload[..4].copy_from_slice(&i.to_be_bytes());
        client.send_to(&payload, "10.9.0.2:7").expect("send");
        let mut back = [0; 200];
        let (length, from) = echo.recv_from(&mut back).expect("receive");
        echo.send_to(&back[..length], from).expect("send");
        client.recv(&mut back).expect("receive");
        read_until(&mut ring, |frame| {
            let Some(number) = number(frame, 7) else { return false };
            assert_eq!((frame.len(), frame.original_len()), (128, 128));
            assert_eq!(frame[32..], [0xab; 96]);
            assert!(!frame.truncated());
            assert_eq!(frame.protocol(), 0x0800);
            frames.push((number, frame.direction()));
            frame.direction() == Direction::Incoming
        });
    }
    let expected = (0..COUNT).flat_map(|i| [(i, Direction::Outgoing), (i, Direction::Incoming)]);
    assert!(frames.into_iter().eq(expected));
    assert_eq!(ring.drops(), 0);
}

/// Opens a ring of 256 KiB, which is empty, and a socket whose packets the ring captures. The
/// neighbour is already resolved.
fn small() -> (Ring, UdpSocket, impl Sized) {
    let (left, right) = pair();
    let mut ring = left.run(|| Ring::open("va", config(256 << 10)).expect("ring"));
    let socket = left.run(|| UdpSocket::bind("10.9.0.1:0").expect("bind"));
    socket.send_to(&[0; 4], "10.9.0.2:9").expect("send to resolve the neighbour");
    std::thread::sleep(Duration::from_millis(100));
    while ring.next().is_some() {}
    (ring, socket, (left, right))
}

/// Sends long packets with these numbers.
fn send(socket: &UdpSocket, numbers: std::ops::Range<u32>) {
    let mut payload = [0; 1000];
    for number in numbers {
        payload[..4].copy_from_slice(&number.to_be_bytes());
        socket.send_to(&payload, "10.9.0.2:9").expect("send");
    }
}

#[test]
fn a_full_ring_counts_its_drops_and_captures_later_packets() {
    if !is_root() {
        return;
    }
    let (mut ring, socket, _pair) = small();
    let before = ring.drops();

    send(&socket, 0..300);
    let mut next = 0;
    while let Some(frame) = ring.next() {
        assert!(!frame.follows_gap(), "a gap before the first drop");
        if let Some(number) = number(&frame, 9) {
            assert_eq!(number, next, "the ring has not kept the oldest packets");
            next += 1;
        }
    }
    // Other packets (port unreachable, neighbour discovery) take up room too.
    assert!((100..=250).contains(&next), "{next} of 300 in a quarter of a megabyte");
    assert!(ring.drops() - before >= 50, "dropped {}", ring.drops() - before);
    assert_eq!(ring.drops(), ring.drops(), "reading the count has changed it");

    socket.send_to(&77_u32.to_be_bytes(), "10.9.0.2:9").expect("send");
    read_until(&mut ring, |frame| number(frame, 9) == Some(77));
}

#[test]
fn a_gap_is_reported_at_its_position() {
    if !is_root() {
        return;
    }
    let (mut ring, socket, _pair) = small();
    send(&socket, 0..300);
    // Reading some packets makes room.
    let mut last = 0;
    while last < 50 {
        let frame = ring.next().expect("a full ring");
        assert!(!frame.follows_gap());
        last = number(&frame, 9).unwrap_or(last);
    }
    send(&socket, 300..320);
    let (mut gaps, mut before) = (Vec::new(), last);
    read_until(&mut ring, |frame| {
        let Some(number) = number(frame, 9) else { return false };
        if frame.follows_gap() {
            gaps.push((before, number));
        }
        before = number;
        number == 319
    });
    // Blocks that were handed over before the count was read have the flag too.
    assert!(matches!(gaps[..], [(last, 300), ..] if last < 299), "{gaps:?}");
}

#[test]
fn long_packets_are_truncated_and_reported_as_truncated() {
    if !is_root() {
        return;
    }
    let (left, right) = pair();
    left.sh("ip link set va mtu 50000");
    right.sh("ip link set vb mtu 50000");
    let (mut small, mut large) = left.run(|| {
        let large = RingConfig { max_packet: 50_000, bytes: 4 << 20 };
        (Ring::open("va", config(1 << 20)).expect("ring"), Ring::open("va", large).expect("ring"))
    });
    left.run(|| {
        let socket = UdpSocket::bind("[fd09::1]:0").expect("bind");
        socket.send_to(&[0x5a; 49_952], "[fd09::2]:9").expect("send");
    });
    let ours = |frame: &[u8]| frame[0] >> 4 == 6 && frame[6] == UDP;
    read_until(&mut small, |frame| {
        let hit = ours(frame);
        if hit {
            assert!(frame.truncated() && frame.len() >= 1500 && frame.original_len() == 50_000);
            assert_eq!(frame.protocol(), 0x86dd);
        }
        hit
    });
    read_until(&mut large, |frame| {
        let hit = ours(frame);
        if hit {
            assert!(!frame.truncated() && frame.len() == 50_000);
            assert!(frame[48..].iter().all(|&byte| byte == 0x5a));
        }
        hit
    });
}

#[test]
fn unknown_interfaces_and_links_that_go_down_are_reported() {
    if !is_root() {
        return;
    }
    let (left, _right) = pair();
    let (unknown, ring) =
        left.run(|| (Ring::open("nope0", config(1 << 20)), Ring::open("va", config(1 << 20))));
    let unknown = unknown.expect_err("there is none");
    assert!(matches!(&unknown, RingError::Interface { name, .. } if name == "nope0"));
    let mut ring = ring.expect("ring");
    left.sh("ip link set va down");
    let down = ring.take_error().expect("the link is down");
    assert_eq!(down.raw_os_error(), Some(libc::ENETDOWN));
    assert!(
        ring.take_error().is_none() && ring.is_attached(),
        "the error is returned twice, or the ring detached"
    );
    left.sh("ip link set va up; ip addr add 10.9.1.1/24 dev va || true");
    left.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").expect("bind");
        socket.set_broadcast(true).expect("broadcast");
        socket.send_to(&7_u32.to_be_bytes(), "10.9.0.255:9").expect("send");
    });
    read_until(&mut ring, |frame| number(frame, 9) == Some(7));
    left.sh("ip link del va");
    assert!(!ring.is_attached(), "attached to a deleted interface");
}

/// Returns, for each ring, the numbers of the datagrams to this port that it captures within
/// 200 ms.
fn numbers(rings: &mut [Ring], port: u16) -> Vec<Vec<u32>> {
    std::thread::sleep(Duration::from_millis(200));
    let mut all = Vec::new();
    for ring in rings {
        let mut seen = Vec::new();
        while let Some(frame) = ring.next() {
            seen.extend(number(&frame, port));
        }
        all.push(seen);
    }
    all
}

#[test]
fn each_packet_goes_to_one_tap_of_a_group_by_its_addresses_or_its_share_number() {
    if !is_root() {
        return;
    }
    let (left, right) = pair();
    for host in 3..35 {
        left.sh(&format!("ip addr add 10.9.0.{host}/24 dev va"));
    }
    let open = || {
        let rings: Vec<_> =
            (0..3).map(|_| Ring::open("va", config(256 << 10)).expect("ring")).collect();
        let fanout = |directions| Fanout::new(&rings.iter().collect::<Vec<_>>(), directions);
        let group = fanout(Directions::Both).expect("group");
        (rings, group)
    };
    let (mut rings, group) = left.run(open);
    let program = |members: &[u8], datagrams| {
        FanoutProgram { members: members.to_vec(), datagrams }.build().expect("program")
    };
    group.set_program(&program(&[0, 1, 2, 1], None)).expect("program");
    numbers(&mut rings, 9);
    // Outgoing packets of 32 pairs of addresses, ten of each.
    let send = |host: u32| {
        left.run(move || {
            let socket = UdpSocket::bind((format!("10.9.0.{host}"), 0)).expect("bind");
            let mut payload = [0; 40];
            payload[..4].copy_from_slice(&host.to_be_bytes());
            for _ in 0..10 {
                socket.send_to(&payload, "10.9.0.2:9").expect("send");
            }
        });
    };
    (3..35).for_each(send);
    let seen = numbers(&mut rings, 9);
    assert_eq!(seen.iter().map(Vec::len).sum::<usize>(), 320, "each packet once: {seen:?}");
    for host in 3..35 {
        let of = |ring: &Vec<u32>| ring.iter().filter(|number| **number == host).count();
        assert!(seen.iter().all(|ring| [0, 10].contains(&of(ring))), "{host}: {seen:?}");
    }
    assert!(seen.iter().all(|ring| ring.len() >= 30), "{seen:?}");
    // A member is dropped, and its share goes to another member; the others keep theirs.
    drop(rings.remove(0));
    group.set_program(&program(&[2, 1, 2, 1], None)).expect("program");
    (3..35).for_each(send);
    let [ones, others] = &numbers(&mut rings, 9)[..] else { panic!("two rings are left") };
    assert_eq!(*ones, seen[1]);
    assert_eq!(others.len(), seen[0].len() + seen[2].len());
    drop((rings, group));

    // Incoming datagrams carry the number of their share.
    let (mut rings, group) = left.run(move || {
        let rings: Vec<_> =
            (0..2).map(|_| Ring::open("va", config(256 << 10)).expect("ring")).collect();
        let group = Fanout::new(&[&rings[0], &rings[1]], Directions::Incoming).expect("group");
        (rings, group)
    });
    let listen = "10.9.0.1:9".parse().expect("address");
    group.set_program(&program(&[0, 1], Some((listen, 3)))).expect("program");
    numbers(&mut rings, 9);
    right.run(|| {
        let socket = UdpSocket::bind("10.9.0.2:0").expect("bind");
        for number in 0..100_u32 {
            socket.send_to(&number.to_be_bytes(), "10.9.0.1:9").expect("send");
        }
    });
    let seen = numbers(&mut rings, 9);
    assert_eq!(seen[0], (0..100).step_by(2).collect::<Vec<_>>());
    assert_eq!(seen[1], (1..100).step_by(2).collect::<Vec<_>>());
}

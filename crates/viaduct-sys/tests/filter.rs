//! A tap's filter in the kernel, on a real veth pair.

#![allow(unsafe_code, reason = "one test puts a raw frame on the wire")]

mod common;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use common::{Host, is_root, pair};
use viaduct_sys::capture::filter::{MAX_TAP_INSNS, TapFilter};
use viaduct_sys::capture::ring::{Direction, Ring, RingConfig};

fn filter() -> TapFilter {
    let prefix = |ip: &str, length| (ip.parse().expect("an address"), length);
    TapFilter {
        local: vec![prefix("10.9.0.0", 31), prefix("fd09::1", 128)],
        peers: vec![prefix("10.9.0.2", 32), prefix("fd09::2", 128)],
        listen: vec!["10.9.0.51:4500".parse().expect("an address")],
        fake_tcp: Vec::new(),
    }
}

fn tap(host: &Host) -> Ring {
    host.run(|| {
        let program = filter().build().expect("program");
        let config = RingConfig { max_packet: 1500, bytes: 1 << 20 };
        Ring::open_filtered("va", config, &program).expect("ring")
    })
}

/// Sends a datagram from an address of `host`.
fn send(host: &Host, from: &str, to: &str, payload: usize) {
    let (from, to) = (format!("{from}:0"), to.to_owned());
    host.run(move || {
        let socket = UdpSocket::bind(from).expect("bind");
        socket.send_to(&vec![1; payload], to).expect("send");
    });
}

/// Waits until `count` packets are captured, and another 50 ms for surplus packets. Returns the
/// direction, protocol and length of each. Leaves out neighbour discovery, which the filter accepts
/// because it is between addresses of the two sites.
fn seen(ring: &mut Ring, count: usize) -> Vec<(Direction, u8, usize)> {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut seen = Vec::new();
    loop {
        let is_last = seen.len() >= count || Instant::now() > deadline;
        std::thread::sleep(Duration::from_millis(if is_last { 50 } else { 1 }));
        while let Some(frame) = ring.next() {
            let protocol = if frame.protocol() == 0x0800 { frame[9] } else { frame[6] };
            if protocol != 58 {
                seen.push((frame.direction(), protocol, frame.len()));
            }
        }
        if is_last {
            return seen;
        }
    }
}

#[test]
fn only_packets_between_the_sites_or_to_us_are_captured() {
    if !is_root() {
        return;
    }
    use Direction::{Incoming, Outgoing};
    let (left, right) = pair();
    left.sh("ip addr add 10.9.0.51/24 dev va");
    right.sh("ip addr add 10.9.0.52/24 dev vb");
    let mut ring = tap(&left);
    let _keep: Vec<_> = ["10.9.0.1:9", "10.9.0.51:4500", "10.9.0.51:9", "[fd09::1]:9"]
        .map(|at| left.run(move || UdpSocket::bind(at).expect("bind")))
        .into();
    let _sink: Vec<_> = ["10.9.0.2:9", "10.9.0.52:9", "[fd09::2]:9"]
        .map(|at| right.run(move || UdpSocket::bind(at).expect("bind")))
        .into();

    send(&left, "10.9.0.1", "10.9.0.2:9", 72);
    assert_eq!(seen(&mut ring, 1), [(Outgoing, 17, 100)]);
    send(&right, "10.9.0.2", "10.9.0.1:9", 72);
    assert_eq!(seen(&mut ring, 1), [(Incoming, 17, 100)]);
    send(&left, "[fd09::1]", "[fd09::2]:9", 52);
    assert_eq!(seen(&mut ring, 1), [(Outgoing, 17, 100)]);
    // Packets that are not captured are followed by a shorter packet that is captured.
    send(&left, "10.9.0.1", "10.9.0.52:9", 72);
    send(&left, "10.9.0.51", "10.9.0.2:9", 72);
    send(&right, "10.9.0.52", "10.9.0.1:9", 72);
    send(&right, "10.9.0.2", "10.9.0.1:9", 71);
    assert_eq!(seen(&mut ring, 1), [(Incoming, 17, 99)], "an address of neither site");
    send(&right, "10.9.0.52", "10.9.0.51:9", 72);
    send(&right, "10.9.0.52", "10.9.0.51:4500", 71);
    assert_eq!(seen(&mut ring, 1), [(Incoming, 17, 99)], "only a peer's datagram to our port");
    send(&left, "10.9.0.1", "10.9.0.2:9", 3000);
    assert_eq!(
        seen(&mut ring, 3),
        [(Outgoing, 17, 1500), (Outgoing, 17, 1500), (Outgoing, 17, 68)]
    );
}

#[test]
fn packets_of_a_vlan_are_not_captured_on_the_underlying_interface() {
    if !is_root() {
        return;
    }
    let (left, right) = pair();
    let mut ring = tap(&left);
    let mac = [2, 0, 0, 0, 0, 7];
    left.sh("ip link set va address 02:00:00:00:00:07");
    let packet = [
        &[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1][..],
        &[0, 9, 0, 9, 0, 8, 0, 0],
    ]
    .concat();
    let plain = [&mac[..], &mac, &[0x08, 0x00], &packet].concat();
    let tagged = [&mac[..], &mac, &[0x81, 0x00, 0, 7, 0x08, 0x00], &packet].concat();
    right.run(move || send_raw("vb", &tagged));
    right.run(move || send_raw("vb", &plain));
    let mut found = seen(&mut ring, 1);
    found.retain(|(direction, ..)| *direction == Direction::Incoming);
    assert_eq!(found, [(Direction::Incoming, 17, 28)], "only the packet without a tag");
}

/// Sends a whole Ethernet frame.
fn send_raw(name: &str, frame: &[u8]) {
    let name = std::ffi::CString::new(name).expect("no NUL");
    // SAFETY: all pointers are valid for the lengths given, and the socket is closed here.
    let sent = unsafe {
        let mut to: libc::sockaddr_ll = std::mem::zeroed();
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        let socket = libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0);
        let (to, length) = ((&raw const to).cast(), size_of_val(&to) as u32);
        let sent = libc::sendto(socket, frame.as_ptr().cast(), frame.len(), 0, to, length);
        libc::close(socket);
        sent
    };
    assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
}

#[test]
fn the_kernel_accepts_the_longest_programs() {
    if !is_root() {
        return;
    }
    let (left, _right) = pair();
    let mut wide = filter();
    wide.peers.extend((0..1950_u32).map(|i| ((0x0b00_0000_u32 | i << 8).to_be_bytes().into(), 25)));
    let program = wide.build().expect("program");
    assert!((1_000..=MAX_TAP_INSNS).contains(&program.len()), "{}", program.len());
    let mut ring = tap(&left);
    // The second time, old kernels have no room for the old and the new program.
    ring.attach_filter(&program).expect("attach");
    ring.attach_filter(&program).expect("attach again");
    send(&left, "10.9.0.1", "10.9.0.2:9", 72);
    assert_eq!(seen(&mut ring, 1)[0], (Direction::Outgoing, 17, 100));
}

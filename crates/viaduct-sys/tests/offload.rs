//! Offloads on real veth pairs, judged by ethtool and by what a tap sees of forwarded TCP.
//!
//! ```text
//!   host h0 ==== g0 gateway  va ==== vb  server
//!         10.8.0.0/24         10.9.0.0/24
//! ```

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use common::{Host, host_behind, is_root, pair};
use viaduct_sys::offload::{OffloadError, OffloadState};
use viaduct_sys::ring::{Direction, Ring, RingConfig};

#[test]
fn ethtool_sees_them_go_and_come_back() {
    if !is_root() {
        return;
    }
    let (left, _right) = pair();
    left.sh("ethtool -K va tx-udp-segmentation off");
    let before = left.sh("ethtool -k va");
    let state = left.run(|| OffloadState::read("va").expect("read"));
    assert_eq!(left.sh("ethtool -k va"), before, "reading changes nothing");
    assert!(!state.features.iter().any(|name| name == "tx-udp-segmentation"), "it was off");
    let text = serde_json::to_string(&state).expect("serialises");

    left.run(move || state.switch_off().expect("switch off"));
    let off = left.sh("ethtool -k va");
    for name in [
        "tx-checksumming",
        "tcp-segmentation-offload",
        "generic-segmentation-offload",
        "generic-receive-offload",
        "tx-udp-segmentation",
    ] {
        assert!(off.contains(&format!("{name}: off")), "{name} in\n{off}");
    }
    for twice in 0..2 {
        let state: OffloadState = serde_json::from_str(&text).expect("parses");
        left.run(move || state.restore().expect("restore"));
        assert_eq!(left.sh("ethtool -k va"), before, "round {twice}");
    }
    let gone = left.run(|| OffloadState::read("nope0")).expect_err("there is none");
    assert!(matches!(&gone, OffloadError::Device { interface, .. } if interface == "nope0"));
    let state: OffloadState =
        serde_json::from_str(&text.replace("\"va\"", "\"nope0\"")).expect("parses");
    left.run(move || state.restore().expect("an interface that is gone needs nothing"));
}

/// Sends 8 MB of TCP from host to server; what the tap saw of it: packets, the longest that
/// left, and how many had no checksum yet.
fn transfer(host: &Host, server: &Host, ring: &mut Ring) -> (usize, usize, usize) {
    const BYTES: usize = 8 << 20;
    let listener = server.run(|| TcpListener::bind("10.9.0.2:0").expect("bind"));
    let to = listener.local_addr().expect("bound");
    let receiver = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("accept");
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).expect("read");
        bytes.len()
    });
    let mut stream = host.run(move || TcpStream::connect(to).expect("connect"));
    let sender = std::thread::spawn(move || stream.write_all(&vec![3; BYTES]).expect("write"));
    let (mut packets, mut longest, mut unready) = (0, 0, 0);
    let mut finished = false;
    while !finished {
        finished = receiver.is_finished();
        while let Some(frame) = ring.next() {
            if frame.protocol() != 0x0800 || frame[9] != 6 {
                continue;
            }
            // The end of an earlier connection may come late.
            let port = to.port().to_be_bytes();
            if frame[20..22] != port && frame[22..24] != port {
                continue;
            }
            packets += 1;
            if frame.direction() == Direction::Outgoing {
                longest = longest.max(frame.original_len());
            }
            unready += usize::from(!frame.checksum_ready());
            if frame.checksum_ready() && !frame.truncated() {
                assert_eq!(tcp_checksum(&frame), 0, "ready means right");
            }
        }
        std::thread::yield_now();
    }
    sender.join().expect("sent");
    assert_eq!(receiver.join().expect("received"), BYTES);
    (packets, longest, unready)
}

/// The sum over pseudo-header and segment: zero if the checksum in it is right.
fn tcp_checksum(packet: &[u8]) -> u16 {
    let header = usize::from(packet[0] & 15) * 4;
    let mut sum = 6 + (packet.len() - header) as u32;
    for pair in packet[12..20].chunks(2).chain(packet[header..].chunks(2)) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[test]
fn with_all_off_a_tap_sees_the_packets_of_the_wire() {
    if !is_root() {
        return;
    }
    let (gateway, server) = pair();
    let host = host_behind(&gateway, &server);
    let open = |config| gateway.run(move || Ring::open("va", config).expect("ring"));
    let mut ring = open(RingConfig { max_packet: 65535, bytes: 64 << 20 });
    let (_, longest, unready) = transfer(&host, &server, &mut ring);
    assert!(longest > 1500 && unready > 0, "offloads were on: {longest} bytes, {unready} unready");

    gateway.run(|| OffloadState::read("va").expect("read").switch_off().expect("switch off"));
    // What arrives over a veth is as its other end sent it.
    server.run(|| OffloadState::read("vb").expect("read").switch_off().expect("switch off"));
    // Room for all of the transfer: a busy machine may leave this thread waiting.
    let mut ring = open(RingConfig { max_packet: 1500, bytes: 64 << 20 });
    let (packets, longest, unready) = transfer(&host, &server, &mut ring);
    assert_eq!((longest, unready), (1500, 0));
    assert!(packets > (8 << 20) / 1448, "{packets}");
    assert_eq!(ring.drops(), 0);
}

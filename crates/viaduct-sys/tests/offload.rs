//! Offloads on real veth pairs, verified by ethtool and by a tap of forwarded TCP.
//!
//! ```text
//!   host h0 ==== g0 gateway  va ==== vb  server
//!         10.8.0.0/24         10.9.0.0/24
//! ```

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use common::{Host, host_behind, is_root, pair};
use viaduct_sys::capture::filter::TapFilter;
use viaduct_sys::capture::offload::{OffloadError, OffloadState};
use viaduct_sys::capture::ring::{Direction, Ring, RingConfig};

#[test]
fn ethtool_shows_that_offloads_are_switched_off_and_restored() {
    if !is_root() {
        return;
    }
    let (left, _right) = pair();
    left.sh("ethtool -K va tx-udp-segmentation off");
    let before = left.sh("ethtool -k va");
    let state = left.run(|| OffloadState::read("va").expect("read"));
    assert_eq!(left.sh("ethtool -k va"), before, "reading has changed features");
    assert!(
        !state.features.iter().any(|name| name == "tx-udp-segmentation"),
        "a feature that was off is listed"
    );
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
    let gone = left.run(|| OffloadState::read("nope0")).expect_err("there is no such interface");
    assert!(matches!(&gone, OffloadError::Device { interface, .. } if interface == "nope0"));
    let state: OffloadState =
        serde_json::from_str(&text.replace("\"va\"", "\"nope0\"")).expect("parses");
    left.run(move || state.restore().expect("a missing interface is not an error"));
}

/// Counts of captured packets.
#[derive(Debug, Default)]
struct Seen {
    packets: usize,
    /// Bytes of the longest outgoing packet.
    longest: usize,
    /// Packets whose checksum is missing.
    unready: usize,
    /// Packets for which the offset of the missing checksum is reported.
    reported: usize,
    /// Packets that are still to be segmented.
    unsegmented: usize,
    /// Maximum bytes of data in a segment of these packets.
    segment: u16,
}

/// Sends 8 MiB over TCP from host to server. Returns the counts of the connection's packets at the
/// tap.
fn transfer(host: &Host, server: &Host, ring: &mut Ring) -> Seen {
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
    let mut seen = Seen::default();
    let mut finished = false;
    while !finished {
        finished = receiver.is_finished();
        while let Some(frame) = ring.next() {
            if frame.protocol() != 0x0800 || frame[9] != 6 {
                continue;
            }
            // Packets of an earlier connection may arrive late.
            let port = to.port().to_be_bytes();
            if frame[20..22] != port && frame[22..24] != port {
                continue;
            }
            seen.packets += 1;
            if frame.direction() == Direction::Outgoing {
                seen.longest = seen.longest.max(frame.original_len());
            }
            seen.unready += usize::from(!frame.checksum_ready());
            seen.reported += usize::from(frame.checksum() == Some((20, 16)));
            if let Some(segment) = frame.segment() {
                seen.unsegmented += 1;
                seen.segment = seen.segment.max(segment.get());
            }
            if frame.checksum_ready() && !frame.truncated() {
                assert_eq!(tcp_checksum(&frame), 0, "the checksum is wrong");
            }
        }
        std::thread::yield_now();
    }
    sender.join().expect("sent");
    assert_eq!(receiver.join().expect("received"), BYTES);
    seen
}

/// Returns the checksum over pseudo header and segment, which is 0 if the segment's checksum is
/// right.
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
fn with_offloads_off_a_tap_captures_the_packets_on_the_wire() {
    if !is_root() {
        return;
    }
    let (gateway, server) = pair();
    let host = host_behind(&gateway, &server);
    let open = |config| gateway.run(move || Ring::open("va", config).expect("ring"));
    let mut ring = open(RingConfig { max_packet: 65535, bytes: 64 << 20 });
    let seen = transfer(&host, &server, &mut ring);
    assert!(seen.longest > 1500 && seen.unready > 0, "offloads were off: {seen:?}");
    assert_eq!((seen.reported, seen.unsegmented), (0, 0), "offloads reported without a request");

    gateway.run(|| OffloadState::read("va").expect("read").switch_off().expect("switch off"));
    // On a veth pair, packets arrive as the other end has sent them.
    server.run(|| OffloadState::read("vb").expect("read").switch_off().expect("switch off"));
    // The ring has room for the whole transfer, as this thread may be delayed on a busy machine.
    let mut ring = open(RingConfig { max_packet: 1500, bytes: 64 << 20 });
    let seen = transfer(&host, &server, &mut ring);
    assert_eq!((seen.longest, seen.unready), (1500, 0));
    assert!(seen.packets > (8 << 20) / 1448, "{seen:?}");
    assert_eq!(ring.drops(), 0);
}

#[test]
fn with_offloads_on_a_tap_reports_the_work_that_is_left_to_the_device() {
    if !is_root() {
        return;
    }
    let (gateway, server) = pair();
    let host = host_behind(&gateway, &server);
    let prefix = |text: &str, length| (text.parse().expect("an address"), length);
    let filter = TapFilter {
        local: vec![prefix("10.8.0.0", 24)],
        peers: vec![prefix("10.9.0.2", 32)],
        listen: Vec::new(),
        fake_tcp: Vec::new(),
    };
    let program = filter.build().expect("short enough");
    let mut ring = gateway.run(move || {
        let config = RingConfig { max_packet: 1500, bytes: 64 << 20 };
        Ring::open_with_offloads("va", config, &program).expect("ring")
    });
    let seen = transfer(&host, &server, &mut ring);
    assert!(seen.longest > 1500 && seen.unsegmented > 0 && seen.unready > 0, "{seen:?}");
    assert_eq!((seen.reported, seen.segment), (seen.unready, 1448), "{seen:?}");
    assert_eq!(ring.drops(), 0);
}

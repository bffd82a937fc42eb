//! Controls of the tests: in this network conntrack drops stray packets, and GRO joins packets.

use std::net::SocketAddr;
use std::time::Duration;

use viaduct_proto::trickles::packet::stats::Refusal;
use viaduct_proto::trickles::packet::tcp::{Kind, Segment, emit};
use viaduct_proto::trickles::packet::{Mark, Role};
use viaduct_sys::capture::raw::RawSockets;
use viaduct_sys::socket::mmsg::Outbox;

use super::world::{PORT, TCP, World, sh};

fn segment(from: &str, seq: u32, count: u8) -> Segment {
    let mark = Mark { role: Role::Request, count, length: 0, ahead: 0 };
    let source = format!("{from}:40000").parse().unwrap();
    let destination = SocketAddr::new("10.2.0.2".parse().unwrap(), PORT);
    let (kind, scaled, largest) = (Kind::Data, true, u16::MAX);
    Segment { source, destination, kind, seq, ack: 77, scaled, largest, mark }
}

fn send(packets: &[Vec<u8>]) {
    let (raw, mut outbox) = (RawSockets::open().unwrap(), Outbox::default());
    raw.set_buffers(16 << 20).unwrap();
    for packet in packets {
        outbox.push(packet, "10.2.0.2:0".parse().unwrap(), None);
    }
    assert_eq!(outbox.flush(raw.socket(true).unwrap()).sent, packets.len() as u64);
}

#[test]
fn this_router_drops_packets_with_stray_numbers() {
    let Some(world) = World::new("control") else { return };
    let _server = world.serve();
    let mut client = world.client(TCP, "client");
    let flow = client.connect("10.2.0.2");
    client.ask_until_answered(flow);
    // The first line of the table contains the connection's port.
    let tracked = sh(
        &world.router,
        "cat /proc/net/nf_conntrack 2>/dev/null || conntrack -L 2>/dev/null || true",
    );
    let port = tracked.split("sport=").nth(1).and_then(|rest| rest.split(' ').next());
    let ports: Vec<u16> = match port {
        Some(port) => vec![port.parse().unwrap()],
        None => (32_768..61_000).collect(),
    };
    let mut packets = Vec::new();
    for port in ports {
        let mut stray = segment("10.1.0.2", 5, 0);
        stray.source.set_port(port);
        let mut packet = Vec::new();
        emit(&stray, b"stray", 1500, &mut packet).unwrap();
        packets.push(packet);
    }
    world.client.netns().enter(|| send(&packets)).unwrap();
    assert!(world.count("invalid") > 0);
}

#[test]
fn packets_joined_by_gro_are_refused_and_counted() {
    let Some(world) = World::new("joined") else { return };
    let server = world.serve();
    world.coalesce();
    // The packets are equal in everything that GRO compares: no PSH, the same ACK number, and
    // consecutive sequence numbers.
    let packets = (0..640_u32).map(|n| {
        let mut packet = Vec::new();
        emit(&segment("10.2.0.1", 1 + n * 100, 0), &[1; 100], 1500, &mut packet).unwrap();
        packet[33] &= !8;
        let sum = u16::from_be_bytes([packet[36], packet[37]]);
        // The value of the cleared flag is added to the checksum, which is a one's complement.
        let (sum, over) = sum.overflowing_add(8);
        packet[36..38].copy_from_slice(&(sum + u16::from(over)).to_be_bytes());
        packet
    });
    let packets: Vec<_> = packets.collect();
    world.router.netns().enter(|| send(&packets)).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let stats = server.end();
    // Joined packets that are longer than any Trickles packet are counted as cut.
    assert!(stats.refused.of(Refusal::Merged) + stats.refused.of(Refusal::Cut) > 0, "{stats:?}");
    // A packet that is joined with no other arrives as it was sent.
    assert!(stats.received < 64, "{stats:?}");
    assert_eq!(stats.refused.of(Refusal::Checksum), 0, "{stats:?}");
}

//! Packets of hosts arrive bit for bit as without gateways.

use std::collections::BTreeSet;
use std::net::{SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use viaduct_lab::emulator::Direction;
use viaduct_lab::gateways::GatewaySpec;
use viaduct_lab::topology::Host;
use viaduct_lab::world::World;
use viaduct_sys::capture::ring::{self, Ring, RingConfig};

use super::world;

/// Ports of the compared datagrams and of the compared connection.
const DATAGRAMS: (u16, u16) = (7_001, 7_002);
const CONNECTION: u16 = 7_003;
/// Payload of the longest datagram that fits a WAN with an MTU of 1500 bytes.
const LONGEST: usize = 1_472;

/// Sockets at A1 and B1 whose packets are compared.
struct Compared {
    hosts: [Host; 2],
    sender: UdpSocket,
    /// Keeps the kernel from answering that the port is closed.
    _receiver: UdpSocket,
    to: SocketAddrV4,
    listener: TcpListener,
}

impl Compared {
    fn new(world: &World) -> Compared {
        let hosts = [world.a1().clone(), world.b1().clone()];
        let from = SocketAddrV4::new(hosts[0].v4(), DATAGRAMS.0);
        let to = SocketAddrV4::new(hosts[1].v4(), DATAGRAMS.1);
        let bind = |host: &Host, at| host.netns().enter(|| UdpSocket::bind(at).unwrap()).unwrap();
        let (sender, receiver) = (bind(&hosts[0], from), bind(&hosts[1], to));
        let server = (*to.ip(), CONNECTION);
        let listener = hosts[1].netns().enter(|| TcpListener::bind(server).unwrap()).unwrap();
        Compared { hosts, sender, _receiver: receiver, to, listener }
    }

    /// Calls [`Self::arriving`] until `least` packets arrive at B1, at most five times: on a busy
    /// machine the emulated link may stop for longer than its kernel queue lasts.
    fn all_arriving(&self, least: usize) -> [BTreeSet<Vec<u8>>; 2] {
        let mut arrived = self.arriving();
        for _ in 1..5 {
            if arrived[1].len() >= least {
                break;
            }
            arrived = self.arriving();
        }
        arrived
    }

    /// Opens a connection from A1 to B1, and sends a datagram of each length. Returns the SYN,
    /// SYN-ACK and datagrams that arrive at A1 and at B1.
    fn arriving(&self) -> [BTreeSet<Vec<u8>>; 2] {
        let config = RingConfig { max_packet: 1500, bytes: 8 << 20 };
        let open = || Ring::open("eth0", config).unwrap();
        let tap = |host: &Host| host.netns().enter(open).unwrap();
        let mut taps = self.hosts.each_ref().map(tap);
        let server = (*self.to.ip(), CONNECTION);
        let connect = || TcpStream::connect(server).unwrap();
        let _client = self.hosts[0].netns().enter(connect).unwrap();
        let _server = self.listener.accept().unwrap();
        for length in 1..=LONGEST {
            self.sender.send_to(&vec![length as u8; length], self.to).unwrap();
            thread::sleep(Duration::from_micros(500));
        }
        thread::sleep(Duration::from_millis(500));
        taps.each_mut().map(|tap| {
            let mut arrived = BTreeSet::new();
            while let Some(frame) = tap.next() {
                if frame.direction() == ring::Direction::Incoming {
                    arrived.extend(comparable(&frame));
                }
            }
            arrived
        })
    }
}

/// Returns the packet if [`Compared::arriving`] compares it. Fields that may differ are set to
/// zero: IP's identification and checksum, and in a SYN or SYN-ACK also the client port, sequence
/// numbers, timestamps, and TCP's checksum.
fn comparable(packet: &[u8]) -> Option<Vec<u8>> {
    let ports = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
    if packet.len() < 28 || packet[0] != 0x45 {
        return None;
    }
    let mut packet = packet.to_vec();
    match packet[9] {
        17 if (ports(20), ports(22)) == DATAGRAMS => {
            packet[4..6].fill(0);
            packet[10..12].fill(0);
            Some(packet)
        }
        6 if packet.len() >= 60 && packet[33] & 2 != 0 => {
            let client = match (ports(20), ports(22)) {
                (_, CONNECTION) => 20,
                (CONNECTION, _) => 22,
                _ => return None,
            };
            // The timestamps option follows MSS and SACK-permitted.
            assert_eq!(packet[46..48], [8, 10], "{packet:x?}");
            let numbers = 24..32 - if packet[33] & 16 == 0 { 4 } else { 0 };
            for zeroed in [4..6, 10..12, client..client + 2, numbers, 36..38, 48..56] {
                packet[zeroed].fill(0);
            }
            Some(packet)
        }
        _ => None,
    }
}

#[test]
fn traffic_of_hosts_arrives_bit_for_bit_as_without_gateways() {
    let mut world = world((1500, 1500), "rate=200M,delay=5ms,queue=50ms");
    let compared = Compared::new(&world);
    let plain = compared.all_arriving(1 + LONGEST);
    assert_eq!(plain.each_ref().map(BTreeSet::len), [1, 1 + LONGEST]);
    world.protect(&GatewaySpec::default()).unwrap();
    let same = |other: &[BTreeSet<Vec<u8>>; 2]| {
        for (plain, other) in plain.iter().zip(other) {
            let new: Vec<_> = other.difference(plain).take(2).collect();
            let old: Vec<_> = plain.difference(other).take(2).collect();
            assert!(new.is_empty(), "altered: {new:x?}, sent: {old:x?}");
        }
    };
    let protected = compared.all_arriving(1 + LONGEST);
    same(&protected);
    assert_eq!(protected.each_ref().map(BTreeSet::len), [1, 1 + LONGEST]);
    // Recovered packets are equal to those that were lost.
    let lossy = "rate=200M,delay=5ms,queue=50ms,loss=3%".parse().unwrap();
    world.emulator().unwrap().set(Direction::AtoB, lossy).unwrap();
    let lost = compared.all_arriving(LONGEST - 5);
    same(&lost);
    let receiver = world.gateways().unwrap().b.status().unwrap().peer().receiver;
    assert!(receiver.recovered >= 20, "{receiver:?}");
    assert!(lost[1].len() >= LONGEST - 5, "{} arrived; {receiver:?}", lost[1].len());
}

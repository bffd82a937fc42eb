//! Code that the targets share: operations read from the fuzzer's bytes, two gateways that are
//! peers, and packets between their sites.

pub mod frames;

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock, Mutex};

use arbitrary::{Arbitrary, Result, Unstructured};
use viaduct_proto::fec::{Code, layered};
use viaduct_proto::keys::{Entropy, SecretKey};
use viaduct_proto::repair::lanes::LaneCount;
use viaduct_proto::repair::{
    Coding, Local, PeerConfig, PeerMember, Plane, RackConfig, Sites, Transport, TransportChoice,
};
use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::wire::ip::{self, MutableFields};

/// Length of the longest packet that repairs cover. The path's MTU is larger, by 300 bytes.
pub const MTU: usize = 1_200;
/// Bytes that each side has for received packets and waiting repairs.
pub const MEMORY: usize = 1 << 16;

/// Operations up to the end of the input. (A `Vec` would also read, before each operation, a byte
/// that says whether one follows.)
#[derive(Debug)]
pub struct Steps<T>(pub Vec<T>);

/// Maximum number of operations of one run, so that the run takes milliseconds.
const MAX_STEPS: usize = 128;

impl<'a, T: Arbitrary<'a>> Arbitrary<'a> for Steps<T> {
    fn arbitrary(input: &mut Unstructured<'a>) -> Result<Self> {
        let mut steps = Vec::new();
        while !input.is_empty() && steps.len() < MAX_STEPS {
            steps.push(input.arbitrary()?);
        }
        Ok(Steps(steps))
    }
}

/// A few bytes, preceded in the input by their number.
#[derive(Clone, Debug)]
pub struct Bytes(pub Vec<u8>);

impl<'a> Arbitrary<'a> for Bytes {
    fn arbitrary(input: &mut Unstructured<'a>) -> Result<Self> {
        let len = usize::from(input.arbitrary::<u8>()?).min(input.len());
        Ok(Bytes(input.bytes(len)?.to_vec()))
    }
}

/// Secret keys of the two sides, created once because key generation is slow.
static SECRETS: LazyLock<[SecretKey; 2]> =
    LazyLock::new(|| [SecretKey::from_bytes([1; 32]), SecretKey::from_bytes([2; 32])]);

/// Initial code of both sides.
pub fn first_code() -> Code {
    Code::Layered(layered::Parameters::new(8, &[1, 11, 19]))
}

/// Address on which the gateway of `side` (0 or 1) listens.
pub fn endpoint(side: usize) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, side as u8 + 1], 7400))
}

/// Configuration of the other side as the peer of `side`.
pub fn peer(side: usize, coding: Option<Coding>) -> PeerConfig {
    static PUBLIC: LazyLock<[viaduct_proto::keys::PublicKey; 2]> =
        LazyLock::new(|| [SECRETS[0].public(), SECRETS[1].public()]);
    let site = |n: usize| {
        let texts = [format!("10.{n}.0.0/16"), format!("fd00:{n}::/32")];
        texts.iter().map(|text| text.parse().expect("a prefix")).collect()
    };
    PeerConfig {
        name: "peer".to_owned(),
        key: PUBLIC[1 - side],
        endpoint: Some(endpoint(1 - side)),
        paths: None,
        transport: TransportChoice::Only(Transport::Udp),
        sites: Sites { local: site(side), remote: site(1 - side) },
        coding,
        flush_after: Duration::from_millis(8),
        rekey_after: Duration::from_secs(20),
        longest: MTU,
        mtu: MTU + 300,
        memory: MEMORY,
        rack: RackConfig::default(),
    }
}

/// The gateway of `side`.
pub fn plane(side: usize, code: Code) -> Plane {
    member(side, Coding::Fixed(code), RackConfig::default())
}

/// Membership of a gateway in its site's rack. The gateway's peer is the only member of the other
/// site's rack.
pub fn rack() -> RackConfig {
    let slices = |n: usize| peer(n, None).sites.local;
    let own_slices = [slices(0), slices(1)].concat();
    let peer = PeerMember { rack: "rack".to_owned(), weight: 1, slices: Vec::new() };
    RackConfig { own_weight: Some(1), own_slices, peer: Some(peer) }
}

/// The gateway of `side`, with this coding and membership.
pub fn member(side: usize, coding: Coding, rack: RackConfig) -> Plane {
    let rng = Mutex::new(Rng::from_seed(side as u64));
    let entropy: Entropy =
        Arc::new(move |out: &mut [u8]| rng.lock().expect("one thread").fill(out));
    let secret = SECRETS[side].clone();
    let unix_nanos_at_zero = 1_700_000_000_000_000_000;
    let local = Local { secret, entropy, unix_nanos_at_zero, lanes: LaneCount::ONE };
    let peer = PeerConfig { rack, ..peer(side, Some(coding)) };
    Plane::new(local, vec![peer], Instant::ZERO).expect("a code that works")
}

/// A packet with `len` bytes after its IP header, from a host of `from` to a host of the other
/// side.
pub fn packet(from: usize, v6: bool, len: usize, filler: u8, fields: MutableFields) -> Vec<u8> {
    let head = if v6 { 40 } else { 20 };
    let mut packet = vec![filler; head + len];
    let (source, destination) = (from as u8, 1 - from as u8);
    if v6 {
        packet[..40].fill(0);
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&(len as u16).to_be_bytes());
        packet[6] = 17;
        packet[8..12].copy_from_slice(&[0xfd, 0, 0, source]);
        packet[24..28].copy_from_slice(&[0xfd, 0, 0, destination]);
    } else {
        packet[..20].fill(0);
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&((head + len) as u16).to_be_bytes());
        packet[9] = 17;
        packet[12..20].copy_from_slice(&[10, source, 0, 1, 10, destination, 0, 1]);
    }
    ip::restore(&mut packet, fields);
    packet
}

/// Takes the datagrams that `plane` wants to send.
pub fn drain(plane: &mut Plane) -> Vec<Vec<u8>> {
    let datagrams = plane.transmits().map(|(_, datagram)| datagram.to_vec()).collect();
    plane.clear_transmits();
    datagrams
}

/// Carries all datagrams between the two gateways, without loss, until there are none; returns
/// them, each with its sender.
pub fn settle(planes: &mut [Plane; 2], now: Instant) -> Vec<(usize, Vec<u8>)> {
    let mut carried = Vec::new();
    loop {
        let before = carried.len();
        for from in 0..2 {
            for datagram in drain(&mut planes[from]) {
                carried.push((from, datagram.clone()));
                planes[1 - from].handle_datagram(now, endpoint(from), &mut datagram.clone());
            }
        }
        if carried.len() == before {
            return carried;
        }
    }
}

/// Two gateways after their handshake.
pub fn pair(code: &Code) -> [Plane; 2] {
    greet([plane(0, code.clone()), plane(1, code.clone())])
}

/// Performs the handshake of two gateways.
pub fn greet(mut planes: [Plane; 2]) -> [Plane; 2] {
    for _ in 0..4 {
        let next = planes.iter().filter_map(Plane::poll_timeout).min().unwrap_or_default();
        planes.iter_mut().for_each(|plane| plane.handle_timeout(next));
        settle(&mut planes, next);
    }
    assert!(planes.iter().all(|plane| plane.stats()[0].1.up), "the handshake is complete");
    planes
}

/// Calls `act` at each due time until `end`.
pub fn pass<W>(
    world: &mut W,
    end: Instant,
    due: impl Fn(&W) -> Option<Instant>,
    act: impl Fn(&mut W, Instant),
) {
    while let Some(at) = due(world).filter(|at| *at <= end) {
        act(world, at);
    }
}

//! Complete packet plane, as a gateway drives it: two planes after their handshake, in virtual
//! time, with packets of 1500 bytes and the code (8,3), I=(1,20,40). Throughput counts bytes of
//! source data.
//!
//! - *encode*: normalise, name, add to three bins, write the recipe, seal the repair; what a
//!   gateway does with each packet that leaves. The datagrams are taken and dropped.
//! - *decode*: normalise, name, keep, open every repair, look up every name of every recipe,
//!   recover; what a gateway does with each packet that arrives, if one in a hundred is lost.
//!
//! Neither includes the copy of a packet out of the kernel; *limits* measures the cost of such a
//! copy, and of the exclusive or by itself, in the same run. The time is CPU time of the thread, so
//! that figures refer to one core even if other threads share it.
//!
//! `cargo bench -p viaduct-proto --bench plane`

mod clock;

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use clock::ThreadTime;
use criterion::{
    BatchSize, BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main,
};
use viaduct_proto::fec::{Code, kernel, layered};
use viaduct_proto::keys::{Entropy, SecretKey};
use viaduct_proto::repair::lanes::LaneCount;
use viaduct_proto::repair::{
    Coding, Local, PeerConfig, Plane, RackConfig, Sites, Transport, TransportChoice,
};
use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration, Instant};
use viaduct_proto::wire::ip::{self, MutableFields};

const LEN: usize = 1500;
/// Number of packets of one measurement; with the other data they fit in the cache.
const BATCH: usize = 64;
/// Memory that a gateway has for its only peer by default: 48 MiB, less two rings of 8 MiB each.
const MEMORY: usize = 32 << 20;
/// Time between packets at 20 Gb/s.
const GAP: Duration = Duration::from_nanos(600);

type Group<'a> = BenchmarkGroup<'a, ThreadTime>;

/// Gateway, and its current time.
struct Gateway {
    plane: Plane,
    number: u8,
    now: Instant,
}

impl Gateway {
    /// Creates gateway `number` (1 or 2); its peer is 3 - `number`.
    fn new(number: u8) -> Self {
        let secret = |n| SecretKey::from_bytes([n; 32]);
        let site = |n: u8| vec![format!("10.{n}.0.0/16").parse().expect("a prefix")];
        let rng = Mutex::new(Rng::from_seed(number.into()));
        let entropy: Entropy =
            Arc::new(move |out: &mut [u8]| rng.lock().expect("one thread").fill(out));
        let local = Local {
            secret: secret(number),
            entropy,
            unix_nanos_at_zero: 1 << 60,
            lanes: LaneCount::ONE,
        };
        let peer = PeerConfig {
            name: "peer".to_owned(),
            key: secret(3 - number).public(),
            endpoint: Some(([192, 0, 2, 3 - number], 7400).into()),
            paths: None,
            transport: TransportChoice::Only(Transport::Udp),
            sites: Sites { local: site(number), remote: site(3 - number) },
            coding: Some(Coding::Fixed(Code::Layered(layered::Parameters::new(8, &[1, 20, 40])))),
            flush_after: Duration::from_millis(8),
            rekey_after: Duration::from_secs(3600),
            longest: LEN,
            mtu: LEN + 300,
            memory: MEMORY,
            rack: RackConfig::default(),
        };
        let plane = Plane::new(local, vec![peer], Instant::ZERO).expect("the code is valid");
        Gateway { plane, number, now: Instant::ZERO }
    }

    fn wake(&mut self) {
        if self.plane.poll_timeout().is_some_and(|due| due <= self.now) {
            self.plane.handle_timeout(self.now);
        }
    }

    /// Processes the datagrams that the other gateway sent.
    fn receive(&mut self, datagrams: &mut [Vec<u8>]) {
        let from = SocketAddr::from(([192, 0, 2, 3 - self.number], 7400));
        for datagram in datagrams {
            self.plane.handle_datagram(self.now, from, datagram);
        }
    }

    fn sent(&mut self) -> Vec<Vec<u8>> {
        let sent = self.plane.transmits().map(|(_, datagram)| datagram.to_vec()).collect();
        self.plane.clear_transmits();
        sent
    }
}

/// Two gateways with a completed handshake.
fn pair() -> (Gateway, Gateway) {
    let (mut a, mut b) = (Gateway::new(1), Gateway::new(2));
    for _ in 0..10 {
        a.wake();
        b.wake();
        b.receive(&mut a.sent());
        a.receive(&mut b.sent());
        a.now += Duration::from_millis(200);
        b.now = a.now;
    }
    assert!(a.plane.stats()[0].1.up && b.plane.stats()[0].1.up, "the handshake is done");
    (a, b)
}

/// Distinct packets from site 1 to site 2.
fn packets(rng: &mut Rng, count: usize) -> Vec<Vec<u8>> {
    let mut packets = vec![vec![0; LEN]; count];
    for packet in &mut packets {
        rng.fill(packet);
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(LEN as u16).to_be_bytes());
        packet[12..20].copy_from_slice(&[10, 1, 0, 1, 10, 2, 0, 1]);
        ip::restore(packet, MutableFields { ttl: 63, tos: 0 });
    }
    packets
}

fn group<'a>(c: &'a mut Criterion<ThreadTime>, name: &str, packets: usize) -> Group<'a> {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Bytes((packets * LEN) as u64)).sample_size(60);
    group.warm_up_time(Duration::from_secs(1));
    group.measurement_time(Duration::from_secs(3));
    group
}

/// Cost of the same packets without a plane.
fn limits(c: &mut Criterion<ThreadTime>) {
    let mut group = group(c, "plane limits", BATCH);
    let sources = packets(&mut Rng::from_seed(1), BATCH);
    let mut to = vec![0; LEN];
    group.bench_function("memcpy", |b| {
        b.iter(|| sources.iter().for_each(|packet| black_box(&mut to).copy_from_slice(packet)));
    });
    let mut bins = packets(&mut Rng::from_seed(2), 3);
    group.bench_function("xor into three warm bins", |b| {
        b.iter(|| {
            let [x, y, z] = &mut bins[..] else { unreachable!() };
            for packet in &sources {
                kernel::xor_each(black_box(&mut [x, y, z]), packet);
            }
        });
    });
}

fn encode(c: &mut Criterion<ThreadTime>) {
    let mut group = group(c, "plane", BATCH);
    let (mut a, _) = pair();
    // The plane normalises these packets in place; doing so repeatedly has no further effect.
    let mut sources = packets(&mut Rng::from_seed(1), BATCH);
    group.bench_function("encode (8,3)", |b| {
        b.iter(|| {
            for (i, packet) in sources.iter_mut().enumerate() {
                a.plane.handle_outgoing(a.now, a.now, packet);
                a.now += GAP;
                if i % 32 == 31 {
                    black_box(
                        a.plane.transmits().map(|(_, datagram)| datagram.len()).sum::<usize>(),
                    );
                    a.plane.clear_transmits();
                    a.wake();
                }
            }
        });
    });
    let stats = a.plane.stats()[0].1.sender;
    assert_eq!((stats.unprotected, stats.flushed), (0, 0));
    assert!((stats.repairs + 1_000) * 8 > stats.packets * 3, "every packet is in three repairs");
}

/// Packet, if it arrives, and the datagrams that follow it.
type Arrival = (Option<Vec<u8>>, Vec<Vec<u8>>);

/// Batch of packets and repairs in flight from `a`; one packet in a hundred is lost.
fn arrivals(a: &mut Gateway, rng: &mut Rng) -> Vec<Arrival> {
    let packets = packets(&mut Rng::from_seed(a.now.as_nanos()), BATCH);
    let send = |packet: Vec<u8>| {
        a.plane.handle_outgoing(a.now, a.now, &mut packet.clone());
        a.now += GAP;
        a.wake();
        let lost = rng.chance(0.01);
        ((!lost).then_some(packet), a.sent())
    };
    packets.into_iter().map(send).collect()
}

fn decode(c: &mut Criterion<ThreadTime>) {
    let mut group = group(c, "plane", BATCH);
    let (mut a, mut b) = pair();
    let mut rng = Rng::from_seed(3);
    group.bench_function("decode (8,3), 1 % lost", |bench| {
        bench.iter_batched_ref(
            || arrivals(&mut a, &mut rng),
            |arrivals| {
                for (packet, datagrams) in arrivals {
                    b.now += GAP;
                    if let Some(packet) = packet {
                        b.plane.handle_incoming(b.now, b.now, packet);
                    }
                    b.receive(datagrams);
                }
                b.wake();
                black_box(b.plane.injections().iter().map(<[u8]>::len).sum::<usize>());
                b.plane.injections().clear();
                b.plane.clear_transmits();
            },
            BatchSize::PerIteration,
        );
    });
    let stats = b.plane.stats()[0].1.receiver;
    // A filter on the command line may have excluded the measurement.
    if stats.packets > 100_000 {
        let hundredth = stats.packets / 100;
        assert!(stats.recovered * 10 > hundredth * 9, "nearly all are recovered: {stats:?}");
    }
}

criterion_group! {
    name = plane;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = limits, encode, decode
}
criterion_main!(plane);

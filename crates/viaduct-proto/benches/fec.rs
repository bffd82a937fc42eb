//! FEC coders, compared with the limits of the machine (memcpy, one exclusive or) and with other
//! codecs. Throughput counts bytes of source data; packets have 1500 bytes. The time is CPU time of
//! the thread.
//!
//! `cargo bench -p viaduct-proto --bench fec`

#![allow(clippy::unwrap_used)] // A bench that cannot run must stop with a message.

mod clock;

use std::hint::black_box;

use clock::ThreadTime;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main};
use viaduct_proto::fec::linear::Linear;
use viaduct_proto::fec::peeling::Peeling;
use viaduct_proto::fec::{
    Code, Cover, Decoder, Encoder, Recovered, Repair, Row, Seq, Sources, kernel, layered,
    reed_solomon, window,
};
use viaduct_proto::repair::control::{Controller, Limits, Report, Traffic};
use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration, Instant};

const LEN: usize = 1500;

type Group<'a> = BenchmarkGroup<'a, ThreadTime>;

/// Packets of random bytes, each in an allocation of its own.
fn packets(count: usize) -> Vec<Vec<u8>> {
    let mut rng = Rng::from_seed(count as u64);
    let mut packets = vec![vec![0; LEN]; count];
    packets.iter_mut().for_each(|packet| rng.fill(packet));
    packets
}

fn group<'a>(c: &'a mut Criterion<ThreadTime>, name: &str) -> Group<'a> {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Bytes(LEN as u64)).sample_size(40);
    group.warm_up_time(Duration::from_millis(500));
    group.measurement_time(Duration::from_secs(2));
    group
}

/// Memory for three sums, and the offset of the first one, which begins on a cache line, as in the
/// coders.
fn three() -> (Vec<u8>, usize) {
    let store = vec![1; 4 * ROOM];
    let start = store.as_ptr().addr().wrapping_neg() % kernel::LINE;
    (store, start)
}

/// Bytes that one sum takes.
const ROOM: usize = LEN.next_multiple_of(kernel::LINE);

/// Limits: the cost of one packet without a code around it.
fn limits(c: &mut Criterion<ThreadTime>) {
    let mut group = group(c, "limits");
    let sources = packets(64);
    let mut next = sources.iter().cycle();
    let (mut store, start) = three();
    let (x, rest) = store[start..].split_at_mut(ROOM);
    let (y, rest) = rest.split_at_mut(ROOM);
    let z = &mut rest[..ROOM];
    group.bench_function("memcpy", |b| {
        b.iter(|| black_box(&mut x[..LEN]).copy_from_slice(next.next().unwrap()));
    });
    group.bench_function("xor into three warm bins", |b| {
        b.iter(|| {
            kernel::xor_each(black_box(&mut [&mut *x, &mut *y, &mut *z]), next.next().unwrap());
        });
    });
    group.bench_function("multiply-add into three warm sums", |b| {
        b.iter(|| {
            let dsts: &mut [&mut [u8]] = &mut [&mut *x, &mut *y, &mut *z];
            kernel::mul_add_many(black_box(dsts), &[next.next().unwrap()], &[1, 7, 9]);
        });
    });
    group.throughput(Throughput::Bytes(10 * LEN as u64));
    group.bench_function("ten packets into three sums at once", |b| {
        let ten: Vec<_> = sources[..10].iter().map(Vec::as_slice).collect();
        let coefficients: Vec<_> = (0..30).map(|n| if n % 3 == 0 { 1 } else { n + 40 }).collect();
        b.iter(|| {
            kernel::mul_add_many(black_box(&mut [&mut *x, &mut *y, &mut *z]), &ten, &coefficients);
        });
    });
}

fn encode(group: &mut Group<'_>, code: &Code) {
    let sources = packets(64);
    let mut next = sources.iter().cycle();
    let mut encoder = code.build_encoder(1).unwrap();
    group.bench_function(format!("{code}"), |b| {
        b.iter(|| {
            encoder.push(next.next().unwrap(), &mut |repair| {
                black_box(repair.body.len());
            });
        });
    });
}

fn encoders(c: &mut Criterion<ThreadTime>) {
    let mut group = group(c, "encode");
    encode(&mut group, &Code::Layered(layered::Parameters::new(8, &[1, 20, 40])));
    encode(&mut group, &Code::Layered(layered::Parameters::new(10, &[1, 61, 127]).delayed()));
    for (r, c) in [(10, 3), (20, 10)] {
        encode(&mut group, &Code::ReedSolomon(reed_solomon::Parameters { r, c, interleave: 1 }));
    }
    encode(&mut group, &Code::Window(window::Parameters { window: 240, repairs: 3, packets: 10 }));
    encode(&mut group, &Code::Window(auto()));
}

/// Parameters that `code = "auto"` selects for single losses of 1 %, at 20,000 packets a second,
/// for flows that can wait 100 ms for a lost packet.
fn auto() -> window::Parameters {
    let traffic = Traffic { pace: 20_000.0, wait: Duration::from_millis(100) };
    let mut now = Instant::ZERO;
    let mut controller = Controller::new(now, Limits { max_overhead: 0.25, max_rate: None });
    let mut report = Report::default();
    for _ in 0..1_200 {
        now += Duration::from_millis(25);
        report.random.packets += 500;
        report.random.bursts[0] += 5;
        controller.handle_report(now, report, traffic);
    }
    controller.parameters(traffic).expect("losses require repairs")
}

/// Packets that have arrived.
struct Arrived(Vec<Option<Vec<u8>>>);

impl Sources for Arrived {
    fn get(&self, seq: Seq) -> Option<&[u8]> {
        self.0.get(seq as usize)?.as_deref()
    }
}

struct Owned {
    cover: Cover,
    row: Row,
    len_code: [u8; 2],
    body: Vec<u8>,
}

impl Owned {
    fn view(&self) -> Repair<'_> {
        Repair { cover: self.cover, row: self.row, len_code: self.len_code, body: &self.body }
    }
}

/// Repairs that `encoder` builds from `packets`, the first of which is packet 1.
fn repairs(encoder: &mut dyn Encoder, packets: &[Vec<u8>]) -> Vec<Owned> {
    let mut repairs = Vec::new();
    for packet in packets {
        encoder.push(packet, &mut |Repair { cover, row, len_code, body }| {
            repairs.push(Owned { cover, row, len_code, body: body.to_vec() });
        });
    }
    repairs
}

/// Decoding of runs of packets, one in a hundred lost, with all repairs.
fn decoders(c: &mut Criterion<ThreadTime>) {
    let mut group = group(c, "decode");
    let layered = layered::Parameters::new(8, &[1, 20, 40]);
    decode(&mut group, &Code::Layered(layered), 1_000, || Peeling::new(1 << 20));
    decode(&mut group, &Code::Window(auto()), 10_000, || Linear::new(16 << 20));
}

fn decode<D: Decoder>(group: &mut Group<'_>, code: &Code, count: usize, make: impl Fn() -> D) {
    group.throughput(Throughput::Bytes((count * LEN) as u64));
    let sent = packets(count);
    let repairs = repairs(&mut *code.build_encoder(1).unwrap(), &sent);
    let mut rng = Rng::from_seed(1);
    let mut arrived = Arrived(std::iter::once(None).chain(sent.into_iter().map(Some)).collect());
    arrived.0[1..].iter_mut().filter(|_| rng.chance(0.01)).for_each(|slot| *slot = None);
    let lost: Vec<_> = (1..=count).filter(|&seq| arrived.0[seq].is_none()).collect();
    group.bench_function(format!("{code}, 1 % lost"), |b| {
        b.iter(|| {
            let (mut decoder, mut recovered) = (make(), Recovered::new());
            for repair in &repairs {
                decoder.repair(repair.view(), &arrived, &mut recovered);
                for (seq, packet) in recovered.iter() {
                    arrived.0[seq as usize] = Some(packet.to_vec());
                }
                recovered.clear();
            }
            lost.iter().for_each(|&seq| arrived.0[seq] = None);
        });
    });
}

/// Recovery of one or three lost packets of a block of ten.
fn linear(c: &mut Criterion<ThreadTime>) {
    let mut group = group(c, "recover");
    group.throughput(Throughput::Bytes(10 * LEN as u64));
    let parameters = reed_solomon::Parameters { r: 10, c: 3, interleave: 1 };
    let sent = packets(10);
    let repairs = repairs(&mut reed_solomon::Encoder::new(parameters, 1).unwrap(), &sent);
    for lost in [1, 3] {
        let mut arrived: Vec<_> =
            std::iter::once(None).chain(sent.clone().into_iter().map(Some)).collect();
        arrived[4..4 + lost].fill(None);
        let arrived = Arrived(arrived);
        let (mut decoder, mut recovered) = (Linear::new(1 << 20), Recovered::new());
        group.bench_function(format!("Reed-Solomon (10,3), {lost} lost"), |b| {
            b.iter(|| {
                for repair in &repairs[..lost] {
                    decoder.repair(repair.view(), &arrived, &mut recovered);
                }
                assert_eq!(recovered.len(), lost);
                recovered.clear();
            });
        });
    }
}

/// reed-solomon-erasure and reed-solomon-simd, on complete blocks, as their interfaces require.
/// Their packets are already in one block and of one size; those of our coders arrive one by one.
fn others(c: &mut Criterion<ThreadTime>) {
    let mut group = group(c, "others");
    for (r, c) in [(10, 3), (20, 10)] {
        group.throughput(Throughput::Bytes((r * LEN) as u64));
        let sent = packets(r);
        let mut parity = vec![vec![0; LEN]; c];
        let erasure = reed_solomon_erasure::galois_8::ReedSolomon::new(r, c).unwrap();
        group.bench_function(format!("reed-solomon-erasure ({r},{c}) encode"), |b| {
            b.iter(|| erasure.encode_sep(&sent, black_box(&mut parity)).unwrap());
        });
        let mut simd = reed_solomon_simd::ReedSolomonEncoder::new(r, c, LEN).unwrap();
        group.bench_function(format!("reed-solomon-simd ({r},{c}) encode"), |b| {
            b.iter(|| {
                sent.iter().for_each(|packet| simd.add_original_shard(packet).unwrap());
                black_box(simd.encode().unwrap().recovery_iter().count());
            });
        });
        let mut shards: Vec<_> = sent.iter().cloned().chain(parity).map(Some).collect();
        group.bench_function(format!("reed-solomon-erasure ({r},{c}) recover 1"), |b| {
            b.iter(|| {
                shards[3] = None;
                erasure.reconstruct_data(&mut shards).unwrap();
            });
        });
        let recovery = reed_solomon_simd::encode(r, c, &sent).unwrap();
        let mut decoder = reed_solomon_simd::ReedSolomonDecoder::new(r, c, LEN).unwrap();
        group.bench_function(format!("reed-solomon-simd ({r},{c}) recover 1"), |b| {
            b.iter(|| {
                let arrived = sent.iter().enumerate().filter(|(index, _)| *index != 3);
                arrived
                    .for_each(|(index, packet)| decoder.add_original_shard(index, packet).unwrap());
                decoder.add_recovery_shard(0, &recovery[0]).unwrap();
                black_box(decoder.decode().unwrap().restored_original(3).is_some());
            });
        });
    }
}

criterion_group! {
    name = fec;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = limits, encoders, decoders, linear, others
}
criterion_main!(fec);

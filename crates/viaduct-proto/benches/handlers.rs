//! Throughput of handlers: one chain at each end of a flow, connected without a network and run by
//! one thread. Each figure therefore covers the work of both ends; one end takes about half of the
//! time.
//!
//! - *nothing*: the chains alone, which pass the data on.
//! - *crypt*, *migrate*, and both together.
//! - *compress*: text, and bytes that do not compress.
//!
//! The data, 4 MiB, is written 64 KiB at a time.
//!
//! `cargo bench -p viaduct-proto --bench handlers`

mod clock;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use clock::ThreadTime;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use viaduct_proto::flow::{Action, Address, BottomId, Chain, HandlerSpec};
use viaduct_proto::handlers::{Shell, registry};
use viaduct_proto::keys::SecretKey;
use viaduct_proto::rng::Rng;
use viaduct_proto::time::{Duration, Instant};

/// Bytes of one write.
const PIECE: usize = 64 << 10;
/// Bytes of one measurement.
const FLOW: usize = 4 << 20;

/// Both ends of a flow.
struct Flow {
    chains: [Chain; 2],
    now: Instant,
}

impl Flow {
    fn new(texts: &str) -> Flow {
        let rng = Mutex::new(Rng::from_seed(1));
        let shell = Shell {
            files: Arc::new(|_| Ok(SecretKey::from_bytes([7; 32]).to_text())),
            entropy: Arc::new(move |out: &mut [u8]| rng.lock().expect("one thread").fill(out)),
            overlays: Arc::new(|_| Arc::new(|| None)),
        };
        let specs: Vec<HandlerSpec> =
            texts.split_whitespace().map(|text| text.parse().expect("a handler")).collect();
        let factories = registry(&shell).chain(&specs).expect("a chain");
        let chain = || Chain::new(factories.clone(), 256 << 10, Instant::ZERO);
        let mut flow = Flow { chains: [chain(), chain()], now: Instant::ZERO };
        flow.chains[0].connect(flow.now, Address::Name("server".to_owned(), 80));
        flow.chains[0].connected(flow.now, bottom(&flow.chains[0]), Ok(()));
        flow.chains[1].accepted(flow.now);
        (0..8).for_each(|_| _ = flow.settle());
        flow
    }

    /// Carries all data in flight. Returns how much arrived at the second end.
    fn settle(&mut self) -> usize {
        let mut read = 0;
        self.now += Duration::from_micros(1);
        for from in [0, 1] {
            self.chains[from].handle_timeout(self.now);
            let at = bottom(&self.chains[from]);
            let pieces: Vec<Bytes> =
                self.chains[from].outgoing(at).pieces().map(Bytes::copy_from_slice).collect();
            for piece in pieces {
                self.chains[from].sent(self.now, at, piece.len());
                let to = bottom(&self.chains[1 - from]);
                self.chains[1 - from].avail(self.now, to, piece);
                let waits = self.chains[1 - from].incoming().len();
                self.chains[1 - from].consumed(self.now, waits);
                read += if from == 0 { waits } else { 0 };
            }
        }
        for chain in &mut self.chains {
            while let Some(action) = chain.poll_action() {
                assert!(!matches!(action, Action::Failed(_)), "{action:?}");
            }
        }
        read
    }

    fn carry(&mut self, data: &Bytes) {
        let mut left = data.len();
        for at in (0..data.len()).step_by(PIECE) {
            // A driver also copies data into its own memory when it reads.
            let piece = Bytes::copy_from_slice(&data[at..data.len().min(at + PIECE)]);
            assert!(self.chains[0].write(self.now, piece), "the flow takes bytes");
            left -= self.settle().min(left);
        }
        while left > 0 {
            left -= self.settle().min(left);
        }
    }
}

fn bottom(chain: &Chain) -> BottomId {
    chain.bottom().expect("the first connection")
}

fn noise() -> Bytes {
    let mut noise = vec![0; FLOW];
    Rng::from_seed(1).fill(&mut noise);
    noise.into()
}

fn text() -> Bytes {
    let mut rng = Rng::from_seed(3);
    let words: Vec<String> =
        (0..4_000).map(|_| format!("{:x} ", rng.next_u64() >> (32 + rng.below(24)))).collect();
    let mut text = String::new();
    while text.len() < FLOW {
        let common = rng.unit() * rng.unit();
        text.push_str(&words[(common * 4_000.0) as usize]);
    }
    Bytes::from(text).slice(..FLOW)
}

fn handlers(c: &mut Criterion<ThreadTime>) {
    let mut group = c.benchmark_group("handlers");
    group.throughput(Throughput::Bytes(FLOW as u64)).sample_size(20);
    let (noise, text) = (noise(), text());
    for (name, chain, data) in [
        ("nothing", "", &noise),
        ("crypt", "crypt:key=k", &noise),
        ("migrate", "migrate", &noise),
        ("migrate and crypt", "migrate crypt:key=k", &noise),
        ("compress text", "compress", &text),
        ("compress noise", "compress", &noise),
    ] {
        let mut flow = Flow::new(chain);
        group.bench_with_input(BenchmarkId::from_parameter(name), data, |b, data| {
            b.iter(|| flow.carry(data));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ThreadTime);
    targets = handlers
}
criterion_main!(benches);

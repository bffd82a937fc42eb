//! Decoders that are given repairs which no encoder has made: they do not panic, do not exceed
//! their memory bound, and recover no packet that is already known.
#![no_main]

use std::collections::BTreeMap;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use viaduct_fuzz::{Bytes, Steps};
use viaduct_proto::fec::linear::Linear;
use viaduct_proto::fec::peeling::Peeling;
use viaduct_proto::fec::{
    AnyDecoder, Cover, Decoder, Draw, MAX_COVER, Recovered, Repair, Row, Seq, Sources,
};

#[derive(Arbitrary, Debug)]
struct Input {
    which: Which,
    /// Memory bound, in units of 64 bytes.
    bound: u8,
    steps: Steps<Step>,
}

#[derive(Arbitrary, Debug)]
enum Which {
    Peeling,
    Linear,
    Any,
}

#[derive(Arbitrary, Debug)]
enum Step {
    /// Repair with numbers close together, so that repairs have packets in common.
    Near { first: u8, stride: u8, count: u16, kind: Kind, len_code: [u8; 2], body: Bytes },
    /// Repair with arbitrary numbers.
    Far { first: u64, stride: u16, count: u16, kind: Kind, len_code: [u8; 2], body: Bytes },
    /// Repair whose body repeats one byte, and may be longer than any packet.
    Long { first: u8, count: u16, kind: Kind, byte: u8, len: u32 },
    /// A packet arrives.
    Arrives { seq: u8, packet: Bytes },
    /// The caller drops a packet that it stored.
    Forgotten { seq: u8 },
    /// Packets with lower numbers are no longer needed.
    Settled { below: u8 },
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum Kind {
    Xor(u8),
    ReedSolomon(u8),
    Window { seed: u16, dense: u16, density: u8 },
}

impl Kind {
    fn row(self) -> Row {
        match self {
            Kind::Xor(layer) => Row::Xor { layer },
            Kind::ReedSolomon(row) => Row::ReedSolomon { row },
            Kind::Window { seed, dense, density } => Row::Window(Draw { seed, dense, density }),
        }
    }
}

#[derive(Default)]
struct Store(BTreeMap<Seq, Vec<u8>>);

impl Sources for Store {
    fn get(&self, seq: Seq) -> Option<&[u8]> {
        self.0.get(&seq).map(Vec::as_slice)
    }
}

fuzz_target!(|input: Input| {
    let bound = usize::from(input.bound) * 64;
    let mut decoder: Box<dyn Decoder> = match input.which {
        Which::Peeling => Box::new(Peeling::new(bound)),
        Which::Linear => Box::new(Linear::new(bound)),
        Which::Any => Box::new(AnyDecoder::new(bound)),
    };
    let (mut store, mut recovered) = (Store::default(), Recovered::new());
    for step in &input.steps.0 {
        take(step, &mut *decoder, &mut store, &mut recovered);
        assert!(decoder.memory() <= bound, "{} of {bound}", decoder.memory());
        for (seq, packet) in recovered.iter() {
            let old = store.0.insert(seq, packet.to_vec());
            assert_eq!(old, None, "packet {seq} is recovered twice, or was known");
        }
        recovered.clear();
    }
});

fn take(step: &Step, decoder: &mut dyn Decoder, store: &mut Store, recovered: &mut Recovered) {
    let mut repair = |first, stride, count, kind: Kind, len_code, body: &[u8]| {
        // Only counts that the parser accepts.
        let cover = Cover { first, stride, count: count % (MAX_COVER + 1) };
        let repair = Repair { cover, row: kind.row(), len_code, body };
        decoder.repair(repair, store, recovered);
    };
    match *step {
        Step::Near { first, stride, count, kind, len_code, ref body } => {
            repair(first.into(), stride.into(), count, kind, len_code, &body.0);
        }
        Step::Far { first, stride, count, kind, len_code, ref body } => {
            repair(first, stride, count, kind, len_code, &body.0);
        }
        Step::Long { first, count, kind, byte, len } => {
            let body = vec![byte; len as usize % (1 << 17)];
            repair(first.into(), 1, count, kind, [byte, byte], &body);
        }
        Step::Arrives { seq, ref packet } => {
            store.0.entry(seq.into()).or_insert_with(|| packet.0.clone());
            decoder.known(seq.into(), store, recovered);
        }
        Step::Forgotten { seq } => drop(store.0.remove(&seq.into())),
        Step::Settled { below } => decoder.forget_below(below.into()),
    }
}

//! State of a running stream, with its receiver.

use std::collections::HashMap;

use super::{Lost, Outcome, Stream};
use crate::fec::{Cover, Decoder, Recovered, Repair, Row, Seq, Sources};
use crate::link::{Dropped, Link, Reason};
use crate::rng::Rng;
use crate::time::Instant;

/// Item on the link. A source packet's bytes are computed from its number.
#[derive(Debug)]
enum Item {
    Packet(Seq),
    Repair { cover: Cover, row: Row, len_code: [u8; 2], body: Vec<u8> },
}

pub(super) struct Run<'a> {
    stream: &'a Stream,
    pub(super) contents: Contents,
    decoder: &'a mut dyn Decoder,
    link: Link<Item>,
    store: Store,
    recovered: Recovered,
    /// Highest number that a repair has covered: the decoder may wait for packets up to it.
    covered: Seq,
    /// Send time of each lost packet, and time of its recovery.
    missing: HashMap<Seq, (Instant, Option<Instant>)>,
    /// Ordinal on the link of each lost packet.
    ordinals: Vec<(u64, Seq)>,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    pub(super) fn new(stream: &'a Stream, decoder: &'a mut dyn Decoder, first: Seq) -> Self {
        Run {
            stream,
            contents: Contents { seed: stream.seed, sizes: stream.sizes },
            decoder,
            link: Link::new(stream.link.clone(), stream.seed, Instant::ZERO),
            store: Store::new(stream.window, first),
            recovered: Recovered::new(),
            covered: 0,
            missing: HashMap::new(),
            ordinals: Vec::new(),
            outcome: Outcome::default(),
        }
    }

    pub(super) fn send_packet(&mut self, now: Instant, seq: Seq, len: usize) {
        self.outcome.packets += 1;
        self.outcome.packet_bytes += len as u64;
        let ordinal = self.link.stats().sent;
        if self.link.push(now, Item::Packet(seq), len).is_err() {
            self.missing.insert(seq, (now, None));
            self.ordinals.push((ordinal, seq));
        }
    }

    pub(super) fn send_repair(&mut self, now: Instant, repair: Repair<'_>) {
        let Repair { cover, row, len_code, body } = repair;
        let len = body.len() + self.stream.repair_overhead;
        self.outcome.repairs += 1;
        self.outcome.repair_bytes += len as u64;
        let _ =
            self.link.push(now, Item::Repair { cover, row, len_code, body: body.to_vec() }, len);
    }

    pub(super) fn deliver_until(&mut self, end: Instant) {
        while let Some(now) = self.link.poll_timeout().filter(|&due| due <= end) {
            while let Some(delivery) = self.link.poll(now) {
                match delivery.item {
                    Item::Packet(seq) => self.packet_arrives(now, seq),
                    Item::Repair { cover, row, len_code, body } => {
                        self.repair_arrives(now, Repair { cover, row, len_code, body: &body });
                    }
                }
                self.outcome.decoder_memory =
                    self.outcome.decoder_memory.max(self.decoder.memory());
            }
        }
    }

    fn packet_arrives(&mut self, now: Instant, seq: Seq) {
        let contents = self.contents;
        self.store.put(seq, |bytes| contents.fill(seq, bytes));
        if seq <= self.covered {
            self.decoder.known(seq, &self.store, &mut self.recovered);
            self.take_recovered(now);
        }
        self.decoder.forget_below(self.store.oldest());
    }

    fn repair_arrives(&mut self, now: Instant, repair: Repair<'_>) {
        self.covered = self.covered.max(repair.cover.last());
        self.decoder.repair(repair, &self.store, &mut self.recovered);
        self.take_recovered(now);
    }

    fn take_recovered(&mut self, now: Instant) {
        let mut sent = Vec::new();
        for (seq, bytes) in self.recovered.iter() {
            self.contents.fill(seq, &mut sent);
            self.outcome.garbled += u64::from(bytes != sent);
            match self.missing.get_mut(&seq) {
                Some((_, recovered @ None)) => *recovered = Some(now),
                _ => self.outcome.repeated += 1,
            }
            self.store.put(seq, |stored| bytes.clone_into(stored));
        }
        self.recovered.clear();
    }

    pub(super) fn finish(mut self) -> Outcome {
        let bursts = bursts(&self.link.take_record().drops);
        for (ordinal, seq) in self.ordinals {
            let (sent, recovered) = self.missing[&seq];
            let due = sent + self.stream.link.delay;
            let recovery = recovered.map(|at| at.since(due));
            let burst = bursts.get(&ordinal).copied().unwrap_or(1);
            self.outcome.lost.push(Lost { seq, burst, recovery });
        }
        self.outcome
    }
}

/// Bytes of every source packet, as a function of its number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contents {
    seed: u64,
    sizes: (usize, usize),
}

impl Contents {
    pub(super) fn fill(&self, seq: Seq, packet: &mut Vec<u8>) {
        let mut rng = Rng::from_seed(self.seed ^ seq.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (least, most) = self.sizes;
        packet.clear();
        packet.resize(least + rng.below((most.saturating_sub(least) + 1) as u64) as usize, 0);
        rng.fill(packet);
    }
}

/// Packets at the receiver: the last `window` numbers.
#[derive(Debug)]
struct Store {
    slots: Vec<(Seq, Vec<u8>)>,
    highest: Seq,
}

impl Store {
    /// Creates an empty store; the first packet will be `first`.
    fn new(window: u64, first: Seq) -> Self {
        // No packet has the number before the first.
        let empty = (first.wrapping_sub(1), Vec::new());
        Store { slots: vec![empty; window.max(1) as usize], highest: first }
    }

    fn put(&mut self, seq: Seq, fill: impl FnOnce(&mut Vec<u8>)) {
        if seq < self.oldest() {
            return;
        }
        self.highest = self.highest.max(seq);
        let at = (seq % self.slots.len() as u64) as usize;
        self.slots[at].0 = seq;
        fill(&mut self.slots[at].1);
    }

    fn oldest(&self) -> Seq {
        (self.highest + 1).saturating_sub(self.slots.len() as u64)
    }
}

impl Sources for Store {
    fn get(&self, seq: Seq) -> Option<&[u8]> {
        let (held, bytes) = &self.slots[(seq % self.slots.len() as u64) as usize];
        (*held == seq).then_some(bytes)
    }
}

/// Length of the burst that each dropped ordinal belongs to.
fn bursts(drops: &[Dropped]) -> HashMap<u64, u32> {
    let mut lengths = HashMap::new();
    let neighbours = |a: &Dropped, b: &Dropped| {
        a.reason == Reason::Loss && b.reason == Reason::Loss && a.ordinal + 1 == b.ordinal
    };
    for burst in drops.chunk_by(neighbours) {
        lengths.extend(burst.iter().map(|d| (d.ordinal, burst.len() as u32)));
    }
    lengths
}

//! Shared parts of the codes' tests: packets, owned repairs, and a store of arrived packets.

use std::collections::BTreeMap;

use super::{Cover, Decoder, Encoder, Recovered, Repair, Row, Seq, Sources};
use crate::rng::Rng;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owned {
    pub(super) cover: Cover,
    pub(super) row: Row,
    pub(super) len_code: [u8; 2],
    pub(super) body: Vec<u8>,
}

impl Owned {
    pub(super) fn of(repair: Repair<'_>) -> Self {
        let Repair { cover, row, len_code, body } = repair;
        Owned { cover, row, len_code, body: body.to_vec() }
    }

    pub(super) fn view(&self) -> Repair<'_> {
        Repair { cover: self.cover, row: self.row, len_code: self.len_code, body: &self.body }
    }

    pub(super) fn seqs(&self) -> Vec<Seq> {
        self.cover.seqs().collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct Store(pub(super) BTreeMap<Seq, Vec<u8>>);

impl Sources for Store {
    fn get(&self, seq: Seq) -> Option<&[u8]> {
        self.0.get(&seq).map(Vec::as_slice)
    }
}

/// Returns the repairs fired by pushing `packet`.
pub(super) fn push(encoder: &mut dyn Encoder, packet: &[u8]) -> Vec<Owned> {
    let mut fired = Vec::new();
    encoder.push(packet, &mut |repair| fired.push(Owned::of(repair)));
    fired
}

/// Returns the repairs fired by flushing every stage.
pub(super) fn flush(encoder: &mut dyn Encoder) -> Vec<Owned> {
    let mut fired = Vec::new();
    for stage in 0..encoder.stages() {
        encoder.flush(stage, &mut |repair| fired.push(Owned::of(repair)));
    }
    fired
}

/// Random packet of 1 to `longest` bytes.
pub(super) fn packet(rng: &mut Rng, longest: u64) -> Vec<u8> {
    let mut packet = vec![0; 1 + rng.below(longest) as usize];
    rng.fill(&mut packet);
    packet
}

/// Receiving end of a link: a decoder and the arrived packets.
pub(super) struct Receiver<D> {
    pub(super) decoder: D,
    pub(super) store: Store,
    /// Recovered packets, in order of recovery.
    pub(super) recovered: Vec<Seq>,
    fresh: Recovered,
}

impl<D: Decoder> Receiver<D> {
    pub(super) fn new(decoder: D) -> Self {
        Receiver {
            decoder,
            store: Store::default(),
            recovered: Vec::new(),
            fresh: Recovered::new(),
        }
    }

    pub(super) fn packet(&mut self, seq: Seq, packet: &[u8]) {
        self.store.0.insert(seq, packet.to_vec());
        self.decoder.known(seq, &self.store, &mut self.fresh);
        self.keep();
    }

    pub(super) fn repair(&mut self, repair: &Owned) -> super::Verdict {
        let verdict = self.decoder.repair(repair.view(), &self.store, &mut self.fresh);
        self.keep();
        verdict
    }

    fn keep(&mut self) {
        for (seq, packet) in self.fresh.iter() {
            let before = self.store.0.insert(seq, packet.to_vec());
            assert!(before.is_none(), "packet {seq} recovered though it was known");
            self.recovered.push(seq);
        }
        self.fresh.clear();
    }

    /// Checks every packet in the store against the one sent; `sent[0]` is packet 1.
    pub(super) fn check(&self, sent: &[Vec<u8>]) {
        for (seq, packet) in &self.store.0 {
            assert_eq!(packet, &sent[*seq as usize - 1], "packet {seq} differs from what was sent");
        }
    }
}

/// Sends `count` packets and their repairs in order through a link, and flushes at the end. `lose`
/// is called once for each packet and repair on the wire, and returns whether it is lost. Returns
/// the number of source packets that were lost, and of those that were recovered.
pub(super) fn run<D: Decoder>(
    encoder: &mut dyn Encoder,
    decoder: D,
    count: u64,
    size: u64,
    lose: &mut dyn FnMut(Option<Seq>) -> bool,
) -> (u64, u64) {
    let mut rng = Rng::from_seed(count);
    let mut receiver = Receiver::new(decoder);
    let (mut sent, mut lost) = (Vec::new(), 0);
    for seq in 1..=count {
        let packet = packet(&mut rng, size);
        match lose(Some(seq)) {
            true => lost += 1,
            false => receiver.packet(seq, &packet),
        }
        for repair in push(encoder, &packet) {
            if !lose(None) {
                receiver.repair(&repair);
            }
        }
        sent.push(packet);
        receiver.decoder.forget_below(seq.saturating_sub(2000));
    }
    for repair in flush(encoder) {
        if !lose(None) {
            receiver.repair(&repair);
        }
    }
    receiver.check(&sent);
    (lost, receiver.recovered.len() as u64)
}

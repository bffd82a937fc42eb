//! A code over a lossy link: packets at a constant rate, repairs beside them, and what became of
//! each packet that was lost. The experiments on bursts (Maelstrom, Figures 13 to 17) and the
//! property tests of the codes sweep with it.
//!
//! ```text
//!   source ─┬─ packet n ──────────▶ ┌──────┐ ──▶ known packets ─┐
//!           └─▶ Encoder ─ repairs ▶ │ Link │ ──▶ Decoder ◀──────┴──▶ recovered, checked
//!                                   └──────┘
//! ```
//!
//! Packets and repairs share the link, so that a burst swallows both, as it does on a real one.
//! The contents of packet n follow from n and the seed, hence no packet is stored until it arrives,
//! and each recovered one is compared with what was sent.

use std::collections::HashMap;

use crate::fec::{Cover, Decoder, Encoder, Recovered, Repair, Row, Seq, Sources};
use crate::link::{Link, LinkConfig, Reason};
use crate::rng::Rng;
use crate::time::{Duration, Instant};

/// What to send, over what.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// How many source packets.
    pub packets: u64,
    /// Packets per second.
    pub rate: f64,
    /// Shortest and longest packet, in bytes; uniform between.
    pub sizes: (usize, usize),
    /// Bytes that a repair has on the link beside its body (headers, recipe).
    pub repair_overhead: usize,
    /// The link: its delay, its loss and all else.
    pub link: LinkConfig,
    /// After the last packet, the time to the first flush of the encoder and between its stages.
    pub flush: Duration,
    /// For how many packets the receiver keeps a packet and the decoder a repair.
    pub window: u64,
    /// Decides losses and contents.
    pub seed: u64,
}

impl Default for Stream {
    /// 10,000 packets of 100 bytes, 1,000 a second, over 50 ms and no loss.
    fn default() -> Self {
        Stream {
            packets: 10_000,
            rate: 1000.0,
            sizes: (100, 100),
            repair_overhead: 40,
            link: LinkConfig { delay: Duration::from_millis(50), ..LinkConfig::default() },
            flush: Duration::from_millis(20),
            window: 8192,
            seed: 1,
        }
    }
}

/// What became of a source packet that the link dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lost {
    /// Its number.
    pub seq: Seq,
    /// Length of the burst that it was part of: neighbours on the link lost together, repairs
    /// among them.
    pub burst: u32,
    /// How much later than its own arrival would have been (sending time plus the link's delay)
    /// it was recovered; None if never.
    pub recovery: Option<Duration>,
}

/// What came of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// The lost packets, ascending.
    pub lost: Vec<Lost>,
    /// Source packets sent, and their bytes.
    pub packets: u64,
    /// Bytes of the source packets.
    pub packet_bytes: u64,
    /// Repairs sent.
    pub repairs: u64,
    /// Bytes of the repairs, overhead included.
    pub repair_bytes: u64,
    /// Packets that were recovered with bytes other than those sent. A code that works has none.
    pub garbled: u64,
    /// Recoveries of packets that the link had not dropped (they were only late), or again.
    pub repeated: u64,
    /// Most bytes that the decoder held.
    pub decoder_memory: usize,
}

impl Outcome {
    /// The share of the lost packets that was recovered; 1 if none was lost.
    pub fn recovered_share(&self) -> f64 {
        share(self.lost.iter())
    }

    /// The share recovered of the packets lost in bursts of each length, by ascending length:
    /// (length, packets, share).
    pub fn by_burst(&self) -> Vec<(u32, usize, f64)> {
        let mut lengths: Vec<u32> = self.lost.iter().map(|l| l.burst).collect();
        lengths.sort_unstable();
        lengths.dedup();
        let of = |length| self.lost.iter().filter(move |l| l.burst == length);
        lengths.into_iter().map(|n| (n, of(n).count(), share(of(n)))).collect()
    }

    /// Repair bytes for each byte of data.
    pub fn overhead(&self) -> f64 {
        self.repair_bytes as f64 / self.packet_bytes.max(1) as f64
    }
}

impl Stream {
    /// Runs the stream in virtual time. The encoder and the decoder must be fresh.
    pub fn run(&self, encoder: &mut dyn Encoder, decoder: &mut dyn Decoder) -> Outcome {
        let mut run = Run::new(self, decoder, encoder.next_seq());
        let gap = Duration::from_secs_f64(1.0 / self.rate);
        let mut packet = Vec::new();
        for i in 0..self.packets {
            let now = Instant::from_nanos((i as f64 / self.rate * 1e9) as u64);
            run.deliver_until(now);
            let seq = encoder.next_seq();
            run.contents.fill(seq, &mut packet);
            run.send_packet(now, seq, packet.len());
            encoder.push(&packet, &mut |repair| run.send_repair(now, repair));
        }
        let mut now = Instant::ZERO + gap.mul_f64(self.packets as f64);
        for stage in 0..encoder.stages() {
            now += self.flush;
            run.deliver_until(now);
            encoder.flush(stage, &mut |repair| run.send_repair(now, repair));
        }
        run.deliver_until(Instant::from_nanos(u64::MAX));
        run.finish()
    }
}

/// What is on the link. A source packet's bytes follow from its number.
#[derive(Debug)]
enum Item {
    Packet(Seq),
    Repair { cover: Cover, row: Row, len_code: [u8; 2], body: Vec<u8> },
}

/// A stream on its way.
struct Run<'a> {
    stream: &'a Stream,
    contents: Contents,
    decoder: &'a mut dyn Decoder,
    link: Link<Item>,
    store: Store,
    recovered: Recovered,
    /// Highest number that a repair has covered: what arrives below it may have been missed.
    covered: Seq,
    /// When each lost packet was sent, and when recovered.
    missing: HashMap<Seq, (Instant, Option<Instant>)>,
    /// The ordinal on the link of each lost packet.
    ordinals: Vec<(u64, Seq)>,
    outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(stream: &'a Stream, decoder: &'a mut dyn Decoder, first: Seq) -> Self {
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

    fn send_packet(&mut self, now: Instant, seq: Seq, len: usize) {
        self.outcome.packets += 1;
        self.outcome.packet_bytes += len as u64;
        let ordinal = self.link.stats().sent;
        if self.link.push(now, Item::Packet(seq), len).is_err() {
            self.missing.insert(seq, (now, None));
            self.ordinals.push((ordinal, seq));
        }
    }

    fn send_repair(&mut self, now: Instant, repair: Repair<'_>) {
        let Repair { cover, row, len_code, body } = repair;
        let len = body.len() + self.stream.repair_overhead;
        self.outcome.repairs += 1;
        self.outcome.repair_bytes += len as u64;
        let _ =
            self.link.push(now, Item::Repair { cover, row, len_code, body: body.to_vec() }, len);
    }

    fn deliver_until(&mut self, end: Instant) {
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

    fn finish(mut self) -> Outcome {
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

/// The bytes of every source packet, as a function of its number.
#[derive(Clone, Copy, Debug)]
struct Contents {
    seed: u64,
    sizes: (usize, usize),
}

impl Contents {
    fn fill(&self, seq: Seq, packet: &mut Vec<u8>) {
        let mut rng = Rng::from_seed(self.seed ^ seq.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (least, most) = self.sizes;
        packet.clear();
        packet.resize(least + rng.below((most.saturating_sub(least) + 1) as u64) as usize, 0);
        rng.fill(packet);
    }
}

/// The packets that the receiver has: the last `window` numbers.
#[derive(Debug)]
struct Store {
    slots: Vec<(Seq, Vec<u8>)>,
    highest: Seq,
}

impl Store {
    /// Empty; the first packet will be `first`.
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

/// The length of the burst that each dropped ordinal belongs to.
fn bursts(drops: &[crate::link::Dropped]) -> HashMap<u64, u32> {
    let mut lengths = HashMap::new();
    let neighbours = |a: &crate::link::Dropped, b: &crate::link::Dropped| {
        a.reason == Reason::Loss && b.reason == Reason::Loss && a.ordinal + 1 == b.ordinal
    };
    for burst in drops.chunk_by(neighbours) {
        lengths.extend(burst.iter().map(|d| (d.ordinal, burst.len() as u32)));
    }
    lengths
}

fn share<'a>(lost: impl Iterator<Item = &'a Lost>) -> f64 {
    let (all, recovered) =
        lost.fold((0, 0), |(n, r), l| (n + 1, r + u32::from(l.recovery.is_some())));
    if all == 0 { 1.0 } else { f64::from(recovered) / f64::from(all) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fec::{Fire, Verdict};

    /// Sends every packet again, once, `after` packets later: a code simple enough to foresee.
    struct Again {
        next: Seq,
        after: u64,
        waiting: std::collections::VecDeque<(Seq, Vec<u8>)>,
    }

    impl Again {
        fn new(after: u64) -> Self {
            Again { next: 1, after, waiting: Default::default() }
        }

        fn fire_oldest(&mut self, fire: &mut Fire<'_>) {
            let (first, body) = self.waiting.pop_front().unwrap();
            let cover = Cover { first, stride: 1, count: 1 };
            let len_code = (body.len() as u16).to_be_bytes();
            fire(Repair { cover, row: Row::Xor { layer: 0 }, len_code, body: &body });
        }
    }

    impl Encoder for Again {
        fn push(&mut self, packet: &[u8], fire: &mut Fire<'_>) {
            self.waiting.push_back((self.next, packet.to_vec()));
            self.next += 1;
            if self.waiting.len() as u64 > self.after {
                self.fire_oldest(fire);
            }
        }

        fn flush(&mut self, _stage: usize, fire: &mut Fire<'_>) {
            while !self.waiting.is_empty() {
                self.fire_oldest(fire);
            }
        }

        fn stages(&self) -> usize {
            1
        }

        fn next_seq(&self) -> Seq {
            self.next
        }

        fn memory(&self) -> usize {
            0
        }
    }

    struct Once;

    impl Decoder for Once {
        fn repair(
            &mut self,
            repair: Repair<'_>,
            sources: &dyn Sources,
            out: &mut Recovered,
        ) -> Verdict {
            if sources.get(repair.cover.first).is_some() {
                return Verdict::Useless;
            }
            out.push(repair.cover.first, repair.body);
            Verdict::Used
        }

        fn known(&mut self, _: Seq, _: &dyn Sources, _: &mut Recovered) {}

        fn forget_below(&mut self, _: Seq) {}

        fn memory(&self) -> usize {
            7
        }
    }

    fn stream(link: &str) -> Stream {
        Stream { link: link.parse().unwrap(), ..Stream::default() }
    }

    #[test]
    fn without_loss_nothing_is_recovered() {
        let outcome = stream("delay=50ms").run(&mut Again::new(3), &mut Once);
        assert_eq!(outcome.lost, []);
        assert_eq!((outcome.packets, outcome.repairs), (10_000, 10_000));
        assert_eq!((outcome.garbled, outcome.repeated, outcome.decoder_memory), (0, 0, 7));
        assert!((outcome.overhead() - 1.4).abs() < 1e-9);
    }

    #[test]
    fn a_recovery_comes_as_late_as_the_repair_was_sent() {
        let sizes = (40, 1400);
        let outcome = Stream { sizes, ..stream("delay=50ms,loss=trace:100:1") }
            .run(&mut Again::new(3), &mut Once);
        // One in 101 of 20,000, half of them repairs.
        assert!((98..=100).contains(&outcome.lost.len()), "{}", outcome.lost.len());
        assert_eq!((outcome.garbled, outcome.repeated), (0, 0));
        // Three packets at 1,000 a second; the last ones by the flush.
        let late = Some(Duration::from_millis(3));
        let most = outcome.lost.iter().filter(|l| l.seq < 9_990);
        assert!(most.clone().all(|l| (l.burst, l.recovery) == (1, late)), "{:?}", outcome.lost);
    }

    #[test]
    fn bursts_count_neighbours_on_the_link_and_swallow_repairs_sent_soon() {
        let link = "delay=50ms,loss=1%x10";
        let soon = stream(link).run(&mut Again::new(3), &mut Once);
        // Packets and repairs alternate: five packets to a burst, of whose copies two come in it
        // too where it begins with a packet, one where it begins with a repair.
        let [(10, _, share)] = soon.by_burst()[..] else { panic!("{:?}", soon.by_burst()) };
        assert!((share - 0.7).abs() < 0.05, "{share}");
        let late = stream(link).run(&mut Again::new(300), &mut Once);
        assert!(late.recovered_share() > 0.9, "{}", late.recovered_share());
    }

    #[test]
    fn late_packets_are_not_lost() {
        let outcome = stream("delay=50ms,jitter=10ms,reorder=10%:5ms,duplicate=5%")
            .run(&mut Again::new(0), &mut Once);
        assert_eq!(outcome.lost, []);
        assert!(outcome.repeated > 100, "repairs that overtook their packets");
    }
}

//! The receiving side from one peer: remembers what arrived, learns from repairs what should have,
//! and makes what is missing.
//!
//! ```text
//!   packet ──▶ name ──▶ store ◀── claim ── announcement ◀── repair ─▶ decoder
//!                │                   │ none left                        │
//!                └── was missing? ◀──┴──▶ ledger: missing               ▼
//!                                                  name right? ──▶ store, hold, inject
//! ```

use super::held::{Held, Overtaken, Waiting};
use super::identity::{Identity, IdentityKey};
use super::ledger::{Ledger, State};
use super::missing::Missing;
use super::outbox::Outbox;
use super::sites::Sites;
use super::stats::ReceiverStats;
use super::store::Store;
use super::syns::{Fate, Syns};
use super::wire::Announcements;
use crate::fec::{AnyDecoder, Decoder, Recovered, Repair, Row, Seq, Sources, Verdict};
use crate::time::Instant;
use crate::wire::ip::{self, Header};

/// How far back the arrival of a neighbour is looked for, to tell when a packet was due.
const NEIGHBOURS: u64 = 512;

pub(super) struct Receiver {
    key: IdentityKey,
    known: Known,
    decoder: AnyDecoder,
    missing: Missing,
    held: Held,
    syns: Syns,
    blind: Blind,
    recovered: Recovered,
    stats: ReceiverStats,
}

/// What the decoder may build on.
struct Known {
    store: Store,
    ledger: Ledger,
}

/// Whether packets went by unseen, so that "missing" may not mean lost.
enum Blind {
    /// The peer may have numbered packets before this receiver was there; it will tell how far.
    Untold,
    /// All was seen.
    No,
    /// Some were missed just now.
    Now,
    /// Numbers up to this one may have been missed.
    UpTo(Seq),
}

impl Known {
    /// Whether packet `seq` has arrived or was recovered, though it may be forgotten by now.
    fn has(&self, seq: Seq) -> bool {
        self.ledger.row(seq).is_some_and(|row| row.is_here())
    }
}

impl Sources for Known {
    fn get(&self, seq: Seq) -> Option<&[u8]> {
        let row = self.ledger.row(seq).filter(|row| row.is_here())?;
        self.store.get(row.identity)
    }
}

impl Receiver {
    /// With `memory` bytes for packets and waiting repairs together.
    pub(super) fn new(key: IdentityKey, memory: usize) -> Self {
        let numbers = (memory / 512).clamp(1 << 10, 1 << 16);
        Receiver {
            key,
            known: Known { store: Store::new(store_share(memory)), ledger: Ledger::new(numbers) },
            decoder: AnyDecoder::new(decoder_share(memory)),
            missing: Missing::new(numbers / 2),
            held: Held::default(),
            syns: Syns::default(),
            blind: Blind::Untold,
            recovered: Recovered::new(),
            stats: ReceiverStats::default(),
        }
    }

    /// Changes the bound on memory; what was received until now is forgotten.
    pub(super) fn resize(&mut self, memory: usize) {
        self.known.store = Store::new(store_share(memory));
        self.decoder = AnyDecoder::new(decoder_share(memory));
        self.missing.clear();
        self.miss();
    }

    pub(super) fn stats(&self) -> ReceiverStats {
        let settled = self.known.ledger.settled();
        ReceiverStats {
            link: settled.link,
            unrecoverable: settled.unrecoverable,
            uncovered: settled.uncovered,
            ..self.stats
        }
    }

    /// The MSS that the path lowers SYNs to, for IPv4 and IPv6.
    pub(super) fn lowered_mss(&self) -> [Option<u16>; 2] {
        self.syns.lowered()
    }

    pub(super) fn memory(&self) -> usize {
        self.known.store.memory()
            + self.known.ledger.memory()
            + self.decoder.memory()
            + self.missing.memory()
    }

    /// The packets of the last moments, newest first, as they were on the WAN but for what
    /// [`ip::normalise`] removed.
    pub(super) fn cached(&self) -> impl Iterator<Item = &[u8]> {
        self.known.store.newest_first().map(|(_, packet)| packet)
    }

    /// Packets went by unseen: until what the next repairs cover is surely later, nothing counts
    /// as lost.
    pub(super) fn miss(&mut self) {
        if !matches!(self.blind, Blind::Untold) {
            self.blind = Blind::Now;
        }
    }

    /// The peer's packets from `next` on left only now. What it numbered before, a receiver that has
    /// just begun did not see.
    pub(super) fn told(&mut self, next: Seq) {
        match (&self.blind, next.checked_sub(1)) {
            (Blind::Untold, None) => self.blind = Blind::No,
            (Blind::Untold, Some(last)) => self.blind = Blind::UpTo(last),
            // It has begun anew, with a clock that was set back.
            (&Blind::UpTo(seq), Some(last)) if last < seq => self.blind = Blind::UpTo(last),
            _ => {}
        }
    }

    /// Takes a copy of a packet that arrived from the peer's site. Its bytes are spoilt.
    pub(super) fn handle_packet(&mut self, now: Instant, packet: &mut [u8]) {
        self.stats.packets += 1;
        self.stats.bytes += packet.len() as u64;
        ip::normalise(packet);
        let identity = self.key.name(packet);
        self.syns.arrived(&self.key, identity, packet);
        let as_sent = self.syns.as_sent(packet);
        if !as_sent.is_empty() {
            self.stats.altered += 1;
            as_sent.iter().for_each(|sent| self.keep(now, self.key.name(sent), sent));
        }
        if let Overtaken::InTime(seq) = self.held.arrived(now, identity) {
            // It is in the store already.
            self.stats.late += 1;
            return self.settle(seq, State::Arrived);
        }
        self.keep(now, identity, packet);
    }

    /// Stores a packet that has arrived; one that a repair found missing comes late.
    fn keep(&mut self, now: Instant, identity: Identity, packet: &[u8]) {
        let late = self.missing.take(identity);
        self.known.store.insert(now, identity, packet, late.is_some());
        if let Some(seq) = late {
            self.stats.late += 1;
            self.settle(seq, State::Arrived);
            self.decoder.known(seq, &self.known, &mut self.recovered);
            self.deliver(now);
        }
    }

    /// Takes a repair that the peer made.
    pub(super) fn handle_repair(
        &mut self,
        now: Instant,
        repair: Repair<'_>,
        announcements: Announcements<'_>,
    ) {
        self.stats.repairs += 1;
        let cover = repair.cover;
        if self.in_the_dark(&repair) || !self.known.ledger.reach(cover.first, cover.last()) {
            self.stats.useless += 1;
            return;
        }
        for announcement in announcements.iter() {
            let seq = cover.first + u64::from(announcement.position) * u64::from(cover.stride);
            let arrived = self.announce(now, seq, announcement.identity, announcement.hop);
            // A repair that names all that it covers leaves no other waiting for a name.
            if arrived && !matches!(repair.row, Row::Xor { .. }) {
                self.decoder.known(seq, &self.known, &mut self.recovered);
            }
        }
        if cover.seqs().all(|seq| self.known.has(seq)) {
            // By far the most repairs: the decoder would look up every packet to find the same.
            self.stats.useless += 1;
            return self.deliver(now);
        }
        match self.decoder.repair(repair, &self.known, &mut self.recovered) {
            Verdict::Useless => self.stats.useless += 1,
            Verdict::Refused => self.stats.malformed += 1,
            Verdict::Used | Verdict::Stored => {}
        }
        self.deliver(now);
    }

    /// A message that opened but did not parse.
    pub(super) fn malformed(&mut self) {
        self.stats.malformed += 1;
    }

    /// When a recovery has waited long enough.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.held.poll_timeout()
    }

    /// Housekeeping, a few times a second.
    pub(super) fn tick(&mut self, now: Instant) {
        self.known.ledger.tick(now);
        self.held.tick(now);
        let floor = self.known.ledger.floor();
        self.decoder.forget_below(floor);
        self.missing.forget_settled(&self.known.ledger);
    }

    fn in_the_dark(&mut self, repair: &Repair<'_>) -> bool {
        if let Blind::Now = self.blind {
            self.blind = Blind::UpTo(repair.cover.last());
        }
        match self.blind {
            Blind::UpTo(seq) if seq < self.known.ledger.floor() => {
                self.blind = Blind::No;
                false
            }
            Blind::UpTo(seq) => repair.cover.first <= seq,
            Blind::Untold => true,
            Blind::No | Blind::Now => false,
        }
    }

    /// Learns that packet `seq` was sent under the name `identity`; true if it is news and the
    /// packet is here.
    fn announce(&mut self, now: Instant, seq: Seq, identity: Identity, hop: ip::Hop) -> bool {
        let Some(row) = self.known.ledger.row_mut(seq) else { return false };
        if row.state != State::Unnamed {
            return false;
        }
        (row.identity, row.hop) = (identity, hop);
        row.state = State::Missing;
        if self.known.store.claim(identity) {
            self.syns.unaltered(identity);
            self.settle(seq, State::Arrived);
        } else if self.known.store.get(identity).is_some() {
            // One of several byte-identical packets was lost: another is its copy.
            self.stats.copies += 1;
            self.hold(now, seq);
        } else {
            self.missing.insert(identity, seq, &self.known.ledger);
            return false;
        }
        true
    }

    fn settle(&mut self, seq: Seq, state: State) {
        if let Some(row) = self.known.ledger.row_mut(seq) {
            row.state = state;
        }
    }

    /// Checks what the decoder made, and injects what is right.
    fn deliver(&mut self, now: Instant) {
        if self.recovered.is_empty() {
            return;
        }
        let mut batch = std::mem::take(&mut self.recovered);
        let mut twins = Vec::new();
        for (seq, packet) in batch.iter() {
            self.accept(now, seq, packet, &mut twins);
        }
        batch.clear();
        self.recovered = batch;
        // Byte-identical packets that were lost too are known now, and may unlock more.
        for seq in twins {
            self.decoder.known(seq, &self.known, &mut self.recovered);
        }
        self.deliver(now);
    }

    fn accept(&mut self, now: Instant, seq: Seq, packet: &[u8], twins: &mut Vec<Seq>) {
        let identity = self.key.name(packet);
        let Some(row) = self.known.ledger.row_mut(seq) else { return };
        match row.state {
            State::Missing if row.identity == identity => {}
            State::Missing => {
                self.stats.garbled += 1;
                return;
            }
            // Never named: it can be checked only against what arrived.
            State::Unnamed if self.known.store.claim(identity) => {
                (row.identity, row.state) = (identity, State::Arrived);
                return;
            }
            State::Unnamed => {
                self.stats.garbled += 1;
                return;
            }
            State::Arrived | State::Recovered => return,
        }
        self.known.store.insert(now, identity, packet, true);
        while let Some(twin) = self.missing.take(identity) {
            if twin != seq {
                self.stats.copies += 1;
                twins.push(twin);
            }
            self.hold(now, twin);
        }
    }

    /// Packet `seq` is here after all, its bytes in the store; it is injected if it does not come
    /// by itself very soon.
    fn hold(&mut self, now: Instant, seq: Seq) {
        let due = self.due(seq);
        let Some(row) = self.known.ledger.row_mut(seq) else { return };
        row.state = State::Recovered;
        self.held.push(now, seq, row.identity, due);
    }

    /// Injects what has waited long enough.
    pub(super) fn release(&mut self, now: Instant, sites: &Sites, inject: &mut Outbox) {
        while let Some(waiting) = self.held.pop(now) {
            self.inject(now, waiting, sites, inject);
        }
    }

    fn inject(&mut self, now: Instant, waiting: Waiting, sites: &Sites, inject: &mut Outbox) {
        let Waiting { seq, identity, due, .. } = waiting;
        // Without a row or its bytes: it waited while the peer started anew, or memory changed.
        let Some(hop) = self.known.ledger.row(seq).map(|row| row.hop) else { return };
        let Some(packet) = self.known.store.get(identity) else { return };
        match Header::parse(packet) {
            Ok(header) if header.total_len == packet.len() && sites.arrives(&header) => {}
            Ok(_) => {
                self.stats.foreign += 1;
                return;
            }
            Err(_) => {
                self.stats.garbled += 1;
                return;
            }
        }
        let fate = self.syns.judge(&self.key, packet);
        match fate {
            Fate::Lost | Fate::Lower(..) => {}
            Fate::Altered => {
                self.stats.altered += 1;
                return self.settle(seq, State::Arrived);
            }
            Fate::Withheld => {
                self.stats.withheld += 1;
                return self.settle(seq, State::Missing);
            }
        }
        inject.push_with(|out| {
            let start = out.len();
            out.extend_from_slice(packet);
            ip::restore(&mut out[start..], hop);
            if let Fate::Lower(syn, most) = fate {
                syn.lower(&mut out[start..], most);
            }
        });
        self.stats.recovered += 1;
        self.stats.record_latency(due.map_or_else(Default::default, |due| now.since(due)));
    }

    /// When packet `seq` should have arrived, by its nearest neighbour that did.
    fn due(&self, seq: Seq) -> Option<Instant> {
        let before = (1..NEIGHBOURS).map_while(|back| seq.checked_sub(back));
        before
            .filter_map(|seq| self.known.ledger.row(seq).filter(|row| row.state == State::Arrived))
            .find_map(|row| self.known.store.arrival(row.identity))
    }
}

/// Of the memory of a peer, the part for packets that arrived.
fn store_share(memory: usize) -> usize {
    memory / 8 * 5
}

/// Memory of a peer whose part for packets is `store` bytes.
pub(super) fn memory_for_store(store: usize) -> usize {
    store.div_ceil(5) * 8
}

/// Of the memory of a peer, the part for repairs that wait.
fn decoder_share(memory: usize) -> usize {
    memory / 8
}

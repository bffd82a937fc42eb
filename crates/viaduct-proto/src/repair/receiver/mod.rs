//! The receiving side from one peer: remembers what arrived, learns from names what should have, and makes of repairs
//! what is missing.
//!
//! ```text
//!   packet ─▶ identity ─▶ store           names ─┐
//!                 └──────── tag ──▶ aligner ◀────┘
//!                                      │ arrived, missing
//!                                   ledger ──▶ decoder ◀── repair (one of packets not named yet waits)
//!                                                 ▼
//!                                       identity right? ──▶ store, hold, inject
//! ```

mod names;

use std::collections::VecDeque;

use super::align::{Aligner, Arrival, Named};
use super::coming::Coming;
use super::congestion::{Congestion, Signal};
use super::control;
use super::control::path::Path;
use super::held::{Held, Overtaken, Waiting};
use super::identity::{Identity, IdentityKey};
use super::ledger::{Ledger, Row, State};
use super::observed::Observed;
use super::outbox::Outbox;
use super::prefix;
use super::recent::Recent;
use super::requests::{Requests, Times};
use super::section::{Copies, Need, PREFIX, Part, expand};
use super::sites::Sites;
use super::stats::ReceiverStats;
use super::store::Store;
use super::syns::{Fate, Syns};
use super::unnamed::Unnamed;
use crate::fec::{self, AnyDecoder, Cover, Decoder, Recovered, Repair, Seq, Sources, Verdict};
use crate::time::{Duration, Instant};
use crate::wire::ip::{self, Header, Hop};
use crate::wire::tcp_sack;

/// Time in which packets are named, once they have arrived: a peer that has no time for it lets older ones go.
const NAMED_WITHIN: Duration = Duration::from_millis(60);
/// How far back the arrival of a neighbour is looked for, to tell when a packet was due.
const NEIGHBOURS: u64 = 512;

/// Arrivals whose identities are remembered until they are named.
const MAX_ARRIVALS: usize = 8_192;
/// Times that are reckoned with until the peer tells of its own.
const USUAL_WAIT: Duration = Duration::from_millis(25);
const USUAL_RTT: Duration = Duration::from_millis(100);
/// How often the receiver keeps house.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Numbers by which a copy may be ahead of what is named.
const MAX_AHEAD: u64 = 1_024;
/// Repairs that wait for names, or for their other part, at most.
const MAX_PENDING: usize = 32;

pub(super) struct Receiver {
    key: IdentityKey,
    known: Known,
    decoder: AnyDecoder,
    aligner: Aligner,
    arrivals: Arrivals,
    /// Whether the peer names acknowledgements without data.
    acks: bool,
    /// Number of the peer's next packet, as it told last.
    told: Seq,
    pending: VecDeque<Pending>,
    /// Mutable fields of the peer's packets, as they left and as they arrive.
    hops: Hops,
    named: Vec<(Seq, Named)>,
    /// Send times of what is named.
    sent: Vec<u32>,
    path: Path,
    /// What becomes of packets for which no repairs are made.
    observed: Option<Box<Observed>>,
    requests: Requests,
    unnamed: Unnamed,
    coming: Coming,
    congestion: Congestion,
    times: Times,
    held: Held,
    recent: Recent,
    syns: Syns,
    blind: Blind,
    recovered: Recovered,
    stats: ReceiverStats,
}

/// A packet that has arrived.
#[derive(Clone, Copy, Debug)]
struct Came {
    at: Instant,
    identity: Identity,
    hop: Hop,
}

/// The last arrivals.
#[derive(Default)]
struct Arrivals {
    last: VecDeque<Came>,
    /// Number of the first of them.
    first: Arrival,
}

impl Arrivals {
    fn push(&mut self, came: Came) {
        if self.last.len() == MAX_ARRIVALS {
            self.last.pop_front();
            self.first += 1;
        }
        self.last.push_back(came);
    }

    fn get(&self, arrival: Arrival) -> Option<Came> {
        self.last.get(usize::try_from(arrival.checked_sub(self.first)?).ok()?).copied()
    }
}

/// How the path changes TTLs, and the fields that are taken where they cannot be known.
#[derive(Clone, Copy, Debug, Default)]
struct Hops {
    /// Of IPv4 and IPv6 alike: routers crossed.
    crossed: u8,
    last: Hop,
}

impl Hops {
    /// A packet arrived with the fields `arrived` and had left with `sent`.
    fn learn(&mut self, arrived: Option<Came>, sent: Hop) {
        if let Some(Came { hop, .. }) = arrived {
            self.crossed = sent.ttl.wrapping_sub(hop.ttl);
        }
    }
}

/// A repair that waits.
struct Pending {
    cover: Cover,
    row: fec::Row,
    len_code: [u8; 2],
    body: Vec<u8>,
    part: Part,
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
    /// Some were missed just now; until then, what is named may have been among them.
    Until(Instant),
    /// Numbers up to this one may have been missed.
    UpTo(Seq),
}

impl Known {
    /// Whether packet `seq` has arrived or was recovered, though it may be forgotten by now, or is in
    /// no repair.
    fn has(&self, seq: Seq) -> bool {
        self.ledger.row(seq).is_some_and(|row| row.is_here() || row.is_bare)
    }
}

impl Sources for Known {
    fn get(&self, seq: Seq) -> Option<&[u8]> {
        let row = self.ledger.row(seq)?;
        if row.is_bare {
            return Some(&[]);
        }
        if row.is_here() { self.store.get(row.identity) } else { None }
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
            aligner: Aligner::default(),
            arrivals: Arrivals::default(),
            acks: false,
            told: 0,
            pending: VecDeque::new(),
            hops: Hops::default(),
            named: Vec::new(),
            sent: Vec::new(),
            path: Path::default(),
            observed: None,
            requests: Requests::default(),
            unnamed: Unnamed::default(),
            coming: Coming::default(),
            congestion: Congestion::default(),
            times: Times { wait: USUAL_WAIT, rtt: USUAL_RTT },
            held: Held::default(),
            recent: Recent::default(),
            syns: Syns::default(),
            blind: Blind::Untold,
            recovered: Recovered::new(),
            stats: ReceiverStats::default(),
        }
    }

    /// Changes the bound on memory; what was received until now is forgotten.
    pub(super) fn resize(&mut self, now: Instant, memory: usize) {
        self.known.store = Store::new(store_share(memory));
        self.decoder = AnyDecoder::new(decoder_share(memory));
        self.aligner.clear();
        self.miss(now);
    }

    pub(super) fn stats(&self) -> ReceiverStats {
        let settled = self.known.ledger.settled();
        let path = self.path.report();
        ReceiverStats {
            link: settled.link,
            unrecoverable: settled.unrecoverable,
            uncovered: settled.uncovered,
            asked: self.requests.asked(),
            random: path.random.bursts.iter().sum(),
            congested: path.congested,
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
            + self.arrivals.last.capacity() * size_of::<Came>()
            + self.observed.as_ref().map_or(0, |observed| observed.memory())
    }

    /// The packets of the last moments, newest first, as they were on the WAN but for what
    /// [`ip::normalise`] removed.
    pub(super) fn cached(&self) -> impl Iterator<Item = &[u8]> {
        self.known.store.newest_first().map(|(_, packet)| packet)
    }

    /// Packets went by unseen: until what the next repairs cover is surely later, nothing counts
    /// as lost.
    pub(super) fn miss(&mut self, now: Instant) {
        if !matches!(self.blind, Blind::Untold) {
            self.blind = Blind::Until(now + NAMED_WITHIN);
        }
    }

    /// The peer's packets from `next` on left only now. What it numbered before, a receiver that has
    /// just begun did not see.
    pub(super) fn told(&mut self, next: Seq) {
        self.told = next;
        match (&self.blind, next.checked_sub(1)) {
            (Blind::Untold, None) => self.blind = Blind::No,
            (Blind::Untold, Some(last)) => self.blind = Blind::UpTo(last),
            // It has begun anew, with a clock that was set back.
            (&Blind::UpTo(seq), Some(last)) if last < seq => self.blind = Blind::UpTo(last),
            _ => {}
        }
    }

    /// Takes a copy of a packet that leaves for the peer's site: it tells what its host has seen last.
    pub(super) fn handle_outgoing(&mut self, now: Instant, packet: &[u8]) {
        self.recent.leaves(now, packet);
    }

    /// Takes a copy of a packet that came from the peer's site a moment ago. Its bytes are spoilt.
    pub(super) fn handle_packet(&mut self, now: Instant, came: Instant, packet: &mut [u8]) {
        self.stats.packets += 1;
        self.stats.bytes += packet.len() as u64;
        let hop = ip::normalise(packet);
        if !self.acks && tcp_sack::is_plain_ack(packet) {
            return;
        }
        let identity = self.key.name(packet);
        self.syns.arrived(&self.key, identity, packet);
        let as_sent = self.syns.as_sent(packet);
        if !as_sent.is_empty() {
            self.stats.altered += 1;
            as_sent.iter().for_each(|sent| self.keep((now, came), self.key.name(sent), hop, sent));
        }
        if let Overtaken::InTime(seq) = self.held.arrived(now, identity) {
            // It is in the store already.
            self.stats.late += 1;
            return self.settle(seq, State::Arrived);
        }
        self.keep((now, came), identity, hop, packet);
    }

    /// Stores a packet that has arrived; one that was missing comes late.
    fn keep(
        &mut self,
        (now, came): (Instant, Instant),
        identity: Identity,
        hop: Hop,
        packet: &[u8],
    ) {
        let arrival = self.aligner.next_arrival();
        self.arrivals.push(Came { at: came, identity, hop });
        self.known.store.insert(came, identity, prefix::emit(identity, hop), packet);
        if let Some(seq) = self.aligner.arrive(identity.tag()) {
            self.stats.late += 1;
            self.path.arrived(seq);
            if let Some(observed) = &mut self.observed {
                observed.arrived(seq);
            }
            self.arrived(now, seq, arrival);
            self.decoder.known(seq, &self.known, &mut self.recovered);
            self.deliver(now);
        }
    }

    /// A number near those of the next packets.
    fn near(&self) -> Seq {
        /// Numbers that differ by more are of another run.
        const RUN: u64 = 1 << 30;
        let next = self.known.ledger.next();
        if next == 0 || next.abs_diff(self.told) > RUN { self.told } else { next }
    }

    /// Packet `seq` is here; one that came back too late its flow has seen missing.
    fn here(&mut self, now: Instant, seq: Seq) {
        let missed = self.requests.here(now, seq);
        if missed.is_some_and(|time| time > self.times.wait) {
            self.path.visible(now, self.times.wait);
        }
    }

    /// Packet `seq` is this arrival.
    fn arrived(&mut self, now: Instant, seq: Seq, arrival: Arrival) {
        self.here(now, seq);
        let found = self.arrivals.get(arrival);
        let Some(row) = self.known.ledger.row_mut(seq) else { return };
        if matches!(row.state, State::Recovered | State::Withheld) {
            return;
        }
        row.state = State::Arrived;
        if let Some(Came { identity, hop, .. }) = found {
            row.identity = identity;
            let sent = Hop { ttl: hop.ttl.wrapping_add(self.hops.crossed), ..hop };
            self.hops.last = sent;
            self.known.store.amend(identity, prefix::emit(identity, sent));
            self.syns.unaltered(identity);
        }
    }

    /// Takes a repair, or a part of one, that the peer made. Its first number has the low 32 bits alone.
    pub(super) fn handle_repair(&mut self, now: Instant, repair: Repair<'_>, part: Part) {
        let first = expand(repair.cover.first as u32, self.near());
        let cover = Cover { first, ..repair.cover };
        let Repair { row, len_code, body, .. } = repair;
        let other = match part {
            Part::Whole => None,
            _ => {
                let is_other = |of: &Pending| {
                    of.cover == cover && of.row == row && of.part != part && of.part != Part::Whole
                };
                let at = self.pending.iter().position(is_other);
                let Some(other) = at.and_then(|at| self.pending.remove(at)) else {
                    return self.wait(Pending { cover, row, len_code, body: body.to_vec(), part });
                };
                let (head, tail) = if part == Part::Head {
                    (body, &other.body[..])
                } else {
                    (&other.body[..], body)
                };
                Some([head, tail].concat())
            }
        };
        let body = other.as_deref().unwrap_or(body);
        if cover.last() >= self.known.ledger.next() {
            return self.wait(Pending {
                cover,
                row,
                len_code,
                body: body.to_vec(),
                part: Part::Whole,
            });
        }
        self.decode(now, Repair { cover, row, len_code, body });
    }

    /// Takes copies of packets, each of which may be here, and may not be named yet.
    pub(super) fn handle_copies(&mut self, now: Instant, copies: &Copies<'_>) {
        let first = expand(copies.first as u32, self.near());
        for (seq, packet) in (first..).zip(copies.packets().flatten()) {
            self.stats.copies += 1;
            let next = self.known.ledger.next();
            let is_far = seq >= next.saturating_add(MAX_AHEAD);
            if self.in_the_dark(now, seq, seq)
                || next == 0
                || is_far
                || self.known.ledger.row(seq).is_some_and(|row| row.is_here())
                || !self.known.ledger.reach(seq, seq)
            {
                self.stats.useless_copies += 1;
                continue;
            }
            if seq > next {
                self.unnamed.passed(now, next, seq - 1);
            }
            self.accept(now, seq, self.key.name(packet), Some(copies.hop), packet);
            self.decoder.known(seq, &self.known, &mut self.recovered);
            self.deliver(now);
        }
    }

    fn wait(&mut self, pending: Pending) {
        if self.pending.len() == MAX_PENDING {
            self.pending.pop_front();
        }
        self.pending.push_back(pending);
    }

    /// Decodes the repairs whose packets are named now.
    fn release_pending(&mut self, now: Instant) {
        let next = self.known.ledger.next();
        let is_ready = |of: &Pending| of.part == Part::Whole && of.cover.last() < next;
        while let Some(at) = self.pending.iter().position(is_ready)
            && let Some(Pending { cover, row, len_code, body, .. }) = self.pending.remove(at)
        {
            self.decode(now, Repair { cover, row, len_code, body: &body });
        }
    }

    fn decode(&mut self, now: Instant, repair: Repair<'_>) {
        self.stats.repairs += 1;
        let cover = repair.cover;
        if cover.last().saturating_add(NEIGHBOURS) >= self.known.ledger.next() {
            self.coming.cover = cover.count;
        }
        let is_dark = self.in_the_dark(now, cover.first, cover.last());
        if is_dark
            || cover.first < self.known.ledger.floor()
            || cover.seqs().all(|seq| self.known.has(seq))
        {
            // By far the most repairs: the decoder would look up every packet to find the same.
            self.stats.useless += 1;
            return;
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

    /// When a recovery has waited long enough, or something is to be counted or asked for.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let requests = self.requests.due(self.times, self.coming());
        let unnamed = self.unnamed.due(self.times.rtt);
        let timers = [self.held.poll_timeout(), self.path.due(), requests, unnamed];
        timers.into_iter().flatten().min()
    }

    /// Counts what was missing for long enough; what the peer is to be asked for.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<Need> {
        self.path.settle(now);
        let coming = self.coming();
        let Receiver { requests, decoder, times, unnamed, known, .. } = self;
        let is_named = |seq| known.ledger.row(seq).is_none_or(|row| row.state != State::Unnamed);
        let held = |first, last| decoder.equations_within(first, last);
        let is_given_up =
            |seq| known.ledger.row(seq).is_some_and(|row| row.congested && !row.is_here());
        let names = unnamed.ask(now, times.rtt, is_named);
        names
            .or_else(|| requests.ask_early(now, coming))
            .or_else(|| requests.ask(now, *times, held, is_given_up))
    }

    /// Equations that are held of what was never asked for, and that come while flows can wait.
    fn coming(&self) -> usize {
        let held = |(first, last)| self.decoder.equations_within(first, last);
        self.requests.fresh().map_or(0, held) + self.coming.within(self.times.wait)
    }

    /// The path from the peer.
    pub(super) fn path(&self) -> control::Report {
        self.path.report()
    }

    /// Takes over what is known of times.
    pub(super) fn set_times(&mut self, times: Times) {
        self.times = times;
    }

    /// Housekeeping, a few times a second.
    pub(super) fn tick(&mut self, now: Instant) {
        self.known.ledger.tick(now);
        self.held.tick(now);
        self.coming.tick(self.stats.repairs, self.stats.packets);
        if let Some(observed) = &mut self.observed {
            observed.settle(now);
        }
        let floor = self.known.ledger.floor();
        if self.requests.expire(now, floor) > 0 {
            self.path.visible(now, self.times.wait);
        }
        self.decoder.forget_below(floor);
        self.aligner.forget_below(floor);
    }

    fn in_the_dark(&mut self, now: Instant, first: Seq, last: Seq) -> bool {
        match self.blind {
            Blind::Until(end) => {
                if now >= end {
                    self.blind = Blind::UpTo(last);
                }
                true
            }
            Blind::UpTo(seq) if seq < self.known.ledger.floor() => {
                self.blind = Blind::No;
                false
            }
            Blind::UpTo(seq) => first <= seq,
            Blind::Untold => true,
            Blind::No => false,
        }
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
        for (seq, symbol) in batch.iter() {
            match prefix::parse(symbol) {
                Some((identity, hop, packet)) if self.key.name(packet) == identity => {
                    self.accept(now, seq, identity, hop, packet);
                }
                // It is in no repair, and counts as empty.
                _ if symbol.is_empty() => {}
                _ => self.stats.garbled += 1,
            }
        }
        batch.clear();
        self.recovered = batch;
    }

    /// Takes packet `seq`, which was recovered and whose identity is right.
    fn accept(
        &mut self,
        now: Instant,
        seq: Seq,
        identity: Identity,
        hop: Option<Hop>,
        packet: &[u8],
    ) {
        let Some(row) = self.known.ledger.row_mut(seq) else { return };
        if row.is_here() {
            return;
        }
        if row.state != State::Unnamed && row.tag != identity.tag() {
            self.stats.garbled += 1;
            return;
        }
        let arrivals = &self.arrivals;
        let is = |arrival| arrivals.get(arrival).is_some_and(|of| of.identity == identity);
        row.tag = identity.tag();
        if self.aligner.find(seq, identity.tag(), is) {
            // Its name was lost, or it was taken for missing.
            (row.identity, row.state) = (identity, State::Arrived);
            self.here(now, seq);
            return;
        }
        row.identity = identity;
        row.hop = hop.unwrap_or(self.hops.last);
        let sent = prefix::emit(identity, row.hop);
        self.known.store.insert(now, identity, sent, packet);
        self.hold(now, seq);
    }

    /// Packet `seq` is here after all, its bytes in the store; it is injected if it does not come
    /// by itself very soon.
    fn hold(&mut self, now: Instant, seq: Seq) {
        let due = self.due(seq);
        let Some(row) = self.known.ledger.row_mut(seq) else { return };
        row.state = State::Recovered;
        self.held.push(now, seq, row.identity, due);
        self.here(now, seq);
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
        let Some(&Row { mut hop, congested, .. }) = self.known.ledger.row(seq) else { return };
        let Some(packet) = self.known.store.get(identity).and_then(|of| of.get(PREFIX..)) else {
            return;
        };
        let header = match Header::parse(packet) {
            Ok(header) if header.total_len == packet.len() && sites.arrives(&header) => header,
            Ok(_) => {
                self.stats.foreign += 1;
                return;
            }
            Err(_) => {
                self.stats.garbled += 1;
                return;
            }
        };
        if congested {
            match self.congestion.judge(now, self.times.rtt, (&header, packet, hop.tos)) {
                Signal::None => {}
                Signal::Mark(tos) => {
                    hop.tos = tos;
                    self.stats.marked += 1;
                }
                Signal::Withhold => {
                    self.stats.left_lost += 1;
                    return self.settle(seq, State::Withheld);
                }
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
        let Receiver { recent, stats, .. } = self;
        inject.push_with(|out| {
            let start = out.len();
            out.extend_from_slice(packet);
            ip::restore(&mut out[start..], hop);
            stats.renewed += u64::from(recent.renew(now, &mut out[start..]));
            if let Fate::Lower(syn, most) = fate {
                syn.lower(&mut out[start..], most);
            }
        });
        self.stats.recovered += 1;
        // What a full queue dropped is not hurried: its flows are to slow down.
        if !congested {
            self.stats.record_latency(due.map_or_else(Default::default, |due| now.since(due)));
        }
    }

    /// When packet `seq` should have arrived, by its nearest neighbour that did, and how long before
    /// it that one left.
    fn due(&self, seq: Seq) -> Option<Instant> {
        let sent = self.known.ledger.row(seq)?.sent;
        let before = (1..NEIGHBOURS).map_while(|back| seq.checked_sub(back));
        let arrived = before
            .filter_map(|seq| self.known.ledger.row(seq).filter(|row| row.state == State::Arrived));
        let arrival = |row: &Row| {
            let apart = sent.zip(row.sent).map_or(0, |(sent, before)| sent.wrapping_sub(before));
            // Send times of neighbours that are out of order differ by less than nothing.
            let apart = Duration::from_micros(apart.cast_signed().max(0).cast_unsigned().into());
            Some(self.known.store.arrival(row.identity)? + apart)
        };
        arrived.map(arrival).find_map(|at| at)
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

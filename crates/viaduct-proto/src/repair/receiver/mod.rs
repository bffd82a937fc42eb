//! Receiving side of one peer: stores arrived packets, learns from names which packets were
//! sent, and decodes missing ones from repairs.
//!
//! ```text
//!   packet ─▶ identity ─▶ store           names ─┐
//!                 └──────── tag ──▶ aligner ◀────┘
//!                                      │ arrived, missing
//!                                   ledger ──▶ decoder ◀── repair (waits for names if needed)
//!                                                 ▼
//!                                       identity right? ──▶ store, hold, inject
//! ```

mod names;

use std::collections::VecDeque;

use super::align::{Aligner, Arrival, Named};
use super::congestion::{Congestion, Signal};
use super::control;
use super::control::path::Path;
use super::identity::{Identity, IdentityKey};
use super::in_flight::InFlight;
use super::ledger::{Ledger, Row, State};
use super::observed::Observed;
use super::outbox::Outbox;
use super::prefix;
use super::recent::Recent;
use super::reorder_hold::{HeldRecovery, Overtaken, ReorderHold};
use super::requests::{Requests, Times};
use super::section::{Copies, Need, PREFIX, Part, expand};
use super::sites::Sites;
use super::stats::ReceiverStats;
use super::store::Store;
use super::syns::{Fate, Syns};
use super::unnamed::Unnamed;
use crate::fec::{self, AnyDecoder, Cover, Decoder, Recovered, Repair, Seq, Sources, Verdict};
use crate::time::{Duration, Instant};
use crate::wire::ip::{self, Header, MutableFields};
use crate::wire::tcp_sack;

/// Time after its arrival within which a packet is named; a peer that is too busy does not name
/// older packets.
const NAMED_WITHIN: Duration = Duration::from_millis(60);
/// Distance over which an arrived neighbour is searched for, to tell when a packet was due.
const NEIGHBOURS: u64 = 512;

/// Arrivals whose identities are remembered until they are named.
const MAX_ARRIVALS: usize = 8_192;
/// Times assumed until the peer reports its own.
const USUAL_WAIT: Duration = Duration::from_millis(25);
const USUAL_RTT: Duration = Duration::from_millis(100);
/// Interval of housekeeping.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Distance by which a copy's number may exceed the named ones.
const MAX_AHEAD: u64 = 1_024;
/// Limit of repairs that wait for names, or for their other part.
const MAX_PENDING: usize = 32;

pub(super) struct Receiver {
    key: IdentityKey,
    known: Known,
    decoder: AnyDecoder,
    aligner: Aligner,
    arrivals: Arrivals,
    /// The peer names acknowledgements without data.
    acks: bool,
    /// Number of the peer's next packet, as last reported.
    told: Seq,
    pending: VecDeque<Pending>,
    /// Mutable fields of the peer's packets: as sent, and as they arrive.
    hops: Hops,
    named: Vec<(Seq, Named)>,
    /// Send times of the named packets.
    sent: Vec<u32>,
    path: Path,
    /// Outcomes of packets for which no repairs are made, in observe mode.
    observed: Option<Box<Observed>>,
    requests: Requests,
    unnamed: Unnamed,
    in_flight: InFlight,
    congestion: Congestion,
    times: Times,
    reorder_hold: ReorderHold,
    recent: Recent,
    syns: Syns,
    blind: Blind,
    recovered: Recovered,
    stats: ReceiverStats,
}

/// Arrival of a packet.
#[derive(Clone, Copy, Debug)]
struct ArrivedPacket {
    at: Instant,
    identity: Identity,
    fields: MutableFields,
}

/// Latest arrivals.
#[derive(Default)]
struct Arrivals {
    last: VecDeque<ArrivedPacket>,
    /// Number of the oldest one kept.
    first: Arrival,
}

impl Arrivals {
    fn push(&mut self, came: ArrivedPacket) {
        if self.last.len() == MAX_ARRIVALS {
            self.last.pop_front();
            self.first += 1;
        }
        self.last.push_back(came);
    }

    fn get(&self, arrival: Arrival) -> Option<ArrivedPacket> {
        self.last.get(usize::try_from(arrival.checked_sub(self.first)?).ok()?).copied()
    }
}

/// Change of TTLs by the path, and the fields used where a packet's own are unknown.
#[derive(Clone, Copy, Debug, Default)]
struct Hops {
    /// Routers crossed; used for IPv4 and IPv6 alike.
    crossed: u8,
    last: MutableFields,
}

impl Hops {
    /// Learns from a packet that left with `sent` and has arrived.
    fn learn(&mut self, arrived: Option<ArrivedPacket>, sent: MutableFields) {
        if let Some(ArrivedPacket { fields, .. }) = arrived {
            self.crossed = sent.ttl.wrapping_sub(fields.ttl);
        }
    }
}

/// Repair that waits for names or for its other part.
struct Pending {
    cover: Cover,
    row: fec::Row,
    len_code: [u8; 2],
    body: Vec<u8>,
    part: Part,
}

/// Packets available to the decoder.
struct Known {
    store: Store,
    ledger: Ledger,
}

/// State after packets were missed by the tap, when a missing packet may not be lost.
enum Blind {
    /// The peer may have numbered packets before this receiver started; it will tell up to
    /// which.
    Untold,
    /// All packets were seen.
    No,
    /// Some were missed just now; packets named until this time may be among them.
    Until(Instant),
    /// Packets up to this number may have been missed.
    UpTo(Seq),
}

impl Known {
    /// Returns whether packet `seq` has arrived or was recovered (its bytes may be forgotten by
    /// now), or is in no repair.
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
    /// Creates a receiver with `memory` bytes for packets and waiting repairs together.
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
            in_flight: InFlight::default(),
            congestion: Congestion::default(),
            times: Times { wait: USUAL_WAIT, rtt: USUAL_RTT },
            reorder_hold: ReorderHold::default(),
            recent: Recent::default(),
            syns: Syns::default(),
            blind: Blind::Untold,
            recovered: Recovered::new(),
            stats: ReceiverStats::default(),
        }
    }

    /// Changes the memory limit; everything received until now is forgotten.
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

    /// MSS to which the path lowers SYNs, for IPv4 and IPv6.
    pub(super) fn lowered_mss(&self) -> [Option<u16>; 2] {
        self.syns.lowered()
    }

    pub(super) fn memory(&self) -> usize {
        self.known.store.memory()
            + self.known.ledger.memory()
            + self.decoder.memory()
            + self.arrivals.last.capacity() * size_of::<ArrivedPacket>()
            + self.observed.as_ref().map_or(0, |observed| observed.memory())
    }

    /// Packets of the last moments, newest first, as they were on the WAN except for what
    /// [`ip::normalise`] removed.
    pub(super) fn cached(&self) -> impl Iterator<Item = &[u8]> {
        self.known.store.newest_first().map(|(_, packet)| packet)
    }

    /// Notes that the tap has missed packets: nothing counts as lost until the next repairs
    /// surely cover later packets.
    pub(super) fn miss(&mut self, now: Instant) {
        if !matches!(self.blind, Blind::Untold) {
            self.blind = Blind::Until(now + NAMED_WITHIN);
        }
    }

    /// Notes that the peer's next packet is `next`. A receiver that has just started did not
    /// see earlier ones.
    pub(super) fn told(&mut self, next: Seq) {
        self.told = next;
        match (&self.blind, next.checked_sub(1)) {
            (Blind::Untold, None) => self.blind = Blind::No,
            (Blind::Untold, Some(last)) => self.blind = Blind::UpTo(last),
            // The peer has restarted with a clock that was set back.
            (&Blind::UpTo(seq), Some(last)) if last < seq => self.blind = Blind::UpTo(last),
            _ => {}
        }
    }

    /// Handles a copy of a packet that leaves for the peer's site; its TCP timestamp echo tells
    /// what its host has seen last.
    pub(super) fn handle_outgoing(&mut self, now: Instant, packet: &[u8]) {
        self.recent.leaves(now, packet);
    }

    /// Handles a copy of a packet that has just come from the peer's site. Its bytes are
    /// overwritten.
    pub(super) fn handle_packet(&mut self, now: Instant, came: Instant, packet: &mut [u8]) {
        self.stats.packets += 1;
        self.stats.bytes += packet.len() as u64;
        let fields = ip::normalise(packet);
        if !self.acks && tcp_sack::is_plain_ack(packet) {
            return;
        }
        let identity = self.key.name(packet);
        self.syns.arrived(&self.key, identity, packet);
        let as_sent = self.syns.as_sent(packet);
        if !as_sent.is_empty() {
            self.stats.altered += 1;
            as_sent
                .iter()
                .for_each(|sent| self.keep((now, came), self.key.name(sent), fields, sent));
        }
        if let Overtaken::InTime(seq) = self.reorder_hold.arrived(now, identity) {
            // Already in the store, as a recovered packet.
            self.stats.late += 1;
            return self.settle(seq, State::Arrived);
        }
        self.keep((now, came), identity, fields, packet);
    }

    /// Stores a packet that has arrived; one that was counted as missing is late.
    fn keep(
        &mut self,
        (now, came): (Instant, Instant),
        identity: Identity,
        fields: MutableFields,
        packet: &[u8],
    ) {
        let arrival = self.aligner.next_arrival();
        self.arrivals.push(ArrivedPacket { at: came, identity, fields });
        self.known.store.insert(came, identity, prefix::emit(identity, fields), packet);
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

    /// Estimate of the next packet number, to expand truncated ones.
    fn near(&self) -> Seq {
        /// Difference above which numbers belong to another run of the peer.
        const RUN: u64 = 1 << 30;
        let next = self.known.ledger.next();
        if next == 0 || next.abs_diff(self.told) > RUN { self.told } else { next }
    }

    /// Notes that packet `seq` is here. A recovery that took longer than flows wait is a
    /// visible loss.
    fn here(&mut self, now: Instant, seq: Seq) {
        let missed = self.requests.here(now, seq);
        if missed.is_some_and(|time| time > self.times.wait) {
            self.path.visible(now, self.times.wait);
        }
    }

    /// Matches packet `seq` to an arrival.
    fn arrived(&mut self, now: Instant, seq: Seq, arrival: Arrival) {
        self.here(now, seq);
        let found = self.arrivals.get(arrival);
        let Some(row) = self.known.ledger.row_mut(seq) else { return };
        if matches!(row.state, State::Recovered | State::Withheld) {
            return;
        }
        row.state = State::Arrived;
        if let Some(ArrivedPacket { identity, fields, .. }) = found {
            row.identity = identity;
            let sent = MutableFields { ttl: fields.ttl.wrapping_add(self.hops.crossed), ..fields };
            self.hops.last = sent;
            self.known.store.amend(identity, prefix::emit(identity, sent));
            self.syns.unaltered(identity);
        }
    }

    /// Handles a repair, or a part of one. Its first number is truncated to the low 32 bits.
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

    /// Handles copies of packets, each of which may be here already or not be named yet.
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
            self.accept(now, seq, self.key.name(packet), Some(copies.fields), packet);
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

    /// Decodes the waiting repairs whose packets are named by now.
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
            self.in_flight.cover = cover.count;
        }
        let is_dark = self.in_the_dark(now, cover.first, cover.last());
        if is_dark
            || cover.first < self.known.ledger.floor()
            || cover.seqs().all(|seq| self.known.has(seq))
        {
            // True of most repairs; the decoder would look up every packet for the same result.
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

    /// Counts a message that was opened but did not parse.
    pub(super) fn malformed(&mut self) {
        self.stats.malformed += 1;
    }

    /// Time of the next deadline: a held recovery is due, or packets are to be counted or
    /// requested.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let requests = self.requests.due(self.times, self.expected_equations());
        let unnamed = self.unnamed.due(self.times.rtt);
        let timers = [self.reorder_hold.poll_timeout(), self.path.due(), requests, unnamed];
        timers.into_iter().flatten().min()
    }

    /// Counts packets that were missing for long enough; returns the next request to the peer.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<Need> {
        self.path.settle(now);
        let expected = self.expected_equations();
        let Receiver { requests, decoder, times, unnamed, known, .. } = self;
        let is_named = |seq| known.ledger.row(seq).is_none_or(|row| row.state != State::Unnamed);
        let held = |first, last| decoder.equations_within(first, last);
        let is_given_up =
            |seq| known.ledger.row(seq).is_some_and(|row| row.congested && !row.is_here());
        let names = unnamed.ask(now, times.rtt, is_named);
        names
            .or_else(|| requests.ask_early(now, expected))
            .or_else(|| requests.ask(now, *times, held, is_given_up))
    }

    /// Number of equations at hand for packets not requested yet, and of those expected while
    /// flows can wait.
    fn expected_equations(&self) -> usize {
        let held = |(first, last)| self.decoder.equations_within(first, last);
        self.requests.fresh().map_or(0, held) + self.in_flight.within(self.times.wait)
    }

    /// Report on the path from the peer.
    pub(super) fn path(&self) -> control::Report {
        self.path.report()
    }

    /// Sets the round-trip time and the time for which flows can wait.
    pub(super) fn set_times(&mut self, times: Times) {
        self.times = times;
    }

    /// Housekeeping; called a few times a second.
    pub(super) fn tick(&mut self, now: Instant) {
        self.known.ledger.tick(now);
        self.reorder_hold.tick(now);
        self.in_flight.tick(self.stats.repairs, self.stats.packets);
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

    /// Verifies recovered packets, and accepts the right ones.
    fn deliver(&mut self, now: Instant) {
        if self.recovered.is_empty() {
            return;
        }
        let mut batch = std::mem::take(&mut self.recovered);
        for (seq, symbol) in batch.iter() {
            match prefix::parse(symbol) {
                Some((identity, fields, packet)) if self.key.name(packet) == identity => {
                    self.accept(now, seq, identity, fields, packet);
                }
                // An empty symbol stands for a packet that is in no repair.
                _ if symbol.is_empty() => {}
                _ => self.stats.garbled += 1,
            }
        }
        batch.clear();
        self.recovered = batch;
    }

    /// Accepts packet `seq`, recovered with the right identity.
    fn accept(
        &mut self,
        now: Instant,
        seq: Seq,
        identity: Identity,
        fields: Option<MutableFields>,
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
            // Its name was lost, or it was mistaken for missing.
            (row.identity, row.state) = (identity, State::Arrived);
            self.here(now, seq);
            return;
        }
        row.identity = identity;
        row.fields = fields.unwrap_or(self.hops.last);
        let sent = prefix::emit(identity, row.fields);
        self.known.store.insert(now, identity, sent, packet);
        self.hold(now, seq);
    }

    /// Holds packet `seq`, recovered and stored; it is injected if it does not arrive very
    /// soon.
    fn hold(&mut self, now: Instant, seq: Seq) {
        let due = self.due(seq);
        let Some(row) = self.known.ledger.row_mut(seq) else { return };
        row.state = State::Recovered;
        self.reorder_hold.push(now, seq, row.identity, due);
        self.here(now, seq);
    }

    /// Injects recovered packets whose hold has ended.
    pub(super) fn release(&mut self, now: Instant, sites: &Sites, inject: &mut Outbox) {
        while let Some(recovery) = self.reorder_hold.pop(now) {
            self.inject(now, recovery, sites, inject);
        }
    }

    fn inject(&mut self, now: Instant, recovery: HeldRecovery, sites: &Sites, inject: &mut Outbox) {
        let HeldRecovery { seq, identity, due, .. } = recovery;
        // No row or no bytes: the peer restarted during the hold, or the memory limit changed.
        let Some(&Row { mut fields, congested, .. }) = self.known.ledger.row(seq) else { return };
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
            match self.congestion.judge(now, self.times.rtt, (&header, packet, fields.tos)) {
                Signal::None => {}
                Signal::Mark(tos) => {
                    fields.tos = tos;
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
            ip::restore(&mut out[start..], fields);
            stats.renewed += u64::from(recent.renew(now, &mut out[start..]));
            if let Fate::Lower(syn, most) = fate {
                syn.lower(&mut out[start..], most);
            }
        });
        self.stats.recovered += 1;
        // Packets dropped by a full queue are not timed: their flows are to slow down.
        if !congested {
            self.stats.record_latency(due.map_or_else(Default::default, |due| now.since(due)));
        }
    }

    /// Time at which packet `seq` should have arrived: the arrival of its nearest earlier
    /// neighbour plus the difference of their send times.
    fn due(&self, seq: Seq) -> Option<Instant> {
        let sent = self.known.ledger.row(seq)?.sent;
        let before = (1..NEIGHBOURS).map_while(|back| seq.checked_sub(back));
        let arrived = before
            .filter_map(|seq| self.known.ledger.row(seq).filter(|row| row.state == State::Arrived));
        let arrival = |row: &Row| {
            let apart = sent.zip(row.sent).map_or(0, |(sent, before)| sent.wrapping_sub(before));
            // Send times of reordered neighbours may have a negative difference.
            let apart = Duration::from_micros(apart.cast_signed().max(0).cast_unsigned().into());
            Some(self.known.store.arrival(row.identity)? + apart)
        };
        arrived.map(arrival).find_map(|at| at)
    }
}

/// Share of a peer's memory for arrived packets.
fn store_share(memory: usize) -> usize {
    memory / 8 * 5
}

/// Total memory of a peer whose share for packets is `store` bytes.
pub(super) fn memory_for_store(store: usize) -> usize {
    store.div_ceil(5) * 8
}

/// Share of a peer's memory for waiting repairs.
fn decoder_share(memory: usize) -> usize {
    memory / 8
}

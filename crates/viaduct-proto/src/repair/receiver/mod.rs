//! Receiving side of one peer: stores arrived packets, learns from names which packets were sent,
//! and decodes missing packets from repairs.
//!
//! ```text
//!   packet ─▶ identity ─▶ store           names ─┐
//!                 └──────── tag ──▶ aligner ◀────┘
//!                                      │ arrived, missing
//!                                   ledger ──▶ decoder ◀── repair (waits for names if needed)
//!                                                 ▼
//!                                       identity valid? ──▶ store, hold, inject
//! ```
//!
//! [`Receiver`] connects these state machines, one in each file:
//!
//! ```text
//!   Arrivals     latest arrivals, the aligner, number of routers on the path
//!   Known        ledger and store
//!   Repairs      decoder, repairs that wait, repairs expected
//!   Needs        missing packets and names, and when they are requested
//!   Injection    reorder hold, SYNs, congestion signals, TCP timestamps
//!   Measurement  the path, and codes on trial
//!   Blindness    packets that the tap may have missed
//! ```

mod arrivals;
mod blindness;
mod injection;
mod known;
mod measurement;
mod names;
mod needs;
mod repairs;

use std::sync::Arc;

use arrivals::{Arrivals, ArrivedPacket};
use blindness::Blindness;
use injection::{Injection, Target};
use ipnet::IpNet;
use known::Known;
use measurement::Measurement;
use needs::Needs;
use repairs::Repairs;

use super::align::{Arrival, Named};
use super::control::Report;
use super::identity::{Identity, IdentityKey};
use super::ledger::State;
use super::outbox::Outbox;
use super::prefix;
use super::reorder_hold::Overtaken;
use super::section::{Copies, Need, Part, expand};
use super::sites::Sites;
use super::stats::ReceiverStats;
use crate::fec::{Cover, Decoder as _, Repair, Seq};
use crate::time::{Duration, Instant};
use crate::wire::ip::{self, Header, MutableFields};
use crate::wire::tcp_sack;

/// Interval of the housekeeping.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Maximum difference between a copy's number and the highest number named.
const MAX_AHEAD: u64 = 1_024;
/// Maximum number of packets that are handed over to another receiver at a time: the other receiver
/// cannot match more packets to names that it already has.
const MAX_HANDED_OVER: usize = 256;

pub(super) struct Receiver {
    key: Arc<IdentityKey>,
    known: Known,
    arrivals: Arrivals,
    repairs: Repairs,
    pub(super) needs: Needs,
    pub(super) injection: Injection,
    pub(super) measurement: Measurement,
    blindness: Blindness,
    /// Number of the peer's next packet, as last reported.
    told: Seq,
    /// True if the peer also names acknowledgements without data.
    acks: bool,
    named: Vec<(Seq, Named)>,
    /// Bytes of memory held by arrivals and by the measurement, at the last [`Receiver::tick`].
    others: usize,
    stats: ReceiverStats,
}

impl Receiver {
    /// Creates a receiver that keeps up to `max_repairs` bytes of repairs at the decoder.
    pub(super) fn new(key: Arc<IdentityKey>, max_repairs: usize) -> Self {
        Receiver {
            key,
            known: Known::new(),
            arrivals: Arrivals::default(),
            repairs: Repairs::new(max_repairs),
            needs: Needs::new(),
            injection: Injection::default(),
            measurement: Measurement::default(),
            blindness: Blindness::default(),
            told: 0,
            acks: false,
            named: Vec::new(),
            others: 0,
            stats: ReceiverStats::default(),
        }
    }

    pub(super) fn stats(&self) -> ReceiverStats {
        let settled = self.known.ledger.settled();
        let path = self.measurement.path.report();
        ReceiverStats {
            link: settled.link,
            unrecoverable: settled.unrecoverable,
            uncovered: settled.uncovered,
            asked: self.needs.requests.asked,
            random: path.random.bursts.iter().sum(),
            congested: path.congested,
            ..self.stats
        }
    }

    /// Bytes of memory held.
    pub(super) fn held(&self) -> usize {
        self.known.held() + self.repairs.decoder.memory() + self.others
    }

    /// Bytes of memory held for packets and repairs, which [`Receiver::shed`] frees.
    pub(super) fn sheddable(&self) -> usize {
        self.known.store.held() + self.repairs.decoder.memory()
    }

    /// Frees some memory: of the oldest packets, or of the oldest repairs if repairs hold more
    /// memory.
    pub(super) fn shed(&mut self) {
        let repairs = self.repairs.decoder.memory();
        match repairs > self.known.store.held() {
            true => self.repairs.decoder.shed(),
            false => self.known.store.shed(),
        }
    }

    /// Recent packets, newest first, as on the WAN except for the changes by [`ip::normalise`].
    pub(super) fn cached(&self) -> impl Iterator<Item = &[u8]> {
        self.known.store.newest_first().map(|(_, packet)| packet)
    }

    /// Records that the tap has missed packets: no packet counts as lost until repairs and names
    /// are certain to concern later packets.
    pub(super) fn miss(&mut self, now: Instant) {
        self.blindness.miss(now);
    }

    /// Records that the peer's next packet has number `next`. A new receiver has not seen the
    /// packets with lower numbers.
    pub(super) fn told(&mut self, next: Seq) {
        self.told = next;
        self.blindness.told(next);
    }

    /// Number of the peer's next packet; 0 if it is unknown.
    pub(super) fn heard(&self) -> Seq {
        self.told.max(self.known.ledger.next())
    }

    /// Takes over from the previous process, which has seen the packets before number `heard` and
    /// has sent `report`. Packets from before this receiver started do not count as lost.
    pub(super) fn resume(&mut self, heard: Seq, report: &Report) {
        if heard > 0 {
            self.told(heard);
        }
        self.measurement.path.resume(report);
    }

    /// Counts a section that was decrypted but could not be parsed.
    pub(super) fn malformed(&mut self) {
        self.stats.malformed += 1;
    }

    /// Handles a copy of a packet that has just arrived from the peer's site. Overwrites `packet`.
    pub(super) fn handle_packet(&mut self, now: Instant, came: Instant, packet: &mut [u8]) {
        self.stats.packets += 1;
        self.stats.bytes += packet.len() as u64;
        self.adopt(now, came, packet);
    }

    /// Handles a copy of a packet that has arrived from the peer's site and has already been
    /// counted. Overwrites `packet`.
    pub(super) fn adopt(&mut self, now: Instant, came: Instant, packet: &mut [u8]) {
        let fields = ip::normalise(packet);
        if !self.acks && tcp_sack::is_plain_ack(packet) {
            self.stats.acks += 1;
            return;
        }
        let identity = self.key.name(packet);
        self.injection.syns.arrived(&self.key, identity, packet);
        let as_sent = self.injection.syns.as_sent(packet);
        if !as_sent.is_empty() {
            self.stats.altered += 1;
            as_sent
                .iter()
                .for_each(|sent| self.keep((now, came), self.key.name(sent), fields, sent));
        }
        if let Overtaken::InTime(seq) = self.injection.hold.arrived(now, identity) {
            // Already in the store, as a recovered packet.
            self.stats.late += 1;
            return self.known.settle(seq, State::Arrived);
        }
        self.keep((now, came), identity, fields, packet);
    }

    /// Stores a packet that has arrived. If it was counted as missing, counts it as late.
    fn keep(
        &mut self,
        (now, came): (Instant, Instant),
        identity: Identity,
        fields: MutableFields,
        packet: &[u8],
    ) {
        let late = self.arrivals.push(ArrivedPacket { at: came, identity, fields });
        self.known.store.insert(came, identity, prefix::emit(identity, fields), packet);
        if let Some((seq, arrival)) = late {
            self.stats.late += 1;
            self.measurement.arrived(seq);
            self.arrived(now, seq, arrival);
            self.repairs.known(seq, &self.known);
            self.deliver(now);
        }
    }

    /// Copies, in their form at arrival, of recent packets to `slice` that were not named; each
    /// with its time of arrival, oldest first. At most the [`MAX_HANDED_OVER`] newest packets.
    pub(super) fn unmatched(&self, now: Instant, slice: &IpNet) -> Vec<(Instant, Vec<u8>)> {
        let copy = |arrival: ArrivedPacket| {
            let (.., packet) = prefix::parse(self.known.store.get(arrival.identity)?)?;
            let header = Header::parse(packet).ok()?;
            if !slice.contains(&header.destination) {
                return None;
            }
            let mut packet = packet.to_vec();
            ip::restore(&mut packet, arrival.fields);
            Some((arrival.at, packet))
        };
        let mut newest: Vec<_> =
            self.arrivals.unmatched(now).filter_map(copy).take(MAX_HANDED_OVER).collect();
        newest.reverse();
        newest
    }

    /// Expands a number that was truncated to its low 32 bits.
    fn number(&self, truncated: u64) -> Seq {
        /// Difference above which numbers belong to another run of the peer.
        const RUN: u64 = 1 << 30;
        let next = self.known.ledger.next();
        let is_stale = next == 0 || next.abs_diff(self.told) > RUN;
        expand(truncated as u32, if is_stale { self.told } else { next })
    }

    /// Makes room for numbers up to `last`; returns false if `first` has settled already. If the
    /// numbers jump back, the peer has restarted with a clock that was set back, and the earlier
    /// numbers are forgotten.
    fn reach(&mut self, first: Seq, last: Seq) -> bool {
        let next = self.known.ledger.next();
        let is_open = self.known.ledger.reach(first, last);
        if self.known.ledger.next() < next {
            self.arrivals.aligner.restart();
        }
        is_open
    }

    /// Records that packet `seq` has arrived or was recovered. A recovery that took longer than
    /// flows can wait is a visible loss.
    fn here(&mut self, now: Instant, seq: Seq) {
        if self.needs.here(now, seq) {
            self.measurement.path.visible(now, self.needs.times.wait);
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
            let sent = self.arrivals.as_sent(fields);
            self.known.store.amend(identity, prefix::emit(identity, sent));
            self.injection.syns.unaltered(identity);
        }
    }

    /// Handles a repair, or a part of one. The first number of the repair is truncated to its low
    /// 32 bits.
    pub(super) fn handle_repair(&mut self, now: Instant, repair: Repair<'_>, part: Part) {
        let cover = Cover { first: self.number(repair.cover.first), ..repair.cover };
        let repair = Repair { cover, ..repair };
        if let Some(body) = self.repairs.complete(repair, part, self.known.ledger.next()) {
            self.decode(now, Repair { body: &body, ..repair });
        }
    }

    /// Handles copies of packets. The packet of a copy may already have arrived, or may not have
    /// been named yet.
    pub(super) fn handle_copies(&mut self, now: Instant, copies: &Copies<'_>) {
        let first = self.number(copies.first);
        for (seq, packet) in (first..).zip(copies.packets().flatten()) {
            self.stats.copies += 1;
            let next = self.known.ledger.next();
            let is_far = seq >= next.saturating_add(MAX_AHEAD);
            if self.in_the_dark(now, seq, seq)
                || next == 0
                || is_far
                || self.known.is_here(seq)
                || !self.reach(seq, seq)
            {
                self.stats.useless_copies += 1;
                continue;
            }
            if seq > next {
                self.needs.unnamed.passed(now, next, seq - 1);
            }
            self.accept(now, seq, self.key.name(packet), Some(copies.fields), packet);
            self.repairs.known(seq, &self.known);
            self.deliver(now);
        }
    }

    /// Decodes the waiting repairs whose packets have all been named in the meantime.
    fn decode_waiting(&mut self, now: Instant) {
        let next = self.known.ledger.next();
        while let Some(waiting) = self.repairs.take_ready(next) {
            self.decode(now, waiting.repair());
        }
    }

    fn decode(&mut self, now: Instant, repair: Repair<'_>) {
        let is_dark = self.in_the_dark(now, repair.cover.first, repair.cover.last());
        self.repairs.decode(repair, is_dark, &self.known, &mut self.stats);
        self.deliver(now);
    }

    /// Time of the next deadline: to release a recovered packet, or to count or request packets.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let timers = [
            self.injection.hold.poll_timeout(),
            self.measurement.path.losses.due(),
            self.needs.due(&self.repairs),
        ];
        timers.into_iter().flatten().min()
    }

    /// Counts packets that have been missing for long enough as lost; returns the next request to
    /// the peer.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Option<Need> {
        self.measurement.path.losses.settle(now);
        self.needs.next(now, &self.known, &self.repairs)
    }

    /// Housekeeping; to be called a few times a second.
    pub(super) fn tick(&mut self, now: Instant) {
        self.known.ledger.tick(now);
        self.injection.hold.tick(now);
        self.measurement.tick(now);
        let floor = self.known.ledger.floor();
        if self.needs.expire(now, floor) {
            self.measurement.path.visible(now, self.needs.times.wait);
        }
        self.repairs.tick(&self.stats, floor);
        self.arrivals.forget(now, floor);
        self.others = self.arrivals.memory() + self.measurement.memory();
    }

    /// Returns whether [`Receiver::tick`] has nothing to do until packets or names arrive.
    pub(super) fn is_idle(&self) -> bool {
        self.known.ledger.is_settled()
            && self.injection.hold.is_idle()
            && self.needs.is_empty()
            && self.arrivals.is_empty()
            && self.measurement.is_idle()
            && self.repairs.in_flight.is_idle()
    }

    /// Returns whether packets from `first` to `last` may have been missed by the tap.
    fn in_the_dark(&mut self, now: Instant, first: Seq, last: Seq) -> bool {
        self.blindness.covers(now, (first, last), self.known.ledger.floor())
    }

    /// Verifies the identities of recovered packets, and accepts the packets whose identity is
    /// correct.
    fn deliver(&mut self, now: Instant) {
        let Some(recovered) = self.repairs.take_recovered() else { return };
        for (seq, symbol) in recovered.iter() {
            match prefix::parse(symbol) {
                Some((identity, fields, packet)) if self.key.name(packet) == identity => {
                    self.accept(now, seq, identity, fields, packet);
                }
                // An empty symbol stands for a packet that is in no repair.
                _ if symbol.is_empty() => {}
                _ => self.stats.garbled += 1,
            }
        }
        self.repairs.reuse(recovered);
    }

    /// Accepts packet `seq`, which was recovered with the correct identity. The packet is held, and
    /// injected if it does not arrive during the hold.
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
        (row.tag, row.identity) = (identity.tag(), identity);
        if self.arrivals.find(seq, identity) {
            // The packet has arrived: its name was lost, or it was mistaken for missing.
            row.state = State::Arrived;
            self.here(now, seq);
            return;
        }
        row.fields = fields.unwrap_or(self.arrivals.usual_fields);
        row.state = State::Recovered;
        let sent = prefix::emit(identity, row.fields);
        self.known.store.insert(now, identity, sent, packet);
        self.injection.hold.push(now, seq, identity, self.known.due(seq));
        self.here(now, seq);
    }

    /// Injects recovered packets whose hold has ended.
    pub(super) fn release(&mut self, now: Instant, sites: &Sites, inject: &mut Outbox) {
        let Receiver { key, known, needs, injection, stats, .. } = self;
        let target = Target { key, sites, rtt: needs.times.rtt };
        injection.release(now, known, &target, stats, inject);
    }
}

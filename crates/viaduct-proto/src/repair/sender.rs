//! Sending side towards one peer: numbers and names each packet, feeds the encoder, and frames
//! its repairs.

use std::collections::VecDeque;

use super::auto::Leaving;
use super::bundle::{Bundle, Channel};
use super::classes::{Repairs, Treatment};
use super::coder::Coder;
use super::control::Report;
use super::control::queue::micros;
use super::identity::IdentityKey;
use super::names::Names;
use super::prefix;
use super::section::{
    self, COPIES_OVERHEAD, COPY_OVERHEAD, Name, Need, Part, REPAIR_HEAD, SECTION_HEAD,
};
use super::stats::SenderStats;
use crate::fec::{Repair, Seq};
use crate::time::{Duration, Instant};
use crate::upgrade::ControlRecord;
use crate::wire::ip;

/// Age at which a packet or a name is no longer requested: the peer forgets a missing packet after
/// a second, and a request takes up to half a round trip.
const REQUESTED_WITHIN: Duration = Duration::from_secs(2);

pub(super) struct Sender {
    pub(super) coder: Coder,
    flush_after: Duration,
    longest: usize,
    names: Names,
    bundle: Bundle,
    /// Time of the last packet, and the next flush stage.
    idle: Option<(Instant, usize)>,
    /// Number of the next packet at recent times, oldest first.
    marks: VecDeque<(Instant, Seq)>,
    /// Bytes of memory held, apart from packets kept for requests, at the last [`Sender::tick`].
    others: usize,
    pub(super) stats: SenderStats,
}

pub(super) struct Plan {
    pub(super) coder: Coder,
    pub(super) flush_after: Duration,
    /// Longest packet that is encoded, in bytes.
    pub(super) longest: usize,
    /// MTU of the path to the peer's gateway.
    pub(super) mtu: usize,
}

impl Sender {
    pub(super) fn new(plan: Plan) -> Self {
        Sender {
            names: Names::new(plan.coder.next_seq(), plan.coder.manner()),
            coder: plan.coder,
            flush_after: plan.flush_after,
            longest: plan.longest,
            bundle: Bundle::new(plan.mtu),
            idle: None,
            marks: VecDeque::new(),
            others: 0,
            stats: SenderStats::default(),
        }
    }

    /// Evaluates the acknowledgement in a packet from the peer's site, including the duplicates
    /// that the acknowledgement reports (DSACK).
    pub(super) fn overhear(&mut self, now: Instant, packet: &[u8]) {
        if let Coder::Auto(auto) = &mut self.coder {
            auto.overhear(now, packet);
        }
    }

    /// Handles the peer's report on the path to the peer.
    pub(super) fn handle_report(&mut self, now: Instant, report: Report, rtt: Option<Duration>) {
        self.coder.handle_report(now, report, rtt);
        if let Some(pace) = self.coder.pace() {
            self.names.spread(pace);
        }
    }

    /// Sets whether messages leave over a path other than that of the packets.
    pub(super) fn set_other_path(&mut self, is_other: bool) {
        if let Coder::Auto(auto) = &mut self.coder {
            auto.has_other_path = is_other;
        }
    }

    /// Handles drops by this host's own queue in front of the link.
    pub(super) fn handle_own_drops(&mut self, now: Instant) {
        if let Coder::Auto(auto) = &mut self.coder {
            auto.controller.room.handle_drops(now);
        }
    }

    /// Sends repairs or names that the peer has requested.
    pub(super) fn answer(&mut self, now: Instant, need: Need, channel: &mut Channel<'_>) {
        let Sender { coder: Coder::Auto(auto), names, bundle, stats, .. } = self else { return };
        let before = stats.repairs;
        if need.repairs == 0 {
            if auto.may_name() {
                let bytes = names.answer(need, bundle, channel) + bundle.send(channel);
                stats.repair_bytes += bytes as u64;
            }
            return;
        }
        auto.answer(now, need, &mut frame(names, bundle, stats, channel));
        self.stats.repair_bytes += self.bundle.send(channel) as u64;
        self.stats.answered += self.stats.repairs - before;
    }

    /// Bytes of memory held.
    pub(super) fn held(&self) -> usize {
        self.sheddable() + self.others
    }

    /// Bytes of memory held for packets that the peer may request, which [`Sender::shed`] frees.
    pub(super) fn sheddable(&self) -> usize {
        self.coder.kept()
    }

    /// Frees the memory of the oldest kept packets.
    pub(super) fn shed(&mut self) {
        if let Coder::Auto(auto) = &mut self.coder {
            auto.shed();
        }
    }

    /// Housekeeping; to be called a few times a second while there is traffic. Forgets packets and
    /// names that are too old to be requested.
    pub(super) fn tick(&mut self, now: Instant) {
        let next = self.coder.next_seq();
        let is_old = |(at, _): &(Instant, Seq)| now.since(*at) >= REQUESTED_WITHIN;
        while let Some((_, seq)) = self.marks.front().copied().filter(is_old) {
            self.marks.pop_front();
            self.names.forget_below(seq);
            if let Coder::Auto(auto) = &mut self.coder {
                auto.forget_below(seq);
            }
        }
        let last = self.marks.back().map_or(self.names.oldest(), |(_, seq)| *seq);
        if last != next {
            self.marks.push_back((now, next));
        }
        self.others = self.coder.memory() + self.names.memory() - self.sheddable();
    }

    /// Returns whether [`Sender::tick`] has nothing to do until packets leave.
    pub(super) fn is_idle(&self) -> bool {
        self.marks.is_empty()
    }

    /// Sends the repairs that the current code still holds, and then changes the code.
    pub(super) fn change(&mut self, now: Instant, plan: Plan, channel: &mut Channel<'_>) {
        self.flush_all(now, channel);
        let stats = self.stats;
        *self = Sender { stats, ..Sender::new(plan) };
    }

    fn flush_all(&mut self, now: Instant, channel: &mut Channel<'_>) {
        for stage in 0..self.coder.stages() {
            self.flush(now, stage, channel);
        }
        self.name(channel);
    }

    /// Sends everything that the peer may still need, before a new process takes over.
    pub(super) fn finish(&mut self, now: Instant, channel: &mut Channel<'_>) {
        self.flush_all(now, channel);
        let Sender { coder: Coder::Auto(auto), names, bundle, stats, .. } = self else { return };
        auto.finish(now, &mut frame(names, bundle, stats, channel));
        stats.repair_bytes += bundle.send(channel) as u64;
    }

    /// Takes over from the previous process, with a new encoder.
    pub(super) fn resume(&mut self, now: Instant, plan: Plan, record: Option<&ControlRecord>) {
        let new = Sender { stats: self.stats, ..Sender::new(plan) };
        let passive = std::mem::replace(self, new).coder;
        if let (Coder::Auto(auto), Coder::Auto(passive)) = (&mut self.coder, passive) {
            auto.resume(now, *passive, record);
        }
        if let Some(pace) = self.coder.pace() {
            self.names.spread(pace);
        }
    }

    /// Counts `missed` packets that the tap missed.
    pub(super) fn miss(&mut self, missed: u64) {
        self.stats.packets += missed;
        self.stats.unprotected += missed;
    }

    /// Handles the copy of a packet that left for the peer's site at `left`. Overwrites the copy.
    /// `symbol` is a buffer that all senders share, so that it stays in the processor's cache.
    pub(super) fn handle(
        &mut self,
        (now, left): (Instant, Instant),
        key: &IdentityKey,
        (packet, symbol): (&mut [u8], &mut Vec<u8>),
        channel: &mut Channel<'_>,
    ) {
        self.stats.packets += 1;
        self.stats.bytes += packet.len() as u64;
        if packet.len() > self.longest || !channel.session.up() {
            self.stats.unprotected += 1;
            return;
        }
        let fields = ip::normalise(packet);
        let Treatment::Named(repairs, most) = self.coder.judge(now, packet, fields) else {
            self.stats.acks += 1;
            return;
        };
        let (identity, is_bare) = (key.name(packet), repairs == Repairs::None);
        let (tag, sent) = (identity.tag(), micros(left));
        let name = Name { tag, sent, ttl: fields.ttl, tos: fields.tos, is_bare };
        if self.names.is_full_before(&name) {
            self.name(channel);
        }
        let delay =
            if self.names.is_empty() { self.coder.manifest_delay(now) } else { Duration::ZERO };
        self.names.record(now, name, self.coder.is_lossy(), delay);
        symbol.clear();
        if is_bare {
            self.stats.left_alone += 1;
        } else {
            self.stats.protected += 1;
            symbol.extend(prefix::emit(identity, fields));
            symbol.extend_from_slice(packet);
        }
        let Sender { coder, names, bundle, stats, .. } = self;
        let leaving = Leaving { fields, packet, symbol, repairs, most };
        coder.push(now, leaving, &mut frame(names, bundle, stats, channel));
        self.stats.repair_bytes += self.bundle.send(channel) as u64;
        self.idle = (self.coder.stages() > 0).then_some((now, 0));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let flush = self.idle.map(|(since, stage)| since + self.flush_after * (stage as u32 + 1));
        [flush, self.names.due, self.coder.copies_due()].into_iter().flatten().min()
    }

    /// Sends what is due: after a pause in the traffic the repairs that are incomplete, one stage
    /// at a time; copies; and names.
    pub(super) fn handle_timeout(&mut self, now: Instant, channel: &mut Channel<'_>) {
        while let Some((since, stage)) = self.idle
            && since + self.flush_after * (stage as u32 + 1) <= now
        {
            self.flush(now, stage, channel);
            let more = stage + 1 < self.coder.stages();
            self.idle = more.then_some((since, stage + 1));
        }
        if self.coder.copies_due().is_some_and(|due| due <= now) {
            self.copy(now, channel);
        }
        if self.names.due.is_some_and(|due| due <= now) {
            self.name(channel);
        }
    }

    /// Sends the copies that are due, preceded by the names that have not been sent, and then the
    /// requested repairs whose turn it is.
    fn copy(&mut self, now: Instant, channel: &mut Channel<'_>) {
        let Sender { coder: Coder::Auto(auto), names, bundle, stats, .. } = self else { return };
        let mut bytes = names.leave(bundle, channel, auto.controller.is_bursty());
        let (room, mut long) = (bundle.room(channel), Vec::new());
        auto.copy(now, room, |group| {
            let each = group.iter().map(|of| COPY_OVERHEAD + of.packet.len()).sum::<usize>();
            if COPIES_OVERHEAD + each > room {
                long.push(group[0].seq);
                return;
            }
            stats.copies += group.len() as u64;
            bytes += bundle.add(channel, COPIES_OVERHEAD + each, |out| {
                let packets = group.iter().map(|of| &of.packet[..]);
                section::emit_copies(group[0].seq, group[0].fields, packets, out);
            });
        });
        // The copy of a packet of the path's maximum length does not fit in a datagram: the packet
        // is sent as a repair, which may be split into two.
        for seq in long {
            auto.repeat(seq, &mut frame(names, bundle, stats, channel));
        }
        let before = stats.repairs;
        auto.answer_waiting(now, &mut frame(names, bundle, stats, channel));
        stats.answered += stats.repairs - before;
        bytes += bundle.send(channel);
        stats.repair_bytes += bytes as u64;
    }

    fn flush(&mut self, now: Instant, stage: usize, channel: &mut Channel<'_>) {
        let before = self.stats.repairs;
        let Sender { coder, names, bundle, stats, .. } = self;
        coder.flush(now, stage, &mut frame(names, bundle, stats, channel));
        self.stats.repair_bytes += self.bundle.send(channel) as u64;
        self.stats.flushed += self.stats.repairs - before;
    }

    fn name(&mut self, channel: &mut Channel<'_>) {
        // A lost manifest hides other losses: while packets are lost, names of the last
        // manifest are repeated.
        let is_lossy = self.coder.is_lossy();
        let mut bytes = self.names.leave(&mut self.bundle, channel, is_lossy);
        bytes += self.bundle.send(channel);
        self.stats.manifests += u64::from(bytes > 0);
        self.stats.repair_bytes += bytes as u64;
    }
}

/// Frames the repairs of the encoder. A repair that does not fit in a datagram is split into two.
fn frame<'a, 'b>(
    names: &'a mut Names,
    bundle: &'a mut Bundle,
    stats: &'a mut SenderStats,
    channel: &'a mut Channel<'b>,
) -> impl FnMut(Repair<'_>) + use<'a, 'b> {
    move |repair| {
        if !channel.session.up() {
            return;
        }
        stats.repairs += 1;
        // Names are sent first: without them the repair's newest packets are unknown.
        let mut bytes = names.leave(bundle, channel, true);
        let head = SECTION_HEAD + REPAIR_HEAD;
        let room = bundle.room(channel).saturating_sub(head);
        if repair.body.len() <= room {
            bytes += bundle.add(channel, head + repair.body.len(), |out| {
                section::emit_repair(&repair, Part::Whole, out);
            });
        } else {
            let (first, rest) = repair.body.split_at(room);
            let part = |body| Repair { body, ..repair };
            bytes += bundle.add(channel, head + rest.len(), |out| {
                section::emit_repair(&part(rest), Part::Tail, out);
            });
            bytes += bundle.add(channel, head + first.len(), |out| {
                section::emit_repair(&part(first), Part::Head, out);
            });
        }
        stats.repair_bytes += bytes as u64;
    }
}

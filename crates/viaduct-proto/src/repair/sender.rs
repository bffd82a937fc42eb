//! The sending side towards one peer: numbers and names each packet, feeds the code, and frames what it fires.

use std::collections::VecDeque;

use super::align::Tag;
use super::auto::Auto;
use super::bundle::{Bundle, Channel};
use super::control;
use super::control::queue::micros;
use super::identity::IdentityKey;
use super::prefix;
use super::section::{
    self, GAP, MAX_NAMES, NAMES_OVERHEAD, Name, Need, PREFIX, Part, REPAIR_HEAD, SECTION_HEAD,
};
use super::stats::SenderStats;
use crate::fec::{Encoder, Fire, Repair, Seq};
use crate::time::{Duration, Instant};
use crate::wire::{ip, tcp_sack};

/// Packets that are named together where no repair leaves before.
const MANIFEST: usize = 64;
/// Time after which they are named though they are fewer.
const MANIFEST_DELAY: Duration = Duration::from_millis(5);
/// Longest time that a manifest waits for after its last packet: right behind one it would meet a full queue that has no
/// room since that packet, and be dropped far more often than packets are.
const MANIFEST_JITTER: u32 = 500;

pub(super) struct Sender {
    coder: Coder,
    flush_after: Duration,
    longest: usize,
    names: Names,
    bundle: Bundle,
    symbol: Vec<u8>,
    /// When the last packet came, and which flush stage is next.
    idle: Option<(Instant, usize)>,
    stats: SenderStats,
}

/// What makes repairs.
pub(super) enum Coder {
    /// A code of fixed parameters.
    Fixed(Box<dyn Encoder>),
    /// A code that follows the losses.
    Auto(Box<Auto>),
    /// Nothing does; the number of the next packet.
    Observe(Seq),
}

impl Coder {
    fn push(&mut self, now: Instant, symbol: &[u8], fire: &mut Fire<'_>) {
        match self {
            Coder::Fixed(encoder) => encoder.push(symbol, fire),
            Coder::Auto(auto) => {
                let is_tcp = symbol.get(PREFIX..).is_some_and(tcp_sack::is_tcp);
                auto.push(now, symbol, is_tcp, fire);
            }
            Coder::Observe(next) => *next += 1,
        }
    }

    fn flush(&mut self, stage: usize, fire: &mut Fire<'_>) {
        match self {
            Coder::Fixed(encoder) => encoder.flush(stage, fire),
            Coder::Auto(auto) => auto.flush(fire),
            Coder::Observe(_) => {}
        }
    }

    fn stages(&self) -> usize {
        match self {
            Coder::Fixed(encoder) => encoder.stages(),
            Coder::Auto(_) => 1,
            Coder::Observe(_) => 0,
        }
    }

    fn next_seq(&self) -> Seq {
        match self {
            Coder::Fixed(encoder) => encoder.next_seq(),
            Coder::Auto(auto) => auto.next_seq(),
            Coder::Observe(next) => *next,
        }
    }

    fn memory(&self) -> usize {
        match self {
            Coder::Fixed(encoder) => encoder.memory(),
            Coder::Auto(auto) => auto.memory(),
            Coder::Observe(_) => 0,
        }
    }
}

/// How a sender encodes.
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
            names: Names::new(plan.coder.next_seq()),
            coder: plan.coder,
            flush_after: plan.flush_after,
            longest: plan.longest,
            bundle: Bundle::new(plan.mtu),
            symbol: Vec::new(),
            idle: None,
            stats: SenderStats::default(),
        }
    }

    pub(super) fn stats(&self) -> SenderStats {
        self.stats
    }

    pub(super) fn next_seq(&self) -> Seq {
        self.coder.next_seq()
    }

    /// Time for which flows can wait for a packet, as far as that is known.
    pub(super) fn wait(&self) -> Option<Duration> {
        match &self.coder {
            Coder::Auto(auto) => Some(auto.wait()),
            Coder::Fixed(_) | Coder::Observe(_) => None,
        }
    }

    /// Takes a packet that comes from the peer's site: it may acknowledge what came twice.
    pub(super) fn overhear(&mut self, now: Instant, packet: &[u8]) {
        if let Coder::Auto(auto) = &mut self.coder
            && auto.is_lossy()
            && tcp_sack::is_dsack(packet)
        {
            auto.handle_dsack(now);
        }
    }

    /// What is known of the way to the peer and how it is answered.
    pub(super) fn control(&self) -> Option<control::State> {
        match &self.coder {
            Coder::Auto(auto) => Some(auto.state()),
            Coder::Fixed(_) | Coder::Observe(_) => None,
        }
    }

    /// Takes what the peer has told of the way to it.
    pub(super) fn handle_report(
        &mut self,
        now: Instant,
        report: control::Report,
        rtt: Option<Duration>,
    ) {
        if let Coder::Auto(auto) = &mut self.coder {
            auto.handle_report(now, report, rtt);
        }
    }

    /// Sends repairs that the peer asks for.
    pub(super) fn answer(&mut self, need: Need, channel: &mut Channel<'_>) {
        let Sender { coder: Coder::Auto(auto), names, bundle, stats, .. } = self else { return };
        let before = stats.repairs;
        auto.answer(need, &mut frame(names, bundle, stats, channel));
        self.stats.repair_bytes += self.bundle.send(channel) as u64;
        self.stats.answered += self.stats.repairs - before;
    }

    pub(super) fn memory(&self) -> usize {
        self.coder.memory() + self.names.memory()
    }

    /// Changes the code: what the old one holds leaves at once.
    pub(super) fn change(&mut self, plan: Plan, channel: &mut Channel<'_>) {
        for stage in 0..self.coder.stages() {
            self.flush(stage, channel);
        }
        self.name(channel);
        let stats = self.stats;
        *self = Sender { stats, ..Sender::new(plan) };
    }

    /// `missed` packets went by unseen.
    pub(super) fn miss(&mut self, missed: u64) {
        self.stats.packets += missed;
        self.stats.unprotected += missed;
    }

    /// Takes a copy of a packet that leaves for the peer's site. Its bytes are spoilt.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        key: &IdentityKey,
        packet: &mut [u8],
        channel: &mut Channel<'_>,
    ) {
        self.stats.packets += 1;
        self.stats.bytes += packet.len() as u64;
        if packet.len() > self.longest || !channel.session.up() {
            self.stats.unprotected += 1;
            return;
        }
        let hop = ip::normalise(packet);
        let identity = key.name(packet);
        let name = Name { tag: identity.tag(), sent: micros(now), ttl: hop.ttl, tos: hop.tos };
        if self.names.is_full_before(&name) {
            self.name(channel);
        }
        self.names.record(now, name);
        self.stats.protected += 1;
        self.symbol.clear();
        self.symbol.extend(prefix::emit(identity, hop));
        self.symbol.extend_from_slice(packet);
        let Sender { coder, names, bundle, stats, symbol, .. } = self;
        coder.push(now, symbol, &mut frame(names, bundle, stats, channel));
        self.stats.repair_bytes += self.bundle.send(channel) as u64;
        self.idle = (self.coder.stages() > 0).then_some((now, 0));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let flush = self.idle.map(|(since, stage)| since + self.flush_after * (stage as u32 + 1));
        [flush, self.names.due()].into_iter().flatten().min()
    }

    /// Fires the bins that idle traffic left unfilled, one stage at a time, and names what is not named.
    pub(super) fn handle_timeout(&mut self, now: Instant, channel: &mut Channel<'_>) {
        while let Some((since, stage)) = self.idle
            && since + self.flush_after * (stage as u32 + 1) <= now
        {
            self.flush(stage, channel);
            let more = stage + 1 < self.coder.stages();
            self.idle = more.then_some((since, stage + 1));
        }
        if self.names.due().is_some_and(|due| due <= now) {
            self.name(channel);
        }
    }

    fn flush(&mut self, stage: usize, channel: &mut Channel<'_>) {
        let before = self.stats.repairs;
        let Sender { coder, names, bundle, stats, .. } = self;
        coder.flush(stage, &mut frame(names, bundle, stats, channel));
        self.stats.repair_bytes += self.bundle.send(channel) as u64;
        self.stats.flushed += self.stats.repairs - before;
    }

    /// Sends a manifest.
    fn name(&mut self, channel: &mut Channel<'_>) {
        // A manifest that is lost hides what else is: where packets are lost, the next one repeats it.
        let repeats = matches!(&self.coder, Coder::Auto(auto) if auto.is_lossy());
        let mut bytes = self.names.leave(&mut self.bundle, channel, repeats);
        bytes += self.bundle.send(channel);
        self.stats.manifests += u64::from(bytes > 0);
        self.stats.repair_bytes += bytes as u64;
    }
}

/// Frames the repairs that the code fires. One that does not fit a datagram leaves as two.
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
        // Names first: without them the repair's newest packets are unknown.
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

/// Names that have not left, and those that left last, which are repeated once.
struct Names {
    /// Number of the first that has not left.
    first: Seq,
    fresh: Vec<Name>,
    before: VecDeque<Name>,
    /// When they leave.
    due: Option<Instant>,
}

impl Names {
    fn new(first: Seq) -> Self {
        Names { first, fresh: Vec::new(), before: VecDeque::new(), due: None }
    }

    fn memory(&self) -> usize {
        (self.fresh.capacity() + self.before.capacity()) * size_of::<Name>()
    }

    /// Whether those that have not left have to leave before another: they are many, or its gap to them is long.
    fn is_full_before(&self, name: &Name) -> bool {
        let longest = GAP.as_micros() as u32 * u32::from(u8::MAX);
        let apart = |last: &Name| name.sent.wrapping_sub(last.sent) > longest;
        self.fresh.len() >= MAX_NAMES || self.fresh.last().is_some_and(apart)
    }

    fn record(&mut self, now: Instant, name: Name) {
        let due = *self.due.get_or_insert(now + MANIFEST_DELAY);
        if self.fresh.len() + 1 == MANIFEST {
            // As random as names are.
            let jitter = u32::from(name.tag) % MANIFEST_JITTER;
            self.due = Some(due.min(now + Duration::from_micros(jitter.into())));
        }
        self.fresh.push(name);
    }

    fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Adds names to the bundle, those that left last again if they are to be repeated; bytes that left for want of
    /// room.
    fn leave(&mut self, bundle: &mut Bundle, channel: &mut Channel<'_>, repeats: bool) -> usize {
        if self.fresh.is_empty() {
            return 0;
        }
        let mut bytes = 0;
        let before = self.before.make_contiguous();
        if repeats && !before.is_empty() {
            let first = self.first - before.len() as u64;
            let len = NAMES_OVERHEAD + size_of::<Tag>() * before.len();
            bytes += bundle.add(channel, len, |out| section::emit_names(first, before, false, out));
        }
        let len = NAMES_OVERHEAD + 3 * self.fresh.len();
        let (first, fresh) = (self.first, &self.fresh);
        bytes += bundle.add(channel, len, |out| section::emit_names(first, fresh, true, out));
        self.first += self.fresh.len() as u64;
        self.before.clear();
        let many = self.fresh.len().saturating_sub(MAX_NAMES / 2);
        self.before.extend(self.fresh.drain(..).skip(many));
        self.due = None;
        bytes
    }
}

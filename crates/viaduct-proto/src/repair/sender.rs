//! The sending side towards one peer: names each packet, feeds the code, and frames what it fires.

use super::announce::positions;
use super::identity::{Identity, IdentityKey};
use super::outbox::Outbox;
use super::session::Session;
use super::stats::SenderStats;
use super::wire::{self, Announcement};
use crate::fec::{Encoder, Repair, Seq};
use crate::time::{Duration, Instant};
use crate::wire::ip::{self, Hop};

pub(super) struct Sender {
    encoder: Box<dyn Encoder>,
    names_per_repair: usize,
    flush_after: Duration,
    longest: usize,
    names: Names,
    /// When the last packet came, and which flush stage is next.
    idle: Option<(Instant, usize)>,
    stats: SenderStats,
}

/// How a sender encodes.
pub(super) struct Plan {
    pub(super) encoder: Box<dyn Encoder>,
    pub(super) names_per_repair: usize,
    pub(super) flush_after: Duration,
    /// Longest packet that is encoded, in bytes.
    pub(super) longest: usize,
    /// How far back a repair may reach, in packets.
    pub(super) span: usize,
}

/// What a repair goes out through: the session, the queue, and the bytes of the outer headers.
pub(super) struct Channel<'a> {
    pub(super) session: &'a mut Session,
    pub(super) outbox: &'a mut Outbox,
    pub(super) headers: usize,
}

impl Sender {
    pub(super) fn new(plan: Plan) -> Self {
        Sender {
            names: Names::new(plan.span),
            encoder: plan.encoder,
            names_per_repair: plan.names_per_repair,
            flush_after: plan.flush_after,
            longest: plan.longest,
            idle: None,
            stats: SenderStats::default(),
        }
    }

    pub(super) fn stats(&self) -> SenderStats {
        self.stats
    }

    pub(super) fn next_seq(&self) -> Seq {
        self.encoder.next_seq()
    }

    pub(super) fn memory(&self) -> usize {
        self.encoder.memory() + self.names.ring.len() * size_of::<(Identity, Hop)>()
    }

    /// Changes the code: what the old one holds leaves at once.
    pub(super) fn change(&mut self, plan: Plan, channel: &mut Channel<'_>) {
        for stage in 0..self.encoder.stages() {
            self.flush(stage, channel);
        }
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
        self.names.record(self.encoder.next_seq(), key.name(packet), hop);
        self.stats.protected += 1;
        let Sender { encoder, names, names_per_repair, stats, .. } = self;
        encoder.push(packet, &mut frame(names, *names_per_repair, stats, channel));
        self.idle = Some((now, 0));
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.idle.map(|(since, stage)| since + self.flush_after * (stage as u32 + 1))
    }

    /// Fires the bins that idle traffic left unfilled, one stage at a time.
    pub(super) fn handle_timeout(&mut self, now: Instant, channel: &mut Channel<'_>) {
        while let Some((since, stage)) = self.idle
            && self.poll_timeout().is_some_and(|due| due <= now)
        {
            self.flush(stage, channel);
            let more = stage + 1 < self.encoder.stages();
            self.idle = more.then_some((since, stage + 1));
        }
    }

    fn flush(&mut self, stage: usize, channel: &mut Channel<'_>) {
        let before = self.stats.repairs;
        let Sender { encoder, names, names_per_repair, stats, .. } = self;
        encoder.flush(stage, &mut frame(names, *names_per_repair, stats, channel));
        self.stats.flushed += self.stats.repairs - before;
    }
}

/// Seals each repair that the code fires into a datagram of its own.
fn frame<'a, 'b>(
    names: &'a Names,
    most: usize,
    stats: &'a mut SenderStats,
    channel: &'a mut Channel<'b>,
) -> impl FnMut(Repair<'_>) + use<'a, 'b> {
    move |repair| {
        let before = channel.outbox.bytes();
        let Channel { session, outbox, headers } = channel;
        let sealed = outbox.push_with(|out| {
            session.seal(out, |message| {
                let listed = positions(repair.row, repair.cover, most)
                    .map(|position| names.announcement(&repair, position));
                wire::emit_repair(&repair, listed, message);
            })
        });
        if sealed {
            stats.repairs += 1;
            stats.repair_bytes += (outbox.bytes() - before + *headers) as u64;
        }
    }
}

/// The names of the last packets, by number.
struct Names {
    ring: Box<[(Identity, Hop)]>,
}

impl Names {
    fn new(span: usize) -> Self {
        let len = span.next_power_of_two().max(64);
        Names { ring: vec![(Identity(0), Hop::default()); len].into_boxed_slice() }
    }

    fn place(&self, seq: Seq) -> usize {
        (seq & (self.ring.len() as u64 - 1)) as usize
    }

    fn record(&mut self, seq: Seq, identity: Identity, hop: Hop) {
        let place = self.place(seq);
        self.ring[place] = (identity, hop);
    }

    fn announcement(&self, repair: &Repair<'_>, position: u8) -> Announcement {
        let cover = repair.cover;
        let seq = cover.first + u64::from(position) * u64::from(cover.stride);
        let (identity, hop) = self.ring[self.place(seq)];
        Announcement { position, identity, hop }
    }
}

//! Model of one direction of a link: packets enter at one end, and leave at the other after a delay
//! or not at all. The model uses no clock and no socket, so the simulator runs it in virtual time
//! and the lab's emulator in real time, with the same losses for the same seed.
//!
//! ```text
//!  push(now, T, len)                                                       poll(now)
//!    │     ┌──────┐    ┌─────────┐    ┌──────┐    ┌────────────────────┐      │
//!    └────▶│ loss │───▶│  queue  │───▶│ rate │───▶│   delay ± jitter   │──────▶ Delivery<T>
//!          └──┬───┘    └────┬────┘    └──────┘    │ late ones overtaken│   copies, flipped bit
//!             ▼             ▼                     └────────────────────┘
//!          Reason::Loss  Reason::Queue   ─▶ DropRecord (ordinal numbers), LinkStats
//! ```
//!
//! A packet is numbered (from 0) as it enters, and the loss process decides once for each packet,
//! in that order: which numbers are lost depends only on the seed, not on timing. Packets that are
//! not lost wait for the transmitter (tail drop), are sent bit by bit at `rate`, and then travel
//! for `delay`. The payload type is the caller's: complete packets in the simulator, buffer numbers
//! in the emulator; the model moves it and never copies it.
//!
//! | file | contents |
//! |---|---|
//! | [`config`] | settings of a link, [`LinkConfig`], and their validation |
//! | [`text`] | these settings as one line of text: `rate=200M,delay=50ms,loss=1%x8,queue=100ms` |
//! | [`loss`] | which packets are lost: [`Loss`] |
//! | [`transmitter`] | the exact time that bits take on the wire |
//! | [`record`] | [`LinkStats`] and [`DropRecord`] |

pub mod config;
pub mod loss;
pub mod record;
pub mod text;
pub mod transmitter;

#[cfg(test)]
mod tests;

pub use config::{LinkConfig, LinkError, QueueLimit, Reorder};
pub use loss::{Loss, Trace};
pub use record::{DropRecord, Dropped, LinkStats, Reason};

use std::collections::{BTreeMap, VecDeque};

use crate::rng::Rng;
use crate::time::{Duration, Instant};
use loss::LossProcess;
use transmitter::Transmitter;

/// Separates the random stream of losses from that of everything else, so that switching on
/// jitter does not change which packets are lost.
const OTHER_STREAM: u64 = 0x9e37_79b9_7f4a_7c15;

/// Direction of a link that carries packets of type `T`. See the [module](self).
#[derive(Debug)]
pub struct Link<T> {
    config: LinkConfig,
    loss: LossProcess,
    loss_rng: Rng,
    rng: Rng,
    transmitter: Transmitter,
    waiting: VecDeque<Packet<T>>,
    waiting_bytes: u64,
    flying: VecDeque<Delivery<T>>,
    /// Packets that others overtake, by due time and number.
    late: BTreeMap<(Instant, u64), Delivery<T>>,
    last_due: Instant,
    stats: LinkStats,
    record: DropRecord,
}

/// Packet that has arrived at the far end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<T> {
    /// Item that was pushed.
    pub item: T,
    /// Length, as pushed.
    pub len: usize,
    /// Number in the order of entry, from 0.
    pub ordinal: u64,
    /// Due time; at or before the `now` of the poll.
    pub due: Instant,
    /// Number of times that the packet arrives: 1, or 2 if the link duplicated it.
    pub copies: u8,
    /// Bit that the caller must flip ([`flip_bit`]), counted from the packet's first bit; `None` if
    /// the packet is intact.
    pub flipped: Option<u32>,
}

/// Packet that was dropped on entry, returned to the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused<T> {
    /// Item that was pushed.
    pub item: T,
    /// Reason of the drop.
    pub reason: Reason,
}

impl<T> Link<T> {
    /// Creates a link that is idle at `now`; `seed` determines all its randomness. Values out of
    /// range are clamped or have no effect; [`LinkConfig::check`] reports them.
    pub fn new(config: LinkConfig, seed: u64, now: Instant) -> Self {
        Link {
            loss: LossProcess::new(&config.loss),
            loss_rng: Rng::from_seed(seed),
            rng: Rng::from_seed(seed ^ OTHER_STREAM),
            transmitter: Transmitter::new(config.rate, now),
            config,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            flying: VecDeque::new(),
            late: BTreeMap::new(),
            last_due: now,
            stats: LinkStats::default(),
            record: DropRecord::default(),
        }
    }

    /// Pushes a packet of `len` bytes (the complete IP packet). A dropped packet is returned with
    /// the reason, so that its buffer can be reused.
    pub fn push(&mut self, now: Instant, item: T, len: usize) -> Result<(), Refused<T>> {
        self.advance(now);
        match self.admit(self.has_room(now, len)) {
            Err(reason) => Err(Refused { item, reason }),
            Ok(ordinal) => {
                self.waiting_bytes += len as u64;
                self.waiting.push_back(Packet { item, len, ordinal, entered: now });
                self.advance(now);
                Ok(())
            }
        }
    }

    /// Counts a packet for which the caller had no memory, as lost or dropped by the queue.
    pub fn push_unheld(&mut self) {
        let _counted = self.admit(false);
    }

    /// Returns the next packet that has arrived by `now`, or None.
    pub fn poll(&mut self, now: Instant) -> Option<Delivery<T>> {
        self.advance(now);
        let late = self.next_is_late();
        let due = if late { self.late_due() } else { self.flying.front().map(|f| f.due) };
        if due? > now {
            return None;
        }
        let late = if late { self.late.pop_first().map(|(_, flight)| flight) } else { None };
        let flight = late.or_else(|| self.flying.pop_front())?;
        self.stats.note_delivery(&flight);
        Some(flight)
    }

    /// Time of the next poll, before which nothing arrives. None while the link is empty. With
    /// reordering, that poll may find nothing yet.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let flying = self.flying.front().map(|f| f.due);
        let waiting = self.waiting.front().map(|p| self.earliest_due(p.len));
        [flying, self.late_due(), waiting].into_iter().flatten().min()
    }

    /// Changes the settings at `now`. Packets in flight keep their due times, queued ones stay
    /// queued, and a shorter delay does not let a packet overtake an earlier one.
    pub fn set_config(&mut self, now: Instant, config: LinkConfig) {
        self.advance(now);
        if config.loss != self.config.loss {
            self.loss = LossProcess::new(&config.loss);
        }
        // The packet on the wire keeps its rate.
        self.transmitter = Transmitter::new(config.rate, self.transmitter.free_at);
        self.config = config;
        self.advance(now);
    }

    /// Counters so far.
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Takes the drops recorded since the last call, oldest first.
    pub fn take_record(&mut self) -> DropRecord {
        self.record.take()
    }

    /// Packets inside: queued and in flight.
    pub fn held(&self) -> usize {
        self.waiting.len() + self.flying.len() + self.late.len()
    }

    /// Bytes that wait for the transmitter.
    pub fn backlog(&self) -> u64 {
        self.waiting_bytes
    }

    /// Numbers the next packet and decides whether it enters.
    fn admit(&mut self, room: bool) -> Result<u64, Reason> {
        let ordinal = self.stats.sent;
        self.stats.sent += 1;
        let (reason, counter) = match (self.loss.next(&mut self.loss_rng), room) {
            (false, true) => return Ok(ordinal),
            (true, _) => (Reason::Loss, &mut self.stats.lost),
            (false, false) => (Reason::Queue, &mut self.stats.queue_dropped),
        };
        *counter += 1;
        self.record.note(ordinal, reason);
        Err(reason)
    }

    /// Returns whether a packet that enters at `now` does not have to wait, or fits in the queue.
    fn has_room(&self, now: Instant, len: usize) -> bool {
        let wait =
            self.transmitter.free_at.since(now) + self.transmitter.duration(self.waiting_bytes);
        let QueueLimit { bytes, time } = self.config.queue;
        wait.is_zero()
            || (bytes.is_none_or(|limit| self.waiting_bytes + len as u64 <= limit)
                && time.is_none_or(|limit| wait <= limit))
    }

    /// Transmits every waiting packet whose turn has come by `now`.
    fn advance(&mut self, now: Instant) {
        while self.transmitter.free_at <= now {
            let Some(packet) = self.waiting.pop_front() else { return };
            self.waiting_bytes -= packet.len as u64;
            let sent = self.transmitter.send(packet.entered, packet.len as u64);
            self.fly(sent, packet);
        }
    }

    /// Decides the fate of `packet`, which left the transmitter at `sent`.
    fn fly(&mut self, sent: Instant, packet: Packet<T>) {
        let LinkConfig { delay, jitter, reorder, duplicate, corrupt, .. } = self.config;
        let Packet { item, len, ordinal, .. } = packet;
        let due = sent + self.jittered(delay, jitter);
        let copies = 1 + u8::from(duplicate > 0.0 && self.rng.chance(duplicate));
        let flipped = (corrupt > 0.0 && self.rng.chance(corrupt))
            .then(|| pick_bit(&mut self.rng, len))
            .flatten();
        if reorder.probability > 0.0 && self.rng.chance(reorder.probability) {
            self.stats.reordered += 1;
            let due = due + reorder.extra;
            let flight = Delivery { item, len, ordinal, due, copies, flipped };
            self.late.insert((due, ordinal), flight);
        } else {
            self.last_due = self.last_due.max(due);
            let due = self.last_due;
            self.flying.push_back(Delivery { item, len, ordinal, due, copies, flipped });
        }
    }

    fn jittered(&mut self, delay: Duration, jitter: Duration) -> Duration {
        if jitter.is_zero() {
            return delay;
        }
        let span = u64::try_from(2 * jitter.as_nanos()).unwrap_or(u64::MAX - 1);
        (delay + Duration::from_nanos(self.rng.below(span + 1))).saturating_sub(jitter)
    }

    /// Earliest due time of a packet of `len` bytes that is first in the queue.
    fn earliest_due(&self, len: usize) -> Instant {
        let leaves = self.transmitter.free_at + self.transmitter.duration(len as u64);
        let due = leaves + self.config.delay.saturating_sub(self.config.jitter);
        if self.config.reorder.probability > 0.0 { due } else { due.max(self.last_due) }
    }

    fn next_is_late(&self) -> bool {
        let is_next = |late| self.flying.front().is_none_or(|flying| late < flying.due);
        self.late_due().is_some_and(is_next)
    }

    /// Due time of the first late packet.
    fn late_due(&self) -> Option<Instant> {
        self.late.keys().next().map(|&(due, _)| due)
    }
}

/// Flips bit `bit` of `packet`, counted from the first byte's highest; does nothing if there is no
/// such bit. The link chooses bits past the IP header, so that the packet still reaches its host:
/// past the first 40 bytes if the packet is longer, otherwise past the first 20.
pub fn flip_bit(packet: &mut [u8], bit: u32) {
    if let Some(byte) = packet.get_mut(bit as usize / 8) {
        *byte ^= 0x80 >> (bit % 8);
    }
}

/// Picks a bit past the IP header of a packet of `len` bytes, if there is one.
fn pick_bit(rng: &mut Rng, len: usize) -> Option<u32> {
    let header = if len > 40 { 40 } else { 20 };
    let bits = len.checked_sub(header).filter(|&left| left > 0)? as u64 * 8;
    u32::try_from(header as u64 * 8 + rng.below(bits)).ok()
}

#[derive(Debug)]
struct Packet<T> {
    item: T,
    len: usize,
    ordinal: u64,
    entered: Instant,
}

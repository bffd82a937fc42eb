//! Names of the packets that leave: collected, told, and told again.
//!
//! Without its name a packet is unknown to its receiver, and so is what each repair of it holds; where packets are
//! lost, so are datagrams with names. Names are therefore told again, once: in the next datagram, and combined with
//! those of packets that left a while before. Each of the two follows from the other, so that both ways of losing two
//! datagrams with names do no harm: one after the other, and with some between.
//!
//! ```text
//!   datagram   1      2          3          4          5
//!   names      a      b          c          d          e
//!   again      -      a ^ ..     b ^ ..     c ^ a      d ^ b      2 and 3 lost: c of 4, and b of 5
//! ```

use std::collections::VecDeque;
use std::num::NonZeroU16;

use super::bundle::{Bundle, Channel};
use super::section::{self, Form, GAP, MAX_NAMES, Manner, Name, Need};
use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// Packets that are named together where no repair leaves before, and where none does at all.
const MANIFEST: usize = 64;
const CLEAN_MANIFEST: usize = 112;
/// Time after which they are named though they are fewer: at least, and as a part of the time for
/// which flows can wait.
const MANIFEST_DELAY: Duration = Duration::from_millis(5);
const MANIFEST_PART: u32 = 8;
/// Longest time that a manifest waits for after its last packet, in microseconds: right behind one it would meet a full
/// queue that has no room since that packet, and be dropped far more often than packets are.
const MANIFEST_JITTER: u32 = 500;
/// Names that are kept for requests, and to be told again.
const MAX_PAST: usize = 4_096;
/// Distance of packets whose names are combined: twice as many as are named together, so that of two datagrams that are
/// lost one after the other each can be told from packets that are known. Where packets are few, those of this time,
/// but more than a burst takes.
const APART: NonZeroU16 = NonZeroU16::new(2 * MANIFEST as u16).unwrap();
const MIN_APART: NonZeroU16 = NonZeroU16::new(MANIFEST as u16 / 2).unwrap();
pub(super) const APART_TIME: Duration = Duration::from_millis(10);
/// Packets that are named again together, at most.
const MAX_AGAIN: u64 = MANIFEST as u64;

/// Names that have not left, and those that have, which may be told again.
pub(super) struct Names {
    /// Number of the first that has not left.
    first: Seq,
    manner: Manner,
    fresh: Vec<Name>,
    /// The last that have left, at most [`MAX_PAST`].
    past: VecDeque<Name>,
    apart: NonZeroU16,
    /// The number after the last that was told again.
    repeated: Seq,
    /// When they leave.
    due: Option<Instant>,
}

impl Names {
    /// Names of packets from number `first` on.
    pub(super) fn new(first: Seq, manner: Manner) -> Self {
        let (fresh, past) = (Vec::new(), VecDeque::new());
        Names { first, manner, fresh, past, apart: APART, repeated: first, due: None }
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        let names = self.fresh.capacity() + self.past.capacity();
        names * size_of::<Name>()
    }

    /// Whether none waits to leave.
    pub(super) fn is_empty(&self) -> bool {
        self.fresh.is_empty()
    }

    /// Takes notice of how many packets leave a second.
    pub(super) fn spread(&mut self, pace: f64) {
        let packets = (pace * APART_TIME.as_secs_f64()) as u16;
        self.apart =
            NonZeroU16::new(packets).map_or(MIN_APART, |apart| apart.clamp(MIN_APART, APART));
    }

    /// Whether those that have not left have to leave before another: they are many, or its gap to them is long.
    pub(super) fn is_full_before(&self, name: &Name) -> bool {
        let longest = GAP.as_micros() as u32 * u32::from(u8::MAX);
        let apart = |last: &Name| name.sent.wrapping_sub(last.sent) > longest;
        self.fresh.len() >= MAX_NAMES || self.fresh.last().is_some_and(apart)
    }

    /// Notes a packet; `wait` is the time for which flows can wait, if it is the first, and `is_lossy` says whether
    /// packets are being lost.
    pub(super) fn record(&mut self, now: Instant, name: Name, is_lossy: bool, wait: Duration) {
        let many = if is_lossy { MANIFEST } else { CLEAN_MANIFEST };
        let due = *self.due.get_or_insert(now + MANIFEST_DELAY.max(wait / MANIFEST_PART));
        if self.fresh.len() + 1 >= many {
            // As random as names are.
            let jitter = u32::from(name.tag) % MANIFEST_JITTER;
            self.due = Some(due.min(now + Duration::from_micros(jitter.into())));
        }
        self.fresh.push(name);
    }

    /// When they leave, at the latest.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Adds names that are asked for to the bundle, as far as they have left and are kept; bytes that left for want of
    /// room.
    pub(super) fn answer(
        &mut self,
        need: Need,
        bundle: &mut Bundle,
        channel: &mut Channel<'_>,
    ) -> usize {
        let from = need.first.max(self.oldest());
        let to = need.first.saturating_add(need.packets.into()).min(self.first);
        self.tell(from, to, Form::Again, bundle, channel)
    }

    /// Adds names to the bundle, and the last ones again if `repeats`; bytes that left for want of room.
    pub(super) fn leave(
        &mut self,
        bundle: &mut Bundle,
        channel: &mut Channel<'_>,
        repeats: bool,
    ) -> usize {
        if self.fresh.is_empty() {
            return 0;
        }
        let mut bytes = 0;
        if repeats {
            let from = self.repeated.max(self.first.saturating_sub(MAX_AGAIN)).max(self.oldest());
            let is_old = from.saturating_sub(self.apart.get().into()) >= self.oldest();
            let form = if is_old { Form::Combined(self.apart) } else { Form::Again };
            bytes += self.tell(from, self.first, form, bundle, channel);
            self.repeated = self.first;
        }
        let len = section::names_len(&self.fresh, Form::Timed);
        let (first, fresh, manner) = (self.first, &self.fresh, self.manner);
        bytes += bundle.add(channel, len, |out| {
            section::emit_names(first, fresh, Form::Timed, manner, out);
        });
        self.first += self.fresh.len() as u64;
        self.past.extend(self.fresh.drain(..));
        self.past.drain(..self.past.len().saturating_sub(MAX_PAST));
        self.due = None;
        bytes
    }

    /// Number of the oldest name that is kept.
    fn oldest(&self) -> Seq {
        self.first - self.past.len() as u64
    }

    /// Adds the names from one number to before another, which are kept, to the bundle; bytes that left for want of room.
    fn tell(
        &self,
        from: Seq,
        to: Seq,
        form: Form,
        bundle: &mut Bundle,
        channel: &mut Channel<'_>,
    ) -> usize {
        if from >= to {
            return 0;
        }
        let at = |seq: Seq| self.past[(seq - self.oldest()) as usize];
        let name = |seq| match form {
            Form::Combined(apart) => at(seq).combine(at(seq - u64::from(apart.get()))),
            Form::Timed | Form::Again => at(seq),
        };
        let names: Vec<Name> = (from..to).map(name).collect();
        let len = section::names_len(&names, form);
        bundle.add(channel, len, |out| section::emit_names(from, &names, form, self.manner, out))
    }
}

//! Names of outgoing packets: collected, sent, and repeated.
//!
//! A receiver that lacks the name of a packet cannot tell whether the packet has arrived, and must
//! treat the packet as unknown in each repair. A link that loses packets also loses datagrams with
//! names. Each name is therefore repeated once: in the next datagram, combined with the name of a
//! packet that left some time earlier. Either of the two names follows from the combination and the
//! other name, so the loss of any two datagrams with names does no harm, whether or not they are
//! consecutive.
//!
//! ```text
//!   datagram   1      2          3          4          5
//!   names      a      b          c          d          e
//!   again      -      a ^ ..     b ^ ..     c ^ a      d ^ b      2, 3 lost: 4 gives c, 5 gives b
//! ```

use std::collections::VecDeque;
use std::num::NonZeroU16;

use super::bundle::{Bundle, Channel};
use super::section::{self, Form, GAP, MAX_NAMES, Manner, Name, Need};
use crate::fec::Seq;
use crate::time::{Duration, Instant};

/// Number of packets named together on a lossy link, if no repair is sent earlier.
const MANIFEST: usize = 64;
/// Number of packets named together on a link without losses.
const CLEAN_MANIFEST: usize = 112;
/// Time after which pending names are sent even if there are fewer of them: [`MANIFEST_DELAY`], or
/// [`QUIET_DELAY`] if nothing was lost recently; in both cases at least the time for which flows
/// can wait, divided by [`MANIFEST_PART`].
const MANIFEST_DELAY: Duration = Duration::from_millis(5);
const QUIET_DELAY: Duration = Duration::from_millis(20);
const MANIFEST_PART: u32 = 8;
/// Longest random delay of a manifest after its last packet, in microseconds. A manifest sent
/// immediately after that packet would often meet a full queue that has had no time to drain, and
/// would be dropped far more often than packets are.
const MANIFEST_JITTER: u32 = 500;
/// Maximum number of sent names kept for requests and repetition.
const MAX_PAST: usize = 4_096;
/// Distance, in numbers, between packets whose names are combined: twice the number of packets that
/// are named together, so that all names in two consecutive lost datagrams follow from known names.
/// At low rates, the distance is the number of packets in [`APART_TIME`], but at least
/// [`MIN_APART`], which is longer than a usual burst.
const APART: NonZeroU16 = NonZeroU16::new(2 * MANIFEST as u16).unwrap();
const MIN_APART: NonZeroU16 = NonZeroU16::new(MANIFEST as u16 / 2).unwrap();
pub(super) const APART_TIME: Duration = Duration::from_millis(10);
/// Maximum number of names that are repeated together.
const MAX_AGAIN: u64 = MANIFEST as u64;

/// Time after which the names of packets are sent, if flows can wait for `wait`. `is_quiet`:
/// nothing was lost recently.
pub(super) fn manifest_delay(is_quiet: bool, wait: Duration) -> Duration {
    let delay = if is_quiet { QUIET_DELAY } else { MANIFEST_DELAY };
    delay.max(wait / MANIFEST_PART)
}

/// Names of outgoing packets: pending names, and sent names, which may be repeated.
pub(super) struct Names {
    /// Number of the first packet whose name has not been sent.
    first: Seq,
    manner: Manner,
    fresh: Vec<Name>,
    /// Latest names sent, at most [`MAX_PAST`].
    past: VecDeque<Name>,
    apart: NonZeroU16,
    /// Number after the last repeated name.
    repeated: Seq,
    /// Latest time at which the pending names are sent.
    pub(super) due: Option<Instant>,
}

impl Names {
    /// Creates the state of a sender whose first packet has number `first`.
    pub(super) fn new(first: Seq, manner: Manner) -> Self {
        let (fresh, past) = (Vec::new(), VecDeque::new());
        Names { first, manner, fresh, past, apart: APART, repeated: first, due: None }
    }

    pub(super) fn memory(&self) -> usize {
        let names = self.fresh.capacity() + self.past.capacity();
        names * size_of::<Name>()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.fresh.is_empty()
    }

    /// Adapts the distance of combined names to the rate of packets a second.
    pub(super) fn spread(&mut self, pace: f64) {
        let packets = (pace * APART_TIME.as_secs_f64()) as u16;
        self.apart =
            NonZeroU16::new(packets).map_or(MIN_APART, |apart| apart.clamp(MIN_APART, APART));
    }

    /// Returns whether the pending names must be sent before `name` is added: because there are too
    /// many, or because the packet of `name` left too long after the last named packet.
    pub(super) fn is_full_before(&self, name: &Name) -> bool {
        let longest = GAP.as_micros() as u32 * u32::from(u8::MAX);
        let apart = |last: &Name| name.sent.wrapping_sub(last.sent) > longest;
        self.fresh.len() >= MAX_NAMES || self.fresh.last().is_some_and(apart)
    }

    /// Adds the name of a packet. If no other name is pending, the names are sent after `delay`
    /// (see [`manifest_delay`]). `is_lossy`: packets are being lost.
    pub(super) fn record(&mut self, now: Instant, name: Name, is_lossy: bool, delay: Duration) {
        let many = if is_lossy { MANIFEST } else { CLEAN_MANIFEST };
        let due = *self.due.get_or_insert(now + delay);
        if self.fresh.len() + 1 >= many {
            // A tag is as good as a random number.
            let jitter = u32::from(name.tag) % MANIFEST_JITTER;
            self.due = Some(due.min(now + Duration::from_micros(jitter.into())));
        }
        self.fresh.push(name);
    }

    /// Adds to the bundle those of the requested names that are still kept; returns the number of
    /// bytes sent to make room.
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

    /// Adds the pending names to the bundle. If `repeats`, adds a repetition of earlier names
    /// before them. Returns the number of bytes sent to make room.
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

    /// Forgets the sent names of packets below number `seq`.
    pub(super) fn forget_below(&mut self, seq: Seq) {
        let old = seq.saturating_sub(self.oldest()).min(self.past.len() as u64);
        self.past.drain(..old as usize);
        if self.past.capacity() > 4 * self.past.len() {
            self.past.shrink_to(2 * self.past.len());
        }
    }

    /// Number of the oldest name kept.
    pub(super) fn oldest(&self) -> Seq {
        self.first - self.past.len() as u64
    }

    /// Adds to the bundle the kept names of packets `from` to `to` (exclusive); returns the number
    /// of bytes sent to make room.
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

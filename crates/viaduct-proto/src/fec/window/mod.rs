//! Sliding window code: a repair is a random combination of the last W packets, sent after
//! every few packets.
//!
//! The next repair recovers a single loss. A burst of b packets needs any b repairs, which are sent
//! while the window slides on: recovery takes time in proportion to the burst, and need not wait
//! for the end of a block.
//!
//! The repairs that will cover a packet are known when it is pushed: those sent before the packet
//! leaves the window. Each of these repairs has an open sum, to which the packet is added while it
//! is in the processor's cache. The next few repairs contain every packet, so the first of them
//! recovers a single loss. Later ones contain only a share of the packets, which is enough for the
//! rest of a burst and costs less work.
//!
//! ```text
//!   packet      1 2 3 4 5 6 7 8 9 …          W = 6, a repair after every packet: 6 open sums
//!   repair 1    ██                           █ all packets, ░ a share of them
//!   repair 2    ████
//!   repair 3    ██████
//!   repair 4    ░░██████
//!   repair 5    ░░░░██████
//!   repair 6    ░░░░░░██████
//!   repair 7      ░░░░░░██████
//! ```
//!
//! The decoder is [`Linear`](super::linear::Linear).

mod history;

use std::collections::VecDeque;
use std::fmt;

use super::sum::{MAX_PACKET, Sum};
use super::{Cover, Draw, Error, Fire, MAX_COVER, Repair, Row, Seq, Warning, kernel};
use history::History;

/// Parameters of a sliding window code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parameters {
    /// W, the minimum number of packets that a repair covers: 1 to [`MAX_COVER`]. A repair covers
    /// whole intervals between repairs, and thus often a few more. A burst of b packets is
    /// recovered if b repairs arrive before the burst leaves the window.
    pub window: u16,
    /// Number of repairs for each group of packets.
    pub repairs: u16,
    /// Number of packets in a group, over which its repairs are evenly spread: 1 or more.
    pub packets: u16,
}

/// Maximum mean number of sparse sums to which a packet is added, in addition to the dense sums.
const MAX_SHARED: u32 = 13;
/// Share of the packets that a sparse sum contains, in 256ths, if there are few such sums.
const DENSITY: u32 = 64;

impl Parameters {
    /// Repair bytes for each data byte: `repairs / packets`.
    pub fn overhead(&self) -> f64 {
        f64::from(self.repairs) / f64::from(self.packets)
    }

    /// Refuses invalid parameters. Warns if some packets are in no repair, or if there are more
    /// repairs than packets. Errors: one of the three is 0, or the window is too long.
    pub fn check(&self) -> Result<Vec<Warning>, Error> {
        let Parameters { window, repairs, packets } = *self;
        match () {
            _ if window == 0 || window > MAX_COVER => return Err(Error::NoWindow),
            _ if repairs == 0 => return Err(Error::NoRepairs),
            _ if packets == 0 => return Err(Error::NoRate),
            _ => {}
        }
        let mut warnings = Warning::if_dearer(u32::from(repairs), u32::from(packets));
        let gap = u32::from(packets).div_ceil(u32::from(repairs));
        if gap > u32::from(window) {
            warnings.push(Warning::WindowLeavesGaps { window, gap });
        }
        Ok(warnings)
    }

    /// Number of dense repairs, which are the next ones to be sent: n + 2, where n is the number of
    /// repairs sent after one packet; or n + 1 if fewer than n + 2 repairs are sent while a packet
    /// is in the window. If the first dense repair does not recover a single loss, one of the other
    /// dense ones does, hardly later than if all repairs were dense.
    fn dense(&self) -> usize {
        let per_packet = usize::from(self.repairs.div_ceil(self.packets));
        (2 + per_packet).min(self.wanted().max(1 + per_packet))
    }

    /// Number of repairs sent while a packet is in the window.
    fn wanted(&self) -> usize {
        let wanted = u32::from(self.window) * u32::from(self.repairs);
        wanted.div_ceil(u32::from(self.packets)) as usize
    }

    /// Number of open sums at any time.
    fn ahead(&self) -> usize {
        self.wanted().max(self.dense())
    }

    /// Share of the packets that sparse repairs contain, in 256ths.
    fn density(&self) -> u8 {
        let others = (self.ahead() - self.dense()).max(1) as u32;
        (256 * MAX_SHARED / others).min(DENSITY) as u8
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "window {} with {} repairs in {}", self.window, self.repairs, self.packets)
    }
}

/// Encoder of a sliding window code.
#[derive(Debug)]
pub struct Encoder {
    parameters: Parameters,
    /// Open sums, in the order in which their repairs are sent.
    ahead: VecDeque<Open>,
    spare: Vec<Sum>,
    /// Packets of the window, and older ones to answer requests.
    history: History,
    /// Minimum number of packets kept, as set by [`Encoder::keep`].
    kept: u16,
    next: Seq,
    /// Repairs due, in units of 1 / `packets`.
    owed: u32,
    /// Packets since the last flush.
    fresh: u16,
    seed: u16,
    /// Value of `next` at the last call of [`Encoder::restart`].
    restarted: Seq,
    /// True if [`push`](super::Encoder::push) sends no repairs.
    is_paused: bool,
}

/// Open sum of a repair.
#[derive(Debug)]
struct Open {
    seed: u16,
    density: u8,
    first: Seq,
    /// First packet of the dense part: the sum contains this packet and all later ones.
    dense: Seq,
    sum: Sum,
}

impl Encoder {
    /// Creates an encoder whose first packet is `first_seq`. Errors: those of
    /// [`Parameters::check`].
    pub fn new(parameters: Parameters, first_seq: Seq) -> Result<Self, Error> {
        parameters.check()?;
        let mut encoder = Encoder {
            parameters,
            ahead: VecDeque::new(),
            spare: Vec::new(),
            history: History::new(parameters.window),
            kept: 0,
            next: first_seq,
            owed: 0,
            fresh: 0,
            seed: 0,
            restarted: first_seq,
            is_paused: false,
        };
        encoder.open();
        Ok(encoder)
    }

    /// Makes [`push`](super::Encoder::push) send no repairs until the parameters are changed.
    pub fn pause(&mut self) {
        self.is_paused = true;
        self.owed = 0;
        self.spare.extend(self.ahead.drain(..).map(|open| open.sum));
    }

    /// Limits repairs to packets pushed after the previous call of this function: earlier losses
    /// need not be recovered, and repairs that cover them would delay the recovery of later losses.
    pub fn restart(&mut self) {
        let first = std::mem::replace(&mut self.restarted, self.next);
        let old = self.ahead.partition_point(|open| open.first < first);
        self.spare.extend(self.ahead.drain(..old).map(|open| open.sum));
        if !self.is_paused {
            self.open();
        }
    }

    /// Changes the parameters, starting with the next packet. Errors: those of
    /// [`Parameters::check`].
    pub fn change(&mut self, parameters: Parameters) -> Result<(), Error> {
        parameters.check()?;
        let owed = u64::from(self.owed) * u64::from(parameters.packets);
        self.owed = (owed / u64::from(self.parameters.packets)) as u32;
        (self.parameters, self.is_paused) = (parameters, false);
        self.history.resize(parameters.window.max(self.kept));
        let left = self.ahead.drain(parameters.ahead().min(self.ahead.len())..);
        self.spare.extend(left.map(|open| open.sum));
        self.open();
        Ok(())
    }

    /// Sets the number of packets that are kept, even beyond the window, for [`Encoder::combine`].
    pub fn keep(&mut self, packets: u16) {
        self.kept = packets;
        self.history.resize(self.parameters.window.max(packets));
    }

    /// Forgets the kept packets below number `seq`.
    pub fn forget_below(&mut self, seq: Seq) {
        let oldest = self.next - u64::from(self.history.len());
        self.history.forget(usize::try_from(seq.saturating_sub(oldest)).unwrap_or(usize::MAX));
    }

    /// Bytes of memory held for kept packets.
    pub fn held(&self) -> usize {
        self.history.memory()
    }

    /// Frees memory of kept packets, and forgets the oldest of them if there is no spare memory.
    pub fn shed(&mut self) {
        self.history.shed();
    }

    /// Returns whether [`push`](super::Encoder::push) sends no repairs.
    pub fn is_paused(&self) -> bool {
        self.is_paused
    }

    /// Parameters in force.
    pub fn parameters(&self) -> Parameters {
        self.parameters
    }

    /// Fires `count` repairs, each of all kept packets from `first` to `last`, or of the oldest
    /// [`MAX_COVER`] if there are more. Fires none if none of these packets is kept.
    pub fn combine(&mut self, first: Seq, last: Seq, count: usize, fire: &mut Fire<'_>) {
        let first = first.max(self.next - u64::from(self.history.len()));
        let last = last.min(self.next.wrapping_sub(1)).min(first + u64::from(MAX_COVER - 1));
        let Some(span) = last.checked_sub(first) else { return };
        let length = span as u16 + 1;
        let cover = Cover { first, stride: 1, count: length };
        let back = (self.next - first) as u16;
        let mut left = count;
        while left > 0 {
            let together = left.min(kernel::GROUP);
            left -= together;
            let draws: [Draw; kernel::GROUP] = std::array::from_fn(|_| {
                self.seed = self.seed.wrapping_add(1);
                Draw { seed: self.seed, dense: length, density: 0 }
            });
            let draws = &draws[..together];
            let mut sums: [Sum; kernel::GROUP] =
                std::array::from_fn(|_| self.spare.pop().unwrap_or_default());
            self.history.combine(back, length, first, draws, &mut sums[..together]);
            for (&draw, sum) in draws.iter().zip(&sums) {
                fire(Repair {
                    cover,
                    row: Row::Window(draw),
                    len_code: sum.len_code,
                    body: sum.bytes(),
                });
            }
            self.spare.extend(sums);
        }
    }

    /// Opens as many sums as the parameters need, and makes the next ones dense.
    fn open(&mut self) {
        let Encoder { parameters, next, .. } = *self;
        while self.ahead.len() < parameters.ahead() {
            let mut sum = self.spare.pop().unwrap_or_default();
            sum.clear();
            self.seed = self.seed.wrapping_add(1);
            let (seed, density) = (self.seed, parameters.density());
            self.ahead.push_back(Open { seed, density, first: next, dense: Seq::MAX, sum });
        }
        for open in self.ahead.iter_mut().take(parameters.dense()) {
            open.dense = open.dense.min(next);
        }
    }

    fn fire(&mut self, fire: &mut Fire<'_>) {
        let Some(open) = self.ahead.pop_front() else { return };
        let count = (self.next - open.first) as u16;
        let dense = (self.next - open.dense.max(open.first)) as u16;
        if dense > 0 {
            let cover = Cover { first: open.first, stride: 1, count };
            let row = Row::Window(Draw { seed: open.seed, dense, density: open.density });
            fire(Repair { cover, row, len_code: open.sum.len_code, body: open.sum.bytes() });
        }
        self.spare.push(open.sum);
        self.open();
    }

    /// Adds the newest packet to the open sums that contain it.
    fn add(&mut self, packet: &[u8]) {
        let mut together = Together::default();
        for open in &mut self.ahead {
            let draw = Draw { seed: open.seed, dense: 0, density: open.density };
            match draw.of(self.next, open.dense <= self.next) {
                0 => {}
                coefficient => together.add(&mut open.sum, coefficient, packet),
            }
        }
        together.finish(packet);
    }
}

/// Sums to which one call of [`kernel::mul_add_many`] adds a packet.
#[derive(Default)]
struct Together<'a> {
    sums: [&'a mut [u8]; kernel::GROUP],
    coefficients: [u8; kernel::GROUP],
    count: usize,
}

impl<'a> Together<'a> {
    fn add(&mut self, sum: &'a mut Sum, coefficient: u8, packet: &[u8]) {
        sum.buffer.grow(packet.len());
        sum.add_len(packet.len(), coefficient);
        self.sums[self.count] = sum.buffer.lines();
        self.coefficients[self.count] = coefficient;
        self.count += 1;
        if self.count == kernel::GROUP {
            self.finish(packet);
        }
    }

    fn finish(&mut self, packet: &[u8]) {
        let count = std::mem::take(&mut self.count);
        kernel::mul_add_many(&mut self.sums[..count], &[packet], &self.coefficients[..count]);
    }
}

impl Encoder {
    /// Like [`push`](super::Encoder::push), for a packet that adds at most `most` to the repairs
    /// due, in units of 1 / `packets`. An empty packet adds nothing to the repairs that cover it.
    pub fn push_at_most(&mut self, packet: &[u8], most: u16, fire: &mut Fire<'_>) {
        let Parameters { repairs, packets, .. } = self.parameters;
        debug_assert!(packet.len() <= MAX_PACKET);
        self.history.push(packet);
        self.fresh = self.fresh.saturating_add(1);
        if self.is_paused {
            self.next += 1;
            return;
        }
        if !packet.is_empty() {
            self.add(packet);
        }
        self.next += 1;
        self.owed += u32::from(repairs.min(most));
        while self.owed >= u32::from(packets) {
            self.owed -= u32::from(packets);
            self.fire(fire);
        }
        // A repair covers at most `MAX_COVER` packets, so a sum over that many is sent immediately.
        if self.ahead.front().is_some_and(|open| self.next - open.first >= u64::from(MAX_COVER)) {
            self.owed = 0;
            self.fire(fire);
        }
    }
}

impl super::Encoder for Encoder {
    fn push(&mut self, packet: &[u8], fire: &mut Fire<'_>) {
        self.push_at_most(packet, u16::MAX, fire);
    }

    /// Fires as many repairs as one group has, each over the whole window, in case a burst has
    /// dropped the last repairs. Fires none if there were no packets since the last flush.
    fn flush(&mut self, _stage: usize, fire: &mut Fire<'_>) {
        let fresh = std::mem::take(&mut self.fresh);
        if fresh > 0 {
            self.owed = 0;
            let last = self.next - 1;
            let first = self.next - u64::from(self.history.len().min(self.parameters.window));
            self.combine(first, last, usize::from(self.parameters.repairs), fire);
        }
    }

    fn stages(&self) -> usize {
        1
    }

    fn next_seq(&self) -> Seq {
        self.next
    }

    fn memory(&self) -> usize {
        let ahead = self.ahead.iter().map(|open| open.sum.buffer.memory()).sum::<usize>();
        let spare = self.spare.iter().map(|sum| sum.buffer.memory()).sum::<usize>();
        self.history.memory() + ahead + spare
    }
}

#[cfg(test)]
mod tests;

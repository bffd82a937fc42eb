//! A sliding window code: every few packets a repair goes out that is a random combination of the
//! last W packets.
//!
//! A single loss is repaired by the next repair. A burst of b packets needs b repairs, whichever;
//! they keep coming as the window slides on, so recovery takes time in proportion to the burst and
//! nothing waits for a block to end.
//!
//! ```text
//!   packet      1 2 3 4 5 6 7 8 9 …          W = 6, a repair after every 2 packets
//!   repair 1    └─┘
//!   repair 2    └─────┘
//!   repair 3    └─────────┘
//!   repair 4        └─────────┘
//! ```
//!
//! The decoder is [`Linear`](super::linear::Linear).

use std::fmt;

use super::coefficient::coefficient;
use super::sum::{Batch, Sum};
use super::{Cover, Error, Fire, Repair, Row, Seq, Warning};

/// The parameters of a sliding window code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parameters {
    /// W, the packets that a repair covers: 1 to 255. A burst of b packets is recovered if b
    /// repairs come before the window has passed it.
    pub window: u8,
    /// This many repairs …
    pub repairs: u8,
    /// … for this many packets, evenly spread: 1 to 255.
    pub packets: u8,
}

impl Parameters {
    /// Repair bytes for each data byte: `repairs / packets`.
    pub fn overhead(&self) -> f64 {
        f64::from(self.repairs) / f64::from(self.packets)
    }

    /// Refuses what cannot work, and warns of packets that no repair would cover.
    ///
    /// # Errors
    /// If any of the three is 0.
    pub fn check(&self) -> Result<Vec<Warning>, Error> {
        let Parameters { window, repairs, packets } = *self;
        match () {
            _ if window == 0 => return Err(Error::NoWindow),
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
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "window {} with {} repairs in {}", self.window, self.repairs, self.packets)
    }
}

/// A sliding window code at the sending side.
#[derive(Debug)]
pub struct Encoder {
    parameters: Parameters,
    /// Packet `seq` is at `seq % window`.
    ring: Vec<Vec<u8>>,
    /// How many packets the ring holds.
    held: u8,
    next: Seq,
    /// Repairs owed, in units of 1 / `packets`.
    owed: u16,
    /// Whether a packet has come since the last flush.
    fresh: bool,
    seed: u16,
    sum: Sum,
}

impl Encoder {
    /// An encoder whose first packet has number `first_seq`.
    ///
    /// # Errors
    /// As [`Parameters::check`].
    pub fn new(parameters: Parameters, first_seq: Seq) -> Result<Self, Error> {
        parameters.check()?;
        Ok(Encoder {
            parameters,
            ring: vec![Vec::new(); usize::from(parameters.window)],
            held: 0,
            next: first_seq,
            owed: 0,
            fresh: false,
            seed: 0,
            sum: Sum::default(),
        })
    }

    fn slot(&self, seq: Seq) -> usize {
        (seq % u64::from(self.parameters.window)) as usize
    }

    /// Fires one repair over all that the ring holds.
    fn fire(&mut self, fire: &mut Fire<'_>) {
        let cover = Cover { first: self.next - u64::from(self.held), stride: 1, count: self.held };
        let row = Row::Window { seed: self.seed };
        self.seed = self.seed.wrapping_add(1);
        let (oldest, newest) = self.ring.split_at(self.slot(cover.first));
        self.sum.clear();
        let mut batch = Batch::into_sum(&mut self.sum);
        let packets = newest.iter().chain(oldest).take(usize::from(self.held));
        for (position, packet) in packets.enumerate() {
            batch.add(packet, coefficient(row, position));
        }
        batch.finish();
        fire(Repair { cover, row, len_code: self.sum.len_code, body: self.sum.bytes() });
    }
}

impl super::Encoder for Encoder {
    fn push(&mut self, packet: &[u8], fire: &mut Fire<'_>) {
        let Parameters { window, repairs, packets } = self.parameters;
        let slot = self.slot(self.next);
        self.ring[slot].clear();
        self.ring[slot].extend_from_slice(packet);
        self.held = window.min(self.held.saturating_add(1));
        self.next += 1;
        self.owed += u16::from(repairs);
        self.fresh = true;
        while self.owed >= u16::from(packets) {
            self.owed -= u16::from(packets);
            self.fire(fire);
        }
    }

    /// Fires as many repairs as `packets` are given, so that a burst that takes the last packets
    /// is covered as one of each layer would be.
    fn flush(&mut self, _stage: usize, fire: &mut Fire<'_>) {
        if std::mem::take(&mut self.fresh) {
            self.owed = 0;
            (0..self.parameters.repairs).for_each(|_| self.fire(fire));
        }
    }

    fn stages(&self) -> usize {
        1
    }

    fn next_seq(&self) -> Seq {
        self.next
    }

    fn memory(&self) -> usize {
        self.ring.iter().map(Vec::capacity).sum::<usize>() + self.sum.buffer.memory()
    }
}

#[cfg(test)]
mod tests;

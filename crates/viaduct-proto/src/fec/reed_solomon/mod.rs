//! Reed-Solomon (r,c) over GF(2^8), the code that Maelstrom is compared with (4.4, Figure 15): a
//! block is recovered from any r of its r packets and c repairs.
//!
//! With interleave i, packets are dealt to i blocks in turn, so a burst of i * c packets drops at
//! most c of each block.
//!
//! ```text
//!   packet    1 2 3 4 5 6 7 8 9 10 …       (r=3, c=2), interleave 2
//!   block A   ●   ●   ●  ─▶ 2 repairs      row 0: the exclusive or
//!   block B     ●   ●   ●  ─▶ 2 repairs    row 1: other coefficients
//! ```
//!
//! Parities are updated as packets arrive, so the last packet of a block costs no more than the
//! others. The decoder is [`Linear`](super::linear::Linear).

use std::fmt;

use super::coefficient;
use super::sum::Sum;
use super::{Cover, Error, Fire, Repair, Row, Seq, Warning, kernel};

/// Parameters of a Reed-Solomon code. r + c is at most 256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parameters {
    /// Packets in a block: 1 to 255.
    pub r: u8,
    /// Repairs for a block: 1 to 255.
    pub c: u8,
    /// Number of blocks that are filled in turn: 1 or more.
    pub interleave: u16,
}

impl Parameters {
    /// Repair bytes for each data byte: c / r.
    pub fn overhead(&self) -> f64 {
        f64::from(self.c) / f64::from(self.r)
    }

    /// Refuses invalid parameters. Errors: if r, c or the interleave is 0, or r + c is above 256.
    pub fn check(&self) -> Result<Vec<Warning>, Error> {
        let Parameters { r, c, interleave } = *self;
        match () {
            _ if r == 0 => Err(Error::NoSources),
            _ if c == 0 => Err(Error::NoRepairs),
            _ if interleave == 0 => Err(Error::NoInterleave),
            _ if u16::from(r) + u16::from(c) > 256 => Err(Error::BlockTooLong { r, c }),
            _ => Ok(Warning::if_dearer(u32::from(c), u32::from(r))),
        }
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reed-Solomon ({},{})", self.r, self.c)?;
        if self.interleave == 1 { Ok(()) } else { write!(f, " interleave {}", self.interleave) }
    }
}

/// Reed-Solomon encoder.
#[derive(Debug)]
pub struct Encoder {
    parameters: Parameters,
    blocks: Vec<Block>,
    /// Coefficients by position, then by row.
    matrix: Vec<u8>,
    next: Seq,
    /// Block of the next packet.
    turn: usize,
}

impl Encoder {
    /// Creates an encoder whose first packet is `first_seq`. Errors: those of
    /// [`Parameters::check`].
    pub fn new(parameters: Parameters, first_seq: Seq) -> Result<Self, Error> {
        parameters.check()?;
        let Parameters { r, c, interleave } = parameters;
        let rows = |position| (0..c).map(move |row| coefficient::reed_solomon(row, position));
        Ok(Encoder {
            parameters,
            blocks: (0..interleave).map(|_| Block::new(c)).collect(),
            matrix: (0..r).flat_map(rows).collect(),
            next: first_seq,
            turn: 0,
        })
    }
}

impl super::Encoder for Encoder {
    fn push(&mut self, packet: &[u8], fire: &mut Fire<'_>) {
        let seq = self.next;
        self.next += 1;
        let block = &mut self.blocks[self.turn];
        self.turn = if self.turn + 1 == usize::from(self.parameters.interleave) {
            0
        } else {
            self.turn + 1
        };
        block.add(seq, packet, &self.matrix);
        if block.size == self.parameters.r {
            block.fire(self.parameters.interleave, &self.matrix, fire);
        }
    }

    /// Fires every partly filled block as a shorter one.
    fn flush(&mut self, _stage: usize, fire: &mut Fire<'_>) {
        for index in (self.turn..self.blocks.len()).chain(0..self.turn) {
            let block = &mut self.blocks[index];
            if block.size > 0 {
                block.fire(self.parameters.interleave, &self.matrix, fire);
            }
        }
    }

    fn stages(&self) -> usize {
        1
    }

    fn next_seq(&self) -> Seq {
        self.next
    }

    fn memory(&self) -> usize {
        self.blocks.iter().map(Block::memory).sum()
    }
}

/// Number of packets that are added to the parities at once. Each parity is then read and written
/// only once for all of these packets, which saves most of the work; but all of them except the
/// last have to be kept until then.
const TOGETHER: usize = 2;

#[derive(Debug)]
struct Block {
    first: Seq,
    /// Number of packets in the block.
    size: u8,
    parities: Vec<Sum>,
    /// Latest packets; the first `waiting` of them are not in the parities yet.
    held: [Vec<u8>; TOGETHER - 1],
    waiting: usize,
}

impl Block {
    fn new(c: u8) -> Self {
        let parities = (0..c).map(|_| Sum::default()).collect();
        Block { first: 0, size: 0, parities, held: Default::default(), waiting: 0 }
    }

    fn memory(&self) -> usize {
        let parities = self.parities.iter().map(|sum| sum.buffer.memory());
        parities.sum::<usize>() + self.held.iter().map(Vec::capacity).sum::<usize>()
    }

    fn add(&mut self, seq: Seq, packet: &[u8], matrix: &[u8]) {
        if self.size == 0 {
            self.first = seq;
        }
        let c = self.parities.len();
        let column = &matrix[usize::from(self.size) * c..][..c];
        for (parity, &coefficient) in self.parities.iter_mut().zip(column) {
            parity.buffer.grow(packet.len());
            parity.add_len(packet.len(), coefficient);
        }
        self.size += 1;
        match self.held.get_mut(self.waiting) {
            Some(slot) => {
                slot.clear();
                slot.extend_from_slice(packet);
                self.waiting += 1;
            }
            None => self.combine(Some(packet), matrix),
        }
    }

    /// Adds the held packets, and then `packet`, if any, to the parities.
    fn combine(&mut self, packet: Option<&[u8]>, matrix: &[u8]) {
        let mut packets = [&[][..]; TOGETHER];
        let waiting = self.held[..std::mem::take(&mut self.waiting)].iter().map(Vec::as_slice);
        let mut count = 0;
        for packet in waiting.chain(packet) {
            packets[count] = packet;
            count += 1;
        }
        let c = self.parities.len();
        let columns = &matrix[(usize::from(self.size) - count) * c..][..count * c];
        for (group, parities) in self.parities.chunks_mut(kernel::GROUP).enumerate() {
            let rows = parities.len();
            let mut coefficients = [0; kernel::GROUP * TOGETHER];
            for (to, column) in coefficients.chunks_mut(rows).zip(columns.chunks(c)) {
                to.copy_from_slice(&column[group * kernel::GROUP..][..rows]);
            }
            let mut sums: [&mut [u8]; kernel::GROUP] = Default::default();
            for (to, parity) in sums.iter_mut().zip(parities) {
                *to = parity.buffer.lines();
            }
            let coefficients = &coefficients[..rows * count];
            kernel::mul_add_many(&mut sums[..rows], &packets[..count], coefficients);
        }
    }

    /// Fires the parities and starts a new block.
    fn fire(&mut self, stride: u16, matrix: &[u8], fire: &mut Fire<'_>) {
        if self.waiting > 0 {
            self.combine(None, matrix);
        }
        let cover = Cover { first: self.first, stride, count: u16::from(self.size) };
        for (row, parity) in (0..=u8::MAX).zip(&mut self.parities) {
            let row = Row::ReedSolomon { row };
            fire(Repair { cover, row, len_code: parity.len_code, body: parity.bytes() });
            parity.clear();
        }
        self.size = 0;
    }
}

#[cfg(test)]
mod tests;

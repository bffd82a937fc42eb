//! Repair bin: a partly built repair.

use crate::fec::{Cover, Fire, Repair, Row, Seq, kernel, sum::Sum};

/// Partly built repair: the exclusive or of the packets added since the bin last fired. The numbers
/// of these packets, which the paper calls the repair's recipe, form an arithmetic progression; the
/// bin stores the first number and the size.
#[derive(Debug, Default)]
pub(super) struct Bin {
    sum: Sum,
    first: Seq,
    size: u8,
    /// Size at which the bin fires next.
    target: u8,
}

impl Bin {
    /// Creates an empty bin that fires at `target` packets.
    pub(super) fn new(target: u8) -> Self {
        Bin { target, ..Bin::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.size == 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.size >= self.target
    }

    pub(super) fn memory(&self) -> usize {
        self.sum.buffer.memory()
    }

    /// Adds packet `seq`. If the bin was not empty, returns its bytes, to which the caller must add
    /// the packet, for all layers in one pass.
    pub(super) fn enter(&mut self, seq: Seq, packet: &[u8]) -> &mut [u8] {
        self.size += 1;
        self.sum.add_len(packet.len(), 1);
        if self.size == 1 {
            self.first = seq;
            self.sum.buffer.set(packet);
            return &mut [];
        }
        self.sum.buffer.grow(packet.len());
        self.sum.buffer.lines()
    }

    /// Fires the repair and empties the bin, which then fires at `target` packets.
    pub(super) fn fire(&mut self, layer: u8, stride: u16, target: u8, fire: &mut Fire<'_>) {
        fire(Repair {
            cover: Cover { first: self.first, stride, count: u16::from(self.size) },
            row: Row::Xor { layer },
            len_code: self.sum.len_code,
            body: self.sum.bytes(),
        });
        self.sum.clear();
        (self.size, self.target) = (0, target);
    }
}

/// Bins of several layers to which one packet is added in one pass.
pub(super) struct Pass<'a> {
    sums: [&'a mut [u8]; kernel::GROUP],
    count: usize,
}

impl<'a> Pass<'a> {
    pub(super) fn new() -> Self {
        Pass { sums: [&mut [], &mut [], &mut [], &mut []], count: 0 }
    }

    /// Includes the bytes of a bin, unless they are empty; at most [`kernel::GROUP`] bins.
    pub(super) fn add(&mut self, sum: &'a mut [u8]) {
        if !sum.is_empty() {
            self.sums[self.count] = sum;
            self.count += 1;
        }
    }

    pub(super) fn run(mut self, packet: &[u8]) {
        kernel::xor_each(&mut self.sums[..self.count], packet);
    }
}

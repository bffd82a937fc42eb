//! Layered interleaving (Maelstrom 4.3): a code with constant overhead, which recovers single
//! losses immediately and bursts somewhat later.
//!
//! c instances of plain parity run side by side. Layer `n` deals the packets to `I[n]` bins in
//! turn, and a bin fires when it has r packets. With interleave 1 a repair is the exclusive or of r
//! neighbours, and recovers a single loss quickly; with interleave 40 its r packets are 40 apart,
//! so a burst of 40 drops at most one packet of each bin.
//!
//! ```text
//!   packet      1  2  3  4  5  6  7  8  9 10 11 12 …         (r=3, c=2), I=(1,4)
//!   I=1         └──┴──┘  └──┴──┘  └──┴──┘  └──┴──┘           one bin
//!   I=4  bin 1  ●           ●           ●                    1 5 9
//!        bin 2     ●           ●           ●                 2 6 10
//!        bin 3        ●           ●           ●              3 7 11
//!        bin 4           ●           ●           ●           4 8 12
//! ```
//!
//! The decoder is [`Peeling`](super::peeling::Peeling), in which a packet recovered by one layer
//! helps the other layers.

mod bin;
mod parameters;

pub use parameters::Parameters;

use super::{Error, Fire, Seq, kernel};
use bin::{Bin, Pass};

/// Encoder of layered interleaving.
#[derive(Debug)]
pub struct Encoder {
    parameters: Parameters,
    layers: Vec<Layer>,
    next: Seq,
}

impl Encoder {
    /// Creates an encoder whose first packet has number `first_seq`, with the staggered start of
    /// Maelstrom 4.3.1. Errors: those of [`Parameters::check`].
    pub fn new(parameters: Parameters, first_seq: Seq) -> Result<Self, Error> {
        Self::with_start(parameters, first_seq, first_size)
    }

    fn with_start(parameters: Parameters, next: Seq, start: FirstSize) -> Result<Self, Error> {
        parameters.check()?;
        let layers = (0..=u8::MAX).zip(&parameters.interleaves);
        let layers = layers.map(|(n, &i)| Layer::new(n, i, &parameters, next, start)).collect();
        Ok(Encoder { parameters, layers, next })
    }
}

impl super::Encoder for Encoder {
    fn push(&mut self, packet: &[u8], fire: &mut Fire<'_>) {
        let seq = self.next;
        self.next += 1;
        for layers in self.layers.chunks_mut(kernel::GROUP) {
            let mut pass = Pass::new();
            for layer in layers.iter_mut() {
                pass.add(layer.enter(seq, packet, fire));
            }
            pass.run(packet);
            for layer in layers {
                if !self.parameters.delay_xors {
                    layer.fire_full(fire);
                }
                layer.advance();
            }
        }
    }

    /// Fires the partly filled bins of layer `stage`, and the full ones whose repair is delayed.
    /// The layer then restarts, staggered as at first, since otherwise all its bins would fill at
    /// the same time.
    fn flush(&mut self, stage: usize, fire: &mut Fire<'_>) {
        if let Some(layer) = self.layers.get_mut(stage) {
            layer.flush(fire);
        }
    }

    fn stages(&self) -> usize {
        self.layers.len()
    }

    fn next_seq(&self) -> Seq {
        self.next
    }

    fn memory(&self) -> usize {
        self.layers.iter().flat_map(|layer| &layer.bins).map(Bin::memory).sum()
    }
}

/// Size at which a bin first fires. The arguments are the bin's number x (from 1), the layer's
/// interleave i, and r.
type FirstSize = fn(u16, u16, u8) -> u8;

/// Staggered start: x mod r, where 0 means r. In a layer with fewer bins than r, the sizes are
/// spread evenly: (x mod r) * r/i, rounded, with ties rounded down as in the paper's example (r =
/// 5, i = 4: the first bin fires at 1, the second at 2).
fn first_size(x: u16, i: u16, r: u8) -> u8 {
    let (x, i, r) = (u32::from(x), u32::from(i), u32::from(r));
    let size = if i >= r { x % r } else { (2 * (x % r) * r + i - 1) / (2 * i) };
    // 0 to r, which fits a byte.
    if size == 0 { r as u8 } else { size as u8 }
}

/// Layer of `interleave` bins, to which the packets are dealt in turn.
#[derive(Debug)]
struct Layer {
    number: u8,
    interleave: u16,
    r: u8,
    first_size: FirstSize,
    /// Bin x, from 1, at index x - 1.
    bins: Vec<Bin>,
    /// Index of the next packet's bin.
    turn: usize,
}

impl Layer {
    /// Creates a layer. Packet x goes to bin x mod i, where 0 means i; the first packet is `next`.
    fn new(
        number: u8,
        interleave: u16,
        parameters: &Parameters,
        next: Seq,
        first_size: FirstSize,
    ) -> Self {
        let i = u64::from(interleave);
        let turn = ((next % i + i - 1) % i) as usize;
        let r = parameters.r;
        let bins = (1..=interleave).map(|x| Bin::new(first_size(x, interleave, r))).collect();
        Layer { number, interleave, r, first_size, bins, turn }
    }

    /// Adds the next packet, `seq`, to its bin; fires a delayed repair of the bin first.
    fn enter(&mut self, seq: Seq, packet: &[u8], fire: &mut Fire<'_>) -> &mut [u8] {
        self.fire_full(fire);
        self.bins[self.turn].enter(seq, packet)
    }

    /// Moves on to the next bin.
    fn advance(&mut self) {
        self.turn += 1;
        if self.turn == self.bins.len() {
            self.turn = 0;
        }
    }

    /// Fires the current bin if it is full.
    fn fire_full(&mut self, fire: &mut Fire<'_>) {
        let bin = &mut self.bins[self.turn];
        if bin.is_full() {
            bin.fire(self.number, self.interleave, self.r, fire);
        }
    }

    /// Fires all bins that are not empty, starting with the one that has waited longest.
    fn flush(&mut self, fire: &mut Fire<'_>) {
        for index in (self.turn..self.bins.len()).chain(0..self.turn) {
            let bin = &mut self.bins[index];
            if !bin.is_empty() {
                let x = index as u16 + 1;
                let target = (self.first_size)(x, self.interleave, self.r);
                bin.fire(self.number, self.interleave, target, fire);
            }
        }
    }
}

#[cfg(test)]
mod tests;

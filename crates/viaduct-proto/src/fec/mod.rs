//! Erasure codes: source packets to repairs, and back. Codes see bytes only; [`crate::repair`]
//! defines packets, authorised senders and transport.
//!
//! ```text
//!            push(packet)                      repair(repair)   known(seq)
//!   packets ────────────▶ Encoder ─▶ repairs ═══▶ Decoder ─▶ recovered packets
//!            flush(stage)                              ▲
//!                                        Sources: packets that did arrive
//! ```
//!
//! Source packets are numbered by the encoder from 1 ([`Seq`]). A repair is one linear equation
//! over GF(2^8) in the packets that it covers. The covered packets form an arithmetic progression
//! ([`Cover`]), and the repair's [`Row`] gives their coefficients. Packets have different lengths:
//! shorter ones count as padded with zeros, and the lengths are coded as well
//! ([`Repair::len_code`]), so that a recovered packet has its original length.
//!
//! | code | encoder | decoder |
//! |---|---|---|
//! | layered interleaving | [`layered`] | [`peeling`] |
//! | Reed-Solomon blocks | [`reed_solomon`] | [`linear`] |
//! | sliding window | [`window`] | [`linear`] |
//!
//! [`Code`] is the configuration of any of them; [`AnyDecoder`] decodes the repairs of all codes.
//! Encoders and decoders spend most of their time in [`kernel`]; [`analysis`] computes their
//! recovery rates.
//!
//! To change the parameters of a running stream, build another encoder that starts at the next
//! number (a [`window::Encoder`] can also change its own). A decoder needs no parameters but its
//! memory limit, since every repair states its cover.

pub mod analysis;
mod any;
mod buffer;
mod check;
mod coefficient;
pub mod kernel;
pub mod layered;
pub mod linear;
pub mod peeling;
pub mod reed_solomon;
mod sum;
#[cfg(test)]
mod testing;
pub mod window;

pub use any::{AnyDecoder, Code};
pub use check::{Error, Warning};
pub use coefficient::coefficient;

/// Number that an encoder gives a source packet; the first is 1.
pub type Seq = u64;

/// Source packets that a repair covers: `first`, `first + stride`, … , `count` of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cover {
    /// Lowest number covered.
    pub first: Seq,
    /// Distance between neighbours; 1 or more.
    pub stride: u16,
    /// Number of packets covered; 1 to [`MAX_COVER`], for layers and blocks at most 255.
    pub count: u16,
}

/// Limit of packets that a repair covers, which bounds the state of a decoder.
pub const MAX_COVER: u16 = 2_048;

impl Cover {
    /// Numbers covered, ascending.
    pub fn seqs(self) -> impl DoubleEndedIterator<Item = Seq> + ExactSizeIterator + Clone {
        (0..usize::from(self.count))
            .map(move |i| self.first.wrapping_add(i as u64 * u64::from(self.stride)))
    }

    /// Highest number covered.
    pub fn last(self) -> Seq {
        let steps = u64::from(self.count.saturating_sub(1));
        self.first.wrapping_add(steps * u64::from(self.stride))
    }
}

/// Coefficients of a repair's equation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Row {
    /// All ones: exclusive or of the packets of a bin in layer `layer` (Maelstrom 4.3).
    Xor {
        /// Index into the interleaves I, from 0.
        layer: u8,
    },
    /// Row `row` of the systematic Reed-Solomon code over the covered block.
    ReedSolomon {
        /// Parity row, from 0. Row 0 is the exclusive or.
        row: u8,
    },
    /// Random coefficients of a sliding window.
    Window(Draw),
}

/// Coefficients of a window's repair: nonzero for the newest packets and a share of the older ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Draw {
    /// Seed of this equation.
    pub seed: u16,
    /// Number of the newest packets, all of which are in the repair.
    pub dense: u16,
    /// Share of the older packets that are in the repair, in 256ths.
    pub density: u8,
}

/// Repair: an equation and its right-hand side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repair<'a> {
    /// Packets covered.
    pub cover: Cover,
    /// Coefficients of the packets.
    pub row: Row,
    /// Combination of the packets' lengths (two bytes, big-endian) with the same coefficients.
    pub len_code: [u8; 2],
    /// Combination of the packets with these coefficients; as long as the longest packet whose
    /// coefficient is not 0.
    pub body: &'a [u8],
}

/// Callback for the repairs that an encoder fires.
pub type Fire<'a> = dyn FnMut(Repair<'_>) + 'a;

/// Encoder of a code, at the sending side.
pub trait Encoder: Send {
    /// Adds the next source packet. Its number is one above that of the previous packet; the first
    /// packet has the number that the encoder was built with. Passes each repair to `fire` as soon
    /// as it is ready.
    fn push(&mut self, packet: &[u8], fire: &mut Fire<'_>);

    /// Fires incomplete repairs when traffic has paused. The stages, 0 to [`Encoder::stages`] - 1,
    /// are flushed in order and at intervals, so that one burst cannot drop the repairs of every
    /// layer. A code without layers has one stage.
    fn flush(&mut self, stage: usize, fire: &mut Fire<'_>);

    /// Number of stages of [`Encoder::flush`].
    fn stages(&self) -> usize;

    /// Number of the next packet.
    fn next_seq(&self) -> Seq;

    /// Memory held, in bytes.
    fn memory(&self) -> usize;
}

/// Source packets known at the decoding side.
pub trait Sources {
    /// Bytes of packet `seq`, if it has arrived or was recovered.
    fn get(&self, seq: Seq) -> Option<&[u8]>;
}

/// Result of handling a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing new: every packet in the repair is known, or the repair follows from stored ones.
    Useless,
    /// At least one packet was recovered.
    Used,
    /// Stored until more packets or repairs arrive.
    Stored,
    /// Dropped: the equation is impossible, or does not fit the decoder's memory limit.
    Refused,
}

/// Decoder of a code, at the receiving side. The caller stores recovered packets, so that
/// [`Sources`] contains them at the next call. A call returns only when nothing more can be
/// recovered.
pub trait Decoder: Send {
    /// Handles a repair. Each packet that it makes recoverable is appended to `out`.
    fn repair(&mut self, repair: Repair<'_>, from: &dyn Sources, out: &mut Recovered) -> Verdict;

    /// Handles the late arrival of packet `seq`, which an earlier repair found missing.
    fn known(&mut self, seq: Seq, sources: &dyn Sources, recovered: &mut Recovered);

    /// Forgets the repairs that cover only packets below `seq`; [`linear`] forgets the equations
    /// whose unknown packets are all below `seq`.
    fn forget_below(&mut self, seq: Seq);

    /// Bytes of memory held now.
    fn memory(&self) -> usize;
}

/// Recovered packets, in order of recovery. Reused between calls.
#[derive(Debug, Default)]
pub struct Recovered {
    bytes: Vec<u8>,
    packets: Vec<(Seq, usize, usize)>,
}

impl Recovered {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends packet `seq`.
    pub fn push(&mut self, seq: Seq, packet: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(packet);
        self.packets.push((seq, start, self.bytes.len()));
    }

    /// Bytes of packet `seq`, if it is in the list.
    pub fn get(&self, seq: Seq) -> Option<&[u8]> {
        self.iter().find(|(s, _)| *s == seq).map(|(_, bytes)| bytes)
    }

    /// Packets in order of recovery.
    pub fn iter(&self) -> impl Iterator<Item = (Seq, &[u8])> {
        self.packets.iter().map(|&(seq, from, to)| (seq, &self.bytes[from..to]))
    }

    /// Packet at `index` in the order of recovery, from 0.
    pub fn nth(&self, index: usize) -> Option<(Seq, &[u8])> {
        self.packets.get(index).map(|&(seq, from, to)| (seq, &self.bytes[from..to]))
    }

    /// Number of packets.
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns whether there are no packets.
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Removes all packets, keeping the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.packets.clear();
    }
}

//! Linear equation in unknown packets.

use crate::fec::coefficient::coefficient;
use crate::fec::kernel;
use crate::fec::kernel::gf::{inverse, mul};
use crate::fec::sum::{Batch, Sum};
use crate::fec::{Recovered, Repair, Seq, Sources};

/// Limit of the distance between the first and the last unknown packet of an equation: far above
/// the number of packets that an encoder keeps, and equal to the number that a receiver's ledger
/// covers.
pub(super) const MAX_SPAN: usize = 1 << 16;

/// `coefficient * packet + … = sum`.
///
/// While a path is down, hundreds of packets in a row are unknown. The coefficients are therefore
/// stored as a row of bytes, which the kernels combine like packets, instead of a list of terms.
#[derive(Debug)]
pub(super) struct Equation {
    /// Packet of the first coefficient.
    base: Seq,
    /// Coefficients of consecutive packets; 0 for those that are not in the equation. Empty if
    /// the repair had no unknown packet.
    coefficients: Vec<u8>,
    /// Indices of the first and the last coefficient that are not 0.
    ends: (usize, usize),
    /// Number of coefficients that are not 0.
    unknowns: usize,
    sum: Sum,
}

impl Equation {
    /// Reduces `repair` to the packets that `sources` does not have; `None` if the repair is
    /// garbled: shorter than a known packet that it covers, or its unknown packets are too far
    /// apart.
    pub(super) fn of(repair: &Repair<'_>, sources: &dyn Sources) -> Option<Self> {
        let (mut known, mut base, mut coefficients) = (Vec::new(), 0, Vec::new());
        for (seq, at) in repair.cover.seqs().zip(0..) {
            let coefficient = coefficient(repair.row, repair.cover, at);
            if coefficient == 0 {
                continue;
            }
            match sources.get(seq) {
                Some(packet) if packet.len() > repair.body.len() => return None,
                Some(packet) => known.push((packet, coefficient)),
                None => {
                    if coefficients.is_empty() {
                        base = seq;
                    }
                    let index = usize::try_from(seq - base).ok().filter(|at| *at < MAX_SPAN)?;
                    coefficients.resize(index + 1, 0);
                    coefficients[index] = coefficient;
                }
            }
        }
        // The first and the last coefficient are not 0.
        let (ends, unknowns) = ((0, coefficients.len().saturating_sub(1)), count(&coefficients));
        let mut equation = Equation { base, coefficients, ends, unknowns, sum: Sum::default() };
        if equation.unknowns > 0 {
            equation.sum = Sum::of(repair);
            let mut batch = Batch::into_sum(&mut equation.sum);
            for (packet, coefficient) in known {
                batch.add(packet, coefficient);
            }
            batch.finish();
        }
        Some(equation)
    }

    /// Moves the ends inwards, to coefficients that are not 0. Frees memory if the row has become
    /// short.
    fn trim(&mut self) {
        let row = self.row();
        let first = row.iter().position(|coefficient| *coefficient != 0).unwrap_or(0);
        let last = row.iter().rposition(|coefficient| *coefficient != 0).unwrap_or(0);
        self.ends = (self.ends.0 + first, self.ends.0 + last);
        if self.row().len() < self.coefficients.capacity() / 4 {
            let row = self.row().to_vec();
            self.base += self.ends.0 as Seq;
            (self.ends, self.coefficients) = ((0, row.len() - 1), row);
        }
    }

    /// Coefficients from the first to the last that is not 0.
    fn row(&self) -> &[u8] {
        self.coefficients.get(self.ends.0..=self.ends.1).unwrap_or_default()
    }

    /// Unknown packets, ascending.
    pub(super) fn unknowns(&self) -> impl Iterator<Item = Seq> {
        // The zip ends with the coefficients, before it takes a number after the last one, which
        // may overflow.
        let all = self.coefficients.iter().zip(self.base..);
        all.filter(|(coefficient, _)| **coefficient != 0).map(|(_, seq)| seq)
    }

    /// Lowest unknown packet.
    pub(super) fn first(&self) -> Option<Seq> {
        (self.unknowns > 0).then_some(self.base + self.ends.0 as Seq)
    }

    /// Highest unknown packet; 0 if there is none.
    pub(super) fn last(&self) -> Seq {
        if self.unknowns > 0 { self.base + self.ends.1 as Seq } else { 0 }
    }

    /// Returns whether exactly one packet is unknown.
    pub(super) fn is_solved(&self) -> bool {
        self.unknowns == 1
    }

    /// Coefficient of packet `seq`; `None` if the equation has no such term.
    pub(super) fn coefficient(&self, seq: Seq) -> Option<u8> {
        let index = usize::try_from(seq.checked_sub(self.base)?).ok()?;
        self.coefficients.get(index).copied().filter(|coefficient| *coefficient != 0)
    }

    /// Memory of the equation in bytes, including its share of the table.
    pub(super) fn cost(&self) -> usize {
        self.sum.buffer.memory() + 128 + self.coefficients.capacity()
    }

    /// Adds a multiple of `other` so that `seq` cancels, if it is in both. Returns false, and
    /// changes nothing, if the unknown packets would be too far apart.
    pub(super) fn eliminate(&mut self, seq: Seq, other: &Equation) -> bool {
        let (Some(ours), Some(theirs)) = (self.coefficient(seq), other.coefficient(seq)) else {
            return true;
        };
        let (Some(own), Some(first)) = (self.first(), other.first()) else { return true };
        let (from, to) = (own.min(first), self.last().max(other.last()));
        if to - from >= MAX_SPAN as u64 {
            return false;
        }
        self.extend(from, to);
        let factor = mul(ours, inverse(theirs));
        self.sum.add_sum(&other.sum, factor);
        self.ends = ((from - self.base) as usize, (to - self.base) as usize);
        let begin = (first - self.base) as usize;
        let changed = begin..begin + other.row().len();
        // Only the changed coefficients are counted: a long row is often combined with a short one.
        self.unknowns -= count(&self.coefficients[changed.clone()]);
        kernel::mul_add(&mut self.coefficients[begin..], other.row(), factor);
        self.unknowns += count(&self.coefficients[changed]);
        self.trim();
        true
    }

    /// Makes room for coefficients from `from` to `to`, a range that includes all current ones.
    fn extend(&mut self, from: Seq, to: Seq) {
        if from < self.base || to - self.base >= MAX_SPAN as u64 {
            let mut wider = vec![0; (to - from + 1) as usize];
            let begin = (self.base + self.ends.0 as Seq - from) as usize;
            wider[begin..][..self.row().len()].copy_from_slice(self.row());
            (self.base, self.coefficients) = (from, wider);
        } else {
            let len = (to - self.base + 1) as usize;
            self.coefficients.resize(len.max(self.coefficients.len()), 0);
        }
    }

    /// Substitutes the now known `packet` for `seq`; returns false if the packet is longer than the
    /// equation, which means that the equation is garbled.
    pub(super) fn substitute(&mut self, seq: Seq, packet: &[u8]) -> bool {
        let Some(coefficient) = self.coefficient(seq) else { return true };
        self.coefficients[(seq - self.base) as usize] = 0;
        self.unknowns -= 1;
        self.trim();
        let fits = packet.len() <= self.sum.buffer.len();
        if fits {
            self.sum.add_packet(packet, coefficient);
        }
        fits
    }

    /// Appends the packet of a solved equation; returns false if its length is invalid.
    pub(super) fn emit(&self, recovered: &mut Recovered) -> bool {
        let (true, Some(seq)) = (self.is_solved(), self.first()) else { return false };
        let coefficient = self.coefficients[self.ends.0];
        let mut scaled = Sum::default();
        let sum = if coefficient == 1 {
            &self.sum
        } else {
            scaled.add_sum(&self.sum, inverse(coefficient));
            &scaled
        };
        let packet = sum.packet();
        if let Some(packet) = packet {
            recovered.push(seq, packet);
        }
        packet.is_some()
    }
}

/// Number of coefficients that are not 0.
fn count(coefficients: &[u8]) -> usize {
    // Sums of bytes, which the compiler vectorises.
    let ones = |part: &[u8]| part.iter().map(|coefficient| u8::from(*coefficient != 0)).sum::<u8>();
    coefficients.chunks(255).map(|part| usize::from(ones(part))).sum()
}

//! Linear equation in unknown packets.

use std::cmp::Ordering;

use crate::fec::coefficient::coefficient;
use crate::fec::kernel::gf::{inverse, mul};
use crate::fec::sum::{Batch, Sum};
use crate::fec::{Recovered, Repair, Seq, Sources};

/// `coefficient * packet + … = sum`.
#[derive(Debug)]
pub(super) struct Equation {
    /// Terms in ascending order; no coefficient is 0.
    terms: Vec<(Seq, u8)>,
    sum: Sum,
}

impl Equation {
    /// Reduces `repair` to the packets that `sources` does not have; `None` if the repair is
    /// garbled: shorter than a known packet that it covers.
    pub(super) fn of(repair: &Repair<'_>, sources: &dyn Sources) -> Option<Self> {
        let (mut terms, mut known) = (Vec::new(), Vec::new());
        for (seq, at) in repair.cover.seqs().zip(0..) {
            let coefficient = coefficient(repair.row, repair.cover, at);
            if coefficient == 0 {
                continue;
            }
            match sources.get(seq) {
                Some(packet) if packet.len() > repair.body.len() => return None,
                Some(packet) => known.push((packet, coefficient)),
                None => terms.push((seq, coefficient)),
            }
        }
        if terms.is_empty() {
            return Some(Equation { terms, sum: Sum::default() });
        }
        let mut sum = Sum::of(repair);
        let mut batch = Batch::into_sum(&mut sum);
        for (packet, coefficient) in known {
            batch.add(packet, coefficient);
        }
        batch.finish();
        Some(Equation { terms, sum })
    }

    /// Unknown packets and their coefficients, ascending.
    pub(super) fn terms(&self) -> &[(Seq, u8)] {
        &self.terms
    }

    /// Lowest unknown packet.
    pub(super) fn first(&self) -> Option<Seq> {
        self.terms.first().map(|&(seq, _)| seq)
    }

    /// Highest unknown packet; 0 if there is none.
    pub(super) fn last(&self) -> Seq {
        self.terms.last().map_or(0, |&(seq, _)| seq)
    }

    /// Returns whether exactly one packet is unknown.
    pub(super) fn is_solved(&self) -> bool {
        self.terms.len() == 1
    }

    /// Coefficient of packet `seq`; `None` if the equation has no such term.
    pub(super) fn coefficient(&self, seq: Seq) -> Option<u8> {
        self.index(seq).map(|index| self.terms[index].1)
    }

    /// Memory of the equation in bytes, including its share of the table.
    pub(super) fn cost(&self) -> usize {
        self.sum.buffer.memory() + 128 + 16 * self.terms.len()
    }

    /// Adds a multiple of `other` so that `seq`, which is in both, cancels.
    pub(super) fn eliminate(&mut self, seq: Seq, other: &Equation) {
        let (Some(ours), Some(theirs)) = (self.coefficient(seq), other.coefficient(seq)) else {
            return;
        };
        let factor = mul(ours, inverse(theirs));
        self.sum.add_sum(&other.sum, factor);
        self.terms = merge(&self.terms, &other.terms, factor);
    }

    /// Substitutes the now known `packet` for `seq`; returns false if the packet is longer than the
    /// equation, which means that the equation is garbled.
    pub(super) fn substitute(&mut self, seq: Seq, packet: &[u8]) -> bool {
        let Some(index) = self.index(seq) else { return true };
        let (_, coefficient) = self.terms.remove(index);
        let fits = packet.len() <= self.sum.buffer.len();
        if fits {
            self.sum.add_packet(packet, coefficient);
        }
        fits
    }

    /// Appends the packet of a solved equation; returns false if its length is invalid.
    pub(super) fn emit(&self, recovered: &mut Recovered) -> bool {
        let [(seq, coefficient)] = self.terms[..] else { return false };
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

    fn index(&self, seq: Seq) -> Option<usize> {
        self.terms.binary_search_by_key(&seq, |&(seq, _)| seq).ok()
    }
}

/// Terms of `a + factor * b`, without those that cancel; `factor` is not 0.
fn merge(mut a: &[(Seq, u8)], mut b: &[(Seq, u8)], factor: u8) -> Vec<(Seq, u8)> {
    let mut sum = Vec::with_capacity(a.len() + b.len());
    while let (Some(&x), Some(&y)) = (a.first(), b.first()) {
        let scaled = mul(factor, y.1);
        let term = match x.0.cmp(&y.0) {
            Ordering::Less => x,
            Ordering::Greater => (y.0, scaled),
            Ordering::Equal => (x.0, x.1 ^ scaled),
        };
        a = &a[usize::from(x.0 <= y.0)..];
        b = &b[usize::from(y.0 <= x.0)..];
        if term.1 != 0 {
            sum.push(term);
        }
    }
    sum.extend_from_slice(a);
    sum.extend(b.iter().map(|&(seq, coefficient)| (seq, mul(factor, coefficient))));
    sum
}

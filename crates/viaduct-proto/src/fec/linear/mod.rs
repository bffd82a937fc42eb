//! Decoder of all codes whose repairs are equations over GF(2^8): Reed-Solomon blocks and
//! sliding windows (and plain exclusive ors).
//!
//! ```text
//!   repair ─▶ subtract known packets ─▶ 5a + 7b = …  ─▶ eliminate ─▶  1a          = …  recovered
//!                                       2a + 9b = …                        1b     = …  recovered
//!                                       3b + 4d = …                             d = …  recovered
//! ```
//!
//! The equations are kept in reduced form: each has a *pivot*, an unknown packet that no other
//! equation contains. In that form a packet is determined if and only if it is the only one in its
//! equation, so every packet that can be solved is recovered immediately, even while others cannot
//! be.

mod equation;

use std::collections::BTreeMap;

use super::coefficient::row_covers;
use super::sum::plausible;
use super::{Decoder, Recovered, Repair, Seq, Sources, Verdict};
use equation::Equation;

/// Decoder for repairs of any row.
#[derive(Debug)]
pub struct Linear {
    equations: BTreeMap<Seq, Equation>,
    memory: usize,
    bound: usize,
    /// Lower bound of every equation's highest unknown packet. With this bound,
    /// [`Decoder::forget_below`] seldom needs a search.
    oldest: Seq,
}

impl Linear {
    /// Creates a decoder that holds at most `bound` bytes of equations, the newest ones.
    pub fn new(bound: usize) -> Self {
        Linear { equations: BTreeMap::new(), memory: 0, bound, oldest: Seq::MAX }
    }

    /// Number of equations held whose unknown packets are all from `first` to `last`.
    pub fn equations_within(&self, first: Seq, last: Seq) -> usize {
        // A pivot is the lowest packet of its equation.
        let begin = self.equations.range(first..).take_while(|(pivot, _)| **pivot <= last);
        begin.filter(|(_, equation)| equation.last() <= last).count()
    }

    /// Adds an equation in unknown packets only, and moves solved packets to `recovered`.
    fn insert(&mut self, mut new: Equation, recovered: &mut Recovered) -> Verdict {
        // No equation contains the pivot of another one, so eliminating one pivot does not add
        // another.
        let pivots = new.unknowns().filter(|seq| self.equations.contains_key(seq));
        for seq in pivots.collect::<Vec<_>>() {
            if self.equations.get(&seq).is_some_and(|known| !new.eliminate(seq, known)) {
                return Verdict::Refused;
            }
        }
        let Some(pivot) = new.first() else { return Verdict::Useless };
        if new.cost() > self.bound {
            return Verdict::Refused;
        }
        let mut solved = Vec::new();
        let with = self.equations.iter().filter(|(_, e)| e.coefficient(pivot).is_some());
        for seq in with.map(|(&seq, _)| seq).collect::<Vec<_>>() {
            let Some(mut equation) = self.remove(seq) else { continue };
            // An equation that would become too long is dropped.
            if equation.eliminate(pivot, &new) {
                if equation.is_solved() {
                    solved.push(seq);
                }
                self.store(seq, equation);
                self.evict(self.bound);
            }
        }
        if new.is_solved() {
            solved.push(pivot);
        }
        self.store(pivot, new);
        let verdict = self.take(&solved, recovered);
        self.evict(self.bound);
        verdict
    }

    fn store(&mut self, pivot: Seq, equation: Equation) {
        self.memory += equation.cost();
        self.oldest = self.oldest.min(equation.last());
        self.equations.insert(pivot, equation);
    }

    fn remove(&mut self, pivot: Seq) -> Option<Equation> {
        let equation = self.equations.remove(&pivot)?;
        self.memory -= equation.cost();
        Some(equation)
    }

    /// Removes the solved equations of these pivots, and recovers their packets.
    fn take(&mut self, solved: &[Seq], recovered: &mut Recovered) -> Verdict {
        let mut verdict = Verdict::Stored;
        for &pivot in solved {
            let Some(equation) = self.remove(pivot) else { continue };
            let made = recovered.get(pivot).is_none() && equation.emit(recovered);
            // A solved packet with an invalid length comes from a forged or garbled repair.
            verdict = match (made, verdict) {
                (true, _) | (_, Verdict::Used) => Verdict::Used,
                (false, _) => Verdict::Refused,
            };
        }
        verdict
    }

    /// Drops the older half of the equations, to free memory.
    pub fn shed(&mut self) {
        self.evict(self.memory / 2);
    }

    /// Drops the oldest equations until the rest, which stays reduced, has at most `bound` bytes.
    fn evict(&mut self, bound: usize) {
        while self.memory > bound {
            let oldest = self.equations.iter().min_by_key(|(_, equation)| equation.last());
            let Some((&pivot, _)) = oldest else { break };
            self.remove(pivot);
        }
    }
}

impl Decoder for Linear {
    fn repair(&mut self, repair: Repair<'_>, from: &dyn Sources, out: &mut Recovered) -> Verdict {
        if !plausible(&repair) || !row_covers(repair.row, repair.cover.count) {
            return Verdict::Refused;
        }
        match Equation::of(&repair, from) {
            None => Verdict::Refused,
            Some(equation) if equation.first().is_none() => Verdict::Useless,
            Some(equation) => self.insert(equation, out),
        }
    }

    fn known(&mut self, seq: Seq, sources: &dyn Sources, recovered: &mut Recovered) {
        let Some(packet) = sources.get(seq) else { return };
        if let Some(mut equation) = self.remove(seq) {
            // The pivot is now known, so the rest of the equation is inserted as a new one.
            if equation.substitute(seq, packet) && equation.first().is_some() {
                self.insert(equation, recovered);
            }
            return;
        }
        let with = self.equations.iter().filter(|(_, e)| e.coefficient(seq).is_some());
        let with: Vec<_> = with.map(|(&pivot, _)| pivot).collect();
        for pivot in with {
            let Some(mut equation) = self.remove(pivot) else { continue };
            if equation.substitute(seq, packet) {
                let solved = equation.is_solved();
                self.store(pivot, equation);
                if solved {
                    self.take(&[pivot], recovered);
                }
            }
        }
    }

    fn forget_below(&mut self, seq: Seq) {
        if self.oldest >= seq {
            return;
        }
        let memory = &mut self.memory;
        self.equations.retain(|_, equation| {
            let keep = equation.last() >= seq;
            if !keep {
                *memory -= equation.cost();
            }
            keep
        });
        self.oldest = self.equations.values().map(Equation::last).min().unwrap_or(Seq::MAX);
    }

    fn memory(&self) -> usize {
        self.memory
    }
}

#[cfg(test)]
mod tests;

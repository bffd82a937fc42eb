//! Every code behind one configuration, and a decoder that takes the repairs of all of them.

use std::fmt;

use super::linear::Linear;
use super::peeling::Peeling;
use super::{Decoder, Encoder, Error, Recovered, Repair, Row, Seq, Sources, Verdict, Warning};
use super::{layered, reed_solomon, window};

/// A code and its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Layered interleaving.
    Layered(layered::Parameters),
    /// Reed-Solomon blocks.
    ReedSolomon(reed_solomon::Parameters),
    /// A sliding window.
    Window(window::Parameters),
}

impl Code {
    /// Refuses what cannot work, and warns of what is unwise.
    ///
    /// # Errors
    /// As the `check` of the parameters within.
    pub fn check(&self) -> Result<Vec<Warning>, Error> {
        match self {
            Code::Layered(parameters) => parameters.check(),
            Code::ReedSolomon(parameters) => parameters.check(),
            Code::Window(parameters) => parameters.check(),
        }
    }

    /// Repair bytes for each data byte, headers apart.
    pub fn overhead(&self) -> f64 {
        match self {
            Code::Layered(parameters) => parameters.overhead(),
            Code::ReedSolomon(parameters) => parameters.overhead(),
            Code::Window(parameters) => parameters.overhead(),
        }
    }

    /// An encoder of this code whose first packet has number `first_seq`. To change the code of a
    /// running stream, flush the old encoder and give the new one its
    /// [`next_seq`](Encoder::next_seq).
    ///
    /// # Errors
    /// As [`Code::check`].
    pub fn build_encoder(&self, first_seq: Seq) -> Result<Box<dyn Encoder>, Error> {
        Ok(match self {
            Code::Layered(p) => Box::new(layered::Encoder::new(p.clone(), first_seq)?),
            Code::ReedSolomon(p) => Box::new(reed_solomon::Encoder::new(*p, first_seq)?),
            Code::Window(p) => Box::new(window::Encoder::new(*p, first_seq)?),
        })
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code::Layered(parameters) => parameters.fmt(f),
            Code::ReedSolomon(parameters) => parameters.fmt(f),
            Code::Window(parameters) => parameters.fmt(f),
        }
    }
}

/// Decodes whatever comes, so that the sender may change its code at any packet without asking:
/// exclusive ors go to [`Peeling`], other equations to [`Linear`], and each hears of what the
/// other recovers.
#[derive(Debug)]
pub struct AnyDecoder {
    peeling: Peeling,
    linear: Linear,
    fresh: Recovered,
}

impl AnyDecoder {
    /// A decoder that holds at most `bound` bytes of repairs, half of them for each kind.
    pub fn new(bound: usize) -> Self {
        let (peeling, linear) = (Peeling::new(bound / 2), Linear::new(bound / 2));
        AnyDecoder { peeling, linear, fresh: Recovered::new() }
    }

    /// Equations of windows and blocks that wait for more, all of whose packets are from `first` to
    /// `last`.
    pub fn equations_within(&self, first: Seq, last: Seq) -> usize {
        self.linear.equations_within(first, last)
    }

    /// How many repairs were given up for lack of memory.
    pub fn evicted(&self) -> u64 {
        self.peeling.evicted() + self.linear.evicted()
    }

    /// Tells both decoders of all recoveries after the first `told`, and of what follows.
    fn spread(&mut self, told: usize, sources: &dyn Sources, recovered: &mut Recovered) {
        let mut next = told;
        while let Some((seq, _)) = recovered.nth(next) {
            let both = Both { sources, recovered };
            self.peeling.known(seq, &both, &mut self.fresh);
            self.linear.known(seq, &both, &mut self.fresh);
            for (seq, packet) in self.fresh.iter() {
                if recovered.get(seq).is_none() {
                    recovered.push(seq, packet);
                }
            }
            self.fresh.clear();
            next += 1;
        }
    }
}

impl Decoder for AnyDecoder {
    fn repair(
        &mut self,
        repair: Repair<'_>,
        sources: &dyn Sources,
        recovered: &mut Recovered,
    ) -> Verdict {
        let told = recovered.len();
        let verdict = match repair.row {
            Row::Xor { .. } => self.peeling.repair(repair, sources, recovered),
            Row::ReedSolomon { .. } | Row::Window { .. } => {
                self.linear.repair(repair, sources, recovered)
            }
        };
        self.spread(told, sources, recovered);
        verdict
    }

    fn known(&mut self, seq: Seq, sources: &dyn Sources, recovered: &mut Recovered) {
        let told = recovered.len();
        self.peeling.known(seq, sources, recovered);
        self.spread(told, sources, recovered);
        let told = recovered.len();
        self.linear.known(seq, sources, recovered);
        self.spread(told, sources, recovered);
    }

    fn forget_below(&mut self, seq: Seq) {
        self.peeling.forget_below(seq);
        self.linear.forget_below(seq);
    }

    fn memory(&self) -> usize {
        self.peeling.memory() + self.linear.memory()
    }
}

/// What has arrived, and what was recovered in this call.
struct Both<'a> {
    sources: &'a dyn Sources,
    recovered: &'a Recovered,
}

impl Sources for Both<'_> {
    fn get(&self, seq: Seq) -> Option<&[u8]> {
        self.sources.get(seq).or_else(|| self.recovered.get(seq))
    }
}

#[cfg(test)]
mod tests;

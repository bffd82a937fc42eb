//! Configuration of any code, and a decoder for the repairs of all codes.

use std::fmt;

use super::linear::Linear;
use super::peeling::Peeling;
use super::{Decoder, Encoder, Error, Recovered, Repair, Row, Seq, Sources, Verdict, Warning};
use super::{layered, reed_solomon, window};

/// Code with its parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    /// Layered interleaving.
    Layered(layered::Parameters),
    /// Reed-Solomon blocks.
    ReedSolomon(reed_solomon::Parameters),
    /// Sliding window.
    Window(window::Parameters),
}

impl Code {
    /// Refuses invalid parameters, and warns of unwise ones. Errors: those of the code's own
    /// `check`.
    pub fn check(&self) -> Result<Vec<Warning>, Error> {
        match self {
            Code::Layered(parameters) => parameters.check(),
            Code::ReedSolomon(parameters) => parameters.check(),
            Code::Window(parameters) => parameters.check(),
        }
    }

    /// Repair bytes for each data byte, without headers.
    pub fn overhead(&self) -> f64 {
        match self {
            Code::Layered(parameters) => parameters.overhead(),
            Code::ReedSolomon(parameters) => parameters.overhead(),
            Code::Window(parameters) => parameters.overhead(),
        }
    }

    /// Creates an encoder of this code whose first packet has number `first_seq`. To change the
    /// code of a running stream, flush the old encoder and give the new one its
    /// [`next_seq`](Encoder::next_seq). Errors: those of [`Code::check`].
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

/// Decoder for repairs of any code, so that the sender may change its code at any packet without
/// notice: exclusive ors go to [`Peeling`], other equations to [`Linear`], and each decoder gets
/// the other's recoveries.
#[derive(Debug)]
pub struct AnyDecoder {
    peeling: Peeling,
    linear: Linear,
    fresh: Recovered,
}

impl AnyDecoder {
    /// Creates a decoder that holds at most `bound` bytes of repairs: `bound / 2` in each of its
    /// two decoders.
    pub fn new(bound: usize) -> Self {
        let (peeling, linear) = (Peeling::new(bound / 2), Linear::new(bound / 2));
        AnyDecoder { peeling, linear, fresh: Recovered::new() }
    }

    /// Number of waiting equations whose unknown packets are all from `first` to `last`. Repairs of
    /// layered codes do not count.
    pub fn equations_within(&self, first: Seq, last: Seq) -> usize {
        self.linear.equations_within(first, last)
    }

    /// Drops the older half of the repairs, to free memory.
    pub fn shed(&mut self) {
        self.peeling.shed();
        self.linear.shed();
    }

    /// Passes the recovered packets, except the first `done` of them, to both decoders, and then
    /// the packets that the decoders recover from these.
    fn spread(&mut self, done: usize, sources: &dyn Sources, recovered: &mut Recovered) {
        let mut next = done;
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
    fn repair(&mut self, repair: Repair<'_>, from: &dyn Sources, out: &mut Recovered) -> Verdict {
        let done = out.len();
        let verdict = match repair.row {
            Row::Xor { .. } => self.peeling.repair(repair, from, out),
            Row::ReedSolomon { .. } | Row::Window { .. } => self.linear.repair(repair, from, out),
        };
        self.spread(done, from, out);
        verdict
    }

    fn known(&mut self, seq: Seq, sources: &dyn Sources, recovered: &mut Recovered) {
        let done = recovered.len();
        self.peeling.known(seq, sources, recovered);
        self.spread(done, sources, recovered);
        let done = recovered.len();
        self.linear.known(seq, sources, recovered);
        self.spread(done, sources, recovered);
    }

    fn forget_below(&mut self, seq: Seq) {
        self.peeling.forget_below(seq);
        self.linear.forget_below(seq);
    }

    fn memory(&self) -> usize {
        self.peeling.memory() + self.linear.memory()
    }
}

/// Packets that have arrived, and those recovered in this call.
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

//! Outcomes that codes would have had on an observed link.
//!
//! The encoders and decoders are those used for repairs, with packets of two bytes. A repair counts
//! as lost if the next packet is lost: it would have left just before that packet.
//!
//! ```text
//!   fates of packets ─▶ encoder ─▶ repairs, lost like their neighbours ──▶ decoder ─▶ outcome
//!                          ▲                                                  │
//!                          └──── reports and requests, half a round trip ◀────┘   (auto only)
//! ```

mod feedback;
mod known;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use super::auto::Auto;
use super::control::Limits;
use crate::fec::{
    AnyDecoder, Code, Cover, Decoder as _, Encoder, Recovered, Repair, Row, Seq, Sources as _,
    layered, reed_solomon, window,
};
use crate::time::{Duration, Instant};
use feedback::Feedback;
use known::{Known, symbol};

/// Memory of each decoder, in bytes.
const DECODER: usize = 1 << 20;
/// Idle time after which incomplete repairs are sent.
const FLUSH: Duration = Duration::from_millis(8);
/// Age at which a missing packet is given up.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// Codes under trial, in the order of their numbers.
pub const TRIED: [&str; 4] = ["auto", "layered", "reed-solomon", "window"];

/// Outcome that a code would have had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Packets that left.
    pub packets: u64,
    /// Random losses among these packets.
    pub lost: u64,
    /// Lost packets that would have been recovered.
    pub recovered: u64,
    /// Recoveries within a quarter of a round trip.
    pub in_time: u64,
    /// Repairs that would have been sent.
    pub repairs: u64,
}

impl Outcome {
    /// Sum of the outcomes in two lanes.
    #[must_use]
    pub fn plus(&self, other: &Outcome) -> Outcome {
        Outcome {
            packets: self.packets + other.packets,
            lost: self.lost + other.lost,
            recovered: self.recovered + other.recovered,
            in_time: self.in_time + other.in_time,
            repairs: self.repairs + other.repairs,
        }
    }
}

/// All codes under trial.
pub struct Shadows {
    shadows: [Shadow; TRIED.len()],
}

impl Shadows {
    /// Creates the codes, for packets over a path of this round-trip time.
    pub fn new(rtt: Duration) -> Self {
        let of = |coder| Shadow::new(coder, rtt);
        let fixed = |code: Code| code.build_encoder(1).map_or(Coder::None, Coder::Fixed);
        let limits = Limits { max_overhead: 0.3, max_rate: None };
        let auto = Auto::new(Instant::ZERO, &limits.into(), 1);
        let auto = auto.map_or(Coder::None, |auto| Coder::Auto(Box::new(Feedback::new(auto, rtt))));
        let blocks = reed_solomon::Parameters { r: 8, c: 3, interleave: 1 };
        let window = window::Parameters { window: 240, repairs: 3, packets: 10 };
        Shadows {
            shadows: [
                of(auto),
                of(fixed(Code::Layered(layered::Parameters::new(8, &[1, 19, 41])))),
                of(fixed(Code::ReedSolomon(blocks))),
                of(fixed(Code::Window(window))),
            ],
        }
    }

    /// Handles the next packet and its fate. Packets dropped by a full queue count neither as lost
    /// nor as recovered.
    pub fn step(&mut self, at: Instant, fate: Fate) {
        self.shadows.iter_mut().for_each(|shadow| shadow.step(at, fate));
    }

    /// Outcome of each code.
    pub fn outcomes(&self) -> [Outcome; TRIED.len()] {
        std::array::from_fn(|n| self.shadows[n].outcome)
    }
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Arrived.
    Arrived,
    /// Lost at random.
    Lost,
    /// Dropped by a full queue.
    Congested,
}

struct Shadow {
    coder: Coder,
    decoder: AnyDecoder,
    known: Known,
    /// Repairs sent since the last packet.
    leaving: Vec<Owned>,
    recovered: Recovered,
    missing: BTreeMap<Seq, Instant>,
    in_time: Duration,
    /// Send time of the last packet.
    last: Option<Instant>,
    outcome: Outcome,
}

enum Coder {
    None,
    Fixed(Box<dyn Encoder>),
    Auto(Box<Feedback>),
}

/// Repair that has been sent.
struct Owned {
    cover: Cover,
    row: Row,
    len_code: [u8; 2],
    body: Vec<u8>,
}

fn owned(repair: &Repair<'_>) -> Owned {
    let Repair { cover, row, len_code, body } = *repair;
    Owned { cover, row, len_code, body: body.to_vec() }
}

impl Shadow {
    fn new(coder: Coder, rtt: Duration) -> Self {
        Shadow {
            coder,
            decoder: AnyDecoder::new(DECODER),
            known: Known::default(),
            leaving: Vec::new(),
            recovered: Recovered::new(),
            missing: BTreeMap::new(),
            in_time: rtt / 4,
            last: None,
            outcome: Outcome::default(),
        }
    }

    fn step(&mut self, at: Instant, fate: Fate) {
        self.flush(at);
        let is_here = fate == Fate::Arrived;
        for repair in std::mem::take(&mut self.leaving) {
            if is_here {
                self.decode(at, &repair);
            }
        }
        if let Coder::Auto(feedback) = &mut self.coder {
            feedback.step(at, self.known.next(), fate, &mut self.leaving);
        }
        let seq = self.known.push(is_here);
        self.outcome.packets += 1;
        if fate == Fate::Lost {
            self.outcome.lost += 1;
            self.missing.insert(seq, at);
        }
        self.give_up(at);
        let symbol = symbol(seq);
        let fire = &mut |repair: Repair<'_>| self.leaving.push(owned(&repair));
        match &mut self.coder {
            Coder::None => {}
            Coder::Fixed(encoder) => encoder.push(&symbol, fire),
            Coder::Auto(feedback) => feedback.push(at, &symbol, fire),
        }
        self.outcome.repairs += self.leaving.len() as u64;
        self.last = Some(at);
    }

    /// Fires repairs that a pause has left incomplete; they arrive during the pause.
    fn flush(&mut self, at: Instant) {
        let Some(paused) = self.last.filter(|last| at.since(*last) > FLUSH) else { return };
        let mut fired = Vec::new();
        let fire = &mut |repair: Repair<'_>| fired.push(owned(&repair));
        match &mut self.coder {
            Coder::None => {}
            Coder::Fixed(encoder) => {
                (0..encoder.stages()).for_each(|stage| encoder.flush(stage, fire));
            }
            Coder::Auto(feedback) => feedback.auto.flush(paused + FLUSH, fire),
        }
        self.outcome.repairs += fired.len() as u64;
        for repair in fired {
            self.decode(paused + FLUSH, &repair);
        }
    }

    fn decode(&mut self, at: Instant, repair: &Owned) {
        let Owned { cover, row, len_code, body } = repair;
        if cover.first < self.known.first || cover.seqs().all(|seq| self.known.get(seq).is_some()) {
            return;
        }
        let repair = Repair { cover: *cover, row: *row, len_code: *len_code, body };
        self.decoder.repair(repair, &self.known, &mut self.recovered);
        let mut batch = std::mem::take(&mut self.recovered);
        for (seq, _) in batch.iter() {
            self.known.mark(seq);
            let Some(since) = self.missing.remove(&seq) else { continue };
            self.outcome.recovered += 1;
            let took = at.since(since);
            self.outcome.in_time += u64::from(took <= self.in_time);
            if let Coder::Auto(feedback) = &mut self.coder {
                feedback.here(at, seq);
            }
        }
        batch.clear();
        self.recovered = batch;
    }

    fn give_up(&mut self, at: Instant) {
        while let Some(oldest) = self.missing.first_entry()
            && at.since(*oldest.get()) > GIVEN_UP
        {
            let seq = *oldest.key();
            oldest.remove();
            self.decoder.forget_below(seq + 1);
            if let Coder::Auto(feedback) = &mut self.coder {
                feedback.report.visible += 1;
            }
        }
    }
}

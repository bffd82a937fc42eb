//! Outcomes that codes would have had on an observed link.
//!
//! The encoders and decoders are the real ones, with packets of two bytes. A repair counts as
//! lost if the next packet is: it would have left just before that packet.
//!
//! ```text
//!   fates of packets ─▶ encoder ─▶ repairs, as lost as their neighbours ─▶ decoder ─▶ outcome
//!                          ▲                                                  │
//!                          └──── reports and requests, half a round trip ◀────┘   (auto alone)
//! ```

use std::collections::{BTreeMap, VecDeque};

use super::auto::{Auto, Leaving};
use super::classes::Repairs;
use super::control::histogram::Verdict;
use super::control::losses::Losses;
use super::control::{Limits, Report};
use super::requests::{Requests, Times};
use super::section::Need;
use crate::fec::{
    self, AnyDecoder, Code, Cover, Decoder as _, Encoder, Recovered, Repair, Row, Seq, Sources,
    layered, reed_solomon, window,
};
use crate::time::{Duration, Instant};
use crate::wire::ip::MutableFields;

/// Packets remembered: more than any of the codes spans.
const MAX_KNOWN: usize = 16_384;
/// Memory of each decoder, in bytes.
const DECODER: usize = 1 << 20;
/// Idle time after which unfilled repairs leave.
const FLUSH: Duration = Duration::from_millis(8);
/// Interval of loss reports to the sender.
const REPORT: Duration = Duration::from_millis(25);
/// Age at which a missing packet is given up.
const GIVEN_UP: Duration = Duration::from_secs(1);

/// Codes under trial, in the order of their numbers.
pub const TRIED: [&str; 4] = ["auto", "layered", "reed-solomon", "window"];

/// Outcome that a code would have had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Packets that left.
    pub packets: u64,
    /// Packets lost by chance, among them.
    pub lost: u64,
    /// Lost packets that would have been recovered.
    pub recovered: u64,
    /// Recoveries within a quarter of a round trip.
    pub in_time: u64,
    /// Repairs that would have been sent.
    pub repairs: u64,
}

/// All codes under trial.
pub struct Shadows {
    shadows: [Shadow; TRIED.len()],
}

impl Shadows {
    /// Creates the codes, for packets from the next one on.
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

    /// Handles the next packet, sent at `at`, and its fate. No code recovers packets dropped by
    /// a full queue.
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
    /// Lost by chance.
    Lost,
    /// Dropped by a full queue.
    Congested,
}

/// State of one code.
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
        let before = self.leaving.len();
        let fire = &mut |repair: Repair<'_>| self.leaving.push(owned(&repair));
        match &mut self.coder {
            Coder::None => {}
            Coder::Fixed(encoder) => encoder.push(&symbol, fire),
            Coder::Auto(feedback) => feedback.push(at, &symbol, fire),
        }
        let asked = before as u64;
        self.outcome.repairs += asked + (self.leaving.len() - before) as u64;
        self.last = Some(at);
    }

    /// Fires repairs that a pause in the traffic has left unfilled; they arrive during the
    /// pause.
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

/// Packet of two bytes.
fn symbol(seq: Seq) -> [u8; 2] {
    [seq as u8, (seq >> 8) as u8]
}

/// Latest packets, and which of them are here.
struct Known {
    first: Seq,
    here: VecDeque<Option<[u8; 2]>>,
}

impl Default for Known {
    fn default() -> Self {
        Known { first: 1, here: VecDeque::new() }
    }
}

impl Known {
    fn next(&self) -> Seq {
        self.first + self.here.len() as u64
    }

    fn push(&mut self, is_here: bool) -> Seq {
        let seq = self.next();
        if self.here.len() == MAX_KNOWN {
            self.here.pop_front();
            self.first += 1;
        }
        self.here.push_back(is_here.then(|| symbol(seq)));
        seq
    }

    fn mark(&mut self, seq: Seq) {
        let at = seq.checked_sub(self.first).map(|at| at as usize);
        if let Some(here) = at.and_then(|at| self.here.get_mut(at)) {
            *here = Some(symbol(seq));
        }
    }
}

impl Sources for Known {
    fn get(&self, seq: Seq) -> Option<&[u8]> {
        let at = usize::try_from(seq.checked_sub(self.first)?).ok()?;
        self.here.get(at)?.as_ref().map(<[u8; 2]>::as_slice)
    }
}

/// Adaptive code, with the messages that control it.
struct Feedback {
    auto: Auto,
    rtt: Duration,
    losses: Losses,
    requests: Requests,
    report: Report,
    next_report: Instant,
    /// Reports on their way to the sender, and requests, whose answers are due at the times
    /// given.
    reports: VecDeque<(Instant, Report)>,
    needs: VecDeque<(Instant, Need)>,
}

impl Feedback {
    fn new(auto: Auto, rtt: Duration) -> Self {
        Feedback {
            auto,
            rtt,
            losses: Losses::default(),
            requests: Requests::default(),
            report: Report::default(),
            next_report: Instant::ZERO,
            reports: VecDeque::new(),
            needs: VecDeque::new(),
        }
    }

    fn times(&self, now: Instant) -> Times {
        Times { wait: self.auto.wait(now), rtt: self.rtt }
    }

    /// Handles the fate of packet `seq`; answers to requests leave with it.
    fn step(&mut self, now: Instant, seq: Seq, fate: Fate, leaving: &mut Vec<Owned>) {
        self.losses.known(now, 1);
        match fate {
            Fate::Arrived => {}
            Fate::Lost => {
                self.losses.missing(now, seq, Verdict::Chance);
                self.requests.missing(now, seq);
            }
            Fate::Congested => self.losses.missing(now, seq, Verdict::Congestion),
        }
        self.losses.settle(now);
        if now >= self.next_report {
            self.next_report = now + REPORT;
            let (random, congested) = (self.losses.random(), self.losses.congested());
            let report = Report { random, congested, ..self.report };
            self.reports.push_back((now + self.rtt / 2, report));
            self.requests.expire(now, 0);
        }
        // The answer arrives a whole round trip after the request.
        let state = self.auto.state(now);
        let expected = (state.overhead * state.pace * state.wait.as_secs_f64()) as usize;
        let early = self.requests.ask_early(now, expected);
        self.needs.extend(early.map(|need| (now + self.rtt, need)));
        while let Some(need) = self.requests.ask(now, self.times(now), |_, _| 0, |_| false) {
            self.needs.push_back((now + self.rtt, need));
        }
        while self.reports.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, report)) = self.reports.pop_front()
        {
            self.auto.handle_report(now, report, Some(self.rtt));
        }
        while self.needs.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, need)) = self.needs.pop_front()
        {
            self.auto.answer(now, need, &mut |repair| leaving.push(owned(&repair)));
        }
    }

    fn push(&mut self, now: Instant, symbol: &[u8], fire: &mut fec::Fire<'_>) {
        let fields = MutableFields::default();
        let (repairs, most) = (Repairs::Window, f64::INFINITY);
        self.auto.push(now, Leaving { fields, packet: symbol, symbol, repairs, most }, fire);
    }

    /// Notes that packet `seq` was recovered.
    fn here(&mut self, now: Instant, seq: Seq) {
        let wait = self.times(now).wait;
        let missed = self.requests.here(now, seq);
        self.report.visible += u64::from(missed.is_some_and(|time| time > wait));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    const RTT: Duration = Duration::from_millis(100);

    /// Outcome of the second of two periods of ten seconds, at 16,700 packets a second; `lost`
    /// selects the lost packets.
    fn run(mut lost: impl FnMut(&mut Rng, u64) -> bool) -> [Outcome; TRIED.len()] {
        let (mut shadows, mut rng) = (Shadows::new(RTT), Rng::from_seed(7));
        let mut before = shadows.outcomes();
        for n in 0..334_000 {
            if n == 167_000 {
                before = shadows.outcomes();
            }
            let fate = if lost(&mut rng, n) { Fate::Lost } else { Fate::Arrived };
            shadows.step(Instant::ZERO + Duration::from_micros(60) * n as u32, fate);
        }
        let after = shadows.outcomes();
        std::array::from_fn(|n| Outcome {
            packets: after[n].packets - before[n].packets,
            lost: after[n].lost - before[n].lost,
            recovered: after[n].recovered - before[n].recovered,
            in_time: after[n].in_time - before[n].in_time,
            repairs: after[n].repairs - before[n].repairs,
        })
    }

    fn share(part: u64, of: u64) -> f64 {
        part as f64 / of.max(1) as f64
    }

    #[test]
    fn single_losses_come_back_by_every_code_and_auto_is_cheapest() {
        let of = run(|rng, _| rng.chance(0.01));
        let recovered = of.map(|of| share(of.recovered, of.lost));
        assert!(recovered.iter().all(|share| *share > 0.99), "{recovered:?}");
        let cost = of.map(|of| share(of.repairs, of.packets));
        assert!(cost[0] < 0.06 && cost[1..].iter().all(|cost| *cost > 0.25), "{cost:?}");
        assert!(share(of[0].in_time, of[0].recovered) > 0.95, "{of:?}");
    }

    #[test]
    fn bursts_beyond_their_reach_defeat_fixed_codes() {
        let of = run(|_, n| n % 6_000 < 60);
        let recovered = of.map(|of| share(of.recovered, of.lost));
        assert!(recovered[0] > 0.9 && recovered[2] < 0.2, "{recovered:?}");
    }

    #[test]
    fn a_clean_link_costs_nothing_by_auto() {
        let of = run(|_, _| false);
        assert_eq!((of[0].lost, of[0].repairs), (0, 0));
    }
}

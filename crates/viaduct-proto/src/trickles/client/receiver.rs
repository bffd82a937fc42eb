//! Packets in the order of their numbers: what was lost, and what each continuation is good for.
//!
//! ```text
//!   arrived ─▶ early ─▶ in order, or given up ─▶ ranges of the piece ─▶ Turn: continuation + proof
//! ```
//!
//! A packet is given up when three behind it have arrived ([more](super::overtaking) where packets overtake each
//! other), or after a while. From then on it is lost for good, whatever comes: each proof holds the proofs before
//! it (2.4).

use std::collections::{BTreeMap, VecDeque};

use super::overtaking::Overtaking;
use crate::trickles::continuation::{Continuation, Delta, Mode};
use crate::trickles::piece::Piece;
use crate::trickles::plan::{self, Plan, Tail};
use crate::trickles::proof::{self, Gaps, Range};

/// A packet so far ahead of its turn is none that was asked for: windows end at 65,535. All that lies
/// between would have to be given up, and noted.
const REACH: u64 = 1 << 18;

/// A continuation that may be returned, with what there is to say then. Whole windows are held of them where nobody
/// reads what has come, so it is small; what follows from it is [`Turn::step`].
#[derive(Clone, Debug)]
pub(super) struct Turn {
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
    /// The proof, on the wire.
    pub(super) proof: Vec<u8>,
    /// What the end of the piece before lacks.
    pub(super) tail: Option<Tail>,
    piece: Piece,
    /// What its piece lacks.
    gaps: Gaps,
}

/// What comes of returning a continuation.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// What the continuation says.
    pub(super) known: Continuation,
    /// What the server will do about the end of the piece before.
    pub(super) made_up: Option<Plan>,
    /// What the server will do.
    pub(super) plan: Plan,
    /// How many losses its descendants will name, beside those that `known` names.
    pub(super) losses: usize,
}

impl Turn {
    /// What comes of returning it; None if nothing can.
    pub(super) fn step(&self) -> Option<Step> {
        let (known, _) = Continuation::peek(&self.bytes).ok()?;
        let (gaps, burst) = (self.gaps.runs(), known.burst.into());
        let plan = plan::step(self.piece, known.number, gaps, burst).ok()?;
        let made_up =
            self.tail.and_then(|tail| plan::tail(self.piece, known.number, tail, burst).ok());
        let losses = gaps.len() + usize::from(self.tail.is_some_and(|tail| tail.lost > 0));
        Some(Step { known, made_up, plan, losses })
    }
}

/// Of so many pieces and secrets a continuation is kept.
const MODELS: usize = 4;

/// What has arrived ahead of its turn.
#[derive(Clone, Debug)]
struct Early {
    nonce: u64,
    continuation: Option<(Vec<u8>, Continuation)>,
}

/// The packets of one generation.
#[derive(Debug)]
pub(super) struct Receiver {
    piece: Piece,
    /// The piece that the survivors of a recovery begin.
    coming: Option<Piece>,
    /// All below has arrived or is lost.
    next: u64,
    early: BTreeMap<u64, Early>,
    overtaking: Overtaking,
    ranges: Vec<Range>,
    /// The last point that has arrived.
    point: u64,
    tail: Option<Tail>,
    lost: VecDeque<u64>,
    turns: VecDeque<(Turn, Continuation)>,
    recovered: u32,
    /// A continuation of each of the last pieces and secrets, by the base and the secret's number.
    models: BTreeMap<(u64, u8), Vec<u8>>,
}

impl Receiver {
    /// Before the first packet of a generation whose first piece is `piece`.
    pub(super) fn new(piece: Piece) -> Self {
        Receiver {
            piece,
            coming: None,
            next: piece.base,
            early: BTreeMap::new(),
            overtaking: Overtaking::default(),
            ranges: Vec::new(),
            point: piece.base - 1,
            tail: None,
            lost: VecDeque::new(),
            turns: VecDeque::new(),
            recovered: 0,
            models: BTreeMap::new(),
        }
    }

    /// The continuation of packet `number` of which only `delta` came; None if none of its piece is known.
    pub(super) fn whole(&self, number: u64, delta: Delta) -> Option<(Vec<u8>, Continuation)> {
        let (&(base, _), _) = self.models.range(..=(number, u8::MAX)).next_back()?;
        let model = self.models.get(&(base, delta.secret()))?;
        let bytes = delta.on(model, u32::try_from(number - base).ok()?)?;
        let (known, _) = Continuation::peek(&bytes).ok()?;
        Some((bytes, known))
    }

    /// A packet arrived; false if it had, or was given up, or cannot be.
    pub(super) fn arrive(
        &mut self,
        number: u64,
        nonce: u64,
        continuation: Option<(Vec<u8>, Continuation)>,
    ) -> bool {
        let near = number.checked_sub(self.next).is_some_and(|ahead| ahead < REACH);
        let new = near && !self.early.contains_key(&number);
        if new {
            if let Some((bytes, known)) = &continuation {
                let place = (known.piece.base, bytes[0]);
                self.models.entry(place).or_insert_with(|| bytes.clone());
                if self.models.len() > MODELS {
                    self.models.pop_first();
                }
            }
            self.early.insert(number, Early { nonce, continuation });
            self.advance();
        }
        new
    }

    /// The window after the packets that have arrived in order.
    pub(super) fn window(&self) -> u64 {
        self.coming.map_or_else(|| self.piece.window(self.next - 1), |coming| coming.start.into())
    }

    /// The packet that others behind it wait for.
    pub(super) fn waits_for(&self) -> Option<u64> {
        (!self.early.is_empty()).then_some(self.next)
    }

    /// One has come that [`Receiver::arrive`] had no use for; whether it was given up too soon.
    pub(super) fn came_late(&mut self, number: u64) -> bool {
        self.overtaking.came(number, self.next)
    }

    /// Gives up the packets that others wait for.
    pub(super) fn give_up(&mut self) {
        if let Some((&first, _)) = self.early.first_key_value() {
            self.skip_to(first);
            self.advance();
        }
    }

    fn skip_to(&mut self, number: u64) {
        self.overtaking.give_up(self.next..number);
        self.lost.extend(self.next..number);
        self.next = number;
    }

    /// The next packet that was given up.
    pub(super) fn take_lost(&mut self) -> Option<u64> {
        self.lost.pop_front()
    }

    /// How many pieces of survivors have begun since the last call.
    pub(super) fn take_recovered(&mut self) -> u32 {
        std::mem::take(&mut self.recovered)
    }

    /// The next continuation to return, and what it says, until None.
    pub(super) fn take_turn(&mut self) -> Option<(Turn, Continuation)> {
        self.turns.pop_front()
    }

    fn advance(&mut self) {
        while let Some((&first, _)) = self.early.first_key_value() {
            if first != self.next && self.early.len() < self.overtaking.behind() {
                return;
            }
            self.skip_to(first);
            if let Some(packet) = self.early.remove(&first) {
                self.next = first + 1;
                self.process(first, packet);
            }
        }
    }

    fn process(&mut self, number: u64, packet: Early) {
        if self.coming.is_some_and(|coming| number >= coming.base) {
            self.enter_coming();
        }
        match self.ranges.last_mut() {
            Some(range) if range.last + 1 == number => {
                range.last = number;
                range.sum ^= packet.nonce;
            }
            _ => self.ranges.push(Range { first: number, last: number, sum: packet.nonce }),
        }
        if let Some((bytes, known)) = packet.continuation {
            self.point = number;
            if let Some(turn) = self.turn(bytes, known) {
                self.turns.push_back((turn, known));
            }
        }
    }

    /// The first survivor: what the piece before lacks at its end is to be reported.
    fn enter_coming(&mut self) {
        let Some(coming) = self.coming.take() else { return };
        let arrived = self.ranges.last().map_or(self.piece.base - 1, |range| range.last);
        let short = |from: u64| u32::try_from(coming.base - 1 - from).unwrap_or(u32::MAX);
        let tail = Tail { lost: short(arrived), unanswered: short(self.point) };
        self.tail = (tail.unanswered > 0).then_some(tail);
        self.recovered += 1;
        self.piece = coming;
        self.point = coming.base - 1;
        self.ranges.clear();
    }

    /// What a continuation is good for; None if nothing, as its trickle is terminated.
    fn turn(&mut self, bytes: Vec<u8>, known: Continuation) -> Option<Turn> {
        let base = self.piece.base;
        if known.piece.base != base {
            return None;
        }
        let gaps = Gaps::between(base, &self.ranges)?;
        let tail = self.tail.filter(|_| known.mode == Mode::Survivors);
        let mut turn = Turn { bytes, proof: Vec::new(), tail, piece: self.piece, gaps };
        let step = turn.step()?;
        self.tail = None;
        if step.plan.piece.base != base {
            self.coming = Some(step.plan.piece);
        }
        if step.plan.is_nothing() && step.made_up.is_none() {
            return None;
        }
        proof::emit(base, &self.ranges, &mut turn.proof);
        Some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trickles::piece::Acks;

    #[test]
    fn a_number_out_of_reach_is_refused_and_nothing_is_noted_for_it() {
        let acks = Acks { delayed: true, by_request: false };
        let mut receiver = Receiver::new(Piece { base: 1, start: 10, ssthresh: 100, acks });
        for number in [1 + REACH, 1 << 40, u64::MAX] {
            assert!(!receiver.arrive(number, 0, None), "{number}");
        }
        assert_eq!(receiver.waits_for(), None);
        assert!((REACH - 3..REACH).all(|number| receiver.arrive(number, 0, None)));
        assert_eq!(receiver.lost.len() as u64, REACH - 4);
    }
}

//! Repairs from the peer: waiting repairs, repairs at the decoder, and expected repairs.

use std::borrow::Cow;
use std::collections::VecDeque;

use super::known::{Known, NEIGHBOURS};
use crate::fec::{self, AnyDecoder, Cover, Decoder, Recovered, Repair, Seq, Verdict};
use crate::repair::in_flight::InFlight;
use crate::repair::section::Part;
use crate::repair::stats::ReceiverStats;

/// Maximum number of repairs that wait for names or for their other part.
const MAX_PENDING: usize = 32;

/// Repair that waits for names or for its other part.
pub(super) struct Pending {
    cover: Cover,
    row: fec::Row,
    len_code: [u8; 2],
    body: Vec<u8>,
    part: Part,
}

impl Pending {
    pub(super) fn repair(&self) -> Repair<'_> {
        let Pending { cover, row, len_code, ref body, .. } = *self;
        Repair { cover, row, len_code, body }
    }
}

/// Repairs from the peer, and the packets recovered by them.
pub(super) struct Repairs {
    pub(super) decoder: AnyDecoder,
    pending: VecDeque<Pending>,
    pub(super) in_flight: InFlight,
    /// Recovered packets; kept empty between calls of the receiver.
    recovered: Recovered,
}

impl Repairs {
    /// Creates the state, with at most `bound` bytes of repairs at the decoder.
    pub(super) fn new(bound: usize) -> Self {
        Repairs {
            decoder: AnyDecoder::new(bound),
            pending: VecDeque::new(),
            in_flight: InFlight::default(),
            recovered: Recovered::new(),
        }
    }

    /// Returns the body of a repair that can be decoded now, joined from its two parts if it was
    /// split. `None` if the other part has not arrived, or if the repair covers packet `next` or
    /// later ones, which have no names yet; the repair then waits.
    pub(super) fn complete<'a>(
        &mut self,
        repair: Repair<'a>,
        part: Part,
        next: Seq,
    ) -> Option<Cow<'a, [u8]>> {
        let Repair { cover, row, len_code, body } = repair;
        let body = match part {
            Part::Whole => Cow::Borrowed(body),
            _ => {
                let is_other = |of: &Pending| {
                    of.cover == cover && of.row == row && of.part != part && of.part != Part::Whole
                };
                let at = self.pending.iter().position(is_other);
                let Some(other) = at.and_then(|at| self.pending.remove(at)) else {
                    self.wait(Pending { cover, row, len_code, body: body.to_vec(), part });
                    return None;
                };
                let both = if part == Part::Head {
                    [body, &other.body].concat()
                } else {
                    [&other.body, body].concat()
                };
                Cow::Owned(both)
            }
        };
        if cover.last() < next {
            return Some(body);
        }
        self.wait(Pending { cover, row, len_code, body: body.into_owned(), part: Part::Whole });
        None
    }

    fn wait(&mut self, pending: Pending) {
        if self.pending.len() == MAX_PENDING {
            self.pending.pop_front();
        }
        self.pending.push_back(pending);
    }

    /// Decodes a repair. Drops the repair if `is_dark`: the tap may have missed some of its
    /// packets.
    pub(super) fn decode(
        &mut self,
        repair: Repair<'_>,
        is_dark: bool,
        known: &Known,
        stats: &mut ReceiverStats,
    ) {
        stats.repairs += 1;
        let cover = repair.cover;
        if cover.last().saturating_add(NEIGHBOURS) >= known.ledger.next() {
            self.in_flight.cover = cover.count;
        }
        if is_dark || cover.first < known.ledger.floor() || cover.seqs().all(|seq| known.has(seq)) {
            // Most repairs cover no missing packet, which the decoder would detect more slowly.
            stats.useless += 1;
            return;
        }
        match self.decoder.repair(repair, known, &mut self.recovered) {
            Verdict::Useless => stats.useless += 1,
            Verdict::Refused => stats.malformed += 1,
            Verdict::Used | Verdict::Stored => {}
        }
    }

    /// Takes a waiting repair whose packets are all below `next`.
    pub(super) fn take_ready(&mut self, next: Seq) -> Option<Pending> {
        let is_ready = |of: &Pending| of.part == Part::Whole && of.cover.last() < next;
        let at = self.pending.iter().position(is_ready)?;
        self.pending.remove(at)
    }

    /// Handles packet `seq`, which was missing when an earlier repair arrived, and is now known.
    pub(super) fn known(&mut self, seq: Seq, known: &Known) {
        self.decoder.known(seq, known, &mut self.recovered);
    }

    /// Takes the packets that have just been recovered; `None` if there are none. The caller
    /// returns them with [`Repairs::reuse`].
    pub(super) fn take_recovered(&mut self) -> Option<Recovered> {
        (!self.recovered.is_empty()).then(|| std::mem::take(&mut self.recovered))
    }

    /// Reuses the memory of recovered packets.
    pub(super) fn reuse(&mut self, mut recovered: Recovered) {
        recovered.clear();
        self.recovered = recovered;
    }

    /// Housekeeping; called every [`TICK`](super::TICK). Repairs below `floor` are forgotten.
    pub(super) fn tick(&mut self, stats: &ReceiverStats, floor: Seq) {
        self.in_flight.tick(stats.repairs, stats.packets);
        self.decoder.forget_below(floor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repair(first: Seq, body: &[u8]) -> Repair<'_> {
        let cover = Cover { first, stride: 1, count: 4 };
        Repair { cover, row: fec::Row::Xor { layer: 0 }, len_code: [0, 9], body }
    }

    #[test]
    fn parts_are_joined_in_either_order() {
        for (one, other) in [(Part::Head, Part::Tail), (Part::Tail, Part::Head)] {
            let mut repairs = Repairs::new(1 << 20);
            let body = |part| if part == Part::Head { &b"head"[..] } else { &b"tail"[..] };
            assert!(repairs.complete(repair(10, body(one)), one, 14).is_none());
            assert!(
                repairs.complete(repair(30, body(other)), other, 34).is_none(),
                "another repair"
            );
            let both = repairs.complete(repair(10, body(other)), other, 14);
            assert_eq!(both.as_deref(), Some(&b"headtail"[..]));
        }
    }

    #[test]
    fn repairs_wait_for_names_and_are_bounded() {
        let mut repairs = Repairs::new(1 << 20);
        assert!(repairs.complete(repair(10, b"body"), Part::Whole, 13).is_none());
        assert!(repairs.take_ready(13).is_none());
        let waiting = repairs.take_ready(14).map(|waiting| waiting.repair() == repair(10, b"body"));
        assert_eq!(waiting, Some(true));
        for first in 0..2 * MAX_PENDING as u64 {
            repairs.complete(repair(first, b"body"), Part::Whole, 0);
        }
        assert_eq!(repairs.pending.len(), MAX_PENDING);
    }
}

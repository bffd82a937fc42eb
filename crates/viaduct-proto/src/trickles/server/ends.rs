//! End of an epoch. An epoch ends at the first loss that is reported to the server, and at no other
//! loss.
//!
//! ```text
//!   epoch   ··· ─ f ─ ─ ─ ─ L   a request reports f as lost; the survivors begin the next epoch
//!               │
//!               ├─ another reports that g is lost, and f is not   refused: the connection would
//!               └─ another reports that nothing is lost             continue in two epochs
//! ```
//!
//! A client sends its requests in the order of their packets, and packets that it gave up stay
//! lost (the prefix property, 2.4). If contradictory reports were accepted, a client could get two
//! windows, and hide in one of them the losses that it reports in the other.

use super::{Refusal, Server};
use crate::time::Instant;
use crate::trickles::continuation::Continuation;
use crate::trickles::plan::Run;
use crate::trickles::replay::Once;

/// Number of packets, or of blocks, that are looked up in the replay window; also the number of
/// packets in a block.
///
/// A reported first loss is contradicted by an answered request of that packet or of a later one.
/// If more than this number of packets are in flight, a lying client can hide a contradiction, once
/// in an epoch, at the cost of half of the window. A request that reports no losses in an epoch
/// that has ended is contradicted, unless the loss that ended the epoch is found after the
/// request's packet, among the packets or blocks that are looked up. So a request more than about
/// 4,096 packets before the loss is refused.
const MAX_LOOKUPS: usize = 64;

/// Block of a packet.
fn block(number: u64) -> u64 {
    number / MAX_LOOKUPS as u64
}

impl Server {
    /// Returns the first loss of a request with `gaps`, if the request ends its epoch. Errors: a
    /// contradictory request of this epoch was answered.
    pub(super) fn ends(&self, known: &Continuation, gaps: &[Run]) -> Result<Option<u64>, Refusal> {
        let base = known.epoch.base;
        let knows = |what| self.replay.knows(known.connection, what);
        let ended_by = |first| knows(Once::EndedBy { base, first });
        let ended = knows(Once::Ended(base));
        match gaps.first().map(|gap| gap.first) {
            None if ended && !self.ends_after(known) => Err(Refusal::Forked { base }),
            None => Ok(None),
            Some(first) if ended && ended_by(first) => Ok(None),
            Some(first) if ended || self.had(known, first) => Err(Refusal::Forked { base: first }),
            first => Ok(first),
        }
    }

    /// Records that `known`'s epoch has ended by the loss `first`.
    pub(super) fn note_end(&mut self, now: Instant, known: &Continuation, first: u64) {
        let (base, block) = (known.epoch.base, block(first));
        for what in
            [Once::Ended(base), Once::EndedBy { base, first }, Once::EndedIn { base, block }]
        {
            self.replay.note(now, known.connection, what);
        }
    }

    /// Returns whether the loss that has ended `known`'s epoch comes after `known`'s packet.
    fn ends_after(&self, known: &Continuation) -> bool {
        let (base, number) = (known.epoch.base, known.number);
        let knows = |what| self.replay.knows(known.connection, what);
        (number + 1..).take(MAX_LOOKUPS).any(|first| knows(Once::EndedBy { base, first }))
            || (block(number) + 1..)
                .take(MAX_LOOKUPS)
                .any(|block| knows(Once::EndedIn { base, block }))
    }

    /// Returns whether an answered request shows that packet `number` has arrived. The epoch must
    /// not have ended: only then does every answered request of this packet or a later one show the
    /// packet's arrival.
    fn had(&self, known: &Continuation, number: u64) -> bool {
        let knows = |at| self.replay.knows(known.connection, Once::Answered(at));
        (number..known.number).take(MAX_LOOKUPS).filter(|&at| known.epoch.is_point(at)).any(knows)
    }
}

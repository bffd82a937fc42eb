//! Where a piece ends: at the first loss that was reported of it, and there alone.
//!
//! ```text
//!   piece   ··· ─ f ─ ─ ─ ─ L      f is lost, says one request; the survivors begin the next piece
//!               │
//!               ├─ another says that g is lost, and f is not      refused: that would be a second
//!               └─ another says that nothing is lost                piece, beside the first
//! ```
//!
//! A client sends its requests in the order of their packets, and what it gave up stays lost (the prefix property, 2.4).
//! Who tells two stories would have two windows, and hide in one of them what it admits in the other.

use super::{Refusal, Server};
use crate::trickles::continuation::Continuation;
use crate::trickles::plan::Run;
use crate::trickles::replay::Once;

/// Packets that are looked at on either side of a first loss: behind it for an answer to a request that had it, and before
/// it for where it is, of a request that others have overtaken. In a window of more than that a liar may hide such
/// an answer, once in a piece; it costs half of that window.
const LOOKED_AT: usize = 64;

impl Server {
    /// Whether a request whose proof shows `gaps` ends its piece, and by which loss.
    ///
    /// # Errors
    /// Another story of this piece was answered.
    pub(super) fn ends(&self, known: &Continuation, gaps: &[Run]) -> Result<Option<u64>, Refusal> {
        let (base, number) = (known.piece.base, known.number);
        let knows = |what| self.replay.knows(known.connection, what);
        let ended_by = |first| knows(Once::EndedBy { base, first });
        let ended = knows(Once::Ended(base));
        match gaps.first().map(|gap| gap.first) {
            None if ended && !(number + 1..).take(LOOKED_AT).any(ended_by) => {
                Err(Refusal::Forked { base })
            }
            None => Ok(None),
            Some(first) if ended && ended_by(first) => Ok(None),
            Some(first) if ended || self.had(known, first) => Err(Refusal::Forked { base: first }),
            first => Ok(first),
        }
    }

    /// Whether a request was answered that had packet `number` of a piece that has not ended: any behind it.
    fn had(&self, known: &Continuation, number: u64) -> bool {
        let knows = |at| self.replay.knows(known.connection, Once::Answered(at));
        (number..known.number).take(LOOKED_AT).filter(|&at| known.piece.is_point(at)).any(knows)
    }
}

//! Clients that are let in only when their server has answered: the kernel holds their SYNs
//! meanwhile, and says no in the server's words.
//!
//! ```text
//!   SYN held ──▶ connection begun ──┬─ the server answers   ──▶ the SYN goes on to the listener
//!                                   ├─ it refuses           ──▶ reset
//!                                   ├─ nobody knows the way ──▶ ICMP unreachable
//!                                   └─ silence              ──▶ silence
//! ```

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use tracing::warn;
use viaduct_proto::flow::Failure;
use viaduct_proto::split::early::Tuple;
use viaduct_proto::split::syn::Syn;
use viaduct_proto::time::Instant;
use viaduct_sys::hold::{REFUSED, UNREACHABLE};
use viaduct_sys::nfqueue::{SNAP, SynQueue, Verdict};

use super::target::failure;
use super::worker::{Budget, Worker};

/// Verdicts given in a turn: with each the kernel's TCP answers a SYN in this thread.
const MAX_VERDICTS: usize = 32;

/// The SYNs that are held.
#[derive(Debug)]
pub struct Holding {
    queue: SynQueue,
    /// By the number of the flow that each has begun.
    held: HashMap<usize, (u32, Tuple)>,
}

impl Holding {
    /// Those of `queue`.
    pub fn new(queue: SynQueue) -> Holding {
        Holding { queue, held: HashMap::new() }
    }

    /// Says what becomes of the SYN that has begun flow `key`, if it is held; whose it is.
    fn decide(&mut self, key: usize, verdict: Verdict) -> Option<Tuple> {
        let (id, tuple) = self.held.remove(&key)?;
        self.tell(id, verdict);
        Some(tuple)
    }

    fn tell(&self, id: u32, verdict: Verdict) {
        if let Err(error) = self.queue.verdict(id, verdict) {
            warn!("a SYN stays held: {error}");
        }
    }
}

impl AsFd for Holding {
    /// Readable when one has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl Worker {
    /// Begins the connections of the SYNs that are held, as many as have their turn.
    pub(super) fn read_held(&mut self, budget: &mut Budget, now: Instant) {
        let mut verdicts = Vec::new();
        let is_all = self.read_some_held(budget, &mut verdicts, now);
        let Some(holding) = &self.holding else { return };
        if !verdicts.is_empty()
            && let Err(error) = holding.queue.verdicts(&verdicts)
        {
            warn!("SYNs stay held: {error}");
        }
        self.unread.syns |= !is_all;
    }

    /// Whether that is all that is held; what becomes of those that no server is asked for.
    fn read_some_held(
        &mut self,
        budget: &mut Budget,
        verdicts: &mut Vec<(u32, Verdict)>,
        now: Instant,
    ) -> bool {
        let mut buffer = [0; SNAP];
        while budget.take() && verdicts.len() < MAX_VERDICTS {
            let Some(holding) = &self.holding else { return true };
            let (id, syn) = match holding.queue.recv(&mut buffer) {
                Ok(Some(held)) => (held.id, Syn::parse(held.packet)),
                Ok(None) => return true,
                Err(error) => {
                    warn!("held SYNs cannot be read: {error}");
                    return true;
                }
            };
            let verdict = match syn {
                Some(syn) => self.hold(id, syn, now),
                None => Some(Verdict::Pass),
            };
            verdicts.extend(verdict.map(|verdict| (id, verdict)));
        }
        self.holding.is_none()
    }

    /// What becomes of a SYN; `None` if that is for its server to say.
    fn hold(&mut self, id: u32, syn: Syn, now: Instant) -> Option<Verdict> {
        let tuple = syn.tuple;
        let Worker { early, holding: Some(holding), .. } = self else {
            return Some(Verdict::Pass);
        };
        if let Some(started) = early.get(&tuple) {
            // A repetition; of one that is held still, or of one that may come in.
            return Some(if holding.held.contains_key(&started.key) {
                Verdict::Drop
            } else {
                Verdict::Pass
            });
        }
        match self.begin_early(&syn, now) {
            Ok(Some(key)) => {
                let holding = self.holding.as_mut()?;
                holding.held.insert(key, (id, tuple));
                None
            }
            Ok(None) => Some(Verdict::Pass),
            Err(why) => Some(words_for(why)),
        }
    }

    /// The server of flow `key` has answered: its client may come in.
    pub(super) fn let_in(&mut self, key: usize, now: Instant) {
        let Some(holding) = &mut self.holding else { return };
        if let Some(tuple) = holding.decide(key, Verdict::Pass)
            && let Some((_, wait)) = self.limits.early
        {
            self.early.postpone(&tuple, now + wait);
        }
    }

    /// The server of flow `key` does not answer. If its client is held, it is told so, and the
    /// flow is over: true.
    pub(super) fn turn_away(&mut self, key: usize, error: &io::Error) -> bool {
        let Some(holding) = &mut self.holding else { return false };
        let Some(tuple) = holding.decide(key, words_for(failure(error))) else { return false };
        self.early.handle_refusal(&tuple);
        self.end(key, true);
        true
    }

    /// Holds no SYN any more: those that it has go on as if nobody had held them, and what they have
    /// begun ends first, which may have their clients' addresses.
    pub(super) fn let_go(&mut self) {
        let Some(holding) = self.holding.take() else { return };
        for (key, (id, tuple)) in &holding.held {
            self.early.forget(tuple);
            self.end(*key, true);
            holding.tell(*id, Verdict::Pass);
        }
    }

    /// Flow `key` ends: its client, if it is held, hears nothing.
    pub(super) fn forget_held(&mut self, key: usize) {
        if let Some(holding) = &mut self.holding {
            holding.decide(key, Verdict::Drop);
        }
    }
}

/// What the direct way would have said.
fn words_for(failure: Failure) -> Verdict {
    match failure {
        Failure::Refused | Failure::Reset | Failure::Denied => Verdict::Mark(REFUSED),
        Failure::Unreachable | Failure::Full => Verdict::Mark(UNREACHABLE),
        Failure::TimedOut => Verdict::Drop,
    }
}

//! Deferred accept: clients are accepted only when their server has answered. Meanwhile the kernel
//! holds their SYNs. A client sees a refusal as if it came from the server itself.
//!
//! ```text
//!   SYN held ──▶ connection begun ──┬─ the server answers   ──▶ the SYN is passed to the listener
//!                                   ├─ it refuses           ──▶ reset
//!                                   ├─ no route             ──▶ ICMP unreachable
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
use viaduct_sys::nft::nfqueue::{NfQueue, SNAP, Verdict};
use viaduct_sys::nft::syn_hold::{REFUSED, UNREACHABLE};

use super::acceptor::Acceptor;
use super::destination::failure;
use super::worker::{Budget, Worker};

/// Maximum number of verdicts given in a turn: for each, the kernel processes a SYN in this thread,
/// which takes time.
const MAX_VERDICTS: usize = 32;

/// Held SYNs.
#[derive(Debug)]
pub struct DeferredAccept {
    queue: NfQueue,
    /// Queue ID and addresses of each SYN, by the key of the flow that was begun for it.
    held: HashMap<usize, (u32, Tuple)>,
}

impl DeferredAccept {
    /// Returns an empty set for the held SYNs of `queue`.
    pub fn new(queue: NfQueue) -> DeferredAccept {
        DeferredAccept { queue, held: HashMap::new() }
    }

    /// Addresses of the SYNs.
    pub(super) fn tuples(&self) -> impl Iterator<Item = Tuple> {
        self.held.values().map(|(_, tuple)| *tuple)
    }

    /// Gives the verdict on the SYN for which flow `key` was begun, if the SYN is held; returns the
    /// addresses of the SYN.
    fn decide(&mut self, key: usize, verdict: Verdict) -> Option<Tuple> {
        let (id, tuple) = self.held.remove(&key)?;
        self.give_verdict(id, verdict);
        Some(tuple)
    }

    /// Takes out the ID of the SYN for which flow `key` was begun; another process will give the
    /// verdict.
    pub(super) fn lend(&mut self, key: usize) -> Option<u32> {
        Some(self.held.remove(&key)?.0)
    }

    /// Adds the SYN `id` of `tuple`, for which flow `key` was begun in another process.
    pub(super) fn adopt(&mut self, key: usize, id: u32, tuple: Tuple) {
        self.held.insert(key, (id, tuple));
    }

    fn give_verdict(&self, id: u32, verdict: Verdict) {
        if let Err(error) = self.queue.verdict(id, verdict) {
            warn!("cannot give the verdict on a held SYN: {error}");
        }
    }
}

impl AsFd for DeferredAccept {
    /// Readable when a SYN has arrived.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }
}

impl Acceptor {
    /// Verdict on the SYN of `tuple` if it is a retransmission: the retransmission is dropped while
    /// the original is held, and passed afterwards.
    fn repeated(&self, tuple: &Tuple) -> Option<Verdict> {
        let Some(deferred) = &self.deferred else { return Some(Verdict::Pass) };
        let started = self.early.get(tuple)?;
        let is_held = deferred.held.contains_key(&started.key);
        Some(if is_held { Verdict::Drop } else { Verdict::Pass })
    }

    /// Drops the held SYN of flow `key` because the flow ends: the client gets no answer.
    pub(super) fn forget_held(&mut self, key: usize) {
        if let Some(deferred) = &mut self.deferred {
            deferred.decide(key, Verdict::Drop);
        }
    }
}

impl Worker {
    /// Begins early connections for held SYNs, within a turn's budget.
    pub(super) fn read_held(&mut self, budget: &mut Budget, now: Instant) {
        let mut verdicts = Vec::new();
        let is_all = self.read_some_held(budget, &mut verdicts, now);
        let Some(deferred) = &self.acceptor.deferred else { return };
        if !verdicts.is_empty()
            && let Err(error) = deferred.queue.verdicts(&verdicts)
        {
            warn!("cannot give the verdicts on held SYNs: {error}");
        }
        self.unread.syns |= !is_all;
    }

    /// Reads held SYNs, and collects the verdicts on those that begin no connection. Returns
    /// whether all SYNs were read.
    fn read_some_held(
        &mut self,
        budget: &mut Budget,
        verdicts: &mut Vec<(u32, Verdict)>,
        now: Instant,
    ) -> bool {
        let mut buffer = [0; SNAP];
        while !self.acceptor.is_paused && budget.take() && verdicts.len() < MAX_VERDICTS {
            let Some(deferred) = &self.acceptor.deferred else { return true };
            let (id, syn) = match deferred.queue.recv(&mut buffer) {
                Ok(Some(held)) => (held.id, Syn::parse(held.packet)),
                Ok(None) => return true,
                Err(error) => {
                    warn!("cannot read held SYNs: {error}");
                    return true;
                }
            };
            let verdict = match syn {
                Some(syn) => self.hold(id, syn, now),
                None => Some(Verdict::Pass),
            };
            verdicts.extend(verdict.map(|verdict| (id, verdict)));
        }
        self.acceptor.is_paused || self.acceptor.deferred.is_none()
    }

    /// Begins the early connection for a held SYN. Returns the verdict on the SYN; `None` if it
    /// depends on the server's answer.
    fn hold(&mut self, id: u32, syn: Syn, now: Instant) -> Option<Verdict> {
        let tuple = syn.tuple;
        if let Some(verdict) = self.acceptor.repeated(&tuple) {
            return Some(verdict);
        }
        match self.begin_early(&syn, now) {
            Ok(Some(key)) => {
                let deferred = self.acceptor.deferred.as_mut()?;
                deferred.held.insert(key, (id, tuple));
                None
            }
            Ok(None) => Some(Verdict::Pass),
            Err(why) => Some(verdict_for(why)),
        }
    }

    /// Passes the held SYN of flow `key` after its server has answered, and then waits for the
    /// client for as long as every early connection does.
    pub(super) fn release_held(&mut self, key: usize, now: Instant) {
        let Some(deferred) = &mut self.acceptor.deferred else { return };
        let tuple = deferred.decide(key, Verdict::Pass);
        if let (Some(tuple), Some((_, wait))) = (tuple, self.config.limits.early) {
            self.acceptor.early.postpone(&tuple, now + wait);
        }
    }

    /// Refuses the client of flow `key` in the way that its server did, if the client's SYN is
    /// held. Returns whether the SYN was held; if so, the flow has ended.
    pub(super) fn reject_held(&mut self, key: usize, error: &io::Error) -> bool {
        let Some(deferred) = &mut self.acceptor.deferred else { return false };
        let Some(tuple) = deferred.decide(key, verdict_for(failure(error))) else { return false };
        self.acceptor.early.handle_refusal(&tuple);
        self.end(key, true);
        true
    }

    /// Stops holding SYNs. The held SYNs pass as if they had never been held. Their early
    /// connections are closed first, since these may use the clients' addresses.
    pub(super) fn release_all_held(&mut self) {
        let Some(deferred) = self.acceptor.deferred.take() else { return };
        for (key, (id, tuple)) in &deferred.held {
            self.acceptor.early.forget(tuple);
            self.end(*key, true);
            deferred.give_verdict(*id, Verdict::Pass);
        }
    }
}

/// Verdict that makes the client see the same failure as on a direct connection.
fn verdict_for(failure: Failure) -> Verdict {
    match failure {
        Failure::Refused | Failure::Reset | Failure::Denied => Verdict::Mark(REFUSED),
        Failure::Unreachable | Failure::Full => Verdict::Mark(UNREACHABLE),
        Failure::TimedOut => Verdict::Drop,
    }
}

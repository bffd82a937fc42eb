//! Generations of a connection: each restart begins a new generation. Keeps the number of the
//! current generation, the requested generations, and the anchor: the continuation and proof that a
//! restart returns.

use crate::time::Instant;
use crate::trickles::continuation::{Continuation, Mode};
use crate::trickles::wire::MAX_ATTEMPTS;

/// Continuation and proof that a restart returns.
#[derive(Clone, Debug)]
pub(super) struct Anchor {
    /// The continuation's bytes.
    pub(super) bytes: Vec<u8>,
    pub(super) known: Continuation,
    /// The proof in wire format.
    pub(super) proof: Vec<u8>,
}

/// Generations of a connection. Each has its own packet numbers.
#[derive(Debug, Default)]
pub(super) struct Generations {
    current: u16,
    /// Generations newer than the current one, each with the time of its request.
    requested: Vec<(u16, Instant)>,
    /// Continuation and proof that a restart returns; `None` before the first answer.
    pub(super) anchor: Option<Anchor>,
}

impl Generations {
    /// Number of generations by which `generation` is newer than the current one, modulo 2^16.
    pub(super) fn ahead(&self, generation: u16) -> u16 {
        generation.wrapping_sub(self.current)
    }

    /// Returns whether a restart may have requested the generation that is `ahead` of the current
    /// one.
    pub(super) fn is_restart(ahead: u16) -> bool {
        (1..=u16::from(MAX_ATTEMPTS)).contains(&ahead)
    }

    /// Returns whether a first window of the generation that is `ahead` of the current one may
    /// arrive. A restart requests a later generation. The echo of an address token requests the
    /// token's own generation, for which `ahead` is 0.
    pub(super) fn may_begin(&self, ahead: u16) -> bool {
        let token = self.anchor.as_ref().is_none_or(|a| a.known.mode == Mode::AddressToken);
        token && ahead == 0 || Generations::is_restart(ahead)
    }

    pub(super) fn enter(&mut self, generation: u16, token: Anchor) {
        (self.current, self.anchor) = (generation, Some(token));
    }

    /// Records an echo, which requests the generation of the address token.
    pub(super) fn echoed(&mut self, now: Instant) {
        self.requested.clear();
        self.restarted(0, now);
    }

    /// Records the request of the generation that is `ahead` of the current one. The answer then
    /// yields a round-trip sample, even if other generations were requested since.
    pub(super) fn restarted(&mut self, ahead: u16, now: Instant) {
        let generation = self.current.wrapping_add(ahead);
        self.requested.retain(|(asked, _)| *asked != generation);
        self.requested.push((generation, now));
    }

    /// Makes a requested generation the current one, and returns the time of its request. `None` if
    /// the generation was not requested.
    pub(super) fn begin(&mut self, generation: u16) -> Option<Instant> {
        let &(_, sent) = self.requested.iter().find(|(asked, _)| *asked == generation)?;
        // Generations that were requested later stay in the list: an answer to such a request ends
        // this generation.
        self.requested.retain(|&(asked, _)| asked.wrapping_sub(generation) as i16 > 0);
        self.current = generation;
        Some(sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Duration;

    #[test]
    fn an_answer_ends_the_requests_of_older_generations() {
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        let mut generations = Generations { current: u16::MAX, ..Generations::default() };
        (1..4).for_each(|ahead| generations.restarted(ahead, at(ahead.into())));
        generations.restarted(1, at(9));
        assert_eq!(generations.begin(5), None, "never requested");
        assert_eq!(generations.begin(1), Some(at(2)));
        assert_eq!((generations.ahead(2), generations.ahead(0)), (1, u16::MAX));
        assert_eq!(generations.begin(0), None, "older than the current one");
        assert_eq!(generations.begin(2), Some(at(3)));
    }

    #[test]
    fn only_an_address_token_begins_its_own_generation() {
        let mut generations = Generations::default();
        assert!(generations.may_begin(0) && generations.may_begin(1));
        assert!(!generations.may_begin(u16::from(MAX_ATTEMPTS) + 1));
        generations.echoed(Instant::ZERO);
        assert_eq!(generations.begin(0), Some(Instant::ZERO));
    }
}

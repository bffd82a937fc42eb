//! Machines of flows: chains of handlers, datagrams, early connections.

use std::sync::Arc;

use bytes::Bytes;

use super::{Driven, at, some_bytes};
use crate::flow::datagrams::{Direction, Ends, Passage};
use crate::flow::relays::{self, Relays};
use crate::flow::{Action, Address, Chain, Factory, Failure, Half};
use crate::handlers::testing::{factories, shell};
use crate::rng::Rng;
use crate::split::early::{Early, Tuple};
use crate::time::{Duration, Instant};

/// Set of relays for datagrams, and the numbers of the relays that are to be opened.
pub(super) struct SomeRelays(pub(super) Relays, pub(super) Vec<u64>);

impl Driven for SomeRelays {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        let ends = Ends { own: at(1, rng.below(5) as u16 + 1), peer: at(2, 53) };
        self.0.handle_out(now, ends, &Address::Ip(at(2, 53)), &some_bytes(rng, 50));
        if let Some(number) = self.1.pop() {
            match rng.below(3) {
                0 => self.0.handle_failed(now, number),
                1 => self.0.handle_ended(now, number),
                _ => drop(self.0.handle_open(number)),
            }
        }
    }

    fn drain(&mut self, _: Instant) {
        while let Some(action) = self.0.poll_action() {
            if let relays::Action::Open(number) = action {
                self.1.push(number);
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }
}

/// Datagrams on their way through a chain.
pub(super) struct DrivenPassage(pub(super) Passage);

impl Driven for DrivenPassage {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        let ends = Ends { own: at(1, rng.below(5) as u16 + 1), peer: at(2, 53) };
        let direction = [Direction::Out, Direction::Back][rng.below(2) as usize];
        self.0.handle_datagram(now, ends, direction, rng.below(1_000) as usize, 0);
    }

    fn drain(&mut self, now: Instant) {
        while self.0.poll_ready(now).is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }
}

/// Early connections to origins, started by SYNs.
pub(super) struct SomeSyns(pub(super) Early<()>);

impl Driven for SomeSyns {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        let tuple = Tuple { client: at(1, rng.below(20) as u16), to: at(2, 80) };
        match rng.below(4) {
            0 => drop(self.0.handle_accept(&tuple)),
            1 => self.0.postpone(&tuple, now + Duration::from_millis(rng.below(900))),
            _ => self.0.handle_syn(now, tuple, || Some(())),
        }
    }

    fn drain(&mut self, now: Instant) {
        while self.0.poll_expired(now).is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, _: Instant) {}
}

/// Chain of handlers whose network sends random bytes.
pub(super) struct DrivenChain {
    chain: Chain,
    takes: bool,
}

impl DrivenChain {
    pub(super) fn new(handler: &str) -> DrivenChain {
        let factories: Arc<[Arc<dyn Factory>]> = factories(&[handler], &shell());
        DrivenChain { chain: Chain::new(factories, 4_096, Instant::ZERO), takes: true }
    }
}

impl Driven for DrivenChain {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        let chain = &mut self.chain;
        let bottom = chain.bottom();
        match (rng.below(9), bottom) {
            (0, _) => chain.connect(now, Address::Name("there.example".into(), 80)),
            (1, Some(bottom)) => chain.connected(now, bottom, Ok(())),
            (2, Some(bottom)) => {
                let noise = Bytes::from(some_bytes(rng, 500));
                chain.avail(now, bottom, noise);
            }
            (3, Some(bottom)) if rng.chance(0.1) => chain.finished(now, bottom),
            (4, Some(bottom)) if rng.chance(0.1) => chain.failed(now, bottom, Failure::Reset),
            (5, _) if rng.chance(0.1) => chain.shutdown(now, Half::Write),
            (6, _) => self.takes = rng.chance(0.7),
            (7, _) if rng.chance(0.1) => chain.accepted(now),
            _ if chain.may_write() => {
                let data = Bytes::from(vec![rng.below(9) as u8; rng.below(3_000) as usize]);
                chain.write(now, data);
            }
            _ => {}
        }
    }

    fn drain(&mut self, now: Instant) {
        let Some(bottom) = self.chain.bottom() else { return };
        loop {
            let mut spawns = Vec::new();
            let actions: Vec<Action> =
                std::iter::from_fn(|| self.chain.poll_action()).take(10_000).collect();
            for action in &actions {
                match action {
                    Action::Spawn(spawn) => spawns.push(spawn.clone()),
                    Action::Give(_) => self.chain.unclaimed(now),
                    _ => {}
                }
            }
            spawns.iter().for_each(|spawn| self.chain.unspawned(spawn, now));
            let out = self.chain.outgoing(bottom).len() * usize::from(self.takes);
            let up = self.chain.incoming().len() * usize::from(self.takes);
            self.chain.sent(now, bottom, out);
            self.chain.consumed(now, up);
            if actions.is_empty() && out + up == 0 {
                return;
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.chain.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.chain.handle_timeout(now);
    }
}

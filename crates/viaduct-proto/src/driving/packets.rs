//! Machines of packets: links, and Trickles.

use bytes::Bytes;

use super::{Driven, some_bytes};
use crate::link::Link;
use crate::rng::Rng;
use crate::time::Instant;
use crate::trickles::client::Client;
use crate::trickles::stream::Stream;

pub(super) struct DrivenLink(pub(super) Link<()>);

impl Driven for DrivenLink {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        for _ in 0..rng.below(10) {
            let _ = self.0.push(now, (), rng.below(1_500) as usize + 1);
        }
    }

    fn drain(&mut self, now: Instant) {
        while self.0.poll(now).is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, _: Instant) {}
}

/// Client of Trickles whose server sends nothing, or random bytes. (The simulator checks the
/// contract for a client with a server.)
pub(super) struct DrivenClient(pub(super) Client);

impl Driven for DrivenClient {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        self.0.want(rng.below(1 << 20), rng.below(9_000) + 1, Bytes::new());
        self.0.handle(now, &some_bytes(rng, 200));
    }

    fn drain(&mut self, now: Instant) {
        while self.0.poll_transmit(now, &mut Bytes::new()).is_some() {}
        while self.0.poll_arrived().is_some() {}
        while self.0.poll_settled().is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }
}

/// Client's stream over Trickles; the server sends nothing, or random bytes ([`DrivenClient`]).
pub(super) struct DrivenStream(pub(super) Stream);

impl Driven for DrivenStream {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        self.0.write(0, &some_bytes(rng, 3_000));
        self.0.request(&some_bytes(rng, 100), 1_000);
        self.0.handle(now, &some_bytes(rng, 200));
    }

    fn drain(&mut self, now: Instant) {
        while self.0.poll_transmit(now).is_some() {}
        while self.0.poll_changed().is_some() {}
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.poll_timeout()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.handle_timeout(now);
    }
}

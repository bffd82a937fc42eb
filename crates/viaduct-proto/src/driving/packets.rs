//! Machines of packets: links, fake TCP, and Trickles.

use bytes::Bytes;

use super::sites::entropy;
use super::{Driven, at, some_bytes};
use crate::fake_tcp::{FakeTcp, Ports};
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

/// Two gateways' fake TCP. Packets are lost at random.
pub(super) struct DrivenFakeTcp(pub(super) [FakeTcp; 2]);

impl DrivenFakeTcp {
    pub(super) fn new(seed: u64) -> DrivenFakeTcp {
        let machine = |n: u8| {
            let sources = vec![50_000, 50_001];
            let ports = Ports { listen: at(n, 7400), sources, mtu: 1_500 };
            FakeTcp::new(ports, entropy(seed), Instant::ZERO)
        };
        DrivenFakeTcp([machine(0), machine(1)])
    }
}

impl Driven for DrivenFakeTcp {
    fn perturb(&mut self, now: Instant, rng: &mut Rng) {
        let [opener, other] = &mut self.0;
        let source = rng.chance(0.5).then(|| at(0, 1).ip());
        opener.send(now, at(1, 7400), source, &some_bytes(rng, 1_000));
        other.send(now, at(0, 50_000), None, &some_bytes(rng, 1_000));
    }

    fn drain(&mut self, now: Instant) {
        let mut rng = Rng::from_seed(now.as_nanos());
        for from in [0, 1, 0, 1] {
            let packets: Vec<_> = self.0[from].transmits().map(<[u8]>::to_vec).collect();
            self.0[from].clear_transmits();
            for mut packet in packets {
                if rng.chance(0.7) {
                    self.0[1 - from].handle_packet(now, &mut packet, |_, _| true);
                }
            }
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.0.iter().filter_map(FakeTcp::poll_timeout).min()
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.0.iter_mut().for_each(|machine| machine.handle_timeout(now));
    }
}

//! Test of the driving contract for every machine of this crate: after a round
//! (`handle_timeout(now)`, then every `poll_*` until `None`) the next deadline is later than `now`,
//! except for a few rounds that make progress. A machine that violates this keeps a CPU core busy.
//!
//! | file | machines |
//! |---|---|
//! | `sites` | gateways, ends of a tunnel, nodes of an overlay, checks of replicas |
//! | `flows` | chains of handlers, datagrams, early connections |
//! | `packets` | links, fake TCP, clients and streams of Trickles |

mod flows;
mod packets;
mod sites;

use std::net::SocketAddr;

use proptest::prelude::*;

use crate::fec::layered::Parameters;
use crate::fec::{Code, reed_solomon, window};
use crate::flow::datagrams::{self, Passage};
use crate::flow::relays::{self, Relays};
use crate::handlers::testing::{factories, shell};
use crate::link::Link;
use crate::rng::Rng;
use crate::split::early::Early;
use crate::time::{Duration, Instant};
use crate::trickles::client::{self, Client};
use crate::trickles::stream::{self, Stream};
use flows::{DrivenChain, DrivenPassage, SomeRelays, SomeSyns};
use packets::{DrivenClient, DrivenFakeTcp, DrivenLink, DrivenStream};
use sites::{Checks, Gateways, Nodes, Tunnels};

/// Maximum number of rounds at one instant.
const MAX_ROUNDS: usize = 8;
/// Number of steps in one run.
const STEPS: usize = 120;

/// Machine as a shell drives it.
trait Driven {
    /// Applies a random event from its surroundings.
    fn perturb(&mut self, now: Instant, rng: &mut Rng);
    /// Takes all outputs of the machine.
    fn drain(&mut self, now: Instant);
    fn poll_timeout(&self) -> Option<Instant>;
    fn handle_timeout(&mut self, now: Instant);
}

/// Drives `machine` for [`STEPS`] steps. Its timeouts are sometimes handled late.
fn assert_no_spin(machine: &mut dyn Driven, seed: u64) -> Result<(), TestCaseError> {
    let (mut now, mut rng) = (Instant::ZERO, Rng::from_seed(seed));
    for _ in 0..STEPS {
        if rng.chance(0.6) {
            machine.perturb(now, &mut rng);
            machine.drain(now);
        }
        let late = Duration::from_micros(rng.below(3) * rng.below(2_000_000));
        now = match machine.poll_timeout() {
            Some(due) => now.max(due) + late,
            None => now + Duration::from_millis(rng.below(500)),
        };
        let mut rounds = 0;
        while machine.poll_timeout().is_some_and(|due| due <= now) {
            prop_assert!(rounds < MAX_ROUNDS, "the deadline stays in the past at {now:?}");
            machine.handle_timeout(now);
            machine.drain(now);
            rounds += 1;
        }
    }
    Ok(())
}

fn at(n: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, n], port))
}

fn some_bytes(rng: &mut Rng, most: u64) -> Vec<u8> {
    let mut bytes = vec![0; rng.below(most) as usize];
    rng.fill(&mut bytes);
    bytes
}

/// All handlers of the registry, with minimal settings.
const HANDLERS: [&str; 11] = [
    "compress",
    "congestion",
    "count",
    "latency:delay=20ms",
    "shape:rate=1M",
    "migrate",
    "mux",
    "stripe",
    "route:overlay=x",
    "socks:via=192.0.2.1:1080",
    "crypt:key=1.key",
];

#[test]
fn all_handlers_are_tested() {
    let held: Vec<&str> = HANDLERS.iter().map(|text| text.split(':').next().unwrap()).collect();
    let registry = crate::handlers::registry(&shell());
    for about in registry.about() {
        assert!(held.contains(&about.name), "{} is missing in HANDLERS", about.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn gateways_do_not_spin(
        seed: u64, endpoints: [bool; 2], loss in 0.0..0.9f64, code in 0..4usize,
    ) {
        let codes = [
            None,
            Some(Code::Layered(Parameters { r: 8, interleaves: vec![1, 19], delay_xors: false })),
            Some(Code::ReedSolomon(reed_solomon::Parameters { r: 8, c: 3, interleave: 2 })),
            Some(Code::Window(window::Parameters { window: 60, packets: 4, repairs: 1 })),
        ];
        assert_no_spin(&mut Gateways::new(endpoints, codes[code].as_ref(), loss), seed)?;
    }

    #[test]
    fn tunnels_do_not_spin(seed: u64) {
        assert_no_spin(&mut Tunnels::new(), seed)?;
    }

    #[test]
    fn nodes_do_not_spin(seed: u64) {
        assert_no_spin(&mut Nodes::new(), seed)?;
    }

    #[test]
    fn checks_of_replicas_do_not_spin(seed: u64) {
        assert_no_spin(&mut Checks::new(), seed)?;
    }

    #[test]
    fn datagrams_do_not_spin(seed: u64) {
        let relays = relays::Bounds {
            relays: 3,
            early: 100,
            idle: Duration::from_secs(2),
            pause: Duration::from_secs(1),
            leave: seed.is_multiple_of(2),
        };
        let words = factories(&["socks:via=192.0.2.1:1080"], &shell())[0].relay().unwrap();
        assert_no_spin(&mut SomeRelays(Relays::new(words, relays), Vec::new()), seed)?;
        let bounds = datagrams::Bounds { pairs: 3, idle: Duration::from_secs(2) };
        let chain = factories(&["latency:delay=30ms", "shape:rate=1M"], &shell());
        assert_no_spin(&mut DrivenPassage(Passage::new(chain, bounds).unwrap()), seed)?;
    }

    #[test]
    fn tables_and_links_do_not_spin(seed: u64) {
        assert_no_spin(&mut SomeSyns(Early::new(10, Duration::from_secs(1))), seed)?;
        for link in ["rate=1M,delay=5ms", "delay=9ms,jitter=5ms,reorder=20%:3ms", "loss=5%"] {
            let config = link.parse().unwrap();
            assert_no_spin(&mut DrivenLink(Link::new(config, seed, Instant::ZERO)), seed)?;
        }
    }

    #[test]
    fn chains_do_not_spin(seed: u64, handler in 0..HANDLERS.len()) {
        assert_no_spin(&mut DrivenChain::new(HANDLERS[handler]), seed)?;
    }

    #[test]
    fn fake_tcp_does_not_spin(seed: u64) {
        assert_no_spin(&mut DrivenFakeTcp::new(seed), seed)?;
    }

    #[test]
    fn trickles_do_not_spin(seed: u64) {
        let config = client::Config::default();
        assert_no_spin(&mut DrivenClient(Client::open(config, seed, Instant::ZERO)), seed)?;
        let config = stream::Config::default();
        assert_no_spin(&mut DrivenStream(Stream::open(config, seed, Instant::ZERO)), seed)?;
    }
}

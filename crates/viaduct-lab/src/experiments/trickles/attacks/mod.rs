//! Attacks by clients and by eavesdroppers (Trickles, sections 2.2 and 2.3). Each attack uses
//! real packets, and the server's own counters show the outcome.
//!
//! ```text
//!   a1 attacker ─┐
//!                ├─ gwa ══ the link ══ gwb ── b1 serve
//!   a2 victim ───┘
//!
//!   1  forgeries, replays, thefts: refused, and counted
//!   2  SYNs from the victim's address: all answers together have at most the SYNs' bytes
//!   3  lying clients and honest ones, under losses
//! ```
//!
//! | file | contains |
//! |---|---|
//! | [`raw_client`] | a client over UDP: messages can be held back, altered or sent twice |
//! | [`forgeries`] | part 1 |
//! | [`reflection`] | part 2 |
//! | [`liars`] | part 3 |

mod forgeries;
mod liars;
mod raw_client;
mod reflection;

use super::replicas::{Replicas, Service};
use super::served::CONGESTION_CONTROL;
use crate::experiments::prelude::*;

/// Time after which the status of a server includes all earlier events.
const SETTLED: Duration = Duration::from_millis(500);

pub(in crate::experiments) const ABOUT: About = About {
    name: "trickles/attacks",
    title: "Attacks on a stateless server",
    figure: "Trickles, sections 2.2 and 2.3",
    finding: "Continuations cannot be altered or used twice, losses cannot be hidden, and a packet \
              from an unknown address is never answered with more bytes than it has.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    run.congestion_control(CONGESTION_CONTROL);
    run.steps(3);
    run.step("forgeries, replays and thefts")?;
    let link = "rate=100M,delay=5ms,queue=1MB".parse()?;
    let world = Replicas::build(2, Wan::emulated(link, run.seed()), run.journal())?;
    let server = world.serve(0, &[])?;
    forgeries::run(run, &world, &server)?;
    run.step("SYNs from a spoofed address")?;
    reflection::run(run, &world, &server)?;
    drop((server, world));
    run.step("lying clients and honest ones")?;
    liars::run(run)
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    moved: u64,
    /// Altered or unreadable requests.
    forged: u64,
    replayed: u64,
    unproven: u64,
    greedy: u64,
    /// User continuations that no known secret has sealed.
    unknown: u64,
}

impl Counts {
    /// Reads the counters, after the server has published them.
    fn read(server: &Service) -> Result<Counts> {
        thread::sleep(SETTLED);
        let status = server.status()?;
        let refused = |why: &str| {
            let all = status["trickles"]["refused"].as_array();
            let one = all.into_iter().flatten().find(|one| one[0] == why);
            one.and_then(|one| one[1].as_u64()).unwrap_or(0)
        };
        Ok(Counts {
            moved: status["trickles"]["moved"].as_u64().unwrap_or(0),
            forged: refused("malformed") + refused("invalid"),
            replayed: refused("replayed"),
            unproven: refused("unproven"),
            greedy: refused("greedy"),
            unknown: refused("unknown"),
        })
    }

    fn since(self, before: Counts) -> Counts {
        Counts {
            moved: self.moved - before.moved,
            forged: self.forged - before.forged,
            replayed: self.replayed - before.replayed,
            unproven: self.unproven - before.unproven,
            greedy: self.greedy - before.greedy,
            unknown: self.unknown - before.unknown,
        }
    }
}

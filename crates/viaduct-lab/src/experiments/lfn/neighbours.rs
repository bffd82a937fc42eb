//! Interference between sessions of one tunnel: small fetches alone, during a large session,
//! and during a session whose reader has stopped.
//!
//! ```text
//!   a1  20 × fetch 5 KB, repeatedly ──────┐                                  ┌─▶ b1
//!   a1  one endless session ──────────────┼─▶ a2 near ══ links ══ far b2 ───┼─▶ b1
//!   a1  one with a stopped reader ────────┘        10 Mb/s, 300 ms           └─▶ b1
//! ```

use super::small_site::SmallSites;
use crate::example_tunnel::Links;
use crate::experiments::prelude::*;
use crate::topology::programs::sessions::{Idle, fetch, fill};

/// Number of concurrent small sessions, and bytes per fetch.
const SMALL: (usize, u64) = (20, 5000);
/// Time for the endless session to fill the link.
const LEAD: Duration = Duration::from_secs(4);

/// Median times of small fetches in ms.
#[derive(Clone, Copy, Debug)]
struct Medians {
    alone: f64,
    with_stopped: f64,
    with_large: f64,
}

/// Measures over TCP and QUIC, and checks both.
pub(super) fn measure(run: &mut Run) -> Result<()> {
    let duration = Duration::from_secs(run.choose(20, 8));
    run.param("small_sessions", format!("{} of {} bytes each, repeatedly", SMALL.0, SMALL.1));
    let (seed, journal) = (run.seed(), run.journal().clone());
    let all = [Links::tcp(1), Links::tcp(3), Links::quic()];
    let found = parallel(all, |links| scene(links, seed, &journal, duration))?;
    let plot =
        Plot::histogram("Small sessions, median", ("concurrent session", ""), ("time", "ms"));
    for (links, medians) in all.iter().zip(found) {
        let (name, alone) = (links.name(), medians.alone);
        let bars = [
            ("nothing", alone),
            ("a reader that has stopped", medians.with_stopped),
            ("a large session", medians.with_large),
        ];
        run.plot_bars(&plot, &name, bars);
        let check = format!(
            "{name}: median time of small sessions next to a stopped reader, relative to without it"
        );
        run.at_most(&check, medians.with_stopped / alone, 1.2);
        let check = format!(
            "{name}: median time of 20 small sessions next to a large one, relative to without it"
        );
        run.at_most(&check, medians.with_large / alone, 1.5);
    }
    Ok(())
}

fn scene(links: Links, seed: u64, journal: &Journal, duration: Duration) -> Result<Medians> {
    let SmallSites { tunnel, world, .. } = &SmallSites::build(links, seed, journal)?;
    let (a1, to) = (world.a1(), tunnel.entrance());
    let alone = small(a1, to, duration)?;
    let with_large = thread::scope(|scope| -> Result<f64> {
        let large = scope.spawn(|| fill(a1, to, (LEAD, duration)));
        thread::sleep(LEAD);
        let median = small(a1, to, duration)?;
        join(large)?;
        Ok(median)
    })?;
    let _stopped = Idle::open(a1, to)?;
    // Waits until the unread bytes fill all buffers on the path.
    thread::sleep(LEAD);
    let with_stopped = small(a1, to, duration)?;
    Ok(Medians { alone, with_stopped, with_large })
}

/// Returns the median time in ms of small fetches by 20 clients, each of which makes one fetch at
/// a time.
fn small(from: &Host, to: SocketAddr, duration: Duration) -> Result<f64> {
    let (begin, enough) = (Instant::now(), AtomicBool::new(false));
    let client = |_| -> Result<Vec<f64>> {
        let mut times = Vec::new();
        while begin.elapsed() < duration && !enough.load(Ordering::Relaxed) {
            match fetch(from, to, SMALL.1) {
                Ok(time) => times.push(time.as_secs_f64() * 1e3),
                Err(e) => {
                    enough.store(true, Ordering::Relaxed);
                    return Err(e.into());
                }
            }
        }
        Ok(times)
    };
    Ok(median(&parallel(0..SMALL.0, client)?.concat()))
}

//! Flows whose every byte is checked: long ones at a constant pace, and short ones that begin at a
//! constant rate.
//!
//! ```text
//!   client thread                              server thread
//!     number, length ──────────────────────▶
//!                    ◀── content of the number    length 0: a block every 20 ms, until the end
//!                    ◀── end                      otherwise: that many bytes
//! ```
//!
//! The content is derived from the number of the flow, so that bytes of another flow count as
//! wrong as well.

mod client;
mod content;
mod server;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::stop;
use crate::topology::{Host, Node};

const PORT: u16 = 9000;
/// Interval of the blocks of a paced flow, in milliseconds.
const PACE_MS: u64 = 20;
/// Bytes per second of a paced flow.
pub const PACED_RATE: u64 = content::BLOCK as u64 * 1000 / PACE_MS;
/// Pauses of paced flows that are longer than this are recorded.
pub const MIN_PAUSE: Duration = Duration::from_millis(PACE_MS + PACE_MS / 4);
/// Bytes of a short flow.
const SHORT: u64 = 4_000;
/// Time in which all paced flows must be open.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
/// Interval at which both threads look for due work.
const TICK: Duration = Duration::from_millis(1);

/// Traffic to generate.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Number of paced flows.
    pub paced: usize,
    /// Short flows that begin per second.
    pub short_per_second: u32,
}

/// Running traffic; stopped when dropped.
#[derive(Debug)]
pub struct Checked {
    state: Arc<State>,
    client: Option<JoinHandle<io::Result<CheckedReport>>>,
    server: Option<JoinHandle<io::Result<Totals>>>,
}

/// Bytes of each paced flow, by its number.
type Totals = HashMap<u64, u64>;

/// State shared by the threads and their handle.
#[derive(Debug, Default)]
struct State {
    /// Number of paced flows that have received bytes.
    open: AtomicUsize,
    /// Set when no more flows are to begin.
    stop: AtomicBool,
    /// Set when the server is to end the paced flows.
    end: AtomicBool,
}

/// Results of the client.
#[derive(Debug, Default)]
pub struct CheckedReport {
    /// Bytes received by paced flows.
    pub bytes: u64,
    /// Flows with wrong or missing bytes.
    pub wrong: u64,
    /// Flows that were refused, reset, ended early or not served in time.
    pub broken: u64,
    /// Descriptions of the first faults.
    pub faults: Vec<String>,
    /// Times of the short flows, from the connect to the last byte.
    pub times: Vec<Duration>,
    /// Begin and end of each pause of a paced flow that is longer than [`MIN_PAUSE`].
    pub pauses: Vec<(Instant, Instant)>,
    /// Bytes of the paced flows that have ended.
    ended: Totals,
}

impl Checked {
    /// Starts the server in `server` and the clients in `client`, and waits until all paced flows
    /// are open. Fails if the port is in use, or the flows are not open in time.
    pub fn start(client: &Node, server: &Host, traffic: Traffic) -> Result<Checked> {
        let to = SocketAddr::new(server.v4().into(), PORT);
        let state = Arc::<State>::default();
        let serving = server.netns().enter(|| server::Server::new(to))??;
        let theirs = state.clone();
        let server = thread::spawn(move || serving.run(&theirs));
        let (theirs, netns) = (state.clone(), client.netns().clone());
        let client = thread::spawn(move || {
            let run = || client::Client::new(to, traffic, &theirs)?.run();
            netns.enter(run).map_err(io::Error::other)?
        });
        let checked = Checked { state, client: Some(client), server: Some(server) };
        let is_open = || checked.state.open.load(Ordering::Relaxed) >= traffic.paced;
        let open = stop::wait_until(OPEN_TIMEOUT, TICK, is_open)?;
        ensure!(open, "{} paced flows are not open within {OPEN_TIMEOUT:?}", traffic.paced);
        Ok(checked)
    }

    /// Ends the traffic: no more flows begin, the open short flows are served, and then the server
    /// closes the paced ones. Fails if a thread has failed.
    pub fn finish(mut self) -> Result<CheckedReport> {
        self.state.stop.store(true, Ordering::Relaxed);
        let client = self.client.take().context("the clients have already ended")?;
        let mut report = client.join().ok().context("the clients' thread panicked")??;
        self.state.end.store(true, Ordering::Relaxed);
        let server = self.server.take().context("the server has already ended")?;
        let sent = server.join().ok().context("the server's thread panicked")??;
        for (number, sent) in sent {
            let got = report.ended.get(&number).copied();
            // A flow that the server has not closed was counted as broken already.
            if got.is_some_and(|got| got != sent) {
                report.wrong += 1;
                report.fault(|| format!("flow {number}: {got:?} of {sent} bytes have arrived"));
            }
        }
        Ok(report)
    }
}

impl Drop for Checked {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        self.state.end.store(true, Ordering::Relaxed);
        let _ = self.client.take().map(JoinHandle::join);
        let _ = self.server.take().map(JoinHandle::join);
    }
}

impl CheckedReport {
    /// Records a fault, up to `MAX_FAULTS` of them.
    fn fault(&mut self, text: impl FnOnce() -> String) {
        const MAX_FAULTS: usize = 20;
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(text());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::{Dumbbell, DumbbellSpec, Journal};

    #[test]
    fn flows_keep_their_pace_and_a_silent_path_is_a_pause() {
        let world = Dumbbell::build(&DumbbellSpec::default(), &Journal::new()).unwrap();
        let traffic = Traffic { paced: 10, short_per_second: 50 };
        let begun = Instant::now();
        let checked = Checked::start(world.a1(), world.b1(), traffic).unwrap();
        thread::sleep(Duration::from_millis(400));
        let rules = |text: &str| world.gateway_a().run("nft", &[text]).unwrap();
        rules(
            "add table inet lost
             add chain inet lost f { type filter hook forward priority 0; policy drop; }",
        );
        thread::sleep(Duration::from_millis(300));
        rules("delete table inet lost");
        thread::sleep(Duration::from_secs(1));
        let report = checked.finish().unwrap();
        let most = 10.0 * PACED_RATE as f64 * begun.elapsed().as_secs_f64();
        let share = report.bytes as f64 / most;
        assert!((0.3..=1.05).contains(&share), "{share} of the bytes");
        assert_eq!((report.wrong, report.broken), (0, 0), "{:?}", report.faults);
        assert!(report.times.len() > 10, "{} short flows", report.times.len());
        let pauses = report.pauses.iter().map(|(begin, end)| *end - *begin);
        let long = pauses.filter(|pause| *pause > Duration::from_millis(250)).count();
        assert!(long >= 10, "{long} flows paused");
    }
}

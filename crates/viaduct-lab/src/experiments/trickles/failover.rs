//! Figure 16: the server is killed during a transfer, and restarted or replaced.
//!
//! ```text
//!   a1 curl ══ the link ══ gwb ──── b1 serve    t: kill -9, and restart immediately;
//!                             └ ─ ─ b2 serve    or b1's wire fails, and b2 takes over the address
//! ```
//!
//! The TCP client is better than real programs: it resumes where the transfer broke, retries after
//! 10 ms, and abandons a connection without data for a second. If only the process is killed, the
//! kernel closes the connection, and the client learns of this immediately; a client that retries
//! after a second, as `curl --retry` does, is measured as well. A failed machine sends nothing.

use super::download::{Arrivals, By, Download};
use super::replicas::{Replicas, Service};
use super::served::CONGESTION_CONTROL;
use crate::experiments::prelude::*;

/// Link rate in bits per second.
const RATE: f64 = 200e6;
const LINK: &str = "rate=200M,delay=2ms,queue=20ms";
const CLIENTS: usize = 3;
/// Delay from a machine's failure to the takeover of its address: three missed hellos, 33 ms apart.
const NOTICED: Duration = Duration::from_millis(100);
/// Maximum time without data, in seconds.
const MAX_GAP: f64 = 1.0;
/// Maximum time without data relative to that of the TCP clients.
const SHARE: f64 = 0.5;
/// Half of the time that is plotted in detail, in seconds. At most a quarter of the plotted time
/// precedes the failure.
const AROUND: f64 = 4.0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// The process is killed and restarted immediately.
    Restart,
    /// The machine fails, and another one takes over its address.
    Takeover,
}

impl Death {
    fn name(self) -> &'static str {
        match self {
            Death::Restart => "restart",
            Death::Takeover => "takeover",
        }
    }

    fn clients(self) -> &'static [Client] {
        match self {
            Death::Restart => &[TRICKLES, AT_ONCE, RETRIES],
            Death::Takeover => &[TRICKLES, AT_ONCE],
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Client {
    by: By,
    pause: Duration,
    name: &'static str,
}

const TRICKLES: Client = Client { by: By::Trickles, pause: Duration::ZERO, name: "Trickles" };
const AT_ONCE: Client =
    Client { by: By::Tcp, pause: Duration::from_millis(10), name: "TCP that retries immediately" };
const RETRIES: Client =
    Client { by: By::Tcp, pause: Duration::from_secs(1), name: "TCP that retries after 1 s" };

impl Client {
    fn waits(self) -> bool {
        self.pause >= Duration::from_secs(1)
    }
}

pub(in crate::experiments) const ABOUT: About = About {
    name: "trickles/failover",
    title: "A server that fails during a transfer",
    figure: "Trickles, Figure 16",
    finding: "A Trickles flow continues with the server's next process as if some packets had been \
              lost; TCP detects the disconnection, reconnects and ramps up again.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let death = run.choose(10.0, 2.0);
    run.param("link", LINK);
    run.param("clients", CLIENTS);
    run.param("death_s", death);
    run.param("noticed_ms", NOTICED.as_millis() as u64);
    run.congestion_control(CONGESTION_CONTROL);
    run.steps(5);
    for how in [Death::Restart, Death::Takeover] {
        let mut gaps = Vec::new();
        for &client in how.clients() {
            run.step(&format!("{}, {}", how.name(), client.name))?;
            let one = Transfer { how, client, death, seed: run.seed() };
            let found = one.run(run.journal())?;
            draw(run, &one, &found);
            gaps.push(worst(&found, death));
            if client.by == By::Trickles {
                let name = format!("{}: clients of Trickles that saw an error", how.name());
                let errors = found.iter().map(|one| f64::from(one.errors)).sum();
                run.at_most(&name, errors, 0.0);
            }
            let name = format!("{}, {}: complete transfers", how.name(), client.name);
            let whole = found.iter().filter(|one| one.whole).count();
            run.at_least(&name, whole as f64, CLIENTS as f64);
        }
        run.at_most(&format!("{}: longest time without data, s", how.name()), gaps[0], MAX_GAP);
        let others = how.clients().iter().zip(&gaps).skip(1);
        // After a restart, a TCP client that retries immediately is at least as fast as Trickles,
        // whose timer must expire first. Therefore only the client that waits is compared.
        for (client, gap) in others.filter(|(client, _)| how == Death::Takeover || client.waits()) {
            let name =
                format!("{}: longest time without data, relative to {}", how.name(), client.name);
            run.at_most(&name, gaps[0] / gap, SHARE);
        }
    }
    Ok(())
}

/// Returns the longest time without data over all clients.
fn worst(found: &[Arrivals], death: f64) -> f64 {
    found.iter().map(|one| one.gap(death)).fold(0.0, f64::max)
}

/// Draws the total throughput in bins of 50 ms around the failure, and the times without data.
fn draw(run: &mut Run, one: &Transfer, found: &[Arrivals]) {
    let Transfer { how, client, death, .. } = *one;
    let title = format!("Throughput around a {}", how.name());
    let plot = Plot::line(&title, ("time since the failure", "s"), ("throughput", "Mb/s"));
    let series = run.series(&plot, client.name);
    const BIN: f64 = 0.05;
    let bins = (2.0 * AROUND / BIN) as usize;
    for n in 0..bins {
        let from = death - AROUND.min(death) / 2.0 + n as f64 * BIN;
        let bytes: u64 = found.iter().map(|one| one.by(from + BIN) - one.by(from)).sum();
        run.point(series, from + BIN / 2.0 - death, bytes as f64 * 8.0 / 1e6 / BIN);
    }
    let plot = Plot::histogram("Longest time without data", ("what", ""), ("time", "s"));
    run.plot_bar(&plot, client.name, (how as usize, how.name()), worst(found, death));
    let plot = Plot::histogram("Programs that saw an error", ("what", ""), ("programs", ""));
    let errors = found.iter().map(|one| f64::from(one.errors)).sum();
    run.plot_bar(&plot, client.name, (how as usize, how.name()), errors);
}

/// Transfer to each client, in a world of its own.
struct Transfer {
    how: Death,
    client: Client,
    /// Time of the failure, in seconds.
    death: f64,
    seed: u64,
}

impl Transfer {
    fn run(&self, journal: &Journal) -> Result<Vec<Arrivals>> {
        let world = Replicas::build(2, Wan::emulated(link(LINK), self.seed), journal)?;
        // As many bytes as cross the link in 1.5 times the time until the failure.
        let bytes = RATE / 8.0 * self.death * 1.5 / CLIENTS as f64;
        let content = world.file("file", bytes as usize, self.seed)?;
        let first = world.serve(0, &[])?;
        let second = match self.how {
            Death::Restart => None,
            Death::Takeover => Some(world.serve(1, &[])?),
        };
        let (url, begun) = (Replicas::url("file"), Instant::now());
        let run_dirs: Vec<_> =
            (0..CLIENTS).map(|n| world.scratch().path().join(format!("client-{n}"))).collect();
        run_dirs.iter().try_for_each(fs::create_dir)?;
        thread::scope(|scope| {
            let (host, limit) = (world.net.a1(), Duration::from_secs_f64(6.0 * self.death));
            let Client { by, pause, .. } = self.client;
            let start = |run_dir| {
                let (url, content) = (&url[..], &content[..]);
                let download = Download { host, by, pause, url, content, run_dir, limit };
                scope.spawn(move || download.run(begun))
            };
            let clients: Vec<_> = run_dirs.iter().map(|dir| start(dir.as_path())).collect();
            thread::sleep(Duration::from_secs_f64(self.death).saturating_sub(begun.elapsed()));
            let _left = self.happen(&world, first, second)?;
            clients.into_iter().map(join).collect()
        })
    }

    /// Causes the failure; returns the server that remains.
    fn happen(&self, world: &Replicas, first: Service, second: Option<Service>) -> Result<Service> {
        let Some(second) = second else {
            first.kill()?;
            return world.serve(0, &[]);
        };
        world.net.b1().ip(&["link set eth0 down".to_owned()])?;
        first.kill()?;
        thread::sleep(NOTICED);
        world.lead_to(1)?;
        Ok(second)
    }
}

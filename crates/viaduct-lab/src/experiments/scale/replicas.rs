//! Replicas of a stateless server behind `viaduct spray`: machines fail, the address moves, and the
//! secrets rotate, while 200 downloads run. No manual step is needed.
//!
//! | part | event |
//! |---|---|
//! | replica | a replica fails: health checks detect this, its packets go to the others |
//! | box in front | the box that has the address fails: keepalived moves the address |
//! | rotation | periods of the secrets end, and a new root replaces the old one |
//! | anycast | the nearer of two replicas fails: BFD detects this, BIRD routes to the other one |

use super::anycast::Anycast;
use super::served::{Served, Transfer, key_replicas};
use super::service::Service;
use crate::experiments::prelude::*;
use crate::load::{Downloaded, Downloads};

/// Rate of the link in bits per second.
const RATE: f64 = 200e6;
/// Link between the sites, whose queue has room for several packets of each download.
const LINK: &str = "rate=200M,delay=10ms,queue=100ms";
const CLIENTS: usize = 200;
/// Time within which the downloads begin.
const SPREAD: Duration = Duration::from_secs(1);
/// Duration of the downloads around a failure, in seconds. In the first seconds, some downloads
/// receive no data even without a failure, because all downloads together overflow the queue.
const SECONDS: f64 = 20.0;
/// Period of the secrets.
const PERIOD: &str = "10s";
/// Time after which a new root secret is used.
const ROOT_AFTER: &str = "4s";
/// Maximum time without data around a failure, in seconds.
const MAX_GAP: f64 = 1.0;
/// Time after a failure that is examined, in seconds.
const AFTERMATH: f64 = 3.0;

pub(in crate::experiments) const ABOUT: About = About {
    name: "scale/replicas",
    title: "Replicas, addresses that move, and secrets that rotate, without manual steps",
    figure: "Trickles, sections 2.1 and 6.4",
    finding: "A server without state can be replaced, and its packets spread, during a transfer.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    run.param("link", LINK);
    run.param("downloads", CLIENTS);
    run.param("period_of_secrets", PERIOD);
    run.steps(4);
    run.step("rotation of the secrets")?;
    rotation(run, run.choose(45.0, 22.0))?;
    for (step, part) in [("a replica fails", Part::Replica), ("a box in front fails", Part::Front)]
    {
        run.step(step)?;
        let service = Service::start(link(LINK), PERIOD, run)?;
        let victim = match part {
            Part::Replica => &service.rack.replicas()[1],
            Part::Front => &service.rack.fronts()[0],
        };
        let world = (&service.net, &service.served);
        fail(run, part.name(), world, || Ok(service.rack.kill(victim)?))?;
        if part == Part::Replica {
            let status = service.sprays[0].status()?;
            run.param("replica, state afterwards", status["replicas"][1]["reason"].clone());
        }
    }
    run.step("anycast")?;
    let world = Anycast::start(run)?;
    fail(run, PARTS[2], (&world.net, &world.served), || world.kill_near())
}

/// Parts with a failure, in the order of the plot.
const PARTS: [&str; 3] = ["replica", "box in front", "anycast"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Replica,
    Front,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Part::Replica => PARTS[0],
            Part::Front => PARTS[1],
        }
    }
}

/// Returns downloads whose bytes take `seconds` at the link's rate.
fn downloads<'a>(request: &'a [u8], content: &'a [u8], seconds: f64) -> Downloads<'a> {
    let limit = Duration::from_secs_f64(4.0 * seconds + 20.0);
    Downloads { request, content, clients: CLIENTS, spread: SPREAD, limit }
}

fn bytes(seconds: f64) -> usize {
    (RATE / 8.0 * seconds / CLIENTS as f64) as usize
}

/// Runs downloads while `kill` kills a machine.
fn fail(
    run: &mut Run,
    part: &str,
    (net, served): (&Dumbbell, &Served),
    kill: impl FnOnce() -> Result<()> + Send,
) -> Result<()> {
    let content = served.file("file", bytes(SECONDS), run.seed())?;
    let request = get("file");
    let at = Duration::from_secs_f64(SECONDS * 0.4);
    let kill = |begun: Instant| -> Result<f64> {
        thread::sleep(at.saturating_sub(begun.elapsed()));
        let died = begun.elapsed().as_secs_f64();
        kill()?;
        Ok(died)
    };
    let wanted = downloads(&request, &content, SECONDS);
    let (Transfer { done, trace }, died) = served.download(net, &wanted, run.seed(), kill)?;
    draw(run, part, &trace, died);
    check(run, part, &done);
    check_gap(run, part, &done, died);
    Ok(())
}

/// Rotates the secrets while the downloads run: by periods, and by a new root.
fn rotation(run: &mut Run, seconds: f64) -> Result<()> {
    let service = Service::start(link(LINK), PERIOD, run)?;
    let content = service.served.file("file", bytes(seconds), run.seed())?;
    let request = get("file");
    let renew = |begun: Instant| -> Result<()> {
        thread::sleep(Duration::from_secs(3).saturating_sub(begun.elapsed()));
        key_replicas(&["--after", ROOT_AFTER, "--add"], &service.secrets(0))?;
        // The other replicas get the file later, as from a management system.
        for replica in 1..service.rack.replicas().len() {
            thread::sleep(Duration::from_secs(1));
            service.copy_secrets(replica)?;
        }
        Ok(())
    };
    let wanted = downloads(&request, &content, seconds);
    let (Transfer { done, .. }, ()) =
        service.served.download(&service.net, &wanted, run.seed(), renew)?;
    check(run, "rotation", &done);
    let changes = service.log("b1")?.matches("the secrets have changed").count();
    run.at_least(
        "rotation: changes of a replica's secrets during the downloads",
        changes as f64,
        3.0,
    );
    Ok(())
}

fn get(name: &str) -> Vec<u8> {
    format!("GET /{name} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n").into_bytes()
}

/// Checks that no download failed.
fn check(run: &mut Run, part: &str, done: &[Downloaded]) {
    let whole = done.iter().filter(|one| one.is_whole).count();
    for (n, one) in done.iter().enumerate() {
        if let Some(why) = &one.failed {
            eprintln!("{part}: download {n} failed after {} bytes: {why}", one.bytes);
        }
    }
    run.at_least(&format!("{part}: complete downloads"), whole as f64, CLIENTS as f64);
}

/// Checks the longest time without data around a failure.
fn check_gap(run: &mut Run, part: &str, done: &[Downloaded], died: f64) {
    let longest = |from: f64, to: f64| -> Vec<f64> {
        done.iter().map(|one| one.longest_gap(from, to)).collect()
    };
    let before = longest(died / 2.0, died - 0.1);
    let after = longest(died, died + AFTERMATH);
    let most = |gaps: &[f64]| gaps.iter().copied().fold(0.0, f64::max);
    run.param(&format!("{part}, longest gap before, s"), most(&before));
    run.param(&format!("{part}, median gap, s"), median(&after));
    let plot = Plot::histogram("Longest time without data", ("part", ""), ("time", "s"));
    let place = PARTS.iter().position(|known| *known == part).unwrap_or_default();
    for (name, gaps) in [("before", &before), ("around the failure", &after)] {
        run.plot_bar(&plot, name, (place, part), most(gaps));
    }
    run.at_most(&format!("{part}: longest gap of a download, s"), most(&after), MAX_GAP);
}

/// Draws the total throughput around a failure.
fn draw(run: &mut Run, part: &str, trace: &[(f64, u64)], died: f64) {
    let axes = (("time since the failure", "s"), ("throughput", "Mb/s"));
    let plot = Plot::line("Throughput of all downloads around a failure", axes.0, axes.1);
    let rate = |two: &[(f64, u64)]| {
        let [(from, before), (to, after)] = [two[0], two[1]];
        (to - died, (after - before) as f64 * 8.0 / 1e6 / (to - from))
    };
    let points: Vec<_> = trace.windows(2).map(rate).filter(|(at, _)| at.abs() <= 3.0).collect();
    run.plot_points(&plot, part, points);
}

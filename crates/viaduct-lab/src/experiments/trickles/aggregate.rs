//! Figure 9: what all clients get together, and whether they get alike.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use viaduct_proto::trickles::packet::Format;

use super::served::{CONGESTION_CONTROL, Served, at, get, gigabit};
use crate::experiment::{About, Bound, Experiment, Plot, Run};
use crate::load::{Fetched, Fetches, Trickles};
use crate::topology::{Dumbbell, DumbbellSpec, Wan, cpu_time};

/// The experiment.
pub(in crate::experiments) struct Aggregate;

/// A switch's port: the paper's 100 Mb/s, and 20 ms of queue.
const LINK: &str = "rate=100M,delay=500us,queue=250kB";
const OBJECT: usize = 500_000;
const CLIENTS: [usize; 6] = [1, 10, 100, 1_000, 3_000, 6_000];
const QUICK: [usize; 2] = [1, 100];
/// What one client fetches on a link of 1 Gb/s: the same, and something long.
const ALONE: [usize; 2] = [OBJECT, 100_000_000];
/// Of TCP's throughput, at least: continuations alone take a twentieth.
const LEAST: f64 = 0.9;
/// From so many clients on the link is crowded: each has less than a window of two.
const CROWD: usize = 1_000;
/// So many times as long a crowd takes to settle, and is watched: what of its data waits for something before it comes
/// to a tenth of what 5 s bring, and to another tenth more or less from run to run.
const LONGER: u32 = 2;

/// Trickles by packets of this format, or TCP.
type Who = Option<Format>;

/// Where it is not said otherwise.
const OURS: Who = Some(Format::Tcp);
/// Who fetches on a link of 1 Gb/s, where what a packet costs decides.
const ARMS: [Who; 3] = [OURS, Some(Format::Udp), None];

impl Experiment for Aggregate {
    fn about(&self) -> About {
        About {
            name: "trickles/aggregate",
            title: "Throughput and fairness of many clients on a 100 Mb/s link",
            figure: "Trickles, Figure 9",
            finding: "Aggregate throughput is within 10 % of TCP's at all client counts; beyond 6,000 \
                      clients TCP exhausts the server's memory.",
        }
    }

    fn run(&self, run: &mut Run) -> Result<()> {
        let counts: &[usize] = run.choose(&CLIENTS, &QUICK);
        let warm_up = Duration::from_secs_f64(run.choose(5.0, 0.5));
        let window = Duration::from_secs_f64(run.choose(10.0, 1.5));
        run.param("link", LINK);
        run.param("object_bytes", OBJECT);
        run.param("window_s", window.as_secs_f64());
        run.param("window_of_a_crowd_s", (LONGER * window).as_secs_f64());
        run.congestion_control(CONGESTION_CONTROL);
        run.steps(2 * counts.len() + ARMS.len() * ALONE.len());
        let request = get("file");
        for &clients in counts {
            let longer = if clients >= CROWD { LONGER } else { 1 };
            let (warm_up, window) = (longer * warm_up, longer * window);
            let fetches = Fetches { request: &request, clients, warm_up, window };
            let mut by = |who| {
                let step = format!("{clients} clients of {}", name(who));
                run.step(&step)?;
                let world = link(run)?;
                measure(run, &step, (&world, OBJECT), &fetches, who)
            };
            let (ours, theirs) = (by(OURS)?, by(None)?);
            draw(run, clients, &ours, &theirs);
        }
        let (warm_up, window) = (warm_up / 2, window / 2);
        let fetches = Fetches { request: &request, clients: 1, warm_up, window };
        for object in ALONE {
            let mut by = |who| {
                let step = format!("{object} bytes at 1 Gb/s by {}", name(who));
                run.step(&step)?;
                let world = gigabit(run)?;
                measure(run, &step, (&world, object), &fetches, who)
            };
            let found = ARMS.map(&mut by);
            let [ours, by_udp, theirs] = found;
            draw_alone(run, object, [&ours?, &by_udp?, &theirs?]);
        }
        Ok(())
    }
}

fn name(who: Who) -> &'static str {
    match who {
        OURS => "Trickles",
        Some(Format::Udp) => "Trickles by UDP",
        None => "TCP reno",
    }
}

fn link(run: &Run) -> Result<Dumbbell> {
    let link = LINK.parse().context("a link config of this module")?;
    let spec = DumbbellSpec { wan: Wan::emulated(link, run.seed()), ..DumbbellSpec::default() };
    Ok(Dumbbell::build(&spec, run.journal())?)
}

/// In a world of its own: nothing of one arm is left when the other begins.
fn measure(
    run: &mut Run,
    step: &str,
    (world, object): (&Dumbbell, usize),
    fetches: &Fetches<'_>,
    who: Who,
) -> Result<Fetched> {
    let served = Served::by(who.unwrap_or(Format::Tcp), world.b1(), &[])?;
    served.file("file", object, run.seed())?;
    let Some(format) = who else {
        return Ok(fetches.by_tcp(world.a1(), at(world.b1()))?);
    };
    let clients = Trickles::open(world.gateway_a(), at(world.b1()), run.seed())?;
    let mut clients = if format == Format::Udp { clients.by_udp() } else { clients };
    let (before, begin) = (cpu_time(served.pid()), Instant::now());
    let fetched = fetches.by_trickles(&mut clients)?;
    let busy = (cpu_time(served.pid()) - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    let status = served.status()?;
    let counts = ["opened", "answered", "packets", "recoveries", "timeouts"];
    let said = counts.map(|count| format!("{count} {}", status["trickles"][count]));
    run.param(&step.replace(' ', "_"), format!("{}, cores {busy:.2}", said.join(", ")));
    Ok(fetched)
}

/// One client on a fast link.
fn draw_alone(run: &mut Run, object: usize, found: [&Fetched; 3]) {
    let plot = Plot::histogram("One client at 1 Gb/s", ("object", "bytes"), ("throughput", "Mb/s"));
    for (who, fetched) in ARMS.into_iter().zip(found) {
        let series = run.series(&plot, name(who));
        run.point(series, object as f64, fetched.mbps());
    }
    let [_, _, theirs] = found;
    for (who, ours) in ARMS.into_iter().zip(found).take(2) {
        let check = format!("{} at 1 Gb/s, one client, {object} bytes: over TCP's", name(who));
        run.check(&check, ours.mbps() / theirs.mbps(), Bound::AtLeast(LEAST));
    }
}

fn draw(run: &mut Run, clients: usize, ours: &Fetched, theirs: &Fetched) {
    let x = ("clients", "");
    let rates = Plot::line("Aggregate throughput", x, ("throughput", "Mb/s")).log_x();
    let shares = Plot::line("Jain's index over the clients", x, ("index", "")).log_x();
    let starved = Plot::line("Clients that got nothing", x, ("clients", "")).log_x();
    for (name, fetched) in [(name(OURS), ours), (name(None), theirs)] {
        for (plot, value) in
            [(&rates, fetched.mbps()), (&shares, jain(fetched)), (&starved, starved_of(fetched))]
        {
            let series = run.series(plot, name);
            run.point(series, clients as f64, value);
        }
    }
    let of = |what: &str| format!("{clients} clients: {what}");
    run.check(&of("throughput over TCP's"), ours.mbps() / theirs.mbps(), Bound::AtLeast(LEAST));
    run.check(&of("fetches that broke"), ours.failed as f64, Bound::AtMost(0.0));
    if clients >= CROWD {
        run.check(&of("Jain's index over TCP's"), jain(ours) / jain(theirs), Bound::AtLeast(1.1));
        let fewer = starved_of(theirs) - starved_of(ours);
        run.check(&of("starved, fewer than TCP's"), fewer, Bound::AtLeast(1.0));
    }
}

/// 1 if all got the same, one over their number if one got all.
fn jain(fetched: &Fetched) -> f64 {
    let (sum, squares) = fetched.bytes.iter().fold((0.0, 0.0), |(sum, squares), &bytes| {
        let bytes = bytes as f64;
        (sum + bytes, squares + bytes * bytes)
    });
    sum * sum / (squares * fetched.bytes.len() as f64)
}

fn starved_of(fetched: &Fetched) -> f64 {
    fetched.bytes.iter().filter(|bytes| **bytes == 0).count() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_is_one_for_alike_and_a_share_for_one_who_has_all() {
        let of = |bytes: &[u64]| jain(&Fetched { bytes: bytes.to_vec(), ..Fetched::default() });
        assert_eq!(of(&[5, 5, 5, 5]), 1.0);
        assert_eq!(of(&[9, 0, 0]), 1.0 / 3.0);
    }
}

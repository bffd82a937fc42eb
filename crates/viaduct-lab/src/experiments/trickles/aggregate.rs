//! Figure 9: aggregate throughput of all clients, and its fairness.

use viaduct_proto::trickles::packet::Format;

use super::served::{Served, at, describe, get, gigabit};
use crate::experiments::prelude::*;
use crate::load::{Fetched, Fetches, Trickles};
use crate::topology::cpu_time;

/// Link like a switch port: the paper's 100 Mb/s, with 20 ms of queue.
const LINK: &str = "rate=100M,delay=500us,queue=250kB";
const OBJECT: usize = 500_000;
const CLIENTS: [usize; 6] = [1, 10, 100, 1_000, 3_000, 6_000];
const QUICK: [usize; 2] = [1, 100];
/// Sizes of the objects that one client fetches on a 1 Gb/s link: the size of the other
/// measurements, and a large one.
const ALONE: [usize; 2] = [OBJECT, 100_000_000];
/// Same number of rounds as the paper, whose error bars are 95 % confidence intervals.
const ROUNDS: usize = 6;
/// Minimum throughput relative to TCP. The continuations take 5 % of the throughput.
const MIN_SHARE: f64 = 0.9;
/// Minimum number of clients that crowd the link: their windows are below two packets.
const CROWD: usize = 1_000;
/// Factor of the warm-up and the measured time of a crowd. With a crowd, the data in transit at the
/// end of a window of 5 s are a tenth of the transfer, and vary by a tenth from run to run.
const LONGER: u32 = 2;

/// Transport: Trickles in this packet format, or TCP (`None`).
type Arm = Option<Format>;

/// Default transport of the comparison.
const OURS: Arm = Some(Format::Tcp);
/// Transports compared on the 1 Gb/s link, where the cost per packet limits the throughput.
const ARMS: [Arm; 3] = [OURS, Some(Format::Udp), None];

pub(in crate::experiments) const ABOUT: About = About {
    name: "trickles/aggregate",
    title: "Throughput and fairness of many clients on a 100 Mb/s link",
    figure: "Trickles, Figure 9",
    finding: "Aggregate throughput is within 10 % of TCP's at all client counts; beyond 6,000 \
              clients TCP exhausts the server's memory.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let counts: &[usize] = run.choose(&CLIENTS, &QUICK);
    let rounds = run.choose(ROUNDS, 1);
    let warm_up = Duration::from_secs_f64(run.choose(5.0, 0.5));
    let window = Duration::from_secs_f64(run.choose(10.0, 1.5));
    run.param("link", LINK);
    run.param("object_bytes", OBJECT);
    run.param("window_s", window.as_secs_f64());
    run.param("window_of_a_crowd_s", (LONGER * window).as_secs_f64());
    describe(run, rounds);
    run.steps(rounds * (2 * counts.len() + ARMS.len() * ALONE.len()));
    let request = get("file");
    for &clients in counts {
        let longer = if clients >= CROWD { LONGER } else { 1 };
        // With few clients a round is half as long, because the mean of six rounds is checked.
        let half = if clients >= CROWD { 1 } else { 2 };
        let (warm_up, window) = (longer * warm_up / half, longer * window / half);
        let fetches = Fetches { request: &request, clients, warm_up, window };
        let mut found = Vec::new();
        for round in 0..rounds {
            let mut by = |arm| {
                let step = format!("{clients} clients of {}, {round}", name(arm));
                run.step(&step)?;
                let world = Dumbbell::over(link(LINK), 1, run.seed(), run.journal())?;
                measure(run, &step, (&world, OBJECT), &fetches, arm)
            };
            found.push([by(OURS)?, by(None)?]);
        }
        draw(run, clients, &found);
    }
    let (warm_up, window) = (warm_up / 2, window / 2);
    let fetches = Fetches { request: &request, clients: 1, warm_up, window };
    for object in ALONE {
        let mut found = Vec::new();
        for round in 0..rounds {
            let mut by = |arm| {
                let step = format!("{object} bytes at 1 Gb/s by {}, {round}", name(arm));
                run.step(&step)?;
                let world = gigabit(run)?;
                measure(run, &step, (&world, object), &fetches, arm)
            };
            let [ours, by_udp, theirs] = ARMS.map(&mut by);
            found.push([ours?, by_udp?, theirs?]);
        }
        draw_alone(run, object, &found);
    }
    Ok(())
}

fn name(arm: Arm) -> &'static str {
    match arm {
        OURS => "Trickles",
        Some(Format::Udp) => "Trickles by UDP",
        None => "TCP reno",
    }
}

/// Measures in a world of its own, so that nothing of one arm remains when the other begins.
fn measure(
    run: &mut Run,
    step: &str,
    (world, object): (&Dumbbell, usize),
    fetches: &Fetches<'_>,
    arm: Arm,
) -> Result<Fetched> {
    let served = Served::by(arm.unwrap_or(Format::Tcp), world.b1(), &[])?;
    served.file("file", object, run.seed())?;
    let Some(format) = arm else {
        return Ok(fetches.by_tcp(world.a1(), at(world.b1()))?);
    };
    let mut clients = Trickles::open(world, at(world.b1()), run.seed())?.by(format);
    let (before, begin) = (cpu_time(served.pid()), Instant::now());
    let fetched = fetches.by_trickles(&mut clients)?;
    let busy = (cpu_time(served.pid()) - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    let status = served.status()?;
    let counts = ["opened", "answered", "packets", "recoveries", "timeouts"];
    let said = counts.map(|count| format!("{count} {}", status["trickles"][count]));
    run.param(&step.replace(' ', "_"), format!("{}, cores {busy:.2}", said.join(", ")));
    Ok(fetched)
}

/// Draws one client on a fast link; one row per round.
fn draw_alone(run: &mut Run, object: usize, found: &[[Fetched; 3]]) {
    let plot = Plot::histogram("One client at 1 Gb/s", ("object", "bytes"), ("throughput", "Mb/s"));
    let plot = plot.confidence();
    for row in found {
        for (arm, fetched) in ARMS.into_iter().zip(row) {
            run.plot_point(&plot, name(arm), (object as f64, fetched.mbps()));
        }
    }
    for (n, arm) in ARMS.into_iter().enumerate().take(2) {
        let ratios: Vec<_> = found.iter().map(|row| row[n].mbps() / row[2].mbps()).collect();
        let check = format!("{} at 1 Gb/s, one client, {object} bytes: relative to TCP", name(arm));
        check_mean(run, &check, &ratios, Bound::AtLeast(MIN_SHARE));
    }
}

/// Draws the results of this number of clients, by Trickles and by TCP; one row per round.
fn draw(run: &mut Run, clients: usize, found: &[[Fetched; 2]]) {
    let x = ("clients", "");
    let line = |title, y| Plot::line(title, x, y).log_x().confidence();
    let rates = line("Aggregate throughput", ("throughput", "Mb/s"));
    let shares = line("Jain's index over the clients", ("index", ""));
    let starved = line("Clients without data", ("clients", ""));
    for (name, fetched) in
        found.iter().flat_map(|row| [name(OURS), name(None)].into_iter().zip(row))
    {
        for (plot, value) in
            [(&rates, fetched.mbps()), (&shares, jain_of(fetched)), (&starved, starved_of(fetched))]
        {
            run.plot_point(plot, name, (clients as f64, value));
        }
    }
    let of = |what: &str| format!("{clients} clients: {what}");
    let each = |value: fn(&[Fetched; 2]) -> f64| found.iter().map(value).collect::<Vec<_>>();
    let ratios = each(|[ours, theirs]| ours.mbps() / theirs.mbps());
    check_mean(run, &of("throughput, relative to TCP"), &ratios, Bound::AtLeast(MIN_SHARE));
    let broken = each(|[ours, _]| ours.failed as f64).iter().sum();
    run.at_most(&of("failed fetches"), broken, 0.0);
    if clients >= CROWD {
        let fairer = mean(&each(|[ours, theirs]| jain_of(ours) / jain_of(theirs)));
        run.at_least(&of("Jain's index, relative to TCP"), fairer, 1.1);
        let fewer = mean(&each(|[ours, theirs]| starved_of(theirs) - starved_of(ours)));
        run.at_least(&of("starved clients, fewer than with TCP"), fewer, 1.0);
    }
}

/// Returns Jain's fairness index over the clients.
fn jain_of(fetched: &Fetched) -> f64 {
    jain(&fetched.bytes.iter().map(|bytes| *bytes as f64).collect::<Vec<_>>())
}

fn starved_of(fetched: &Fetched) -> f64 {
    fetched.bytes.iter().filter(|bytes| **bytes == 0).count() as f64
}

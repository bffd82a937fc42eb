//! Figure 4: flows of different programs to one destination share a congestion estimate.
//!
//! ```text
//!   b1 serve ─┐ run --master ─▶ master +congestion ─┐
//!   b1 serve ─┘                   four flows        ├══ 10 Mb/s, RTT 40 ms ══▶ a1 read, four times
//!   b2 serve ────────────────── one plain flow ─────┘                          a2 read
//! ```
//!
//! Four connections take four shares of a bottleneck. Four connections that share an estimate take
//! a single share in total, and divide this share evenly.

use super::programs::{CommandPrefix, Server, bench_anywhere, measure, run as under, serve};
use crate::experiments::prelude::*;

const LINK: &str = "rate=10M,delay=20ms,queue=50ms";
const CONGESTION_CONTROL: &str = "cubic";
const MASTER: &str = "site";
/// Ports of the two wrapped programs; the plain program uses the first port.
const PORTS: [u16; 2] = [9000, 9001];
/// Number of flows that share an estimate.
const FLOWS: usize = 4;
/// Start of the later flow, as a fraction of the measured time.
const LATER: f64 = 0.5;
/// Seconds for which the later flow is observed from its start.
const START: f64 = 2.0;

pub(in crate::experiments) const ABOUT: About = About {
    name: "tesla/congestion",
    title: "Four flows that share a congestion estimate, competing with one plain flow",
    figure: "TESLA, Figure 4",
    finding: "A system-wide master lets flows of different programs share congestion state, as the \
              Congestion Manager does.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let (warm_up, seconds) = run.choose((15.0, 60.0), (5.0, 12.0));
    run.param("seconds", seconds);
    run.congestion_control(CONGESTION_CONTROL);
    run.steps(2);
    let mut found = Vec::new();
    for shares in [false, true] {
        run.step(if shares { "with congestion" } else { "plain" })?;
        let seed = run.seed();
        found.push(Contest { shares, warm_up, seconds, seed }.run(run.journal())?);
    }
    let plot = Plot::scatter("Shares", ("flow", "number"), ("share", "of the bottleneck"));
    for (contest, name) in found.iter().zip(["four plain flows", "four that share"]) {
        let flows = contest.flows.iter().enumerate();
        let flows = flows.map(|(n, flow)| (format!("flow {n}"), *flow));
        let all = flows.chain([("the competing plain flow".to_owned(), contest.competitor)]);
        run.plot_bars(&plot, name, all.map(|(label, rate)| (label, rate / contest.all())));
    }
    let [plain, shared] = [&found[0], &found[1]];
    run.at_least("plain: the four flows' share of the bottleneck", plain.share(), 0.6);
    let name = "congestion: the four flows' share of the bottleneck";
    // With one competing plain flow, the fair share of one flow is 0.5; that of four flows is 0.8.
    run.within(name, shared.share(), 0.33, 0.67);
    run.at_least("congestion: Jain's index of the four", jain(&shared.flows), 0.9);
    run.at_least("congestion: all five use the bottleneck", shared.all() * 8.0 / 10e6, 0.8);
    let name = "congestion: a later flow's first seconds, relative to a fair share";
    let fair = shared.flows.iter().sum::<f64>() / (FLOWS + 1) as f64;
    run.at_least(name, shared.later / fair, 0.5);
    Ok(())
}

/// Four flows and a concurrent plain one.
struct Contest {
    shares: bool,
    warm_up: f64,
    seconds: f64,
    seed: u64,
}

/// Bytes per second of each flow.
struct Found {
    flows: Vec<f64>,
    competitor: f64,
    /// Rate of a flow that began after all others, in its first seconds.
    later: f64,
}

impl Found {
    fn all(&self) -> f64 {
        self.flows.iter().sum::<f64>() + self.competitor
    }

    fn share(&self) -> f64 {
        1.0 - self.competitor / self.all()
    }
}

impl Contest {
    fn run(&self, journal: &Journal) -> Result<Found> {
        let world = Dumbbell::over(link(LINK), 2, self.seed, journal)?;
        let ([a1, a2], [b1, b2]) = (world.hosts_a(), world.hosts_b()) else {
            bail!("a site does not have two hosts");
        };
        world.set_congestion_control(CONGESTION_CONTROL)?;
        let scratch = Scratch::new()?;
        let run_dir = scratch.path().display().to_string();
        let (mut wraps, mut servers) = (CommandPrefix::new(), Vec::new());
        if self.shares {
            servers.push(master(b1, &run_dir)?);
            let join = format!("--master={MASTER}");
            wraps = under(&[&join, "--run-dir", &run_dir, "--via", "cgroup"])?;
        }
        for port in PORTS {
            servers.push(serve(b1, port, &wraps)?);
        }
        servers.push(serve(b2, PORTS[0], &CommandPrefix::new())?);
        let read = |host: &Host, from: &Host, port: u16, warm_up: f64, seconds: f64| {
            let words = format!(
                "read {}:{port} --block 65536 --warm-up {warm_up} --seconds {seconds}",
                from.v4()
            );
            let words: Vec<_> = words.split(' ').collect();
            measure(host, bench_anywhere(host, &CommandPrefix::new(), &words)?, warm_up + seconds)
        };
        thread::scope(|scope| {
            let begin = |host, from, port| {
                let (warm_up, seconds) = (self.warm_up, self.seconds);
                scope.spawn(move || read(host, from, port, warm_up, seconds))
            };
            let flows: Vec<_> = (0..FLOWS).map(|n| begin(a1, b1, PORTS[n % 2])).collect();
            let competitor = begin(a2, b2, PORTS[0]);
            thread::sleep(Duration::from_secs_f64(self.warm_up + self.seconds * LATER));
            let later = read(a1, b1, PORTS[0], 0.0, START)?;
            let flows = flows.into_iter().map(join).collect::<Result<_>>()?;
            Ok(Found { flows, competitor: join(competitor)?, later })
        })
    }
}

fn master(host: &Host, run_dir: &str) -> Result<Server> {
    let mut command = host.command(&binary()?.display().to_string());
    command.args(["master", "--name", MASTER, "+congestion", "--run-dir", run_dir]);
    let socket = format!("{run_dir}/{MASTER}.sock");
    Server::start(host, command, || Ok(Path::new(&socket).exists()))
}

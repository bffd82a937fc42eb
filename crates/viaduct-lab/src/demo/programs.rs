//! Single runs of the programs: traffic, duration and measured result.

use std::env;
use std::path::Path;
use std::time::Duration;

use anyhow::ensure;

use super::findings::{Figure, Phase, Program, Setup};
use super::settings::DemoArgs;
use crate::experiment::{Plot, Run};
use crate::topology::TopologyError;
use crate::topology::programs::{Carrier, Iperf, Message, TimedMessages, WebServer};
use crate::world::World;

/// Required programs, each with its alternatives, and the Debian package of each.
const REQUIRED: [(&[&str], &str); 5] = [
    (&["ip"], "iproute2"),
    (&["nft"], "nftables"),
    (&["iperf3"], "iperf3"),
    (&["curl"], "curl"),
    (&["nginx", "python3"], "python3"),
];

/// Checks that all required programs are installed. Fails if some are missing; the message
/// contains the command that installs them.
pub(super) fn require() -> anyhow::Result<()> {
    let path = env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let there = |program: &&str| path.split(':').any(|dir| Path::new(dir).join(program).is_file());
    let missing = REQUIRED.iter().filter(|(any, _)| !any.iter().any(there));
    let packages: Vec<&str> = missing.map(|(_, package)| *package).collect();
    ensure!(
        packages.is_empty(),
        "the demo runs real programs, and some are not installed: apt-get install {}",
        packages.join(" ")
    );
    Ok(())
}

/// Durations and sizes of the runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Measured seconds of the iperf3 run with cubic, and seconds of warm-up before them.
    cubic: (u32, u32),
    /// The same with bbr.
    bbr: (u32, u32),
    /// The same with two flows.
    pair: (u32, u32),
    /// Size of the download in bytes.
    pub(super) file: usize,
    /// Time limit of a download.
    timeout: Duration,
    /// Duration of the stream of messages.
    messages: Duration,
}

impl Size {
    /// Returns the sizes of a full demo, or of a quick one.
    pub(super) fn new(args: &DemoArgs) -> Size {
        let seconds = Duration::from_secs;
        let whole = Size {
            cubic: (15, 5),
            bbr: (10, 5),
            pair: (20, 10),
            file: 4_000_000,
            timeout: seconds(60),
            messages: seconds(12),
        };
        let quick = Size {
            cubic: (3, 3),
            bbr: (2, 1),
            pair: (3, 3),
            file: 1_000_000,
            timeout: seconds(15),
            messages: seconds(2),
        };
        if args.quick { quick } else { whole }
    }
}

/// Port of the flow that the gateways do not protect.
pub(super) const UNPROTECTED_PORT: u16 = 5_301;

/// Messages per second, and bytes per message.
pub(super) const MESSAGES: (f64, usize) = (50.0, 200);

impl Program {
    /// Returns the name in the table.
    pub(super) fn name(self, size: &Size) -> String {
        match self {
            Program::Cubic => "iperf3 (TCP cubic)".into(),
            Program::Bbr => "iperf3 (TCP bbr)".into(),
            Program::Download => format!("curl, {} MB (TCP cubic)", size.file as f64 / 1e6),
            Program::Messages => "50 messages/s: median / p99 delay".into(),
            Program::Pair => "two of iperf3 (TCP cubic)".into(),
        }
    }

    /// Returns a one-word name.
    pub(super) fn word(self) -> &'static str {
        match self {
            Program::Cubic => "cubic",
            Program::Bbr => "bbr",
            Program::Download => "curl",
            Program::Messages => "messages",
            Program::Pair => "two",
        }
    }

    /// Runs the program and adds its time series to the report. Errors: only `Stopped`, on Ctrl-C;
    /// any other failure, such as on a very bad link, is returned as a finding.
    pub(super) fn measure(
        self,
        run: &mut Run,
        world: &World,
        server: &WebServer,
        size: &Size,
        (phase, setup): (Phase, Setup),
    ) -> Result<Figure, TopologyError> {
        let figure = match self {
            Program::Cubic => iperf(run, world, ("cubic", size.cubic), (phase, setup)),
            Program::Bbr => iperf(run, world, ("bbr", size.bbr), (phase, setup)),
            Program::Pair => pair(world, size.pair),
            Program::Download => download(run, world, server, size, setup),
            Program::Messages => messages(run, world, size, setup),
        };
        match figure {
            Err(stopped @ TopologyError::Stopped(_)) => Err(stopped),
            Err(why) => Ok(Figure::None(why.to_string())),
            Ok(figure) => Ok(figure),
        }
    }
}

impl Setup {
    /// Returns the name in a legend.
    pub(super) fn name(self) -> &'static str {
        match self {
            Setup::Plain => "plain kernel",
            Setup::Viaduct => "with Viaduct",
        }
    }
}

fn iperf(
    run: &mut Run,
    world: &World,
    (congestion, (seconds, warm_up)): (&str, (u32, u32)),
    (phase, setup): (Phase, Setup),
) -> Result<Figure, TopologyError> {
    let report = Iperf::tcp(congestion, seconds, warm_up).run(world.a1(), world.b1())?;
    let title = match phase {
        Phase::Requested | Phase::Shared => "Throughput of iperf3",
        Phase::Clean => "Throughput of iperf3 without loss",
        Phase::Bursts => "Throughput of iperf3 with loss bursts of 30 packets",
    };
    let plot = Plot::line(title, ("time", "s"), ("throughput", "Mb/s"));
    let series = run.series(&plot, &format!("{congestion}, {}", setup.name()));
    for &(second, rate) in &report.arrived {
        run.point(series, second.round() + 1.0, rate / 1e6);
    }
    Ok(Figure::Throughput(report.arrival_rate))
}

/// Runs two concurrent flows; the gateways do not protect the second.
fn pair(world: &World, (seconds, warm_up): (u32, u32)) -> Result<Figure, TopologyError> {
    let flow = |port| Iperf { port, ..Iperf::tcp("cubic", seconds, warm_up) };
    let run = |port| flow(port).run(world.a1(), world.b1());
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| run(UNPROTECTED_PORT));
        (run(UNPROTECTED_PORT - 1), second.join())
    });
    let second = second.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    Ok(Figure::Pair(first?.arrival_rate, second.arrival_rate))
}

fn download(
    run: &mut Run,
    world: &World,
    server: &WebServer,
    size: &Size,
    setup: Setup,
) -> Result<Figure, TopologyError> {
    let figure = match server.download(world.a1(), size.timeout) {
        Ok(download) => Figure::Took(download.time),
        Err(TopologyError::TimedOut { after, .. }) => Figure::GaveUp(after),
        Err(other) => return Err(other),
    };
    if let Figure::Took(time) | Figure::GaveUp(time) = &figure {
        let title = format!("Download of {} MB with curl", size.file as f64 / 1e6);
        let plot = Plot::histogram(&title, ("", ""), ("time", "s"));
        let series = run.series(&plot, "time to the last byte");
        run.labelled_point(series, f64::from(setup as u8), time.as_secs_f64(), setup.name());
    }
    Ok(figure)
}

fn messages(
    run: &mut Run,
    world: &World,
    size: &Size,
    setup: Setup,
) -> Result<Figure, TopologyError> {
    let stream = TimedMessages {
        size: MESSAGES.1,
        bits_per_second: MESSAGES.0 * MESSAGES.1 as f64 * 8.0,
        ..TimedMessages::paper(Carrier::Tcp { congestion: "cubic".into() }, size.messages)
    };
    let messages = stream.run(world.a1(), world.b1())?;
    crate::stop::check()?;
    let delay = |message: &Message| message.latency.unwrap_or(stream.timeout);
    let plot = Plot::scatter("Delay of each message", ("time", "s"), ("delay", "ms"));
    let series = run.series(&plot, setup.name());
    for message in &messages {
        run.point(series, message.sent.as_secs_f64(), delay(message).as_secs_f64() * 1e3);
    }
    let mut delays: Vec<Duration> = messages.iter().map(delay).collect();
    delays.sort();
    Ok(Figure::Delays { median: percentile(&delays, 0.5), p99: percentile(&delays, 0.99) })
}

/// Returns the percentile by nearest rank: the smallest value in `sorted` such that at least the
/// fraction `share` of all values are less than or equal to it.
fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_computed_by_nearest_rank() {
        let delays: Vec<Duration> = (1..=100).map(Duration::from_millis).collect();
        assert_eq!(percentile(&delays, 0.5), Duration::from_millis(50));
        assert_eq!(percentile(&delays, 0.99), Duration::from_millis(99));
        assert_eq!(percentile(&delays[..1], 0.5), Duration::from_millis(1));
        assert_eq!(percentile(&[], 0.5), Duration::ZERO);
    }
}

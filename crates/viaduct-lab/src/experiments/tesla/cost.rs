//! Cost of wrapping without data transfer: connecting, closing, and open flows.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use viaduct_sys::process::raise_fd_limit;

use super::programs::{CommandPrefix, Server, bench, measure, run as under};
use super::undisturbed::undisturbed;
use super::world::{Network, Side, World};
use crate::experiments::prelude::*;
use crate::topology::programs::is_listening;
use crate::topology::{Usage, socket_memory};

/// Interposers, and the maximum time of a connect and a close relative to the plain program.
const INTERPOSERS: [(&str, f64); 3] = [("cgroup", 1.5), ("preload", 1.5), ("seccomp", 2.5)];
/// Minimum rate of closes relative to the plain program: by cgroup, and with a seccomp filter,
/// which `preload` installs as well. System calls that the filter allows still take the kernel's
/// slow entry path, about 50 ns each.
const CLOSES: [f64; 2] = [0.95, 0.7];
/// Maximum KB of the master's memory per flow through the handlers.
const MAX_KB: f64 = 32.0;
/// Maximum flows per program; more are spread over several programs.
const OF_ONE: u32 = 5_000;
/// Descriptors of a master: two per flow, and a reserve.
const NEEDED: u64 = 2 * OF_ONE as u64 + 200;

pub(in crate::experiments) const ABOUT: About = About {
    name: "tesla/cost",
    title: "Cost of connecting, closing and holding flows open under each interposer",
    figure: "TESLA, section 5 (which measures only bytes)",
    finding: "Connect and close take 2.2 times the plain time with torsocks, 2.9 with proxychains \
              and 5 with graftcp.",
};

pub(in crate::experiments) fn run(run: &mut Run) -> Result<()> {
    let undisturbed = undisturbed(run);
    let rounds = run.choose(9, 3);
    let (held, short) = run.choose((10_000, 100_000), (1_000, 3_000));
    for (name, value) in [("rounds", rounds as u32), ("held", held), ("short", short)] {
        run.param(name, value);
    }
    let most = raise_fd_limit();
    ensure!(most >= NEEDED, "{NEEDED} open files are needed, and {most} are allowed (ulimit -n)");
    run.steps(rounds + 2);
    let world = World::build(Network::Loopback, run.journal())?;
    let server = TestServer::serve(&world)?;
    costs(run, &server, rounds)?;
    drop(undisturbed);
    run.step(&format!("{short} flows, one after the other"))?;
    leaks(run, &server, short)?;
    run.step(&format!("{held} concurrent flows"))?;
    memory(run, &server, held)
}

struct TestServer<'a> {
    world: &'a World,
    at: String,
    _server: Server,
}

impl TestServer<'_> {
    fn serve(world: &World) -> Result<TestServer<'_>> {
        let at = world.at(Side::Server, 0);
        let node = world.node(Side::Server);
        let command = bench(node, Side::Server, &Vec::new(), &["hold", &at.to_string()])?;
        let server = Server::start(node, command, || Ok(is_listening(node, at.port())?))?;
        Ok(TestServer { world, at: at.to_string(), _server: server })
    }

    fn client(&self, under: &CommandPrefix, words: &[&str]) -> Result<Command> {
        bench(self.world.node(Side::Client), Side::Client, under, words)
    }

    /// Measures a program's operations per second.
    fn rate(&self, under: &CommandPrefix, program: &str) -> Result<f64> {
        let to = if program == "connect" { &self.at[..] } else { "-" };
        let words = [program, to, "--seconds", "0.4", "--warm-up", "0.2"];
        let words: Vec<&str> = words.into_iter().filter(|word| *word != "-").collect();
        measure(self.world.node(Side::Client), self.client(under, &words)?, 0.6)
    }
}

/// Measures connecting and closing with a chain that is offloaded to the kernel.
fn costs(run: &mut Run, server: &TestServer<'_>, rounds: usize) -> Result<()> {
    let mut unders = vec![Vec::new()];
    for (via, _) in INTERPOSERS {
        unders.push(under(&["+count", "--via", via])?);
    }
    let programs = ["connect", "close"];
    let mut found = vec![[Vec::new(), Vec::new()]; unders.len()];
    for round in 0..rounds {
        run.step(&format!("connecting and closing, round {}", round + 1))?;
        for (under, found) in unders.iter().zip(&mut found) {
            for (program, found) in programs.iter().zip(found) {
                found.push(server.rate(under, program)?);
            }
        }
    }
    let found: Vec<[f64; 2]> =
        found.iter().map(|both| [median(&both[0]), median(&both[1])]).collect();
    for (n, program) in programs.iter().enumerate() {
        let plot = Plot::histogram(&format!("One {program}"), ("", ""), ("time", "µs"));
        let names = ["plain"].into_iter().chain(INTERPOSERS.map(|(via, _)| via));
        let bars = names.zip(&found).map(|(name, found)| (name, 1e6 / found[n]));
        run.plot_bars(&plot, "median", bars);
    }
    let plain = found[0];
    for ((via, most), found) in INTERPOSERS.into_iter().zip(&found[1..]) {
        let name = format!("{via}: time of connect and close, relative to plain");
        run.at_most(&name, plain[0] / found[0], most);
        let name = format!("{via}: closes of another descriptor, relative to plain");
        let least = CLOSES[usize::from(via != "cgroup")];
        run.at_least(&name, found[1] / plain[1], least);
    }
    Ok(())
}

/// Program that opens flows on command.
struct Flows {
    process: Process,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Flows {
    fn start(server: &TestServer<'_>, via: &str) -> Result<Flows> {
        let under = under(&["+latency:delay=1ms", "--via", via])?;
        let mut command = server.client(&under, &["flows", &server.at])?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = server.world.node(Side::Client).spawn(command)?;
        let input = process.stdin.take().context("the program's standard input is not piped")?;
        let output = process.stdout.take().context("the program's standard output is not piped")?;
        Ok(Flows { process, input, output: BufReader::new(output) })
    }

    /// Makes the program open flows; returns the resources that the program and its wrapper use
    /// afterwards.
    fn make(&mut self, what: &str, count: u32) -> Result<Usage> {
        let line = format!("{what} {count}\n");
        self.input.write_all(line.as_bytes())?;
        let mut output = String::new();
        self.output.read_line(&mut output)?;
        ensure!(output == line, "a program ended instead of opening {what} flows");
        Ok(Usage::of(self.process.id()))
    }
}

/// Checks that many short flows leave no descriptors.
fn leaks(run: &mut Run, server: &TestServer<'_>, short: u32) -> Result<()> {
    for (via, _) in INTERPOSERS {
        let mut flows = Flows::start(server, via)?;
        // Descriptors opened once by the first flows are not a leak.
        let before = flows.make("short", 100)?;
        flows.make("short", short)?;
        let mut after = flows.make("short", 1)?;
        // The last flows may still be closing.
        for _ in 0..50 {
            if after.sockets + after.pipes <= before.sockets + before.pipes {
                break;
            }
            thread::sleep(Duration::from_millis(100));
            after = Usage::of(flows.process.id());
        }
        let left = |usage: Usage| (usage.sockets + usage.pipes) as f64;
        let name = format!("{via}: descriptors left after {short} short flows");
        run.at_most(&name, left(after) - left(before), 0.0);
    }
    Ok(())
}

/// Measures the memory of open flows, in as many programs as needed.
fn memory(run: &mut Run, server: &TestServer<'_>, held: u32) -> Result<()> {
    let plot = Plot::histogram("An open flow", ("", ""), ("memory", "KB"));
    let series = "of the master; of the kernel for sockets";
    for (n, (via, _)) in INTERPOSERS.into_iter().enumerate() {
        let kernel = socket_memory();
        let programs = held.div_ceil(OF_ONE);
        let (mut open, mut grown) = (Vec::new(), 0);
        for _ in 0..programs {
            let mut flows = Flows::start(server, via)?;
            let before = flows.make("held", 1)?;
            let after = flows.make("held", held / programs)?;
            grown += after.anonymous.saturating_sub(before.anonymous);
            open.push(flows);
        }
        let each = |bytes: u64| bytes as f64 / f64::from(held) / 1e3;
        run.plot_bar(&plot, series, (n, via), each(grown));
        let sockets = socket_memory().saturating_sub(kernel);
        run.plot_bar(
            &plot,
            series,
            (INTERPOSERS.len() + n, &format!("{via}, sockets")),
            each(sockets),
        );
        let name = format!("{via}: KB of memory for each of {held} open flows");
        run.at_most(&name, each(grown), MAX_KB);
    }
    Ok(())
}

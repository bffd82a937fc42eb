//! Benchmark programs in hosts: permanent servers and short-lived clients, on their host's core or
//! on any core, optionally under `viaduct run`.

use std::io::{Read as _, Seek as _};
use std::process::{Command, Stdio};

use super::world::{Side, World};
use crate::experiments::prelude::*;
use crate::topology::programs::is_listening;

/// Time limit for a client beyond its measured time.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(20);

/// Command line prefix of a wrapped program, `viaduct run … --`; empty for none.
pub(super) type CommandPrefix = Vec<String>;

/// Returns the prefix `viaduct run` with these arguments.
pub(super) fn run(words: &[&str]) -> Result<CommandPrefix> {
    let binary = binary()?.display().to_string();
    let words = words.iter().map(|word| (*word).to_owned());
    Ok([binary, "run".to_owned()].into_iter().chain(words).chain(["--".to_owned()]).collect())
}

/// Creates the command of a benchmark program with these arguments, on its host's core.
pub(super) fn bench(
    node: &Node,
    side: Side,
    under: &CommandPrefix,
    words: &[&str],
) -> Result<Command> {
    let mut command = node.command("taskset");
    command.args(["--cpu-list", &World::core(side)?.to_string()]).args(under);
    command.arg(binary()?).args(["lab", "bench"]).args(words);
    Ok(command)
}

/// Creates the command of a benchmark program without pinning the program to a core.
pub(super) fn bench_anywhere(
    node: &Node,
    under: &CommandPrefix,
    words: &[&str],
) -> Result<Command> {
    let binary = binary()?.display().to_string();
    let line: Vec<&str> = under.iter().map(String::as_str).collect();
    let line = [&line[..], &[&binary, "lab", "bench"], words].concat();
    let mut command = node.command(line[0]);
    command.args(&line[1..]);
    Ok(command)
}

/// Starts the benchmark server on a port of `host`, with the prefix `under`.
pub(super) fn serve(host: &Host, port: u16, under: &CommandPrefix) -> Result<Server> {
    let command = bench_anywhere(host, under, &["serve", &format!("{}:{port}", host.v4())])?;
    Server::start(host, command, || Ok(is_listening(host, port)?))
}

/// Program that runs until dropped.
pub(super) struct Server {
    process: Process,
    _scratch: Scratch,
}

impl Server {
    /// Starts the program, and waits until `is_ready` returns true.
    pub(super) fn start(
        node: &Node,
        command: Command,
        is_ready: impl Fn() -> Result<bool>,
    ) -> Result<Server> {
        let scratch = Scratch::new()?;
        let process = daemon::start(node, command, &scratch.path().join("log"), is_ready)?;
        Ok(Server { process, _scratch: scratch })
    }

    /// Returns the process ID of the server; the program may run in a descendant.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }
}

/// Runs a client to its end; returns the number that it prints.
pub(super) fn measure(node: &Node, command: Command, seconds: f64) -> Result<f64> {
    measure_watched(node, command, seconds, |_| ())
}

/// Runs a client like [`measure`], while `watch` observes the process with the given ID;
/// `watch` must finish before the client.
pub(super) fn measure_watched(
    node: &Node,
    command: Command,
    seconds: f64,
    watch: impl FnOnce(u32),
) -> Result<f64> {
    let output =
        output_watched(node, command, Duration::from_secs_f64(seconds) + PROGRAM_TIMEOUT, watch)?;
    let number = output.split_whitespace().next().and_then(|word| word.parse().ok());
    number.with_context(|| format!("a client printed {output:?}, which is not a number"))
}

/// Runs a client to its end, at most for `limit`; returns its output.
pub(super) fn output(node: &Node, command: Command, limit: Duration) -> Result<String> {
    output_watched(node, command, limit, |_| ())
}

fn output_watched(
    node: &Node,
    mut command: Command,
    limit: Duration,
    watch: impl FnOnce(u32),
) -> Result<String> {
    let scratch = Scratch::new()?;
    let path = scratch.path().join("errors");
    let mut errors =
        File::options().create(true).truncate(true).read(true).write(true).open(path)?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors.try_clone()?);
    let mut process = node.spawn(command)?;
    let stdout = process.stdout.take().context("the client's standard output is not piped")?;
    let reader = thread::spawn(move || {
        let (mut stdout, mut text) = (stdout, String::new());
        stdout.read_to_string(&mut text).map(|_| text)
    });
    watch(process.id());
    let status = process.wait_for(limit, stop::is_requested)?;
    let failed = status.is_none_or(|status| !status.success());
    drop(process);
    stop::check()?;
    let text = reader.join().ok().context("a reader panicked")??;
    if failed {
        let mut why = String::new();
        errors.rewind()?;
        errors.read_to_string(&mut why)?;
        match status {
            Some(status) => bail!("a client ended ({status}): {}", why.trim()),
            None => bail!("a client has not ended after {limit:?}: {}", why.trim()),
        }
    }
    Ok(text)
}

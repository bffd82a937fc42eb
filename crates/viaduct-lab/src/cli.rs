//! `viaduct lab list | run | report | shell`.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use viaduct_sys::netns::enter_user_namespace;

use crate::bench;
use crate::experiment::{self, Ended, Experiment, Options};
use crate::experiments;
use crate::report::{self, Figures};
use crate::shell::{self, ShellArgs};
use crate::stop;
use crate::topology::Journal;

/// Emulated networks in network namespaces, and experiments on them.
#[derive(Debug, clap::Subcommand)]
pub enum LabCommand {
    /// List the experiments
    List,
    /// Run experiments; the exit status is 1 if a check does not hold
    Run(RunArgs),
    /// Write one HTML page of all results, or FIGURES.md
    Report(ReportArgs),
    /// Open a shell inside a world
    Shell(ShellArgs),
    /// Run one of the programs that experiments measure with
    #[command(hide = true)]
    Bench {
        /// Program to run
        #[command(subcommand)]
        program: bench::Program,
    },
}

/// Arguments of `viaduct lab run`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Experiments: a name (`maelstrom/burst`), a system (`maelstrom`), `*` for anything, or `all`
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
    /// Shorten the run: fewer points, shorter flows, and in some experiments fewer checks
    #[arg(long)]
    pub quick: bool,
    /// Write the result to this file as well (one experiment only)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Seed of all random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Number of repeats; with several, results are means with standard errors
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub repeat: u32,
    /// Directory that results are kept in, for the report
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub dir: PathBuf,
    /// Show every command that is run
    #[arg(long)]
    pub verbose: bool,
}

/// Arguments of `viaduct lab report`.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Directory to write index.html into
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub out: PathBuf,
    /// Directory that results are kept in
    #[arg(long, value_name = "DIR", default_value = "results")]
    pub dir: PathBuf,
    /// Record the results of full runs in the rows of FIGURES.md, and write FIGURES.md, not the
    /// page
    ///
    /// Each row takes its value, bound, state, date and commit from the check that its `claim`
    /// names, or from the checks that match its `checks` pattern (`*` matches any text). A row is
    /// added for each check without one; flags such as "not in CI" are added by hand. A result
    /// older than its row is ignored.
    #[arg(long, conflicts_with = "out")]
    pub figures: bool,
    /// Directory of the rows, one TOML file per system; FIGURES.md is in its parent directory
    #[arg(long, value_name = "DIR", default_value = "figures", requires = "figures")]
    pub figures_dir: PathBuf,
    /// Commit to record for results that do not name the measured commit
    #[arg(long, value_name = "COMMIT", requires = "figures")]
    pub commit: Option<String>,
    /// Write nothing; fail if FIGURES.md differs from what would be written
    #[arg(long, requires = "figures")]
    pub check: bool,
}

/// Executes `command`. Must be called while the process has a single thread: without root, the
/// process enters a user namespace. Returns the exit status: 1 if a check does not hold, 130 if
/// stopped by Ctrl-C.
pub fn execute(command: LabCommand) -> anyhow::Result<ExitCode> {
    match command {
        LabCommand::List => {
            say(&listing());
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Run(args) => run(&args),
        LabCommand::Report(args) => {
            write_report(&args)?;
            Ok(ExitCode::SUCCESS)
        }
        LabCommand::Shell(args) => {
            become_root()?;
            shell::open(&args)
        }
        LabCommand::Bench { program } => {
            program.run()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Makes a process without root the root of its own user namespace.
pub fn become_root() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        enter_user_namespace()?;
    }
    Ok(())
}

/// Formats an error and its causes on one line. Omits a cause whose text is already on the line,
/// because many errors contain their cause.
pub fn explain(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if said.is_empty() {
            said = cause;
        } else if !said.contains(&cause) {
            said = format!("{said}: {cause}");
        }
    }
    said
}

/// Writes the page or FIGURES.md, and prints the paths of the files written.
fn write_report(args: &ReportArgs) -> anyhow::Result<()> {
    if !args.figures {
        let page = report::write(&args.dir, &args.out)?;
        say(&format!("{}\n", page.display()));
        return Ok(());
    }
    let figures = Figures::new(&args.figures_dir, &args.dir, args.commit.as_deref())?;
    for note in figures.notes() {
        say(&format!("{note}\n"));
    }
    if args.check {
        return figures.check();
    }
    for path in figures.write()? {
        say(&format!("{}\n", path.display()));
    }
    Ok(())
}

fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let chosen = match experiments::select(&args.names) {
        Ok(chosen) => chosen,
        Err(name) => bail!("no experiment is named {name:?}; `viaduct lab list` lists them"),
    };
    if args.json.is_some() && chosen.len() > 1 {
        bail!("--json takes one experiment, {} are named; use --dir for several", chosen.len());
    }
    become_root()?;
    stop::on_signals().context("cannot handle Ctrl-C")?;
    let (mut all_hold, mut stopped) = (true, false);
    for experiment in chosen {
        let ended = run_one(experiment, args)?;
        stopped |= ended.1;
        all_hold &= ended.0;
        if stopped {
            break;
        }
    }
    Ok(match (stopped, all_hold) {
        (true, _) => ExitCode::from(130),
        (false, true) => ExitCode::SUCCESS,
        (false, false) => ExitCode::FAILURE,
    })
}

/// Runs one experiment; returns whether all checks hold, and whether it was stopped.
fn run_one(experiment: &dyn Experiment, args: &RunArgs) -> anyhow::Result<(bool, bool)> {
    let about = experiment.about();
    let journal = if args.verbose { Journal::aloud() } else { Journal::new() };
    let options =
        Options { quick: args.quick, seed: args.seed, repeat: args.repeat, journal, quiet: false };
    say(&format!("{}: {}\n", about.name, about.title));
    let outcome = experiment::perform(experiment, &options);
    say(&experiment::print_table(&outcome, colours()));
    if let Some(path) = &args.json {
        experiment::save_as(path, &outcome)?;
    }
    let path = experiment::save(&args.dir, &outcome)?;
    say(&format!("\n{} ({} s)\n\n", path.display(), outcome.seconds));
    Ok((outcome.holds(), outcome.ended == Ended::Stopped))
}

fn listing() -> String {
    let abouts = experiments::ALL.iter().map(|experiment| experiment.about);
    let width = abouts.clone().map(|about| about.name.len()).max().unwrap_or(0);
    let line = |about: experiment::About| format!("{:width$}  {}\n", about.name, about.title);
    abouts.map(line).collect()
}

/// Returns whether stdout is a terminal and colours are not disabled.
pub(crate) fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    std::io::stdout().is_terminal() && !refused
}

/// Prints to stdout; ignores a reader that has closed the pipe (`| head`).
pub(crate) fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_not_repeated() {
        let error = anyhow::anyhow!("no such file").context("cannot read x: no such file");
        assert_eq!(explain(&error.context("no report")), "no report: cannot read x: no such file");
    }
}

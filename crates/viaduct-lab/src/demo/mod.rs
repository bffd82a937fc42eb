//! `viaduct demo`: shows the effect of Viaduct to a reader without prior knowledge.
//!
//! Four unmodified programs cross an emulated link that loses packets: first with the plain kernel,
//! then with a gateway at each site. The demo is an experiment like the others, so its result is
//! kept as JSON and in a report; only the text that it prints has code of its own.
//!
//! ```text
//!   settings ──> crossing: the experiment ──> findings ──> screen: drawing, table, lesson
//!   (options)      │    4 programs × 2 setups              └─> out/index.html, out/demo.json
//!                  ├──> programs: one run of one program
//!                  └──> watch: the dashboard, with --watch
//! ```

mod crossing;
mod findings;
mod programs;
mod screen;
mod settings;
mod watch;

use std::fs;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context, bail};

use crate::cli::{become_root, colours, say};
use crate::experiment::{self, About, Ended, Options, Outcome};
use crate::{report, stop};

use crossing::Crossing;
pub use settings::DemoArgs;
use watch::Dashboard;

/// Description of the demo.
pub const ABOUT: About = About {
    name: "demo",
    title: "Four programs over a link that loses packets",
    figure: "Maelstrom, Figures 9, 10 and 11",
    finding: "TCP collapses at loss rates that links between sites have; gateways that add repairs \
              mask the loss from unmodified hosts.",
};

/// Runs the demo. Must be called while the process has a single thread: without root, the process
/// enters a user namespace. Returns the exit status: 1 if a check does not hold, 130 if stopped by
/// Ctrl-C. Fails if a required program is missing, the kernel refuses the namespaces, or the
/// results cannot be written.
pub fn execute(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    programs::require()?;
    fs::create_dir_all(&args.out)
        .with_context(|| format!("--out: cannot create {}", args.out.display()))?;
    // Without root, the namespace of the demo cannot be reached from outside, so the dashboard
    // starts before the process enters that namespace.
    let dashboard = args.watch.map(Dashboard::start).transpose().context("--watch")?;
    become_root()?;
    stop::on_signals().context("cannot handle Ctrl-C")?;
    let run_dir = dashboard.as_ref().map(|dashboard| dashboard.run_dir().to_owned());
    let crossing = Crossing::new(args.clone(), run_dir);
    say(&screen::introduction(args));
    if let Some(dashboard) = &dashboard {
        say(&format!("Live plots: {}\n\n", dashboard.address()));
    }
    let options = Options { quick: args.quick, seed: args.seed, ..Options::default() };
    let mut outcome = experiment::perform(&crossing, &options);
    outcome.command = args.command();
    let page = keep(args, &outcome)?;
    let findings = crossing.findings();
    if !findings.is_empty() {
        say(&screen::table(args, &findings, colours()));
    }
    say(&screen::ending(&outcome, &page));
    match dashboard {
        Some(dashboard) => dashboard.linger(&outcome)?,
        None => say("Live plots: viaduct demo --watch\n"),
    }
    let _ = std::io::stdout().flush();
    match &outcome.ended {
        Ended::Failed(why) => bail!("the demo failed: {why}"),
        Ended::Stopped => Ok(ExitCode::from(130)),
        Ended::Complete if outcome.holds() => Ok(ExitCode::SUCCESS),
        Ended::Complete => Ok(ExitCode::FAILURE),
    }
}

/// Writes the results and the report; returns the path of the report.
fn keep(args: &DemoArgs, outcome: &Outcome) -> anyhow::Result<std::path::PathBuf> {
    debug_assert_eq!(outcome.experiment, ABOUT.name);
    if let Some(path) = &args.json {
        experiment::save_as(path, outcome)?;
    }
    experiment::save(&args.out, outcome)?;
    let page = report::write_page(std::slice::from_ref(outcome), &args.out)?;
    Ok(fs::canonicalize(&page).unwrap_or(page))
}

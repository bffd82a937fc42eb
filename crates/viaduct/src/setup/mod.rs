//! `viaduct setup`: writes the first config of a site's gateway, and prints the command for the
//! other site.
//!
//! ```text
//!   machine ─▶ Facts ─┐                ┌─▶ NAME.key, NAME.toml   checked, then renamed into place
//!   flags ────────────┼─▶ Setup ─▶ Draft ─▶ the other site's command
//!   terminal ─────────┘                └─▶ what to do next
//! ```
//!
//! The public key of the other site is not known yet when the first site is set up. The command
//! printed there sets up the other site. The command printed at the other site then fills in the
//! missing key at the first site ([`fill_in`]).

mod draft;
mod facts;
mod files;
mod fill_in;
mod questions;
mod report;

use std::io::{self, BufRead, IsTerminal as _, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};

use crate::gateway;
use crate::stdout::print;
use facts::Facts;
use files::Files;
use questions::{Given, Question, Setup};
use report::Report;

/// Directory of the configs that the units read.
const DIRECTORY: &str = "/etc/viaduct";

/// Examples for the end of `viaduct setup --help`.
pub const EXAMPLES: &str = "\
Examples:
  viaduct setup                                   asks for each value, on a terminal
  viaduct setup --yes --name rome --peer oslo --peer-prefix 10.2.0.0/16 \\
      --peer-endpoint 192.0.2.2                   asks nothing: the rest is detected
  viaduct setup --name rome --peer oslo --peer-key KEY
                                                  fills in the key, which the other site prints

The routes show the interface towards the other site, its address and this site's prefixes. The
config is checked as `viaduct gateway --check` does before it is written.";

/// Options of `viaduct setup`.
#[derive(Clone, Debug, clap::Args)]
pub struct SetupArgs {
    /// Name of this site [default: the machine's name]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Name of the other site
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// Prefixes of the other site's hosts, IPv4 or IPv6
    #[arg(long, value_name = "PREFIX,...")]
    peer_prefix: Option<String>,
    /// Address or host name of the other site's gateway, port 7400 if none is given; empty if the
    /// other site connects to this one
    #[arg(long, value_name = "HOST:PORT")]
    peer_endpoint: Option<String>,
    /// Public key of the other site; if its config lacks only this, the key is filled in
    #[arg(long, value_name = "KEY")]
    peer_key: Option<String>,
    /// Interface towards the other site [default: by the routes]
    #[arg(long, value_name = "INTERFACE")]
    wan: Option<String>,
    /// Address at which repairs arrive, by UDP [default: that of the interface, port 7400]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Prefixes of this site's hosts [default: the networks of the other interfaces]
    #[arg(long, value_name = "PREFIX,...")]
    prefix: Option<String>,
    /// Address or host name by which the other site reaches this gateway, if not that of --listen
    #[arg(long, value_name = "HOST:PORT")]
    endpoint: Option<String>,
    /// File to write; the key file is next to it [default: /etc/viaduct/NAME.toml]
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Ask nothing: take the default of each value that no flag sets
    #[arg(short, long)]
    yes: bool,
    /// Overwrite an existing config; an existing key is kept
    #[arg(long)]
    force: bool,
    /// Print what was detected and written as one JSON object
    #[arg(long)]
    json: bool,
}

impl SetupArgs {
    /// Values of the flags, in the order of [`questions::ITEMS`].
    fn given(&self) -> Given {
        let values = [
            &self.name,
            &self.peer,
            &self.peer_prefix,
            &self.peer_endpoint,
            &self.peer_key,
            &self.wan,
            &self.listen,
            &self.prefix,
        ];
        Given { values: values.map(Clone::clone), endpoint: self.endpoint.clone() }
    }

    /// Path of the config of the site `name`.
    fn path(&self, name: &str) -> PathBuf {
        let default = || Path::new(DIRECTORY).join(format!("{name}.toml"));
        self.config.clone().unwrap_or_else(default)
    }
}

/// Asks for the values that are not known, and writes the config.
pub fn run(args: &SetupArgs) -> Result<()> {
    let facts = Facts::read()?;
    if let Some(path) = fill_in::existing(args, &facts) {
        return fill_in::run(args, &path);
    }
    let mut setup = Setup::new(facts, args.given()).map_err(|what| anyhow!(what))?;
    answer(&mut setup, args.yes)?;
    let draft = setup.finish().map_err(|what| anyhow!(what))?;
    let files = Files::new(args.path(&draft.name), &draft.name);
    if !args.force {
        files.refuse_existing()?;
    }
    let (config, public_key, written) = files.write(&draft)?;
    let report = Report {
        facts: setup.facts(),
        command: draft.peer_command(&public_key),
        draft,
        public_key,
        files,
        written,
        warnings: gateway::warnings(config),
    };
    print(&if args.json { report.json()? } else { report.text() })
}

/// Answers the open questions by their defaults, or asks them on the terminal.
fn answer(setup: &mut Setup, by_defaults: bool) -> Result<()> {
    if by_defaults {
        return setup.take_defaults().map_err(|what| anyhow!(what));
    }
    if setup.poll_question().is_none() {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        bail!(
            "standard input is not a terminal; with --yes, options without a flag get their \
             defaults: {}",
            setup.open_flags()
        );
    }
    ask(setup, &mut io::stdin().lock(), &mut io::stderr())
}

/// Asks the open questions. A wrong answer is explained, and the question repeated.
fn ask(setup: &mut Setup, input: &mut impl BufRead, output: &mut impl Write) -> Result<()> {
    while let Some(Question { text, default, .. }) = setup.poll_question() {
        match default.filter(|value| !value.is_empty()) {
            Some(default) => write!(output, "{text} [{default}]: ")?,
            None => write!(output, "{text}: ")?,
        }
        output.flush()?;
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 {
            writeln!(output)?;
            bail!("the input ended before the last question; nothing was written");
        }
        if let Err(what) = setup.handle_answer(&line) {
            writeln!(output, "  {what}")?;
        }
    }
    Ok(())
}

//! `viaduct status` and `viaduct top`: state of the gateways, proxies, masters, hop agents,
//! servers, sprays and overlay nodes that run on a machine.
//!
//! ```text
//!   service ──status socket: a JSON object──▶ client ──ServiceStatus──┬─▶ a table, a page: once
//!                                                                     ├─▶ --json
//!                                                                     └─▶ Overview ─▶ Screen: top
//! ```

mod agent_page;
pub mod client;
mod colours;
mod gateway_page;
mod keys;
mod list;
pub mod numbers;
mod overlay_page;
mod overview;
mod peer_rows;
mod proxy_page;
mod screen;
mod serve_page;
mod spray_page;
mod summary;
mod table;
mod terminal;
mod top;
mod trend;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::Serialize;
use serde_json::Value;

use crate::run_dir::{RunDir, listed, shown};
use crate::stdout::print;
use client::{Answers, ServiceStatus, Unread};
use colours::Colours;
use overview::Overview;
use top::Watched;

/// Help of `viaduct status`.
pub const STATUS_HELP: &str = "\
Columns of the table, since the start of each service:
  peers      peers that are up / all peers
  flows      open flows or connections
  sent       bytes to the peers' sites, or from clients to servers
  received   bytes from the peers' sites, or from servers to clients
  lost       lost packets / packets whose fate is known, both directions
  recovered  recovered packets / lost packets
  overhead   bytes of repairs / bytes of data
Below the table is the page of the service if it is the only one.

Exit status: 0 if the status of a service was read, otherwise 1.

Examples:
  viaduct status
  viaduct status --name rome
  viaduct status --json | jq '.rome.peers[].state'";

/// Help of `viaduct top`.
pub const TOP_HELP: &str = "\
Rates, lost, recovered and overhead are of the last second; the sparklines are of the last two
minutes. A full cell is the greatest value of its sparkline; for loss, at least 1 %.
Enter opens a service and then a peer, Esc goes back, q quits. Without a terminal the rates of one
second are printed once. NO_COLOR is supported.";

/// Interval whose rates `viaduct top` prints if there is no terminal.
const RATE_INTERVAL: Duration = Duration::from_secs(1);

/// Options that select a gateway, proxy, master, hop agent, server, spray or overlay node.
#[derive(Debug, clap::Args)]
pub struct ServiceSelector {
    /// Path of the service's status socket
    #[arg(long, value_name = "PATH", conflicts_with = "name")]
    pub socket: Option<PathBuf>,
    /// Name of the service: a gateway's site, proxy-PORT, serve-PORT, spray-NAME, overlay-NAME, or
    /// a master's name. Without it all services are shown
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub run_dir: RunDir,
}

impl ServiceSelector {
    /// Path of the selected service's socket; `None` if no service is selected.
    fn socket(&self) -> Option<PathBuf> {
        let named = || Some(shown(client::socket(&self.run_dir.path(), self.name.as_ref()?)));
        self.socket.clone().or_else(named)
    }

    /// Path of the selected service's socket. If no service is selected, the path of the only
    /// service that satisfies `is_meant`. Errors: no service is selected, and none or several
    /// satisfy `is_meant`.
    pub fn only(&self, is_meant: impl Fn(&Path) -> bool) -> Result<PathBuf> {
        if let Some(path) = self.socket() {
            return Ok(path);
        }
        let dirs = self.run_dir.searched();
        let mut all =
            client::sockets(&dirs).with_context(|| format!("cannot read {}", listed(&dirs)))?;
        all.retain(|(_, path)| is_meant(path));
        match &all[..] {
            [(_, path)] => Ok(path.clone()),
            [] => bail!("no such service runs in {}; it may have another --run-dir", listed(&dirs)),
            many => {
                let names: Vec<_> = many.iter().map(|(name, _)| name.as_str()).collect();
                bail!("several services run; choose one by --name: {}", names.join(", "))
            }
        }
    }
}

/// Status or error, as `--json` prints it.
#[derive(Serialize)]
#[serde(untagged)]
enum Answer<'a> {
    Status(&'a ServiceStatus),
    Unread { error: String },
}

/// Runs `viaduct status`.
pub fn status(selector: &ServiceSelector, json: bool) -> Result<()> {
    if let Some(path) = selector.socket() {
        let status = client::read(&path).map_err(|reason| unread(reason, &path))?;
        return print(&if json { to_json(&status)? } else { status.page(None, colours()) });
    }
    let answers = read_all(&selector.run_dir.searched())?;
    print(&if json { all_to_json(&answers)? } else { all_to_text(&answers) })?;
    match answers.values().any(Result::is_ok) {
        true => Ok(()),
        false => bail!("no status could be read"),
    }
}

/// Runs `viaduct top` until `q` or Ctrl-C. Without a terminal it prints the rates of one second.
pub fn top(selector: &ServiceSelector) -> Result<()> {
    let is_terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    match (selector.socket(), is_terminal) {
        (Some(path), true) => {
            // At the start, a wrong name is an error. Later the service may stop and start again.
            client::read(&path).map_err(|reason| unread(reason, &path))?;
            top::run(Watched::One(name_of(&path), path), colours())
        }
        (Some(path), false) => {
            let read = || client::read(&path).map_err(|reason| unread(reason, &path));
            let before = read()?;
            thread::sleep(RATE_INTERVAL);
            print(&read()?.page(Some(&before), colours()))
        }
        (None, true) => top::run(Watched::All(selector.run_dir.searched()), colours()),
        (None, false) => print_rates(&selector.run_dir.searched()),
    }
}

/// Prints the services in these directories with the rates of one second.
fn print_rates(dirs: &[PathBuf]) -> Result<()> {
    let (mut overview, began) = (Overview::default(), Instant::now());
    for wait in [Duration::ZERO, RATE_INTERVAL] {
        thread::sleep(wait);
        let answers = read_all(dirs)?;
        let now = began.elapsed();
        overview.handle_names(now, &answers.keys().cloned().collect::<Vec<_>>());
        for (name, answer) in answers {
            overview.handle_answer(now, &name, answer);
        }
    }
    let lines = list::rates(&overview, began.elapsed(), 0, width(), colours());
    print(&(lines.join("\n") + "\n"))
}

/// Reads the status of all services in `dirs`.
///
/// # Errors
/// There is no service, or a directory cannot be read.
fn read_all(dirs: &[PathBuf]) -> Result<Answers> {
    let answers =
        client::read_all(dirs).with_context(|| format!("cannot read {}", listed(dirs)))?;
    if answers.is_empty() {
        bail!(
            "no service runs in {}: none runs at all, or it has another directory (--run-dir)",
            listed(dirs)
        );
    }
    Ok(answers)
}

/// Error about one service. If its name is wrong, the error lists the names of the services
/// that run.
fn unread(reason: Unread, path: &Path) -> anyhow::Error {
    let others = path.parent().and_then(|dir| client::sockets(&[dir.to_owned()]).ok());
    let others = others.unwrap_or_default();
    let others: Vec<_> = others.into_iter().map(|(name, _)| name).collect();
    let name = name_of(path);
    match reason {
        Unread::Missing if !others.is_empty() => {
            anyhow!("{name}: not running; services that run: {}", others.join(", "))
        }
        Unread::Missing => anyhow!("{name}: not running: there is no {}", path.display()),
        reason => anyhow!("{name}: {reason} ({})", path.display()),
    }
}

fn name_of(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

fn to_json(status: &impl Serialize) -> Result<String> {
    // Only a `Value` is formatted, so that the formatting code is not compiled for each type
    // of status.
    let value: Value = serde_json::from_slice(&serde_json::to_vec(status)?)?;
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

/// Formats the statuses of all services as one JSON object, whose keys are the services' names.
fn all_to_json(answers: &Answers) -> Result<String> {
    let all = answers.iter().map(|(name, answer)| match answer {
        Ok(status) => (name, Answer::Status(status)),
        Err(reason) => (name, Answer::Unread { error: reason.to_string() }),
    });
    to_json(&all.collect::<BTreeMap<_, _>>())
}

/// Formats all services as a table, and below it the page of the service if it is the only one.
fn all_to_text(answers: &Answers) -> String {
    let table = list::totals(answers, width(), colours()).join("\n") + "\n";
    match answers.values().collect::<Vec<_>>()[..] {
        [Ok(only)] => table + "\n" + &only.page(None, colours()),
        _ => table,
    }
}

/// Width of the terminal. Unlimited if the output is a file or a pipe.
fn width() -> usize {
    match std::io::stdout().is_terminal() {
        true => terminal::size().columns,
        false => usize::MAX,
    }
}

/// Colours on a terminal, unless `NO_COLOR` is set and not empty.
fn colours() -> Colours {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Colours(wanted && std::io::stdout().is_terminal())
}

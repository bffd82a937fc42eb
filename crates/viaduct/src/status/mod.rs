//! `viaduct status` and `viaduct top`: state of a running gateway, proxy, server or overlay
//! node.
//!
//! ```text
//!   service ──status socket, one JSON object──▶ Source ──Seen────┬─▶ page: once, for people
//!                                                                ├─▶ --json: as it came
//!                                                                └─▶ top: each second, with rates
//! ```

mod keys;
mod overlay_page;
mod page;
mod proxy_page;
mod serve_page;
pub mod socket;
mod source;
mod terminal;
mod top;
mod view;
pub mod words;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use anyhow::Result;

use crate::run_dir::RunDir;
use page::Ink;
use source::Source;

/// Options that select the gateway, proxy, server or overlay node.
#[derive(Debug, clap::Args)]
pub struct Which {
    /// Path of the service's status socket
    #[arg(long, value_name = "PATH", conflicts_with = "name")]
    pub socket: Option<PathBuf>,
    /// Name of the service: a gateway's site, proxy-PORT, serve-PORT, overlay-NAME; not needed
    /// where only one runs
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    #[command(flatten)]
    pub run_dir: RunDir,
}

/// Runs `viaduct status`.
pub fn status(which: &Which, json: bool) -> Result<()> {
    let status = Source::find(which)?.read()?;
    let text =
        if json { serde_json::to_string_pretty(&status)? + "\n" } else { status.page(None, ink()) };
    print(&text)
}

/// Runs `viaduct top` until `q` or Ctrl-C. Prints one page if there is no terminal.
pub fn top(which: &Which) -> Result<()> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return status(which, false);
    }
    top::run(&Source::find(which)?, ink())
}

/// Colours on a terminal, unless `NO_COLOR` is set and not empty.
fn ink() -> Ink {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Ink(wanted && std::io::stdout().is_terminal())
}

/// Prints `text`. A closed pipe, as with `head`, is not an error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

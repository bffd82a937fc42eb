//! `viaduct status` and `viaduct top`: state of a running gateway, proxy, server or overlay
//! node.
//!
//! ```text
//!   service ──status socket, one JSON object──▶ StatusClient ──ServiceStatus──┬─▶ a page: once
//!                                                                             ├─▶ --json
//!                                                                             └─▶ top: with rates
//! ```

mod client;
mod colours;
mod gateway_page;
mod keys;
pub mod numbers;
mod overlay_page;
mod proxy_page;
mod serve_page;
mod terminal;
mod top;
mod view;

use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;

use anyhow::Result;

use crate::run_dir::RunDir;
use client::StatusClient;
use colours::Colours;

/// Options that select the gateway, proxy, server or overlay node.
#[derive(Debug, clap::Args)]
pub struct ServiceSelector {
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
pub fn status(selector: &ServiceSelector, json: bool) -> Result<()> {
    let status = StatusClient::find(selector)?.read()?;
    let text = if json {
        serde_json::to_string_pretty(&status)? + "\n"
    } else {
        status.page(None, colours())
    };
    print(&text)
}

/// Runs `viaduct top` until `q` or Ctrl-C. Prints one page if there is no terminal.
pub fn top(selector: &ServiceSelector) -> Result<()> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return status(selector, false);
    }
    top::run(&StatusClient::find(selector)?, colours())
}

/// Colours on a terminal, unless `NO_COLOR` is set and not empty.
fn colours() -> Colours {
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    Colours(wanted && std::io::stdout().is_terminal())
}

/// Prints `text`. A closed pipe, as with `head`, is not an error.
fn print(text: &str) -> Result<()> {
    match std::io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => Err(e.into()),
        _ => Ok(()),
    }
}

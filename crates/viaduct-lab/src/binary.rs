//! Path of the `viaduct` binary that the lab's gateways and proxies run.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Context, Result};

static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// Sets the `viaduct` binary for services; the default is the running program.
pub fn use_binary(path: impl Into<PathBuf>) {
    let _ = BINARY.set(path.into());
}

/// Returns the path of the binary.
pub(crate) fn binary() -> Result<PathBuf> {
    match BINARY.get() {
        Some(path) => Ok(path.clone()),
        None => std::env::current_exe().context("cannot find the running program"),
    }
}

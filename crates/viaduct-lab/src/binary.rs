//! Path of the `viaduct` binary that the lab's gateways and proxies run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};

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

/// Copies the program `from` to `to` in a child process. If this process wrote the file itself, a
/// child that another thread starts could inherit the descriptor, and `to` could not be executed
/// before that child's `exec`.
pub fn copy_program(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg(from).arg(to).status().context("cp")?;
    ensure!(status.success(), "cp to {}: {status}", to.display());
    Ok(())
}

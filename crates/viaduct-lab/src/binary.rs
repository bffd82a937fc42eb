//! The `viaduct` that the lab's gateways and proxies are.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Context, Result};

static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// The `viaduct` that services are started with. Without this it is the running program.
pub fn use_binary(path: impl Into<PathBuf>) {
    let _ = BINARY.set(path.into());
}

/// It.
pub(crate) fn binary() -> Result<PathBuf> {
    match BINARY.get() {
        Some(path) => Ok(path.clone()),
        None => std::env::current_exe().context("find the running program"),
    }
}

//! The one binary.

use std::process::ExitCode;

use clap::Parser;

/// Makes unmodified applications fast and unbreakable over long, lossy, changing networks.
#[derive(Debug, Parser)]
#[command(version)]
enum Command {
    /// Worlds in network namespaces and experiments in them
    #[cfg(feature = "lab")]
    #[command(subcommand)]
    Lab(viaduct_lab::cli::LabCommand),
}

fn main() -> ExitCode {
    let done: anyhow::Result<ExitCode> = match Command::parse() {
        #[cfg(feature = "lab")]
        Command::Lab(command) => viaduct_lab::cli::execute(command),
    };
    done.unwrap_or_else(|error| {
        eprintln!("viaduct: {}", viaduct_lab::cli::explain(&error));
        ExitCode::FAILURE
    })
}

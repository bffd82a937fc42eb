//! `viaduct demo` and `viaduct lab` in a build without the feature `lab`: they start the program
//! `viaduct-lab`, which is this binary built with that feature, if it is installed.

use std::env;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, bail};

/// Directories to search for the program, relative to the directory of the running program.
const PLACES: [&str; 2] = [".", "../lib/viaduct"];
const PROGRAM: &str = "viaduct-lab";

/// Arguments for `viaduct-lab`.
#[derive(Debug, clap::Args)]
pub struct LabArgs {
    /// Arguments; --help shows them
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Replaces this process by `viaduct-lab SUBCOMMAND`, with the same arguments.
///
/// # Errors
/// The program is not installed.
pub fn execute(subcommand: &str, args: &LabArgs) -> Result<ExitCode> {
    let own = env::current_exe().context("cannot find the running program")?;
    for place in PLACES {
        let mut program = Command::new(own.with_file_name(place).join(PROGRAM));
        let error = program.arg(subcommand).args(&args.arguments).exec();
        if error.kind() != ErrorKind::NotFound {
            return Err(error).context(PROGRAM);
        }
    }
    bail!("the lab is not installed: it is in the package {PROGRAM}, and in builds from source")
}

//! Man pages and shell completions, generated from the definition of the command line.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap_complete::Shell;

use crate::stdout::print;

/// Arguments of `viaduct man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Directory for the pages; created if missing
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Arguments of `viaduct completions`.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct CompletionArgs {
    /// Shell to complete for
    shell: Shell,
}

/// Writes `viaduct.1`, and one page for each subcommand of `command`, such as `viaduct-gateway.1`.
pub fn write_pages(command: clap::Command, args: &ManArgs) -> Result<()> {
    let written = std::fs::create_dir_all(&args.dir)
        .and_then(|()| clap_mangen::generate_to(command, &args.dir));
    written.with_context(|| format!("cannot write man pages into {}", args.dir.display()))
}

/// Prints the completions of `command` for the shell.
pub fn print_completions(mut command: clap::Command, args: CompletionArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "viaduct", &mut script);
    print(&String::from_utf8_lossy(&script))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command() -> clap::Command {
        let gateway = clap::Command::new("gateway").arg(clap::Arg::new("config").long("config"));
        clap::Command::new("viaduct").subcommand(gateway)
    }

    #[test]
    fn each_subcommand_has_a_page_with_its_options() {
        let dir = std::env::temp_dir().join(format!("viaduct-man-{}", std::process::id()));
        write_pages(command(), &ManArgs { dir: dir.join("man1") }).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.join("man1").join(name)).unwrap();
        assert!(page("viaduct.1").contains("viaduct\\-gateway(1)"), "{}", page("viaduct.1"));
        assert!(page("viaduct-gateway.1").contains("\\-\\-config"));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_directory_that_cannot_be_created_is_named() {
        let dir = PathBuf::from("/proc/none/man1");
        let error = write_pages(command(), &ManArgs { dir }).unwrap_err();
        assert!(error.to_string().contains("/proc/none/man1"), "{error}");
    }
}

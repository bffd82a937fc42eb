//! External programs that we run, such as `nft`. Every error shows the command and its output.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::process::{Command, Output, Stdio};

use crate::process::{die_with_parent, signals};

/// Errors of running a program.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The program is not installed.
    #[error(
        "`{program}` is not installed: it comes with the Debian package {package} (`apt-get \
            install {package}`)"
    )]
    Missing {
        /// Program.
        program: String,
        /// Package that contains it.
        package: String,
    },
    /// The program could not be started, or its pipes failed.
    #[error("cannot run `{command}`")]
    Run {
        /// Command line.
        command: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The program failed.
    #[error("`{command}` failed: {stderr}")]
    Failed {
        /// Command line.
        command: String,
        /// Output on standard error, or the exit status if there is no such output.
        stderr: String,
    },
}

/// Runs `program` in the calling thread's network namespace, with `input` on its standard input,
/// and returns its standard output. Errors: the program is missing, cannot be run, or ends with a
/// non-zero status.
pub fn run(program: &str, args: &[&str], input: &str) -> Result<String, ToolError> {
    let command = || [&[program], args].concat().join(" ");
    let output = start(program, args, input).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => missing(program),
        _ => ToolError::Run { command: command(), source },
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let stderr = if said.is_empty() { output.status.to_string() } else { said };
    Err(ToolError::Failed { command: command(), stderr })
}

fn start(program: &str, args: &[&str], input: &str) -> io::Result<Output> {
    let mut command = Command::new(program);
    command
        .args(args)
        .env("PATH", search_path())
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // The tool is killed with this process: it must not change anything after the next start has
    // undone our changes.
    die_with_parent(&mut command);
    // When systemd stops a service, and on Ctrl-C, every process of the service gets a signal. The
    // signal is meant for the service: a tool that runs at that moment finishes its change.
    signals::ignore_at_start(&mut command, &[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]);
    let mut child = command.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the program ends without reading its input, its standard error has the reason.
        let _ = stdin.write_all(input.as_bytes());
    }
    child.wait_with_output()
}

/// Returns the user's `PATH`, followed by Debian's directories for root's programs.
fn search_path() -> OsString {
    let mut path = env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    path
}

fn missing(program: &str) -> ToolError {
    // The name of the Debian package.
    let package = if program == "nft" { "nftables" } else { program };
    ToolError::Missing { program: program.to_owned(), package: package.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_to_all_processes_of_a_service_does_not_stop_a_tool() {
        let script = "kill -TERM $$; kill -INT $$; kill -HUP $$; echo done";
        assert_eq!(run("sh", &["-c", script], "").unwrap(), "done\n");
    }

    #[test]
    fn failures_show_the_command_and_its_error_output() {
        assert_eq!(run("cat", &[], "hello").unwrap(), "hello");
        let refused = run("sh", &["-c", "echo no such luck >&2; exit 3"], "").unwrap_err();
        let text = "`sh -c echo no such luck >&2; exit 3` failed: no such luck";
        assert_eq!(refused.to_string(), text);
        let silent = run("false", &[], "").unwrap_err();
        assert_eq!(silent.to_string(), "`false` failed: exit status: 1");
        assert!(matches!(run("no-such-program", &[], ""), Err(ToolError::Missing { .. })));
        assert!(missing("nft").to_string().contains("apt-get install nftables"));
    }
}

//! Access logs: one line for each request or flow that has ended.
//!
//! ```text
//!   serve, engine ── Entry ──▶ bounded queue ──▶ writer thread ──▶ FILE, stdout or stderr
//!                     │ full: counted as lost          ▲ reopen (SIGHUP, SIGUSR1)
//! ```
//!
//! Event loops only queue an [`Entry`]. A separate thread formats and writes the lines, so that a
//! slow disk delays no packet. If the thread falls behind, entries are dropped and counted.

mod entry;
mod writer;

use std::fmt::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::metrics::{Exposition, Kind};
pub use entry::{Entry, Format};
pub use writer::AccessLog;

/// Options of the access log, the same for all services.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AccessLogArgs {
    /// Log each request or flow when it has ended: to a file, which is reopened on SIGHUP and
    /// SIGUSR1 (for logrotate), to standard output (-), or to standard error (stderr)
    #[arg(long, value_name = "FILE|-|stderr")]
    pub access_log: Option<Target>,
    /// Format of the access log [default: common]
    #[arg(long, value_name = "FORMAT", value_enum, requires = "access_log")]
    pub access_log_format: Option<Format>,
}

/// Destination of an access log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Target {
    /// Standard output: `-`.
    Stdout,
    /// Standard error: `stderr`.
    Stderr,
    /// File, appended to.
    File(PathBuf),
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Target, Self::Err> {
        match text {
            "" => Err("a file, - (standard output) or stderr is expected"),
            "-" => Ok(Target::Stdout),
            "stderr" => Ok(Target::Stderr),
            path => Ok(Target::File(path.into())),
        }
    }
}

impl TryFrom<String> for Target {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Target, Self::Error> {
        text.parse()
    }
}

/// Counters of an access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessLogStats {
    /// Lines written.
    pub written: u64,
    /// Lines lost because the queue was full, or because a write failed.
    pub lost: u64,
}

impl AccessLogStats {
    /// Adds the metrics.
    pub fn expose(&self, out: &mut Exposition) {
        for (name, help, value) in [
            ("viaduct_access_log_lines_total", "Lines written to the access log.", self.written),
            ("viaduct_access_log_lost_total", "Lines that could not be written.", self.lost),
        ] {
            out.family(name, Kind::Counter, help);
            out.sample(&[], value);
        }
    }
}

impl AccessLogArgs {
    /// Opens the log that the options select, and starts its thread. Without a log, the handle
    /// ignores entries. Errors: the file cannot be opened for writing, or no thread can be started.
    pub fn open(&self) -> Result<AccessLog> {
        let Some(target) = &self.access_log else { return Ok(AccessLog::default()) };
        let format = self.access_log_format.unwrap_or_default();
        AccessLog::start(target.clone(), format)
    }
}

/// Logs a warning about a failed authentication, in the form that the fail2ban filter in
/// docs/access-log.md matches. The client chooses the user name, so it comes last, quoted and
/// escaped, including spaces.
pub fn authentication_failed(client: IpAddr, method: &str, user: Option<&str>) {
    warn!("{}", failure_line(client, method, user));
}

fn failure_line(client: IpAddr, method: &str, user: Option<&str>) -> String {
    let mut line =
        format!("authentication failed: client {}, method {method}", client.to_canonical());
    if let Some(user) = user {
        // Writing to a string cannot fail.
        let _ = write!(line, ", user \"{}\"", entry::escape_word(user, MAX_USER));
    }
    line
}

/// Maximum bytes of a user name in a line.
const MAX_USER: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_authentication_names_the_client_first_and_cannot_contain_a_forged_line() {
        let client = "::ffff:192.0.2.7".parse().unwrap();
        let line = failure_line(client, "basic", Some("x\"\nclient 198.51.100.1"));
        let right = concat!(
            "authentication failed: client 192.0.2.7, method basic, ",
            r#"user "x\"\x0aclient\x20198.51.100.1""#,
        );
        assert_eq!(line, right);
        let long = failure_line(client, "socks", Some(&"u".repeat(1000)));
        assert!(long.len() < 150, "{long}");
    }

    /// Client that the filter in docs/access-log.md finds in a line, as fail2ban would; empty if it
    /// finds none.
    fn banned(line: &str) -> String {
        let docs = include_str!("../../../../docs/access-log.md");
        let filter = docs.lines().find_map(|line| line.trim().strip_prefix("failregex = "));
        // Pattern of an IPv4 address in fail2ban.
        let find = "import re, sys\nhost = r'(?P<host>\\d+\\.\\d+\\.\\d+\\.\\d+)'\n\
                    found = re.search(sys.argv[1].replace('<HOST>', host), sys.argv[2])\n\
                    print(found['host'] if found else '', end='')";
        let mut python = std::process::Command::new("python3");
        let out = python.args(["-c", find, filter.unwrap(), line]).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    #[test]
    fn no_user_name_makes_the_documented_filter_ban_another_client() {
        let client = "192.0.2.7".parse().unwrap();
        let victim = "authentication failed: client 198.51.100.1, method basic";
        let quoted = format!("{victim}, user \"");
        let users = [
            None,
            Some("root"),
            Some(victim),
            Some(&quoted),
            Some("x\", user \"y"),
            Some("\\"),
            Some(" authentication failed: client 198.51.100.1, method x"),
        ];
        for user in users {
            let line = failure_line(client, "basic", user);
            let line =
                format!("Nov 26 07:00:00 host viaduct[7]: 2026-11-26T07:00:00Z  WARN {line}");
            assert_eq!(banned(&line), "192.0.2.7", "{line}");
        }
        // The filter does not match other log lines in which a client quotes such a line.
        let other = format!("viaduct[7]:  WARN bad request \"{victim}\", user \"x\"");
        assert_eq!(banned(&other), "", "{other}");
        let unescaped = format!(
            "viaduct[7]: authentication failed: client 192.0.2.7, method basic, user \"{victim}"
        );
        assert_eq!(banned(&unescaped), "", "{unescaped}");
    }

    #[test]
    fn targets_are_files_except_for_two_words() {
        assert_eq!("-".parse(), Ok(Target::Stdout));
        assert_eq!("stderr".parse(), Ok(Target::Stderr));
        assert_eq!("/var/log/x".parse(), Ok(Target::File("/var/log/x".into())));
        assert!("".parse::<Target>().is_err());
    }
}

//! Description of the machine that a result was measured on.

use std::fs;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Facts that a reader needs to compare results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Cores available to this process.
    pub cores: usize,
    /// Memory in GiB.
    pub memory_gib: f64,
    /// Kernel release.
    pub kernel: String,
    /// Start of the measurement, as in `2026-11-21T02:47:31Z`.
    pub date: String,
    /// Git commit of the tree that the program was built in, with `-dirty` if files have changed
    /// since; `None` for an installed program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

impl Machine {
    /// Describes this machine, with the current time.
    pub fn here() -> Machine {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let value = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let memory = value(&read("/proc/meminfo"), "MemTotal").unwrap_or_default();
        let kib: f64 = memory.trim_end_matches(" kB").parse().unwrap_or(0.0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Machine {
            cpu: value(&read("/proc/cpuinfo"), "model name").unwrap_or_else(|| "unknown".into()),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_gib: (kib / 1024.0 / 102.4).round() / 10.0,
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            date: date_of(now.as_secs()),
            commit: commit(),
        }
    }
}

/// Asks git for the commit of the source tree whose `target` directory contains this program.
fn commit() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let mut git = Command::new("git");
    git.arg("-C").arg(program.parent()?);
    git.args(["describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]);
    let described = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(described.stdout).ok()?.trim().to_owned())
}

/// Formats seconds since 1970 as a UTC date and time.
fn date_of(seconds: u64) -> String {
    // Years begin in March, so that the leap day is the last day of a year; 719,468 days are
    // between 1 March of the year 0 and 1 January 1970.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let march_month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date_of(0), "1970-01-01T00:00:00Z");
        assert_eq!(date_of(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date_of(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date_of(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(date_of(1_795_229_251), "2026-11-21T02:47:31Z");
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_core() {
        let here = Machine::here();
        assert!(here.cores >= 1 && here.memory_gib > 0.0 && here.kernel.contains('.'), "{here:?}");
    }
}

//! Metrics of the process, under the names that Prometheus' client libraries use.

use std::fs;

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::{Exposition, Kind};

/// Adds a metric of one sample, unless its value is not known.
fn gauge(page: &mut Exposition, name: &'static str, help: &str, value: Option<u64>) {
    if let Some(value) = value {
        page.family(name, Kind::Gauge, help);
        page.sample(&[], value);
    }
}

/// Metrics of this process. Those that the system does not provide are omitted.
pub fn encode() -> String {
    let mut page = Exposition::default();
    gauge(&mut page, "process_open_fds", "Open file descriptors.", open_descriptors());
    let limit = getrlimit(Resource::Nofile).current;
    gauge(&mut page, "process_max_fds", "Limit of open file descriptors.", limit);
    let Some(usage) = fs::read_to_string("/proc/self/stat").ok().and_then(|stat| usage(&stat))
    else {
        return page.finish();
    };
    let ticks = clock_ticks_per_second().max(1) as f64;
    page.family("process_cpu_seconds_total", Kind::Counter, "CPU time, user and system.");
    page.sample(&[], usage.ticks as f64 / ticks);
    let resident = usage.pages.saturating_mul(page_size() as u64);
    gauge(&mut page, "process_resident_memory_bytes", "Resident memory.", Some(resident));
    if let Some(boot) = fs::read_to_string("/proc/stat").ok().and_then(|stat| boot_time(&stat)) {
        let help = "Start of the process, in seconds since 1970.";
        page.family("process_start_time_seconds", Kind::Gauge, help);
        page.sample(&[], boot as f64 + usage.started as f64 / ticks);
    }
    page.finish()
}

/// Number of open descriptors. Since Linux 6.2, the size of the directory is this number. On older
/// kernels the entries are counted, except the one of the directory's own descriptor.
fn open_descriptors() -> Option<u64> {
    let directory = "/proc/self/fd";
    match fs::metadata(directory).ok()?.len() {
        0 => Some((fs::read_dir(directory).ok()?.count() as u64).saturating_sub(1)),
        open => Some(open),
    }
}

/// Resources that a process uses: fields of `/proc/PID/stat` (proc(5)).
#[derive(Debug, PartialEq)]
struct Usage {
    /// CPU time in clock ticks.
    ticks: u64,
    /// Start in clock ticks after the boot.
    started: u64,
    /// Resident pages.
    pages: u64,
}

fn usage(stat: &str) -> Option<Usage> {
    // The name of the program, in parentheses, may contain anything. Field 3 follows the last
    // closing parenthesis.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(Usage { ticks: field(14)? + field(15)?, started: field(22)?, pages: field(24)? })
}

/// Boot time in seconds since 1970, from `/proc/stat`.
fn boot_time(stat: &str) -> Option<u64> {
    stat.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_process_are_found_whatever_its_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 5 6 7 8 120 30 0 0 20 0 3 0 8800 9 4096 18";
        assert_eq!(usage(stat), Some(Usage { ticks: 150, started: 8_800, pages: 4_096 }));
        assert_eq!(usage("7 (a) S 1"), None);
        assert_eq!(boot_time("cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_000));
    }

    #[test]
    fn this_process_has_descriptors_and_memory() {
        let text = encode();
        let value = |name: &str| -> f64 {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
            line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
        };
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_resident_memory_bytes") > 100_000.0);
        let boot = fs::read_to_string("/proc/stat").unwrap();
        assert!(value("process_start_time_seconds") >= boot_time(&boot).unwrap() as f64);
    }
}

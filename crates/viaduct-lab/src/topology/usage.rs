//! Resource usage of a program and its descendants: processor time, memory, descriptors.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// Current resource usage of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Resident memory in bytes, shared pages included.
    pub resident: u64,
    /// Anonymous part of the resident memory, which no file backs.
    pub anonymous: u64,
    /// Open descriptors of all kinds.
    pub descriptors: usize,
    /// Open sockets.
    pub sockets: usize,
    /// Open pipe ends; a pipe has two.
    pub pipes: usize,
}

impl Usage {
    /// Reads the usage of process `pid` and its descendants; zero if the process is gone.
    pub fn of(pid: u32) -> Usage {
        let mut sum = Usage::default();
        for pid in family(pid) {
            let dir = Path::new("/proc").join(pid.to_string());
            sum.resident += status(&dir, "VmRSS:");
            sum.anonymous += status(&dir, "RssAnon:");
            for entry in fs::read_dir(dir.join("fd")).into_iter().flatten().flatten() {
                let Ok(what) = fs::read_link(entry.path()) else { continue };
                let what = what.to_string_lossy();
                sum.descriptors += 1;
                sum.sockets += usize::from(what.starts_with("socket:"));
                sum.pipes += usize::from(what.starts_with("pipe:"));
            }
        }
        sum
    }

    /// Returns the maximum of the resident memory over `time`.
    pub fn most_resident(pid: u32, time: Duration) -> u64 {
        let (end, mut most) = (Instant::now() + time, 0);
        while Instant::now() < end {
            most = most.max(Usage::of(pid).resident);
            thread::sleep(Duration::from_millis(50));
        }
        most
    }
}

/// Returns the processor time used by process `pid` and its descendants, in user space and kernel.
pub fn cpu_time(pid: u32) -> Duration {
    family(pid).into_iter().map(|pid| cpu(&Path::new("/proc").join(pid.to_string()))).sum()
}

/// Returns the seconds of processor time that process `pid` has used in user space and in the
/// kernel, with a resolution of one clock tick; `None` if the process is gone.
pub fn user_and_system(pid: u32) -> Option<[f64; 2]> {
    // Format "123 (name) S 1 …", where the name may contain anything; fields 14 and 15 are ticks.
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = text.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut seconds = || {
        let ticks: f64 = words.next()?.parse().ok()?;
        Some(ticks / rustix::param::clock_ticks_per_second() as f64)
    };
    Some([seconds()?, seconds()?])
}

/// Returns how many times the live threads of process `pid` and its descendants were scheduled
/// onto a processor; each wake-up counts once.
pub fn times_scheduled(pid: u32) -> u64 {
    let tasks = family(pid).into_iter().flat_map(|pid| {
        let dir = Path::new("/proc").join(pid.to_string()).join("task");
        fs::read_dir(dir).into_iter().flatten().flatten()
    });
    let times = tasks.filter_map(|task| {
        // Columns: nanoseconds of running, nanoseconds of waiting, times scheduled.
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(2)?.parse::<u64>().ok()
    });
    times.sum()
}

/// Returns the busy processor time of the whole machine since boot, with a resolution of 10 ms.
pub fn machine_time() -> Duration {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // Columns: user, nice, system, (idle, iowait,) irq, softirq, steal.
    let busy = [0, 1, 2, 5, 6, 7].into_iter().filter_map(|n| ticks.get(n)).sum::<u64>();
    Duration::from_millis(10 * busy)
}

/// Returns the bytes of kernel memory of the whole machine for sockets, their files and their
/// epoll entries; 0 without permission to read it.
pub fn socket_memory() -> u64 {
    const CACHES: [&str; 6] =
        ["TCP", "TCPv6", "sock_inode_cache", "filp", "eventpoll_epi", "eventpoll_pwq"];
    let text = fs::read_to_string("/proc/slabinfo").unwrap_or_default();
    let bytes = text.lines().filter_map(|line| {
        // Columns: name, objects in use, objects, bytes per object.
        let mut words = line.split_whitespace();
        CACHES.contains(&words.next()?).then_some(())?;
        let (used, _, size) = (words.next()?, words.next()?, words.next()?);
        Some(used.parse::<u64>().ok()? * size.parse::<u64>().ok()?)
    });
    bytes.sum()
}

fn family(root: u32) -> Vec<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        // Format "123 (name) S 1 …", where the name may contain anything.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        parents.push((pid, after.split_whitespace().nth(1).and_then(|word| word.parse().ok())));
    }
    let mut family: Vec<u32> = vec![root];
    let mut seen = 0;
    while seen < family.len() {
        let of =
            |(pid, parent): &(u32, Option<u32>)| (*parent == Some(family[seen])).then_some(*pid);
        let children: Vec<u32> = parents.iter().filter_map(of).collect();
        family.extend(children);
        seen += 1;
    }
    family
}

/// Sums the scheduler's nanosecond counters over all threads: finer than clock ticks.
fn cpu(dir: &Path) -> Duration {
    let tasks = fs::read_dir(dir.join("task")).into_iter().flatten().flatten();
    let nanos = tasks.filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// Reads a line of `status` in bytes.
fn status(dir: &Path, key: &str) -> u64 {
    let text = fs::read_to_string(dir.join("status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn usage_includes_grandchildren() {
        let mut shell = Command::new("sh");
        shell.args(["-c", "sh -c 'while :; do :; done' & wait"]).stdin(Stdio::piped());
        let mut shell = viaduct_sys::process::Process::spawn(shell).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        while cpu_time(shell.id()) < Duration::from_millis(50) {
            assert!(Instant::now() < deadline, "the child's processor time is not counted");
        }
        assert!(times_scheduled(shell.id()) >= 2, "both processes were scheduled");
        let usage = Usage::of(shell.id());
        assert!(usage.pipes >= 1 && usage.resident > usage.anonymous, "{usage:?}");
        shell.kill().unwrap();
        assert_eq!(Usage::of(shell.id()), Usage::default());
    }
}

//! Scheduling of the calling thread: priority, core, timer slack.
//!
//! Each call changes the calling thread and reports whether the kernel accepted the change. Without
//! privileges the kernel refuses some changes; the program then runs with less precise timing.
#![allow(unsafe_code)]

use std::io;
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::os::check;

/// Sets the thread's policy to `SCHED_FIFO` with `priority` (1 to 99): the thread runs before all
/// ordinary threads until it blocks. Returns true on success. Needs `CAP_SYS_NICE` and, in a
/// cgroup, a real-time budget. Threads and programs that the thread starts later have the ordinary
/// policy.
pub fn set_fifo(priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    let policy = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the kernel reads one `sched_param`, which lives through the call.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) == 0 }
}

/// Sets the thread's policy to `SCHED_BATCH`: on waking, the thread preempts no running thread.
pub fn set_batch() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads one `sched_param`, which lives through the call.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameters) })
}

/// Pins the thread to a core. Errors: `EINVAL` if the core does not exist or is not allowed.
pub fn pin(core: usize) -> io::Result<()> {
    if core >= CpuSet::MAX_CPU {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Returns the cores that the calling thread may run on, in ascending order; empty if the machine
/// has more cores than the set has bits.
pub fn cores() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect()
}

/// Sets the time by which the kernel may delay the thread's wake-ups to coalesce timers: at least 1
/// ns, 50 microseconds by default. Real-time threads have no slack.
pub fn set_timer_slack(slack: Duration) -> io::Result<()> {
    let nanos = libc::c_ulong::try_from(slack.as_nanos()).unwrap_or(libc::c_ulong::MAX).max(1);
    // SAFETY: takes no pointers.
    check(unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, nanos, 0, 0, 0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own_status(key: &str) -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with(key)).unwrap();
        line[key.len()..].trim().to_owned()
    }

    #[test]
    fn the_thread_stays_on_its_core_and_others_do_not() {
        let before = cores();
        let core = *before.last().unwrap();
        let pinned = std::thread::spawn(move || {
            pin(core).unwrap();
            (cores(), own_status("Cpus_allowed_list:"))
        });
        assert_eq!(pinned.join().unwrap(), (vec![core], core.to_string()));
        assert_eq!(cores(), before);
        assert!(pin(100_000).is_err());
    }

    #[test]
    fn slack_takes_effect() {
        let thread = std::thread::spawn(|| {
            set_timer_slack(Duration::from_nanos(1)).unwrap();
            // SAFETY: takes no pointers.
            unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) }
        });
        assert_eq!(thread.join().unwrap(), 1);
    }

    #[test]
    fn set_fifo_returns_whether_the_policy_is_in_force() {
        let thread = std::thread::spawn(|| {
            let worked = set_fifo(1);
            // SAFETY: takes no pointers.
            (worked, unsafe { libc::sched_getscheduler(0) } & !libc::SCHED_RESET_ON_FORK)
        });
        let (worked, policy) = thread.join().unwrap();
        assert_eq!(worked, policy == libc::SCHED_FIFO);
    }
}

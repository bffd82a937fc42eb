//! Real time for the calling thread: a priority above every ordinary thread.
#![allow(unsafe_code)]

use std::io;

/// Makes the calling thread `SCHED_FIFO` at `priority` (1 to 99). Needs CAP_SYS_NICE or an
/// RLIMIT_RTPRIO. Such a thread must sleep: while it runs, ordinary threads of its core do not.
pub fn set_fifo(priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: thread 0 is the calling one, and the pointer is to a live sched_param that the call
    // only reads.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

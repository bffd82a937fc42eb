//! Signals that arrive while a program waits for its connect.
//!
//! A thread that waits for a seccomp reply handles only fatal signals. So the supervisor ends the
//! call like an interrupted call in the kernel: the signal is handled, and the connect, which is
//! still in progress, fails with `EINTR` or is restarted, depending on the signal handler's flags.

use std::fs;

use viaduct_sys::seccomp::{Notification, Reply};

use super::{Supervisor, send_reply};

/// Maximum number of connects per check.
const MAX_CONNECTS: usize = 64;

impl Supervisor {
    /// Interrupts connects for which a signal is pending.
    pub(super) fn check_signals(&mut self) {
        for _ in 0..self.pending_connects.len().min(MAX_CONNECTS) {
            let Some((call, answer)) = self.pending_connects.pop_front() else { return };
            if !answer.is_open() {
                continue;
            }
            if !is_signalled(&call) {
                self.pending_connects.push_back((call, answer));
            } else if answer.take().is_some() {
                send_reply(&self.listener, &call, Reply::interrupted(answer.limit.is_some()));
            }
        }
    }
}

/// Returns whether a signal with a handler is pending for the caller.
pub(super) fn is_signalled(call: &Notification) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", call.thread)).unwrap_or_default();
    let set = |name: &str| {
        let set = status.lines().find_map(|line| line.strip_prefix(name));
        set.and_then(|set| u64::from_str_radix(set.trim(), 16).ok()).unwrap_or(0)
    };
    (set("SigPnd:") | set("ShdPnd:")) & !set("SigBlk:") & set("SigCgt:") != 0
}

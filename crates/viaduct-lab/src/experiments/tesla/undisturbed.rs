//! What others do on this machine meanwhile.

use crate::cgroup::{Cgroup, Inside, Limits};
use crate::experiment::Run;

/// Has the processors serve us before all others while this value lives. Priorities of processes do
/// not do that where each session is scheduled as one (`sched_autogroup_enabled`): there even an idle
/// one has its share against ours, and a volley waits for it.
pub(super) fn undisturbed(run: &mut Run) -> Option<Inside> {
    let inside =
        Cgroup::new(Limits { first: true, ..Limits::default() }).and_then(Cgroup::enter_now);
    run.param("before_others", inside.is_ok());
    // Without the right to it we measure all the same.
    inside.ok()
}

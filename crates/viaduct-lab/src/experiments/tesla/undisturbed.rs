//! Priority over other load on the machine.

use crate::cgroup::{Cgroup, Inside, Limits};
use crate::experiment::Run;

/// Gives this process and its children priority over all others on the processors, until the
/// returned value is dropped. Process priorities do not achieve this where each session is
/// scheduled as a group (`sched_autogroup_enabled`): even a process of the lowest priority then
/// gets its session's share, during which a one-byte round trip waits.
pub(super) fn undisturbed(run: &mut Run) -> Option<Inside> {
    let inside =
        Cgroup::new(Limits { first: true, ..Limits::default() }).and_then(Cgroup::enter_now);
    run.param("before_others", inside.is_ok());
    // Without permission, the measurement proceeds without priority.
    inside.ok()
}

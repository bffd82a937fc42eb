//! Limits of the users that share a master, and the current use.
//!
//! Guests are all users except root and the master's own user. There are limits for each guest and
//! for all guests together, so that there is always room for root and the master's own user.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of concurrent runs of all users, if there are enough descriptors.
const MAX_RUNS: usize = 4096;
/// Divisor of all descriptors that gives the share for the sockets of runs.
const RUNS_SHARE: usize = 8;
/// Divisor of all runs and flows that gives the reserve for root and the master's own user.
const RESERVE: usize = 8;

/// Kind of a limited resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Runs that have joined.
    Run,
    /// Flows, including those that wait for their far end; each flow uses two descriptors.
    Flow,
    /// Connects that wait for their far end.
    Call,
}

const KINDS: usize = 3;

/// Limits of guests, for each [`Kind`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Limits of one guest.
    each: [usize; KINDS],
    /// Limits of all guests together.
    all: [usize; KINDS],
}

/// Maximum number of runs of a master that may open `descriptors` descriptors. Each run uses one
/// descriptor; the rest is for flows.
pub(super) fn max_runs(descriptors: u64) -> usize {
    usize::try_from(descriptors).map_or(MAX_RUNS, |all| (all / RUNS_SHARE).clamp(1, MAX_RUNS))
}

impl Limits {
    /// Returns the limits of a master that has room for `flows` flows and `all_runs` runs. Each
    /// guest may have `runs` runs, `user_flows` flows (default: a quarter of all flows) and
    /// `user_calls` pending connects (default: half of the guest's flows).
    pub(super) fn new(
        flows: usize,
        all_runs: usize,
        runs: usize,
        user_flows: Option<usize>,
        user_calls: Option<usize>,
    ) -> Limits {
        let rest = |all: usize| (all - all / RESERVE).max(1);
        let user_flows = user_flows.unwrap_or(flows / 4).clamp(1, rest(flows));
        let user_calls = user_calls.unwrap_or(user_flows / 2).clamp(1, user_flows);
        let all = [rest(all_runs), rest(flows), rest(flows)];
        Limits { each: [runs.min(all[0]), user_flows, user_calls], all }
    }
}

/// Use of a master by its guests.
#[derive(Debug)]
pub(super) struct Quota {
    limits: Limits,
    used: Mutex<Used>,
    /// Number of requests that were refused because of a limit.
    refused: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct Used {
    all: [usize; KINDS],
    /// Use by each guest.
    users: HashMap<u32, [usize; KINDS]>,
}

impl Quota {
    /// Creates the quota of a master without guests. `refused` counts refusals.
    pub(super) fn new(limits: Limits, refused: Arc<AtomicU64>) -> Arc<Quota> {
        Arc::new(Quota { limits, used: Mutex::default(), refused })
    }

    /// Takes a permit of `kind` for the guest `user`. If a limit is reached, returns `None` and
    /// counts a refusal.
    pub(super) fn take(self: &Arc<Quota>, user: u32, kind: Kind) -> Option<Permit> {
        let Limits { each, all } = &self.limits;
        let n = kind as usize;
        let mut used = self.used();
        let own = used.users.get(&user).map_or(0, |own| own[n]);
        if own >= each[n] || used.all[n] >= all[n] {
            drop(used);
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        used.all[n] += 1;
        used.users.entry(user).or_default()[n] += 1;
        drop(used);
        Some(Permit { quota: self.clone(), user, kind })
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A guest, which takes permits of a quota.
#[derive(Clone, Debug)]
pub(super) struct Guest {
    quota: Arc<Quota>,
    user: u32,
}

impl Guest {
    /// Returns the guest `user`.
    pub(super) fn new(quota: &Arc<Quota>, user: u32) -> Guest {
        Guest { quota: quota.clone(), user }
    }

    /// Takes a permit like [`Quota::take`].
    pub(super) fn take(&self, kind: Kind) -> Option<Permit> {
        self.quota.take(self.user, kind)
    }
}

/// Unit of a guest's quota, released when dropped.
#[derive(Debug)]
pub(super) struct Permit {
    quota: Arc<Quota>,
    user: u32,
    kind: Kind,
}

impl Drop for Permit {
    fn drop(&mut self) {
        let n = self.kind as usize;
        let mut used = self.quota.used();
        used.all[n] -= 1;
        if let Some(own) = used.users.get_mut(&self.user) {
            own[n] -= 1;
            if *own == [0; KINDS] {
                used.users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::config::EngineConfig;
    use crate::engine::destination::Target;
    use crate::master::program_times::ProgramTimes;

    #[test]
    fn each_guest_is_limited_and_all_guests_together_leave_the_reserve() {
        let refused = Arc::new(AtomicU64::new(0));
        let quota = Quota::new(Limits::new(800, MAX_RUNS, 2, Some(300), None), refused.clone());
        let take = |user, kind| quota.take(user, kind);
        let one: Vec<_> = std::iter::from_fn(|| take(1, Kind::Flow)).collect();
        assert_eq!((one.len(), refused.load(Ordering::Relaxed)), (300, 1));
        let calls: Vec<_> = std::iter::from_fn(|| take(1, Kind::Call)).collect();
        assert_eq!(calls.len(), 150);
        let others: Vec<_> = (2..9).flat_map(|user| (0..300).map(move |_| user)).collect();
        let others: Vec<_> = others.into_iter().filter_map(|user| take(user, Kind::Flow)).collect();
        assert_eq!(one.len() + others.len(), 700);
        drop((one, others));
        assert!((0..300).map(|_| take(3, Kind::Flow)).all(|permit| permit.is_some()));
        let runs: Vec<_> = std::iter::from_fn(|| take(1, Kind::Run)).collect();
        assert_eq!(runs.len(), 2);
        drop((runs, calls));
        assert!(quota.used().users.is_empty());
    }

    #[test]
    fn limits_are_consistent_for_any_options() {
        for flows in [1, 2, 7, 100_000] {
            for asked in [None, Some(1), Some(usize::MAX)] {
                let Limits { each, all } = Limits::new(flows, MAX_RUNS, 256, asked, asked);
                assert!(each.iter().all(|n| *n >= 1), "{flows} {asked:?}");
                assert!(each[1] <= all[1] && each[2] <= each[1] && all[1] <= flows);
            }
        }
    }

    #[test]
    fn runs_and_flows_fit_the_descriptors_together() {
        assert_eq!([1024, 1 << 20].map(max_runs), [128, MAX_RUNS]);
        let (name, limits) = ("m".to_owned(), ProgramTimes::default().limits());
        let config = EngineConfig::new(name, "/nowhere".into(), Target::Program, limits);
        let mut config = config.fitted();
        let before = config.limits.flows;
        config.leave_descriptors(max_runs(1024));
        assert_eq!(config.limits.flows, before - 64, "a flow uses two descriptors");
    }
}

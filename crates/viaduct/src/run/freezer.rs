//! Freezer: stops programs while one of their flows has no network connectivity (`migrate:freeze`).
//!
//! The kernel freezes the control group. Unlike a stop by a signal, this is invisible to the
//! program's terminal and to its parent.

use std::collections::BTreeSet;

use tracing::warn;
use viaduct_sys::bpf::Freezer;

use crate::engine::aware::EventSink;

/// Freezes programs while at least one flow requests it.
#[derive(Debug)]
pub struct FlowFreezer {
    /// `None` if the programs cannot be frozen.
    freezer: Option<Freezer>,
    /// Flows that request a freeze.
    requests: BTreeSet<u64>,
    has_warned: bool,
}

impl FlowFreezer {
    /// Returns a freezer without requests. `freezer` is `None` if the programs are in no cgroup.
    pub fn new(freezer: Option<Freezer>) -> FlowFreezer {
        FlowFreezer { freezer, requests: BTreeSet::new(), has_warned: false }
    }

    fn apply(&mut self) {
        let frozen = !self.requests.is_empty();
        let done = match &self.freezer {
            Some(freezer) => freezer.set(frozen).map_err(|error| error.to_string()),
            None => Err("this requires --via cgroup".to_owned()),
        };
        if let Err(why) = done
            && !std::mem::replace(&mut self.has_warned, true)
        {
            warn!("cannot freeze the program while a flow has no network: {why}");
        }
    }
}

impl EventSink for FlowFreezer {
    fn event(&mut self, flow: u64, said: &[u8]) {
        let changed = match said.rsplit(|&byte| byte == b' ').next() {
            Some(b"freeze") => self.requests.insert(flow),
            Some(b"thaw") => self.requests.remove(&flow),
            _ => false,
        };
        if changed {
            self.apply();
        }
    }

    fn over(&mut self, flow: u64) {
        if self.requests.remove(&flow) {
            self.apply();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use viaduct_sys::bpf::Group;
    use viaduct_sys::process::supervise;

    use super::*;

    #[test]
    fn programs_are_stopped_while_any_of_their_flows_requests_it() {
        let group = Group::new().unwrap();
        let mut command = Command::new("sleep");
        supervise::join_cgroup(command.arg("60"), group.members());
        let mut child = command.spawn().unwrap();
        let mut flow_freezer = FlowFreezer::new(Some(group.freezer().unwrap()));
        let started = std::time::Instant::now();
        // The kernel needs a moment to stop or continue all processes.
        let becomes = |expected: bool| {
            while group.is_frozen().unwrap() != expected {
                assert!(started.elapsed().as_secs() < 10, "frozen is not {expected}");
                std::thread::yield_now();
            }
        };
        becomes(false);
        flow_freezer.event(1, b"migrate: freeze");
        becomes(true);
        flow_freezer.event(2, b"migrate: freeze");
        flow_freezer.event(1, b"migrate: thaw");
        flow_freezer.event(1, b"migrate: disconnected");
        becomes(true);
        flow_freezer.over(2);
        becomes(false);
        flow_freezer.event(3, b"migrate: freeze");
        becomes(true);
        drop(flow_freezer);
        becomes(false);
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

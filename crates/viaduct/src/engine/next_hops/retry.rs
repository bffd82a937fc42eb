//! Failover: a flow whose hop fails is connected through the next one of the list.

use std::io;
use std::net::SocketAddr;

use viaduct_proto::time::Instant;

use crate::engine::config::EngineConfig;
use crate::engine::destination::Route;
use crate::engine::flow::{Begun, End, Flow};
use crate::engine::upstream::Upstream;
use crate::engine::worker::Worker;

impl Upstream {
    /// Begins the server side of a flow. If a connection fails immediately, tries the next hop of
    /// the flow's list.
    pub(in crate::engine) fn begin(
        &self,
        mut route: Route,
        config: &EngineConfig,
        now: Instant,
    ) -> io::Result<Begun> {
        while route.plan.by.has_alternatives() {
            let error = match self.outbounds.begin(route.clone(), config.options, now) {
                Ok(begun) => return Ok(begun),
                Err(error) => error,
            };
            route = route.after_failure(&config.policies).ok_or(error)?;
        }
        self.outbounds.begin(route, config.options, now)
    }
}

impl Worker {
    /// Connects flow `key`, whose hop has failed, through the next hop of its list, or directly if
    /// the list says so. Returns false if nothing is left to try, or the connection fails
    /// immediately.
    pub(in crate::engine) fn try_next_hop(&mut self, key: usize, now: Instant) -> bool {
        let Worker { flows, upstream, config, .. } = self;
        let policies = &config.policies;
        let Some(route) = flows.get(key).and_then(|flow| flow.next_route(policies)) else {
            return false;
        };
        let Ok(mut begun) = upstream.begin(route, config, now) else { return false };
        if flows.watch(&mut begun.opened.conn, key, End::Server).is_err() {
            return false;
        }
        flows.at(key).set_next_server(begun, now);
        flows.set_alarm(key);
        true
    }

    /// Reconnects the flows that wait for a connection to `hop`, which went down, through the next
    /// hop of their lists.
    pub(in crate::engine) fn leave_hop(&mut self, hop: SocketAddr) {
        let waits = |flow: &Flow| {
            flow.outbound().hop() == Some(hop) && flow.next_route(&self.config.policies).is_some()
        };
        for key in self.flows.pick(waits) {
            self.unanswered(key, &io::ErrorKind::TimedOut.into());
        }
    }
}

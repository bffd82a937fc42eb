//! Life of a flow in the loop: driving its ends, ending it, and checking deadlines.

use std::io;
use std::time::Duration;

use tracing::debug;
use viaduct_proto::flow::Failure;
use viaduct_proto::time::Instant;

use super::chain_io::Stage;
use super::commands::Limits;
use super::destination::{error_of, failure};
use super::flow::{End, Flow, Moved};
use super::worker::{SWEEP_INTERVAL, Worker, time};

/// Timeout for connecting a program's socket to its flow: longer than the kernel's own timeout of
/// a connect.
const PROGRAM_CONNECT_TIMEOUT: Duration = Duration::from_secs(180);
/// Maximum number of flows whose ends are checked in one sweep: the larger of `MIN_CHECKS` and
/// 1/`CHECK_SHARE` of all flows.
const MIN_CHECKS: usize = 1024;
const CHECK_SHARE: usize = 4;

impl Worker {
    /// Drives a flow after one of its ends has become ready.
    pub(super) fn drive(
        &mut self,
        key: usize,
        end: End,
        readable: bool,
        writable: bool,
        now: Instant,
    ) {
        let Some(flow) = self.flows.get(key) else { return };
        flow.ready(end, readable, writable);
        if flow.broken().is_some() {
            return;
        }
        if flow.request().is_some_and(|request| !request.begun) {
            return self.read_request(key, now);
        }
        // An event of the server's end may mean that it is connected. Streams of tunnels and of
        // Trickles can be polled at any time.
        if !flow.is_connected()
            && (end == End::Server || flow.may_be_asked())
            && let Err(error) = flow.check_connected(now)
        {
            return self.unanswered(key, &error);
        }
        let awaits_server = flow.accepts.is_some() && flow.is_coming();
        if let Err(error) = flow.check_coming(now) {
            return match awaits_server {
                true => self.unanswered(key, &error),
                false => self.broke(key, &error),
            };
        }
        if awaits_server && !flow.is_coming() {
            let took = now.since(flow.times.begun);
            self.stats.hop(flow.outbound()).took(now, took);
        }
        self.report_established(key, now);
        // The flow has ended if its program could not be connected.
        let Some(flow) = self.flows.get(key) else { return };
        self.stats.opened += u64::from(flow.opens());
        match self.flows.drive(key, now) {
            Ok(moved) => self.moved(key, moved, now),
            Err(error) => self.broke(key, &error),
        }
    }

    /// Handles the result of driving a flow.
    fn moved(&mut self, key: usize, moved: Moved, now: Instant) {
        if let Some(flow) = self.flows.get(key) {
            let mut all = moved.bytes;
            if flow.accepts.is_some() {
                // The client is at the end towards the network.
                all.reverse();
            }
            flow.account.add(all);
            self.stats.bytes.iter_mut().zip(all).for_each(|(sum, bytes)| *sum += bytes);
        }
        self.apply_requests(key, now);
        let Some(flow) = self.flows.get(key) else { return };
        if let Stage::Failed(why) = flow.stage() {
            return match flow.is_established() {
                true => self.broke(key, &error_of(why)),
                false => self.unanswered(key, &error_of(why)),
            };
        }
        if moved.done {
            self.stats.finished += 1;
            return self.end(key, false);
        }
        if moved.more || self.report_established(key, now) {
            self.runnable.push(key);
        }
        self.flows.set_alarm(key);
    }

    /// Notifies the waiting client or program, once, that the server side of a flow is established.
    /// Returns whether this call has notified it.
    fn report_established(&mut self, key: usize, now: Instant) -> bool {
        let flow = self.flows.at(key);
        let is_new = flow.becomes_established();
        if is_new {
            let (took, is_counted) = (now.since(flow.times.begun), flow.times.is_counted);
            answer(flow);
            flow.accept_client();
            match self.programs.has_listening(key) {
                true => self.connect_program(key),
                false if is_counted => {}
                false => self.stats.hop(self.flows.at(key).outbound()).took(now, took),
            }
            self.measure(key, now);
            self.release_held(key, now);
            self.complete_pending(key, now);
        }
        is_new
    }

    /// Handles a broken end of a flow.
    fn broke(&mut self, key: usize, error: &io::Error) {
        let flow = self.flows.at(key);
        debug!("flow of {} to {} broke: {error}", flow.source(), flow.destination());
        self.stats.reset += 1;
        self.end_or_tell(key, failure(error));
    }

    /// Handles a server that does not answer, or refuses the connection.
    pub(super) fn unanswered(&mut self, key: usize, error: &io::Error) {
        let flow = self.flows.at(key);
        debug!("cannot connect to {} for {}: {error}", flow.destination(), flow.source());
        if flow.is_routed() {
            self.stats.hop(flow.outbound()).failed(time(), &error.to_string());
        }
        if let Some(hop) = flow.outbound().hop() {
            self.config.policies.health.suspect(hop);
        }
        if self.try_next_address(key, time()) || self.try_next_hop(key, time()) {
            return;
        }
        if self.reject_held(key, error) || self.reject_pending(key, error) {
            return self.stats.refused.count(failure(error));
        }
        let flow = self.flows.at(key);
        if flow.request().is_some() {
            return self.refuse(key, failure(error));
        }
        if self.end_or_tell(key, failure(error)) {
            self.stats.refused.count(failure(error));
        }
    }

    /// Ends a broken flow, and returns true. If the client of an early connection has not been
    /// accepted yet, keeps the flow, so that the client gets the result, and returns false. Flows
    /// of programs, inbound or outbound, are always ended.
    fn end_or_tell(&mut self, key: usize, why: Failure) -> bool {
        let flow = self.flows.at(key);
        flow.set_broken(why);
        let ends = flow.has_client() || flow.is_coming() || self.programs.wait_for(key);
        if ends {
            self.end(key, true);
        }
        ends
    }

    /// Ends a flow; `reset` resets both connections. An early connection is ended only when its
    /// client has arrived or its time is over, because the table of early connections refers to its
    /// key until then.
    pub(super) fn end(&mut self, key: usize, reset: bool) {
        self.measure(key, time());
        self.acceptor.forget_held(key);
        self.programs.drop_program(key);
        // The handlers' last events and requests to other flows are still passed on.
        self.pass_events(key);
        self.abandon(key, time());
        let Some(mut flow) = self.flows.remove(key) else { return };
        self.programs.aware.forget(key, Some(flow.id));
        if flow.chain_io().is_some() {
            self.claims.release_all(key);
        }
        self.upstream.forget((key, flow.id));
        self.log_end(&flow, time());
        flow.count_for_policy(&mut self.stats, false);
        match reset {
            true => flow.reset(),
            false => flow.end_well(),
        }
    }

    /// Checks deadlines, and accepts connections that could not be accepted when they arrived.
    pub(super) fn sweep(&mut self, now: Instant) {
        (0..self.acceptor.len()).for_each(|n| self.accept(n, now));
        while let Some((_, started)) = self.acceptor.early.poll_expired(now) {
            self.end(started.key, true);
        }
        self.runnable.extend(self.flows.pick(Flow::lacks_pipe));
        let Limits { connect, handshake, idle, .. } = self.config.limits;
        let quiet = |flow: &Flow| flow.has_client().then(|| now.since(flow.times.moved));
        let unanswered = |flow: &Flow| !flow.is_connected() && quiet(flow) > Some(connect);
        for key in self.flows.pick(unanswered) {
            self.unanswered(key, &io::ErrorKind::TimedOut.into());
        }
        // Inbound flows, for programs or servers, whose peers do not complete the handlers'
        // handshake in time.
        let silent = |key: &usize| {
            let flow = self.flows.get(*key);
            flow.is_some_and(|flow| {
                now.since(flow.times.begun) > handshake && !flow.serves_others()
            })
        };
        let silent: Vec<usize> = self.programs.all_listening().filter(silent).collect();
        for key in silent {
            self.stats.refused.timed_out += 1;
            if let Some(flow) = self.flows.get(key) {
                flow.set_broken(Failure::TimedOut);
            }
            self.end(key, true);
        }
        self.end_abandoned(now);
        self.leave_links(now);
        self.check_liveness(now);
        let Some(idle) = idle else { return };
        for key in self.flows.pick(|flow| flow.is_connected() && quiet(flow) > Some(idle)) {
            self.stats.idle += 1;
            self.flows.at(key).account.idle();
            self.end(key, true);
        }
    }

    /// Ends abandoned flows: connects of programs that can no longer get a result, and flows whose
    /// program's socket was not connected in time, or whose server has not answered.
    fn end_abandoned(&mut self, now: Instant) {
        let mut left = self.programs.abandoned();
        let waits = |flow: &Flow| flow.is_coming().then(|| now.since(flow.times.begun));
        left.extend(self.flows.pick(|flow| waits(flow) > Some(PROGRAM_CONNECT_TIMEOUT)));
        for key in left {
            self.end(key, true);
        }
        let limit = self.config.limits.connect;
        for key in self.flows.pick(|flow| flow.accepts.is_some() && waits(flow) > Some(limit)) {
            self.unanswered(key, &io::ErrorKind::TimedOut.into());
        }
    }

    /// Checks whether the peers of flows are still alive. Flows younger than a sweep interval are
    /// skipped: most end before that. If too many are due, the rest is checked in the next sweep.
    fn check_liveness(&mut self, now: Instant) {
        let silence = self.config.limits.silence;
        if silence.is_unlimited() {
            return;
        }
        // The flow of a shared connection has no client.
        let has_peer = |flow: &Flow| flow.has_client() || flow.serves_others();
        let lasts = |flow: &Flow| has_peer(flow) && now.since(flow.times.begun) > SWEEP_INTERVAL;
        let due = |flow: &Flow| match (flow.times.checked, silence.interval()) {
            (None, _) => true,
            (Some(at), Some(interval)) => now.since(at) >= interval,
            (Some(_), None) => false,
        };
        let keys = self.flows.pick(|flow| flow.is_connected() && lasts(flow) && due(flow));
        let due = keys.into_iter().map(|key| (self.flows.at(key).times.checked, key)).collect();
        for key in first_to_check(due, MIN_CHECKS.max(self.flows.len() / CHECK_SHARE)) {
            self.flows.at(key).check_liveness(silence, now);
        }
    }
}

/// Selects at most `most` of the due flows, by last check: first those never checked, then those
/// with the oldest check.
fn first_to_check(mut due: Vec<(Option<Instant>, usize)>, most: usize) -> Vec<usize> {
    if due.len() > most {
        due.select_nth_unstable(most);
        due.truncate(most);
    }
    due.into_iter().map(|(_, key)| key).collect()
}

/// Tells a client that requested its destination that the server is connected.
fn answer(flow: &mut Flow) {
    if let Some(request) = flow.request() {
        let words = request.preface.answer(Ok(()));
        flow.queue_preface(End::Client, &words);
        flow.clear_request();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_many_flows_with_a_short_limit_is_checked_in_time() {
        const FLOWS: usize = 5_000;
        let limit = Duration::from_secs(3);
        let start = Instant::from_nanos(0);
        let mut checked = vec![None; FLOWS];
        for n in 1..=20 {
            let now = start + n * SWEEP_INTERVAL;
            // All are due at each sweep, because the sweep interval is longer than an eighth of the
            // limit.
            let due = checked.iter().copied().zip(0..).collect();
            for key in first_to_check(due, MIN_CHECKS.max(FLOWS / CHECK_SHARE)) {
                checked[key] = Some(now);
            }
            let late = checked.iter().filter(|at| now.since(at.unwrap_or(start)) >= limit).count();
            assert_eq!(late, 0, "flows were not checked for {limit:?} in sweep {n}");
        }
    }
}

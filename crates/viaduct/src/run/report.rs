//! Report of a program's flows, for `--report`.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use viaduct_proto::flow::Failure;

use super::names::{self, RemoteNames};
use crate::engine::aware::SocketId;
use crate::engine::flow_socket::FlowSocket;
use crate::engine::wrapped::{PendingConnect, Program};

/// Outcome of a flow, in the order of a report.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FlowOutcome {
    /// Through the handlers; for TCP, the far end has answered.
    Handled,
    /// Inbound to a listening program, and accepted by the handlers.
    Inbound,
    /// On the program's own connection; the kernel does the handlers' work.
    Offloaded,
    /// Inbound to a listening program, and rejected.
    Rejected,
    /// Selected for the handlers, but the far end could not be reached.
    Failed(String),
    /// Selected for the handlers, but unanswered when the program gave up or ended.
    Unanswered,
    /// Direct, because of the rules or because no handler applies.
    Direct,
    /// Refused by the rules, or because the negotiation of handlers failed.
    Refused,
}

impl FlowOutcome {
    fn title(&self) -> &'static str {
        match self {
            FlowOutcome::Handled => "passed the handlers",
            FlowOutcome::Inbound => "inbound passed the handlers",
            FlowOutcome::Offloaded => "were offloaded to the kernel",
            FlowOutcome::Rejected => "inbound were rejected by the handlers",
            FlowOutcome::Failed(_) => "failed",
            FlowOutcome::Unanswered => "were unanswered when the program gave up",
            FlowOutcome::Direct => "went direct, by the rules or because no handler applies",
            FlowOutcome::Refused => "were refused",
        }
    }
}

/// Counts of flows by outcome, transport and destination.
#[derive(Clone, Debug, Default)]
pub struct Report {
    lines: Arc<Mutex<Lines>>,
    /// Resolves fake IPs, so that the report shows names.
    names: Option<Arc<RemoteNames>>,
}

#[derive(Debug, Default)]
struct Lines {
    flows: BTreeMap<(FlowOutcome, &'static str, SocketAddr), u64>,
    /// Bytes sent and received on connections with kernel offload.
    offloaded: [u64; 2],
    /// Number of open connections with kernel offload.
    open: u64,
}

const MAX_DESTINATIONS: usize = 4096;

impl Lines {
    fn count(&mut self, outcome: FlowOutcome, transport: &'static str, to: SocketAddr) {
        // A scan must not fill the memory: once the report is full, further ports of an address
        // share a line, with port 0. New addresses are still counted until the report has twice
        // `MAX_DESTINATIONS` lines.
        let mut line = (outcome, transport, to);
        if self.flows.len() >= MAX_DESTINATIONS && !self.flows.contains_key(&line) {
            line.2.set_port(0);
        }
        if self.flows.len() < 2 * MAX_DESTINATIONS || self.flows.contains_key(&line) {
            *self.flows.entry(line).or_default() += 1;
        }
    }

    fn forget(&mut self, outcome: &FlowOutcome, transport: &'static str, to: SocketAddr) {
        let lines =
            [to.port(), 0].map(|port| (outcome.clone(), transport, SocketAddr::new(to.ip(), port)));
        let Some(line) = lines.iter().find(|line| self.flows.contains_key(line)) else { return };
        let count = self.flows.remove(line).unwrap_or_default();
        if count > 1 {
            self.flows.insert(line.clone(), count - 1);
        }
    }
}

impl Report {
    /// Returns an empty report; `names` resolves fake IPs, if they are in use.
    pub fn new(names: Option<Arc<RemoteNames>>) -> Report {
        Report { lines: Arc::default(), names }
    }

    /// Counts a flow.
    pub fn count(&self, outcome: FlowOutcome, transport: &'static str, to: SocketAddr) {
        self.lock().count(outcome, transport, to);
    }

    /// Replaces the `Unanswered` of a connect with its outcome.
    fn answered(&self, outcome: FlowOutcome, to: SocketAddr) {
        let mut lines = self.lock();
        lines.forget(&FlowOutcome::Unanswered, "tcp", to);
        lines.count(outcome, "tcp", to);
    }

    /// Counts the start of a connection with kernel offload.
    pub fn offload_begun(&self, to: SocketAddr) {
        let mut lines = self.lock();
        lines.count(FlowOutcome::Offloaded, "tcp", to);
        lines.open += 1;
    }

    /// Returns whether connections with kernel offload are still open, so that their bytes are not
    /// known yet.
    pub fn awaits_offloaded(&self) -> bool {
        self.lock().open > 0
    }

    /// Counts the end of a connection with kernel offload.
    pub fn offloaded(&self, to: SocketAddr, out: u64, back: u64) {
        let mut lines = self.lock();
        match lines.open.checked_sub(1) {
            Some(open) => lines.open = open,
            // The start was not counted: its event was lost, because the buffer was full.
            None => lines.count(FlowOutcome::Offloaded, "tcp", to),
        }
        lines.offloaded[0] += out;
        lines.offloaded[1] += back;
    }

    /// Formats the report as lines of text. `handled`: bytes through the handlers, out and in, if
    /// known. `dropped`: datagrams dropped for lack of room, and those that the relay could not
    /// carry. `via`: name of the interposer.
    pub fn lines(
        &self,
        via: &str,
        mut handled: Option<[u64; 2]>,
        dropped: [u64; 2],
    ) -> Vec<String> {
        let report = self.lock();
        let (mut text, flows) = (Vec::new(), Vec::from_iter(&report.flows));
        let has_inbound = flows.iter().any(|((of, ..), _)| *of == FlowOutcome::Inbound);
        for group in flows.chunk_by(|((one, ..), _), ((other, ..), _)| one.title() == other.title())
        {
            let (outcome, ..) = group[0].0;
            let count: u64 = group.iter().map(|(_, count)| **count).sum();
            let mut line = format!("{count} {}", outcome.title());
            match outcome {
                FlowOutcome::Handled | FlowOutcome::Inbound => {
                    line += &format!(" by {via}");
                    // The bytes are those of outbound and inbound flows together.
                    if let Some([out, back]) = handled.take() {
                        let both = *outcome == FlowOutcome::Handled && has_inbound;
                        let both = if both { ", including inbound" } else { "" };
                        line += &format!(": {out} bytes out, {back} in{both}");
                    }
                }
                FlowOutcome::Offloaded => {
                    let [out, back] = report.offloaded;
                    line += &format!(": {out} bytes out, {back} in");
                    if report.open > 0 {
                        line +=
                            &format!("; {} not closed yet, their bytes are not known", report.open);
                    }
                }
                _ => {}
            }
            text.push(line);
            for ((outcome, transport, to), count) in group {
                let why = match outcome {
                    FlowOutcome::Failed(why) => format!(" ({why})"),
                    _ => String::new(),
                };
                let to = names::text(self.names.as_deref(), *to);
                text.push(format!("  {count:>6}  {transport} {to}{why}"));
            }
        }
        let whys = ["found no room", "were not carried by the relay"];
        for (dropped, why) in dropped.iter().zip(whys).filter(|(dropped, _)| **dropped > 0) {
            text.push(format!("{dropped} datagrams {why}, and were dropped"));
        }
        if text.is_empty() {
            text.push(format!("no flows were seen by {via}"));
        }
        text
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Connect whose outcome the report counts.
#[derive(Debug)]
pub struct ReportedConnect {
    held: Box<dyn PendingConnect>,
    to: SocketAddr,
    report: Report,
}

impl ReportedConnect {
    /// Wraps `held`, a connect to `to`; returns it unchanged if there is no report.
    pub fn of(
        held: Box<dyn PendingConnect>,
        to: SocketAddr,
        report: Option<&Report>,
    ) -> Box<dyn PendingConnect> {
        let Some(report) = report.cloned() else { return held };
        report.count(FlowOutcome::Unanswered, "tcp", to);
        Box::new(ReportedConnect { held, to, report })
    }
}

impl PendingConnect for ReportedConnect {
    fn socket_id(&self) -> Option<SocketId> {
        self.held.socket_id()
    }

    fn is_lent(&self) -> bool {
        self.held.is_lent()
    }

    fn has_gone(&self) -> bool {
        self.held.has_gone()
    }

    fn set_local_addr(&mut self, own: SocketAddr) {
        self.held.set_local_addr(own);
    }

    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.held.take_socket()
    }

    fn complete(&mut self, bound_socket: &TcpStream) -> io::Result<()> {
        let completed = self.held.complete(bound_socket);
        self.report.answered(
            match &completed {
                Ok(()) => FlowOutcome::Handled,
                Err(error) => FlowOutcome::Failed(error.to_string()),
            },
            self.to,
        );
        completed
    }

    fn refuse(&mut self, why: Failure) {
        self.report.answered(FlowOutcome::Failed(why.to_string()), self.to);
        self.held.refuse(why);
    }

    fn refuse_as(&mut self, why: Failure, errno: i32) {
        self.report.answered(FlowOutcome::Failed(why.to_string()), self.to);
        self.held.refuse_as(why, errno);
    }
}

/// Listening program whose inbound flows the report counts.
#[derive(Debug)]
pub struct ReportedProgram {
    program: Box<dyn Program>,
    at: SocketAddr,
    report: Report,
    /// Set once a connection to the program was begun, or another flow to the program was created.
    /// A drop then does not count as a rejection.
    was_accepted: AtomicBool,
}

impl ReportedProgram {
    /// Wraps `program`, which listens at `at`; returns it unchanged if there is no report.
    pub fn of(
        program: Box<dyn Program>,
        at: SocketAddr,
        report: Option<&Report>,
    ) -> Box<dyn Program> {
        let Some(report) = report.cloned() else { return program };
        Box::new(ReportedProgram { program, at, report, was_accepted: AtomicBool::new(false) })
    }
}

impl Program for ReportedProgram {
    fn take_socket(&mut self) -> io::Result<FlowSocket<TcpStream>> {
        self.program.take_socket()
    }

    fn on_available(&mut self, callback: Box<dyn FnOnce() + Send>) {
        self.program.on_available(callback);
    }

    fn handlers_wait(&mut self) {
        self.program.handlers_wait();
    }

    fn for_another_flow(&self) -> Option<Box<dyn Program>> {
        let another = self.program.for_another_flow()?;
        self.was_accepted.store(true, Ordering::Relaxed);
        Some(ReportedProgram::of(another, self.at, Some(&self.report)))
    }

    fn connect(&mut self, bound_socket: &TcpStream) -> io::Result<()> {
        self.program.connect(bound_socket)?;
        self.was_accepted.store(true, Ordering::Relaxed);
        self.report.count(FlowOutcome::Inbound, "tcp at", self.at);
        Ok(())
    }
}

impl Drop for ReportedProgram {
    fn drop(&mut self) {
        if !*self.was_accepted.get_mut() {
            self.report.count(FlowOutcome::Rejected, "tcp at", self.at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_lists_the_outcome_of_each_flow() {
        let report = Report::default();
        let at = |text: &str| text.parse().unwrap();
        report.count(FlowOutcome::Handled, "tcp", at("192.0.2.1:80"));
        report.count(FlowOutcome::Failed("refused".to_owned()), "tcp", at("[2001:db8::1]:81"));
        report.count(FlowOutcome::Unanswered, "tcp", at("192.0.2.1:80"));
        report.count(FlowOutcome::Unanswered, "tcp", at("192.0.2.7:80"));
        report.answered(FlowOutcome::Handled, at("192.0.2.1:80"));
        report.count(FlowOutcome::Direct, "udp", at("192.0.2.9:53"));
        report.count(FlowOutcome::Inbound, "tcp at", at("192.0.2.1:22"));
        assert_eq!(
            report.lines("cgroup", Some([5, 7]), [3, 2]),
            [
                "2 passed the handlers by cgroup: 5 bytes out, 7 in, including inbound",
                "       2  tcp 192.0.2.1:80",
                "1 inbound passed the handlers by cgroup",
                "       1  tcp at 192.0.2.1:22",
                "1 failed",
                "       1  tcp [2001:db8::1]:81 (refused)",
                "1 were unanswered when the program gave up",
                "       1  tcp 192.0.2.7:80",
                "1 went direct, by the rules or because no handler applies",
                "       1  udp 192.0.2.9:53",
                "3 datagrams found no room, and were dropped",
                "2 datagrams were not carried by the relay, and were dropped",
            ]
        );
        let report = Report::default();
        assert_eq!(report.lines("cgroup", None, [0; 2]), ["no flows were seen by cgroup"]);
        report.offloaded(at("192.0.2.1:80"), 1, 2);
        assert!(report.lines("cgroup", None, [0; 2])[0].ends_with("1 bytes out, 2 in"));
        // On a long path, a connection may end later than its program.
        report.offload_begun(at("192.0.2.1:80"));
        assert!(report.awaits_offloaded());
        let line = &report.lines("cgroup", None, [0; 2])[0];
        assert!(line.starts_with("2 were offloaded") && line.contains("1 not closed"), "{line}");
        report.offloaded(at("192.0.2.1:80"), 4, 5);
        assert!(!report.awaits_offloaded());
        let line = &report.lines("cgroup", None, [0; 2])[0];
        assert!(
            line.starts_with("2 were offloaded") && line.ends_with("5 bytes out, 7 in"),
            "{line}"
        );
    }

    #[test]
    fn a_full_report_counts_further_ports_of_an_address_together() {
        let report = Report::default();
        let at = |port| SocketAddr::from(([192, 0, 2, 1], port));
        for port in 1..=6000 {
            report.count(FlowOutcome::Direct, "tcp", at(port));
        }
        report.count(FlowOutcome::Direct, "tcp", at(7));
        let flows = &report.lock().flows;
        assert_eq!(flows.len(), MAX_DESTINATIONS + 1);
        assert_eq!(flows.values().sum::<u64>(), 6001);
        assert_eq!(flows[&(FlowOutcome::Direct, "tcp", at(7))], 2);
        assert_eq!(flows[&(FlowOutcome::Direct, "tcp", at(0))], 6000 - MAX_DESTINATIONS as u64);
    }
}

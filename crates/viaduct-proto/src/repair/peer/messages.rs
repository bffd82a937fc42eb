//! Messages of a peer: sections that arrive under its session's keys, and reports to it.

use super::Peer;
use super::reporting::USUAL_RTT;
use super::throttle::THROTTLED;
use crate::rack::MAX_WEIGHT;
use crate::repair::claims::{self, CLAIMS};
use crate::repair::liveness::PROBE;
use crate::repair::racks::MEMBER;
use crate::repair::report::{REPORT, Report, TRIALS, emit_trials, parse_trials};
use crate::repair::requests::Times;
use crate::repair::section::{self, Need, Section};
use crate::repair::session::{Received, Tally};
use crate::repair::stats::LossReport;
use crate::repair::terms::{TERMS, Terms};
use crate::repair::transport::Endpoint;
use crate::time::Instant;

impl Peer {
    /// Handles a datagram; returns whether it is authentic. Only a message under a session's keys
    /// updates the peer's address. A response changes only the transport. An initiation changes
    /// neither; the answer to it goes to its source.
    pub(in crate::repair) fn handle_datagram(
        &mut self,
        now: Instant,
        from: Endpoint,
        datagram: &mut [u8],
    ) -> bool {
        if !self.paths.selector.allows(from.transport) {
            return false;
        }
        let before = self.session.current();
        let (mut answer, mut is_own) = (Vec::new(), false);
        match self.session.handle(now, from.transport, datagram, &mut answer) {
            Received::Nothing => return false,
            Received::Initiation => {}
            Received::Response => {
                is_own = true;
                if self.own_path.is_none() {
                    self.paths.handle_response(from);
                }
            }
            Received::Message(session, message) => {
                let is_current = self.session.current() == Some(session);
                // With several paths, the config gives the address on each path.
                if self.own_path.is_none() {
                    self.paths.handle_message(from, is_current);
                }
                self.handle_message(now, message);
            }
        }
        if !answer.is_empty() {
            self.handshakes.push((from, answer));
        }
        if self.session.current() != before {
            if self.throttle.tells {
                self.paths.selector.avoid_udp();
            }
            self.paths.selector.handle_session(now, from.transport, is_own);
            self.throttle.restart();
            // The first message under new keys confirms the keys to the responder, and carries the
            // sender's next packet number.
            self.reporting.restart();
            self.report(now);
        }
        true
    }

    pub(in crate::repair) fn handle_message(&mut self, now: Instant, message: &[u8]) {
        for section in section::sections(message) {
            if !matches!(section, Some(Section::Other(..)) | None) {
                self.wake(now);
            }
            match section {
                Some(Section::Repair(repair, part)) => {
                    self.receiver.handle_repair(now, repair, part);
                }
                Some(Section::Names(names)) => self.receiver.handle_names(now, &names),
                Some(Section::Need(need)) => self.answer(now, need),
                Some(Section::Copies(copies)) => self.receiver.handle_copies(now, &copies),
                Some(Section::Other(kind, body))
                    if self.handle_other(now, kind, body).is_some() => {}
                Some(Section::Other(..)) | None => self.receiver.malformed(),
            }
        }
    }

    /// Handles a section other than repairs, names, requests and copies; `None` if it is malformed
    /// or of an unknown kind.
    fn handle_other(&mut self, now: Instant, kind: u8, body: &[u8]) -> Option<()> {
        match kind {
            REPORT => self.take_report(now, Report::parse(body)?),
            TERMS => self.agreement.handle_terms(Terms::parse(body)?),
            TRIALS => self.reports.trials = Some(parse_trials(body)?),
            THROTTLED if body.is_empty() => self.handle_throttled(now),
            MEMBER => self.reports.weight = Some(parse_weight(body)?),
            CLAIMS => self.claimed.append(&mut claims::parse(body)?),
            PROBE => self.handle_probe(now, body)?,
            _ => return None,
        }
        Some(())
    }

    fn take_report(&mut self, now: Instant, report: Report) {
        self.receiver.told(report.next);
        self.reports.loss = report.loss;
        self.reporting.handle_report(now, &report);
        if self.paths.handle_report(&report) {
            self.session.schedule.start(now);
        }
        let rtt = self.reporting.rtt;
        self.receiver.needs.times = Times { wait: report.wait(), rtt: rtt.unwrap_or(USUAL_RTT) };
        if let Some(sender) = &mut self.sender {
            sender.handle_report(now, report.path, rtt);
        }
    }

    /// Handles the peer's notice that UDP is throttled.
    fn handle_throttled(&mut self, now: Instant) {
        let selector = &mut self.paths.selector;
        if selector.may_avoid_udp() && self.throttle.handle_told(now) {
            selector.avoid_udp();
            self.session.schedule.start(now);
        }
    }

    /// Compares the losses among the peer's datagrams over UDP with the losses among its packets.
    pub(super) fn watch_throttle(&mut self, now: Instant) {
        if self.paths.selector.may_avoid_udp() {
            let LossReport { covered, lost, .. } = self.receiver.stats().link;
            let packets = Tally { sent: covered, lost };
            self.throttle.measure(now, [self.session.datagrams, packets]);
        }
        self.reporting.is_urgent = self.throttle.tells;
    }

    fn answer(&mut self, now: Instant, need: Need) {
        if let Some((sender, mut channel, _)) = self.sending() {
            sender.answer(now, need, &mut channel);
        }
    }

    pub(super) fn report(&mut self, now: Instant) {
        let report = self.reporting.next(now, self.sender.as_ref(), &self.receiver);
        let (session, trials) = (&mut self.session, self.receiver.measurement.trials());
        let (is_throttled, weight) = (self.throttle.tells, self.config.rack.own_weight);
        self.transmits.push_with(|out| {
            session.seal(out, |message| {
                section::emit(REPORT, message, |body| report.emit(body));
                if let Some(trials) = &trials {
                    section::emit(TRIALS, message, |body| emit_trials(trials, body));
                }
                if is_throttled {
                    section::emit(THROTTLED, message, |_| {});
                }
                if let Some(weight) = weight {
                    section::emit(MEMBER, message, |body| body.push(weight));
                }
            })
        });
        if session.up() && self.reporting.counts_terms() {
            let terms = &self.agreement.own;
            self.transmits.push_with(|out| {
                session.seal(out, |m| section::emit(TERMS, m, |body| terms.emit(body)))
            });
        }
    }
}

/// Weight in a section [`MEMBER`]; `None` if the section is malformed.
fn parse_weight(body: &[u8]) -> Option<u8> {
    let &[weight] = body else { return None };
    (weight <= MAX_WEIGHT).then_some(weight)
}

//! Handover of a peer to a new process ([`crate::upgrade`]).

use super::config::plan;
use super::{Peer, PeerError};
use crate::repair::coder::Coder;
use crate::repair::control;
use crate::repair::terms::Terms;
use crate::time::Instant;
use crate::upgrade::PeerRecord;

impl Peer {
    /// Sends everything that the peer may still need from this process, before a new process takes
    /// over.
    pub(in crate::repair) fn finish(&mut self, now: Instant) {
        if let Some((sender, mut channel, _)) = self.sending() {
            sender.finish(now, &mut channel);
        }
    }

    /// State for the handover to a new process.
    pub(in crate::repair) fn record(&self) -> PeerRecord {
        let coder = self.sender.as_ref().map(|sender| &sender.coder);
        let mut terms = Vec::new();
        self.agreement.peer.iter().for_each(|of| of.emit(&mut terms));
        PeerRecord {
            key: self.config.key.to_string(),
            lane: self.session.offer.lane,
            slot: self.session.slot,
            next: coder.map_or(0, Coder::next_seq),
            heard: self.receiver.heard(),
            endpoint: self.paths.endpoint.map(|at| (at.transport, at.address)),
            addresses: self.paths.addresses(),
            transport: self.paths.selector.current,
            cause: self.paths.selector.cause,
            session: self.session.record(),
            losses: self.receiver.measurement.path.report().losses(),
            control: coder.and_then(Coder::record),
            terms,
        }
    }

    /// Takes over from the previous process. Keeps what this process has received in the meantime.
    pub(in crate::repair) fn resume(
        &mut self,
        now: Instant,
        record: &PeerRecord,
    ) -> Result<(), PeerError> {
        if record.next > 0
            && let Some(plan) = plan(now, &self.config, record.next)?
            && let Some(sender) = &mut self.sender
        {
            sender.resume(now, plan, record.control.as_ref());
        }
        self.session.resume(now, record.slot, &record.session);
        self.paths.resume(now, record);
        self.receiver.resume(record.heard, &control::Report::of(&record.losses));
        if let Some(terms) = Terms::parse(&record.terms) {
            self.agreement.handle_terms(terms);
        }
        self.wake(now);
        self.clear_transmits();
        self.reporting.restart();
        self.report(now);
        Ok(())
    }
}

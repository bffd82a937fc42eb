//! Change of a peer's config without a new session.

use super::Peer;
use super::config::{PeerConfig, PeerError, plan};
use crate::repair::sender::Sender;
use crate::time::Instant;

impl Peer {
    /// Returns whether `config` can be applied without a new session.
    pub(in crate::repair) fn stays(&self, config: &PeerConfig) -> bool {
        config.key == self.config.key
            && config.rekey_after == self.config.rekey_after
            && config.paths.is_some() == self.config.paths.is_some()
    }

    /// Applies settings that do not need a new session.
    pub(in crate::repair) fn change(
        &mut self,
        now: Instant,
        config: PeerConfig,
    ) -> Result<(), PeerError> {
        let old = &self.config;
        let recode = config.coding != old.coding
            || config.flush_after != old.flush_after
            || config.longest != old.longest
            || config.mtu != old.mtu;
        if recode {
            self.change_code(now, &config)?;
        }
        if self.paths.change(&self.config, &config) {
            self.session.schedule.silence_limit = self.paths.silence_limit();
            self.session.schedule.start(now);
        }
        self.agreement.change(&config);
        let has_news = config.rack.own_weight != self.config.rack.own_weight;
        self.reporting.change(now, &config.rack, has_news);
        self.config = config;
        // The new terms follow the next report.
        self.reporting.restart();
        Ok(())
    }

    fn change_code(&mut self, now: Instant, config: &PeerConfig) -> Result<(), PeerError> {
        let next = self.sender.as_ref().map(|sender| sender.coder.next_seq());
        let plan = plan(now, config, next.unwrap_or(self.reports.loss.highest + 1))?;
        match (plan, self.sending()) {
            (Some(plan), Some((sender, mut channel, _))) => sender.change(now, plan, &mut channel),
            (plan, _) => self.sender = plan.map(Sender::new),
        }
        Ok(())
    }
}

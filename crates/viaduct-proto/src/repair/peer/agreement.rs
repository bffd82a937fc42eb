//! Terms of the two configurations, and any mismatch between them.

use std::sync::Arc;

use super::config::PeerConfig;
use crate::repair::sites::Sites;
use crate::repair::terms::{Listed, Terms};

/// Terms of both sides.
pub(super) struct Agreement {
    /// Terms sent to the peer, which compares them with its own config.
    pub(super) own: Terms,
    /// Terms last received.
    pub(super) peer: Option<Arc<Terms>>,
    /// Mismatch between the terms, if any.
    pub(super) disagreement: Option<String>,
}

impl Agreement {
    /// Creates the state before the first terms of the peer.
    pub(super) fn new(config: &PeerConfig) -> Self {
        Agreement { own: own_terms(config), peer: None, disagreement: None }
    }

    pub(super) fn change(&mut self, config: &PeerConfig) {
        self.own = own_terms(config);
        self.compare();
    }

    pub(super) fn handle_terms(&mut self, terms: Terms) {
        self.peer = Some(Arc::new(terms));
        self.compare();
    }

    fn compare(&mut self) {
        let own = &self.own;
        self.disagreement = self.peer.as_deref().and_then(|terms| own.disagreement(terms));
    }
}

fn own_terms(config: &PeerConfig) -> Terms {
    let Sites { local, remote } = &config.sites;
    Terms {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        code: config.coding.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string),
        own: Listed::new(local),
        peer: Listed::new(remote),
    }
}

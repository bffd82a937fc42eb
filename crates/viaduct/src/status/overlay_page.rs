//! Text page of an overlay node.

use std::fmt::{self, Display, Formatter};

use viaduct_proto::overlay::{NodeEntry, OverlayRoute, PathQuality, Table};

use super::page::{Ink, row};
use super::words::thousands;

/// State of an overlay node as text.
#[derive(Debug)]
pub struct OverlayPage<'a> {
    table: &'a Table,
    ink: Ink,
}

impl<'a> OverlayPage<'a> {
    /// Creates a page from `table`.
    pub fn new(table: &'a Table, ink: Ink) -> Self {
        OverlayPage { table, ink }
    }

    fn seen(&self, seen: &PathQuality) -> String {
        match seen.up {
            None => "not heard of yet".to_owned(),
            Some(false) => self.ink.paint(31, "down"),
            Some(true) => format!("{:.1} ms, {:.1} % lost", seen.rtt_ms, seen.loss * 100.0),
        }
    }

    fn name(&self, node: usize) -> &str {
        self.table.nodes.get(node).map_or("?", |node| &node.name)
    }

    fn way(&self, place: &NodeEntry) -> String {
        match place.routes.first() {
            None => "no way is up".to_owned(),
            Some(OverlayRoute::Direct) => "directly".to_owned(),
            Some(OverlayRoute::By(node)) => self.ink.bold(format!("by {}", self.name(*node))),
        }
    }
}

impl Display for OverlayPage<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let table = self.table;
        let policy = format!("{:?}", table.policy).to_lowercase();
        writeln!(f, "{}  best by {policy}", self.ink.bold(format!("overlay {}", table.overlay)))?;
        for (n, place) in table.nodes.iter().enumerate() {
            let path = self.seen(&place.path);
            row(f, &place.name, format!("{}; {path}", self.way(place)))?;
            if let Some(state) = table.states.get(n).filter(|state| !state.is_up()) {
                row(f, "", self.ink.paint(31, state))?;
            }
            for (other, seen) in &place.others {
                row(f, "", format!("  to {}: {}", self.name(*other), self.seen(seen)))?;
            }
        }
        let stats = &table.stats;
        let probes = format!(
            "{} sent, {} answered; {} failures, {} other ways chosen",
            thousands(stats.probes),
            thousands(stats.answered),
            thousands(stats.failures),
            thousands(stats.changes),
        );
        row(f, "probes", probes)?;
        let refused = format!(
            "{} malformed, {} of strangers, {} forged, {} played again",
            self.ink.alarm(stats.malformed),
            self.ink.alarm(stats.strangers),
            self.ink.alarm(stats.forged),
            self.ink.alarm(stats.replayed),
        );
        row(f, "refused", refused)
    }
}

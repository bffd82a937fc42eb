//! Text page of an overlay node.

use std::fmt::{self, Display, Formatter};

use viaduct_proto::overlay::{NodeEntry, OverlayRoute, PathQuality, Table};

use super::colours::{Colours, row};
use super::numbers::thousands;

/// State of an overlay node as text.
#[derive(Debug)]
pub struct OverlayPage<'a> {
    pub(super) table: &'a Table,
    pub(super) colours: Colours,
}

impl OverlayPage<'_> {
    fn quality(&self, seen: &PathQuality) -> String {
        match seen.up {
            None => "not known yet".to_owned(),
            Some(false) => self.colours.paint(31, "down"),
            Some(true) => format!("{:.1} ms, {:.1} % lost", seen.rtt_ms, seen.loss * 100.0),
        }
    }

    fn name(&self, node: usize) -> &str {
        self.table.nodes.get(node).map_or("?", |node| &node.name)
    }

    fn best_path(&self, place: &NodeEntry) -> String {
        match place.routes.first() {
            None => "no path is up".to_owned(),
            Some(OverlayRoute::Direct) => "directly".to_owned(),
            Some(OverlayRoute::By(node)) => self.colours.bold(format!("by {}", self.name(*node))),
        }
    }
}

impl Display for OverlayPage<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let table = self.table;
        let policy = format!("{:?}", table.policy).to_lowercase();
        writeln!(
            f,
            "{}  best by {policy}",
            self.colours.bold(format!("overlay {}", table.overlay))
        )?;
        for (n, place) in table.nodes.iter().enumerate() {
            let path = self.quality(&place.path);
            row(f, &place.name, format!("{}; {path}", self.best_path(place)))?;
            if let Some(state) = table.states.get(n).filter(|state| !state.is_up()) {
                row(f, "", self.colours.paint(31, state))?;
            }
            for (other, seen) in &place.others {
                row(f, "", format!("  to {}: {}", self.name(*other), self.quality(seen)))?;
            }
        }
        let stats = &table.stats;
        let probes = format!(
            "{} sent, {} answered; {} failures, {} changes of path",
            thousands(stats.probes),
            thousands(stats.answered),
            thousands(stats.failures),
            thousands(stats.changes),
        );
        row(f, "probes", probes)?;
        let refused = format!(
            "{} malformed, {} of unknown nodes, {} forged, {} replayed",
            self.colours.alarm(stats.malformed),
            self.colours.alarm(stats.strangers),
            self.colours.alarm(stats.forged),
            self.colours.alarm(stats.replayed),
        );
        row(f, "refused", refused)
    }
}

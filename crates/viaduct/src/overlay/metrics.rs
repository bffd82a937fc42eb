//! Metrics of an overlay node.

use viaduct_proto::overlay::{Stats, Table};

use crate::metrics::{Exposition, Kind};

/// Name of a counter, its help, and the function that reads it.
type Counter = (&'static str, &'static str, fn(&Stats) -> u64);

const COUNTERS: [Counter; 9] = [
    ("viaduct_overlay_probes_total", "Probes sent.", |s| s.probes),
    ("viaduct_overlay_answered_total", "Probes answered by the peers.", |s| s.answered),
    ("viaduct_overlay_answers_total", "Probes of peers that were answered.", |s| s.answers),
    ("viaduct_overlay_malformed_total", "Datagrams that are not valid messages.", |s| s.malformed),
    ("viaduct_overlay_strangers_total", "Messages of unknown nodes.", |s| s.strangers),
    ("viaduct_overlay_forged_total", "Messages whose tag is wrong.", |s| s.forged),
    ("viaduct_overlay_replayed_total", "Messages that are repeated, or answer no probe.", |s| {
        s.replayed
    }),
    ("viaduct_overlay_failures_total", "Paths that went down.", |s| s.failures),
    ("viaduct_overlay_changes_total", "Changes of the best path.", |s| s.changes),
];

/// Renders the metrics page.
pub fn encode(table: &Table) -> String {
    let mut page = Exposition::default();
    let version = env!("CARGO_PKG_VERSION");
    page.family("viaduct_build_info", Kind::Gauge, "Always 1; the version is a label.");
    page.sample(&[("version", version), ("overlay", &table.overlay)], 1);
    page.family("viaduct_trouble", Kind::Gauge, "1 while any peer is not `up`.");
    page.sample(&[], u8::from(!table.troubles().is_empty()));
    page.family(
        "viaduct_peer_trouble",
        Kind::Gauge,
        "1 while this peer is not `up`; `viaduct status` has the reason.",
    );
    for (node, state) in table.nodes.iter().zip(&table.states) {
        page.sample(&[("peer", &node.name)], u8::from(!state.is_up()));
    }
    for (name, help, read) in COUNTERS {
        page.family(name, Kind::Counter, help);
        page.sample(&[], read(&table.stats));
    }
    page.family(
        "viaduct_overlay_round_trip_seconds",
        Kind::Gauge,
        "Round-trip time of the direct path.",
    );
    for node in table.nodes.iter().filter(|node| node.path.up == Some(true)) {
        page.sample(&[("peer", &node.name)], node.path.rtt_ms / 1e3);
    }
    page.family(
        "viaduct_overlay_loss_ratio",
        Kind::Gauge,
        "Share of the last probes that were lost.",
    );
    for node in &table.nodes {
        page.sample(&[("peer", &node.name)], node.path.loss);
    }
    page.finish()
}

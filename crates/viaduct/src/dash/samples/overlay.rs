//! Subjects of an overlay node: the other nodes.

use viaduct_proto::history::{Reading, Subject};
use viaduct_proto::overlay::{NodeEntry, OverlayRoute, Table};

use super::{Details, Sample};

/// Sample of an overlay node.
pub(super) fn sample(table: &Table) -> Sample {
    let nodes = table.nodes.iter().enumerate();
    Sample {
        kind: "overlay",
        title: format!("overlay {}", table.overlay),
        clock: None,
        troubles: table.troubles(),
        subjects: nodes.map(|(n, entry)| node(table, n, entry)).collect(),
    }
}

fn node(table: &Table, n: usize, entry: &NodeEntry) -> (Subject, Details) {
    let path = &entry.path;
    let is_up = path.up == Some(true);
    let known = |value: f64| Reading::Gauge(path.up.map(|_| value));
    let rtt = Reading::Gauge(is_up.then_some(path.rtt_ms));
    let readings = vec![("rtt", rtt), ("lost", known(100.0 * path.loss))];
    let route = match entry.routes.first() {
        None => "no path is up".to_owned(),
        Some(OverlayRoute::Direct) => "directly".to_owned(),
        Some(OverlayRoute::By(by)) => {
            format!("by {}", table.nodes.get(*by).map_or("?", |node| &node.name))
        }
    };
    let state = table.states.get(n).filter(|state| !state.is_up());
    let details = Details {
        state: state.map(|state| state.name().to_owned()),
        reason: state.and_then(|state| state.reason()).map(str::to_owned),
        facts: vec![("route", route)],
    };
    (Subject { kind: "node", name: entry.name.clone(), readings }, details)
}

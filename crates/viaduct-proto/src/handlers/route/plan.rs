//! Settings of `route`, and the paths that follow from them.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use super::super::{Shell, Tables};
use super::Route;
use crate::flow::{About, Address, Arguments, Factory, Handler};
use crate::overlay::{NodeEntry, OverlayRoute, PathQuality, Policy, Stats, Table};
use crate::time::Duration;

pub(super) const NAME: &str = "route";
const DEFAULT_WAIT: Duration = Duration::from_millis(300);
/// Maximum number of paths that are tried for a flow.
const MAX_ROUTES: usize = 4;

/// Settings of all flows of a chain.
pub(super) struct Plan {
    tables: Tables,
    /// True if the table may change.
    pub(super) is_watched: bool,
    /// Head start of an attempt before the next path is tried too.
    pub(super) wait: Duration,
}

/// First hop of a flow: the SOCKS5 server of a node, or the destination itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Goal {
    pub(super) node: Option<SocketAddr>,
}

struct RouteFactory(Arc<Plan>);

pub(in crate::handlers) fn about() -> About {
    About::new(
        NAME,
        "connects directly, or through another node if that is better or the direct path fails",
    )
    .setting("overlay", "SOCKET", "socket of the local node, such as /run/viaduct/overlay-a.sock")
    .setting("node", "ADDR:PORT[+...]", "instead: SOCKS5 servers, tried if the direct path fails")
    .setting(
        "wait",
        "TIME",
        "head start of a path before the next is tried too; 300ms by default",
    )
}

pub(in crate::handlers) fn build(
    arguments: &mut Arguments,
    shell: &Shell,
) -> Result<Arc<dyn Factory>, String> {
    let nodes = |text: &str| text.split('+').map(|at| at.parse().ok()).collect::<Option<Vec<_>>>();
    let expected = "addresses and ports such as 192.0.2.1:1080+[2001:db8::1]:1080";
    let nodes: Option<Vec<SocketAddr>> = arguments.take("node", expected, nodes)?;
    let wait = arguments.take("wait", "a time such as 300ms or 2s", time)?;
    let (tables, is_watched) = match (arguments.text("overlay"), nodes) {
        (Some(socket), None) => ((shell.overlays)(&socket), true),
        (None, Some(nodes)) => (fixed(&nodes), false),
        _ => {
            let what =
                "overlay= or node= is expected, as in route:overlay=/run/viaduct/overlay-a.sock";
            return Err(what.to_owned());
        }
    };
    let wait = wait.unwrap_or(DEFAULT_WAIT);
    Ok(Arc::new(RouteFactory(Arc::new(Plan { tables, is_watched, wait }))))
}

impl Factory for RouteFactory {
    fn name(&self) -> &'static str {
        NAME
    }

    fn make(&self) -> Box<dyn Handler + Send> {
        Box::new(Route::new(self.0.clone()))
    }
}

impl Plan {
    /// Current table; `None` while the overlay's node does not answer.
    pub(super) fn table(&self) -> Option<Arc<Table>> {
        (self.tables)()
    }

    /// Paths to `to`, the best first; only the direct one if nothing is known.
    pub(super) fn goals(&self, to: &Address) -> VecDeque<Goal> {
        let table = self.table();
        let routes = table.iter().flat_map(|table| {
            table.routes(to).into_iter().filter_map(|route| goal(table, route)).collect::<Vec<_>>()
        });
        let goals: VecDeque<_> = routes.take(MAX_ROUTES).collect();
        if goals.is_empty() { [Goal { node: None }].into() } else { goals }
    }
}

/// Another path to `to` that is up. `None` if there is none, or if the current path, through `node`
/// or direct, has not failed.
pub(super) fn better(table: &Table, to: &Address, node: Option<SocketAddr>) -> Option<Goal> {
    let routes = table.routes(to);
    let ours = |route: &OverlayRoute| goal(table, *route) == Some(Goal { node });
    let failed = match node {
        None => table.has_failed(to, OverlayRoute::Direct),
        Some(_) => {
            let all = (0..table.nodes.len()).map(OverlayRoute::By);
            all.filter(ours).any(|route| table.has_failed(to, route))
        }
    };
    let other = routes.iter().find(|route| !ours(route) && !table.has_failed(to, **route));
    other.filter(|_| failed).and_then(|route| goal(table, *route))
}

fn goal(table: &Table, route: OverlayRoute) -> Option<Goal> {
    match route {
        OverlayRoute::Direct => Some(Goal { node: None }),
        OverlayRoute::By(_) => table.node(route).map(|(_, socks)| Goal { node: Some(socks) }),
    }
}

/// Table of fixed nodes without measurements.
fn fixed(nodes: &[SocketAddr]) -> Tables {
    let place = |(n, socks): (usize, &SocketAddr)| NodeEntry {
        name: socks.to_string(),
        socks: Some(*socks),
        hop: None,
        serves: Vec::new(),
        // Keeps the order in which the nodes were given.
        path: PathQuality { up: Some(true), rtt_ms: n as f64, loss: 0.0 },
        others: Vec::new(),
        routes: Vec::new(),
    };
    let table = Arc::new(Table {
        overlay: String::new(),
        policy: Policy::default(),
        version: 0,
        serves: Vec::new(),
        nodes: nodes.iter().enumerate().map(place).collect(),
        states: Vec::new(),
        stats: Stats::default(),
    });
    Arc::new(move || Some(table.clone()))
}

fn time(text: &str) -> Option<Duration> {
    let units = [("ms", 1), ("s", 1_000)];
    let (number, unit) = units.iter().find_map(|&(u, by)| Some((text.strip_suffix(u)?, by)))?;
    let millis = number.parse::<u64>().ok()?.checked_mul(unit)?;
    (millis <= 60_000).then_some(Duration::from_millis(millis))
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.node {
            None => f.write_str("directly"),
            Some(node) => write!(f, "by {node}"),
        }
    }
}

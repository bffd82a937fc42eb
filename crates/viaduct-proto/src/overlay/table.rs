//! State of a node, for its readers: the handler `route`, and `viaduct status`.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::choice::Policy;
use super::stats::Stats;
use crate::flow::Address;
use crate::health::State;

/// Route to a destination through the overlay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverlayRoute {
    /// Directly, as without an overlay.
    Direct,
    /// Through this node of the table.
    By(usize),
}

/// Quality of a path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathQuality {
    /// True if packets pass; `None` if that is not known yet.
    pub up: Option<bool>,
    /// Round-trip time in milliseconds; 0 unless the path is up.
    pub rtt_ms: f64,
    /// Share of the last probes that was lost, 0 to 1.
    pub loss: f64,
}

/// State of another node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeEntry {
    /// Name of the node.
    pub name: String,
    /// Address of that node's SOCKS5 server, if this node may use it.
    pub socks: Option<SocketAddr>,
    /// Address of that node's proxy, if this host's proxies may use it as a hop.
    #[serde(default)]
    pub hop: Option<SocketAddr>,
    /// Addresses that are reached through the node.
    pub serves: Vec<IpNet>,
    /// Path to the node.
    pub path: PathQuality,
    /// Paths of that node to the nodes of the table, by index, as far as it has reported them.
    pub others: Vec<(usize, PathQuality)>,
    /// Routes to the node that are up, the chosen one first.
    #[serde(rename = "ways")]
    pub routes: Vec<OverlayRoute>,
}

/// State of a node and its peers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Name of the node.
    pub overlay: String,
    /// Criterion by which routes are compared.
    pub policy: Policy,
    /// Version of the table: rises when a route or the state of a path has changed.
    pub version: u64,
    /// Addresses that are reached through the node itself.
    pub serves: Vec<IpNet>,
    /// Other nodes.
    pub nodes: Vec<NodeEntry>,
    /// States of the other nodes, in their order.
    #[serde(default)]
    pub states: Vec<State>,
    /// Counters of the node.
    pub stats: Stats,
}

impl Table {
    /// Peers that are not up, one line each.
    pub fn troubles(&self) -> Vec<String> {
        let all = self.nodes.iter().zip(&self.states).filter(|(_, state)| !state.is_up());
        all.map(|(node, state)| format!("peer {}: {state}", node.name)).collect()
    }

    /// Routes to `to`, the best first. A name is looked up at the far node, so it is reached only
    /// through nodes.
    pub fn routes(&self, to: &Address) -> Vec<OverlayRoute> {
        let Address::Ip(at) = to else { return self.through_nodes().collect() };
        if covers(&self.serves, at.ip()).is_some() {
            return vec![OverlayRoute::Direct];
        }
        match self.place(at.ip()) {
            None => [OverlayRoute::Direct].into_iter().chain(self.through_nodes()).collect(),
            Some(place) => {
                let last =
                    (!place.routes.contains(&OverlayRoute::Direct)).then_some(OverlayRoute::Direct);
                place.routes.iter().copied().chain(last).collect()
            }
        }
    }

    /// Returns whether `route` is known to be down for `to`.
    pub fn has_failed(&self, to: &Address, route: OverlayRoute) -> bool {
        let is_down = |seen: &PathQuality| seen.up == Some(false);
        let place = if let Address::Ip(at) = to { self.place(at.ip()) } else { None };
        match (route, place) {
            (OverlayRoute::Direct, place) => place.is_some_and(|place| is_down(&place.path)),
            (OverlayRoute::By(n), place) => {
                let Some(node) = self.nodes.get(n) else { return true };
                let onward = |place: &NodeEntry| {
                    let to = self.nodes.iter().position(|node| node.name == place.name);
                    node.others.iter().any(|(other, seen)| Some(*other) == to && is_down(seen))
                };
                is_down(&node.path) || place.is_some_and(onward)
            }
        }
    }

    /// Name and SOCKS5 address of a route's node; `None` for the direct route, or if the node
    /// carries no flows.
    pub fn node(&self, route: OverlayRoute) -> Option<(&str, SocketAddr)> {
        let OverlayRoute::By(n) = route else { return None };
        let node = self.nodes.get(n)?;
        Some((&node.name, node.socks?))
    }

    /// Routes through nodes that are up, the nearest first.
    fn through_nodes(&self) -> impl Iterator<Item = OverlayRoute> {
        let usable = |node: &NodeEntry| node.socks.is_some() && node.path.up == Some(true);
        let numbers = 0..self.nodes.len();
        let mut all: Vec<usize> = numbers.filter(|&n| usable(&self.nodes[n])).collect();
        all.sort_by(|&a, &b| self.nodes[a].path.rtt_ms.total_cmp(&self.nodes[b].path.rtt_ms));
        all.into_iter().map(OverlayRoute::By)
    }

    /// Node through which `ip` is reached: the one with the longest matching prefix.
    fn place(&self, ip: IpAddr) -> Option<&NodeEntry> {
        let fits = self.nodes.iter().filter_map(|node| Some((covers(&node.serves, ip)?, node)));
        fits.max_by_key(|(length, _)| *length).map(|(_, node)| node)
    }
}

/// Length of the longest of `prefixes` that contains `ip`.
fn covers(prefixes: &[IpNet], ip: IpAddr) -> Option<u8> {
    let ip = ip.to_canonical();
    prefixes.iter().filter(|net| net.contains(&ip)).map(IpNet::prefix_len).max()
}

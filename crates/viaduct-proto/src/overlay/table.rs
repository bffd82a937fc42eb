//! What a node knows, as those see it that want to go somewhere: `+route`, and people.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::choice::Policy;
use super::stats::Stats;
use crate::flow::Address;
use crate::health::State;

/// A way to a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// As if there were no overlay.
    Direct,
    /// By this one of the table's nodes.
    By(usize),
}

/// How a path does.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Whether packets pass; `None` if it is not known yet.
    pub up: Option<bool>,
    /// The round trip, in milliseconds; 0 if none was ever made.
    pub rtt_ms: f64,
    /// What part of the last probes was lost, 0 to 1.
    pub loss: f64,
}

/// Another node, and what is behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// Where its SOCKS5 is, if it has one for us.
    pub socks: Option<SocketAddr>,
    /// Addresses that are reached where it is reached.
    pub serves: Vec<IpNet>,
    /// The path to it.
    pub path: Seen,
    /// Its own paths to the table's nodes, by their numbers, as far as it has told.
    pub others: Vec<(usize, Seen)>,
    /// The ways to it that are up, the chosen one first.
    pub ways: Vec<Way>,
}

/// All that a node knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// The node's name.
    pub overlay: String,
    /// What it finds best.
    pub policy: Policy,
    /// Higher when a way or a path's state has changed.
    pub version: u64,
    /// Addresses that are behind the node itself.
    pub serves: Vec<IpNet>,
    /// The others.
    pub nodes: Vec<Place>,
    /// State of each of them, in their order.
    #[serde(default)]
    pub states: Vec<State>,
    /// What it has counted.
    pub stats: Stats,
}

impl Table {
    /// Troubles of nodes, one line each.
    pub fn troubles(&self) -> Vec<String> {
        let all = self.nodes.iter().zip(&self.states).filter(|(_, state)| !state.is_up());
        all.map(|(node, state)| format!("peer {}: {state}", node.name)).collect()
    }

    /// The ways to `to`, the best first; by nodes alone to a name, which is looked up there.
    pub fn ways(&self, to: &Address) -> Vec<Way> {
        let Address::Ip(at) = to else { return self.by_nodes().collect() };
        if covers(&self.serves, at.ip()).is_some() {
            return vec![Way::Direct];
        }
        match self.place(at.ip()) {
            None => [Way::Direct].into_iter().chain(self.by_nodes()).collect(),
            Some(place) => {
                let last = (!place.ways.contains(&Way::Direct)).then_some(Way::Direct);
                place.ways.iter().copied().chain(last).collect()
            }
        }
    }

    /// Whether it is known that nothing passes on a way.
    pub fn has_failed(&self, to: &Address, way: Way) -> bool {
        let is_down = |seen: &Seen| seen.up == Some(false);
        let place = if let Address::Ip(at) = to { self.place(at.ip()) } else { None };
        match (way, place) {
            (Way::Direct, place) => place.is_some_and(|place| is_down(&place.path)),
            (Way::By(n), place) => {
                let Some(node) = self.nodes.get(n) else { return true };
                let onward = |place: &Place| {
                    let to = self.nodes.iter().position(|node| node.name == place.name);
                    node.others.iter().any(|(other, seen)| Some(*other) == to && is_down(seen))
                };
                is_down(&node.path) || place.is_some_and(onward)
            }
        }
    }

    /// The node of a way, if it has one and flows may go by it.
    pub fn node(&self, way: Way) -> Option<(&str, SocketAddr)> {
        let Way::By(n) = way else { return None };
        let node = self.nodes.get(n)?;
        Some((&node.name, node.socks?))
    }

    /// Ways by nodes that are there, the nearest first.
    fn by_nodes(&self) -> impl Iterator<Item = Way> {
        let usable = |node: &Place| node.socks.is_some() && node.path.up == Some(true);
        let numbers = 0..self.nodes.len();
        let mut all: Vec<usize> = numbers.filter(|&n| usable(&self.nodes[n])).collect();
        all.sort_by(|&a, &b| self.nodes[a].path.rtt_ms.total_cmp(&self.nodes[b].path.rtt_ms));
        all.into_iter().map(Way::By)
    }

    /// The node that `ip` is behind: the one that names it most narrowly.
    fn place(&self, ip: IpAddr) -> Option<&Place> {
        let fits = self.nodes.iter().filter_map(|node| Some((covers(&node.serves, ip)?, node)));
        fits.max_by_key(|(length, _)| *length).map(|(_, node)| node)
    }
}

/// The length of the longest of `prefixes` that `ip` lies in.
fn covers(prefixes: &[IpNet], ip: IpAddr) -> Option<u8> {
    let ip = ip.to_canonical();
    prefixes.iter().filter(|net| net.contains(&ip)).map(IpNet::prefix_len).max()
}

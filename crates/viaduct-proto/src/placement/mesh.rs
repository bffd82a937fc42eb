//! Measurements of the hops: the paths between them, and their loads.

use super::Route;
use super::score::Segment;

/// State of the hops, which they measure and report. Node 0 is this node, hops are numbered from 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mesh {
    /// Number of nodes, including this one.
    nodes: usize,
    /// Path from each node to each other, row by row; `None` if it is down or unknown.
    paths: Vec<Option<Segment>>,
    /// Load of each node: 1 at its capacity.
    loads: Vec<f64>,
    /// Flows that this node has sent to each hop since the loads were reported.
    sent: Vec<u32>,
}

impl Mesh {
    /// Returns a mesh of this node and `hops` hops, none of which can be reached.
    pub fn new(hops: usize) -> Mesh {
        let nodes = hops + 1;
        let (paths, loads) = (vec![None; nodes * nodes], vec![0.0; nodes]);
        Mesh { nodes, paths, loads, sent: vec![0; nodes] }
    }

    /// Sets the path from one node to another; `None` if it is down. Nodes outside the mesh are
    /// ignored.
    pub fn set_path(&mut self, from: usize, to: usize, path: Option<Segment>) {
        if from < self.nodes && to < self.nodes {
            self.paths[from * self.nodes + to] = path;
        }
    }

    /// Marks all paths to and from a node as down.
    pub fn remove(&mut self, node: usize) {
        for other in 0..self.nodes {
            self.set_path(node, other, None);
            self.set_path(other, node, None);
        }
    }

    /// Sets the load of a hop, relative to its capacity.
    pub fn set_load(&mut self, hop: usize, load: f64) {
        if let Some(of) = self.loads.get_mut(hop) {
            *of = load;
        }
    }

    /// Numbers of the hops.
    pub fn hops(&self) -> std::ops::Range<usize> {
        1..self.nodes.max(1)
    }

    /// Path from one node to another; `None` if it is down or unknown.
    pub fn path(&self, from: usize, to: usize) -> Option<Segment> {
        if from >= self.nodes || to >= self.nodes {
            None
        } else {
            self.paths[from * self.nodes + to]
        }
    }

    /// Paths between the nodes of a route; `None` if one is down.
    pub fn segments(&self, route: Route) -> Option<[Option<Segment>; 2]> {
        match route {
            Route::Direct => Some([None, None]),
            Route::One(hop) => Some([Some(self.path(0, hop)?), None]),
            Route::Two(first, second) => {
                Some([Some(self.path(0, first)?), Some(self.path(first, second)?)])
            }
        }
    }

    /// Returns whether all paths between the nodes of a route are up.
    pub fn is_up(&self, route: Route) -> bool {
        self.segments(route).is_some()
    }

    /// Load of a route's most loaded hop, and number of flows that this node has sent to the
    /// route's hops since the loads were reported. Both are 0 for the direct route.
    pub fn load(&self, route: Route) -> (f64, u32) {
        let load = route.hops().filter_map(|hop| self.loads.get(hop)).fold(0.0, |a, b| b.max(a));
        (load, route.hops().filter_map(|hop| self.sent.get(hop)).sum())
    }

    /// Notes that a flow is sent to a hop.
    pub(super) fn note_flow(&mut self, hop: usize) {
        if let Some(sent) = self.sent.get_mut(hop) {
            *sent += 1;
        }
    }
}

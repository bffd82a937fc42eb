//! Hops of an overlay, and the choice among them for a proxy (`next = "auto"`).
//!
//! ```text
//!   overlay node on this host ── table ──▶ handle_table ─┐
//!   checks of the hops ── up, down ──────▶ set_down ─────┼─▶ choose ─▶ first hop, and the rest
//!   hops ── reports ─────────────────────▶ handle_report ┤
//!   this proxy's own finished flows ─────▶ handle_finished
//! ```
//!
//! A proxy that is itself a hop reports to others the round trips of its own finished flows.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::report::{MAX_NETWORKS, Report};
use super::score::{Preference, Segment};
use super::status::{AutoChoice, AutoHop, AutoStatus};
use super::{Config, Mesh, Placement, Prefix, Route};
use crate::overlay::{PathQuality, Table};
use crate::split::extension::Onward;
use crate::time::{Duration, Instant};

/// Time for which the last table is used while the overlay's node does not answer, such as during
/// its restart. The checks of the hops continue meanwhile.
const TABLE_TTL: Duration = Duration::from_secs(10);
/// Maximum number of networks in a status.
const MAX_STATUS: usize = 256;

/// A node of the overlay.
#[derive(Clone, Debug, PartialEq)]
struct Hop {
    name: String,
    /// Address at which it accepts flows; `None` if the node is not a hop.
    at: Option<SocketAddr>,
    /// True if the hop is down, according to the health checks.
    is_down: bool,
    load: f64,
}

/// Hops of an overlay, and the choice among them.
#[derive(Debug)]
pub struct OverlayHops {
    placement: Placement,
    /// Nodes of the overlay; the first one is number 1 of the mesh.
    hops: Vec<Hop>,
    /// Measured paths, including those of hops that are down.
    measured: Mesh,
    table: Option<Arc<Table>>,
    /// Time at which the table was last known to be current.
    heard: Option<Instant>,
    /// Flows by their number of hops.
    flows: [u64; 3],
}

impl OverlayHops {
    /// Creates the state of a proxy that knows no hops yet. `seed` must differ between proxies.
    pub fn new(config: Config, seed: u64) -> OverlayHops {
        let placement = Placement::new(config, seed);
        let (hops, measured, flows) = (Vec::new(), Mesh::default(), [0; 3]);
        OverlayHops { placement, hops, measured, table: None, heard: None, flows }
    }

    /// Takes over the table of the overlay's node on this host; `None` if the node does not answer.
    /// Returns whether the names or addresses of the nodes have changed.
    pub fn handle_table(&mut self, now: Instant, table: Option<Arc<Table>>) -> bool {
        let Some(table) = table else { return false };
        self.heard = Some(now);
        if self.table.as_ref().is_some_and(|known| Arc::ptr_eq(known, &table)) {
            return false;
        }
        let names = |hop: &Hop| (hop.name.clone(), hop.at);
        let old: Vec<_> = self.hops.iter().map(names).collect();
        let new: Vec<_> = table.nodes.iter().map(|node| (node.name.clone(), node.hop)).collect();
        let has_changed = old != new;
        if has_changed {
            let was_down =
                |at| self.hops.iter().any(|hop| hop.at.is_some() && hop.at == at && hop.is_down);
            let hop = |(name, at)| Hop { name, at, is_down: was_down(at), load: 0.0 };
            self.hops = new.into_iter().map(hop).collect();
            self.measured = Mesh::new(self.hops.len());
        }
        self.measure(&table);
        self.table = Some(table);
        let mesh = self.mesh();
        match has_changed {
            true => self.placement.replace(mesh),
            false => self.placement.update(mesh),
        }
        has_changed
    }

    /// Takes over the paths of `table`. A path that the node has not probed yet, after a restart,
    /// keeps its last measurement.
    fn measure(&mut self, table: &Table) {
        let segment = |seen: &PathQuality| {
            (seen.up == Some(true)).then_some(Segment { rtt_ms: seen.rtt_ms, loss: seen.loss })
        };
        let nodes = table.nodes.iter().enumerate();
        for (n, node) in nodes.filter(|(_, node)| node.path.up.is_some()) {
            self.measured.set_path(0, n + 1, segment(&node.path));
            for to in 0..table.nodes.len() {
                let seen = node.others.iter().find(|(other, _)| *other == to);
                let path = seen.and_then(|(_, seen)| segment(seen));
                self.measured.set_path(n + 1, to + 1, path);
            }
        }
    }

    /// Mesh of the hops that are up.
    fn mesh(&self) -> Mesh {
        let mut mesh = self.measured.clone();
        for (n, hop) in self.hops.iter().enumerate() {
            mesh.set_load(n + 1, hop.load);
            if hop.is_down || hop.at.is_none() {
                mesh.remove(n + 1);
            }
        }
        mesh
    }

    /// Sets whether the hop at `at` is down, according to the health checks.
    pub fn set_down(&mut self, at: SocketAddr, is_down: bool) {
        let changes = |hop: &&mut Hop| hop.at == Some(at) && hop.is_down != is_down;
        let mut has_changed = false;
        for hop in self.hops.iter_mut().filter(changes) {
            (hop.is_down, has_changed) = (is_down, true);
        }
        if has_changed {
            self.placement.update(self.mesh());
        }
    }

    /// Marks as up all hops for which `is_checked` returns false.
    pub fn keep_down(&mut self, is_checked: impl Fn(SocketAddr) -> bool) {
        let unchecked: Vec<_> = self.addresses().filter(|at| !is_checked(*at)).collect();
        unchecked.into_iter().for_each(|at| self.set_down(at, false));
    }

    /// Addresses of the hops.
    pub fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.hops.iter().filter_map(|hop| hop.at)
    }

    /// Returns whether flows may be sent to `at`: it is a hop, and not down.
    pub fn is_usable(&self, at: SocketAddr) -> bool {
        self.hops.iter().any(|hop| hop.at == Some(at) && !hop.is_down)
    }

    /// Networks for which all hops are to be asked now.
    pub fn poll_query(&mut self, now: Instant) -> Vec<Prefix> {
        self.placement.poll_query(now)
    }

    /// Handles the report of the hop at `at`, its answer to a query for `networks`.
    pub fn handle_report(
        &mut self,
        now: Instant,
        at: SocketAddr,
        networks: &[Prefix],
        report: &Report,
    ) {
        let Some(n) = self.hops.iter().position(|hop| hop.at == Some(at)) else { return };
        self.hops[n].load = report.load;
        self.placement.handle_report(now, n + 1, networks, &report.rtts_ms);
        self.placement.update(self.mesh());
    }

    /// Handles the round trip, in milliseconds, of a flow that went directly to a server.
    pub fn handle_finished(&mut self, now: Instant, server: IpAddr, rtt_ms: f64) {
        self.placement.handle_finished(now, 0, server, rtt_ms);
    }

    /// Report of this proxy, whose load is `load`, about `networks`.
    pub fn report(&self, now: Instant, networks: &[Prefix], load: f64) -> Report {
        let rtt_ms = |network: &Prefix| self.placement.rtt_ms(now, *network);
        Report { load, rtts_ms: networks.iter().take(MAX_NETWORKS).map(rtt_ms).collect() }
    }

    /// Chooses the route of a new flow to `server`. Returns the first hop, and the rest of the
    /// route from there; `None` if the flow goes directly.
    pub fn choose(
        &mut self,
        now: Instant,
        server: IpAddr,
        preference: Preference,
    ) -> Option<(SocketAddr, Onward)> {
        let route = match self.is_measured(now) {
            true => self.placement.choose(now, server, preference),
            false => Route::Direct,
        };
        self.flows[route.hops().count()] += 1;
        let at = |hop: usize| self.hops.get(hop - 1)?.at;
        match route {
            Route::Direct => None,
            Route::One(hop) => Some((at(hop)?, Onward::Direct)),
            Route::Two(first, second) => Some((at(first)?, Onward::Hop(at(second)?))),
        }
    }

    /// Returns whether the overlay's measurements are current.
    fn is_measured(&self, now: Instant) -> bool {
        self.heard.is_some_and(|heard| now.since(heard) < TABLE_TTL)
    }

    /// State of the choice.
    pub fn status(&self, now: Instant) -> AutoStatus {
        let mesh = self.placement.mesh();
        let hop = |(n, hop): (usize, &Hop)| {
            let rtt_ms = mesh.path(0, n + 1).map(|path| path.rtt_ms);
            Some(AutoHop { name: hop.name.clone(), at: hop.at?, rtt_ms, load: hop.load })
        };
        let name = |hop: usize| self.hops[hop - 1].name.clone();
        let chosen = self.placement.chosen(now, MAX_STATUS);
        AutoStatus {
            is_measured: self.is_measured(now),
            hops: self.hops.iter().enumerate().filter_map(hop).collect(),
            flows: self.flows,
            switches: self.placement.switches(),
            networks: self.placement.networks() as u64,
            choices: chosen.iter().map(|of| AutoChoice::new(of, name)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlay::{NodeEntry, Policy, Stats};

    const UP: Option<bool> = Some(true);

    fn at(seconds: u64) -> Instant {
        Instant::ZERO + Duration::from_secs(seconds)
    }

    fn hop(n: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, n], 7000))
    }

    fn server() -> IpAddr {
        IpAddr::from([198, 51, 100, 9])
    }

    fn path(up: Option<bool>, rtt_ms: f64) -> PathQuality {
        PathQuality { up, rtt_ms, loss: 0.0 }
    }

    /// Table with three nodes in a line, 20 ms from each to the next; the third one is not a hop.
    fn table(up: Option<bool>) -> Option<Arc<Table>> {
        let node = |n: u8, others: &[(usize, f64)]| NodeEntry {
            name: format!("n{n}"),
            socks: None,
            hop: (n < 3).then(|| hop(n)),
            serves: Vec::new(),
            path: path(up, 20.0 * f64::from(n)),
            others: others.iter().map(|&(to, rtt_ms)| (to, path(UP, rtt_ms))).collect(),
            routes: Vec::new(),
        };
        let none: &[(usize, f64)] = &[];
        let reported = |others| if up.is_some() { others } else { none };
        Some(Arc::new(Table {
            overlay: "n0".to_owned(),
            policy: Policy::Latency,
            version: 1,
            serves: Vec::new(),
            nodes: vec![
                node(1, reported(&[(1, 20.0), (2, 40.0)])),
                node(2, reported(&[(0, 20.0), (2, 20.0)])),
                node(3, reported(&[(0, 40.0), (1, 20.0)])),
            ],
            states: Vec::new(),
            stats: Stats::default(),
        }))
    }

    /// Hops that know the round trips to the server: 60 ms directly, 40 and 20 from the hops.
    fn informed() -> OverlayHops {
        let config = Config { explore_every: None, ..Config::default() };
        let mut hops = OverlayHops::new(config, 1);
        assert!(hops.handle_table(at(0), table(UP)));
        hops.handle_finished(at(0), server(), 60.0);
        hops.choose(at(0), server(), Preference::FirstByte);
        report(&mut hops, 0);
        hops
    }

    /// Answers the query for the network of the server.
    fn report(hops: &mut OverlayHops, second: u64) {
        let networks = hops.poll_query(at(second));
        assert_eq!(networks, [Prefix::of(server())]);
        for (n, rtt_ms) in [(1, 40.0), (2, 20.0)] {
            let report = Report { load: 0.5, rtts_ms: vec![Some(rtt_ms)] };
            hops.handle_report(at(second), hop(n), &networks, &report);
        }
    }

    #[test]
    fn two_hops_are_chosen_where_they_split_the_path_evenly() {
        let mut hops = informed();
        let choice = hops.choose(at(1), server(), Preference::FirstByte);
        assert_eq!(choice, Some((hop(1), Onward::Hop(hop(2)))));
        let status = hops.status(at(2));
        assert!(status.is_measured);
        assert_eq!((status.flows, status.hops.len()), ([1, 0, 1], 2));
        assert_eq!((status.hops[1].rtt_ms, status.hops[1].load), (Some(40.0), 0.5));
        let [choice] = &status.choices[..] else { panic!("{status:?}") };
        assert_eq!(choice.network, "198.51.100.0/24".parse().unwrap());
        assert_eq!(choice.hops, ["n1", "n2"]);
        assert_eq!(choice.why, "first byte 80.0 ms, directly 120.0 ms");
    }

    #[test]
    fn a_hop_that_is_down_is_left_immediately_and_not_used_as_a_second_hop() {
        let mut hops = informed();
        hops.choose(at(1), server(), Preference::FirstByte);
        hops.set_down(hop(1), true);
        assert!(!hops.is_usable(hop(1)) && hops.is_usable(hop(2)) && !hops.is_usable(hop(3)));
        let choice = hops.choose(at(2), server(), Preference::FirstByte);
        assert_eq!(choice, Some((hop(2), Onward::Direct)));
        hops.set_down(hop(2), true);
        assert_eq!(hops.choose(at(3), server(), Preference::FirstByte), None);
        // A table in which the hops are up does not change that: their checks still fail.
        hops.handle_table(at(3), table(UP));
        assert_eq!(hops.choose(at(4), server(), Preference::FirstByte), None);
        hops.set_down(hop(1), false);
        hops.handle_table(at(64), table(UP));
        let choice = hops.choose(at(64), server(), Preference::FirstByte);
        assert_eq!(choice, Some((hop(1), Onward::Direct)));
    }

    #[test]
    fn a_restart_of_the_overlay_changes_no_choice_and_without_it_flows_go_directly() {
        let mut hops = informed();
        let two = hops.choose(at(1), server(), Preference::FirstByte);
        assert!(!hops.handle_table(at(2), None));
        assert_eq!(hops.choose(at(3), server(), Preference::FirstByte), two);
        assert!(!hops.handle_table(at(4), table(None)), "nothing is probed yet");
        assert_eq!(hops.choose(at(4), server(), Preference::FirstByte), two);
        hops.handle_table(at(5), table(UP));
        assert_eq!(hops.choose(at(5), server(), Preference::FirstByte), two);
        assert_eq!(hops.choose(at(16), server(), Preference::FirstByte), None);
        assert!(!hops.status(at(16)).is_measured);
        hops.handle_table(at(17), table(UP));
        assert_eq!(hops.choose(at(17), server(), Preference::FirstByte), two, "as before");
        hops.handle_table(at(18), table(Some(false)));
        assert_eq!(hops.choose(at(18), server(), Preference::FirstByte), None, "all paths failed");
    }

    #[test]
    fn flows_go_directly_until_one_has_measured_the_direct_path() {
        let mut hops = OverlayHops::new(Config::default(), 1);
        hops.handle_table(at(0), table(UP));
        assert_eq!(hops.choose(at(0), server(), Preference::FirstByte), None);
        report(&mut hops, 0);
        assert_eq!(hops.choose(at(1), server(), Preference::FirstByte), None);
        let why = &hops.status(at(1)).choices[0].why;
        assert_eq!(why, "no flow has measured its round trip yet");
        hops.handle_finished(at(2), server(), 60.0);
        assert!(hops.choose(at(2), server(), Preference::FirstByte).is_some());
    }

    #[test]
    fn networks_are_asked_for_while_they_are_used() {
        let mut hops = informed();
        assert!(hops.poll_query(at(9)).is_empty(), "not used since");
        hops.handle_table(at(9), table(UP));
        hops.choose(at(10), server(), Preference::Bulk);
        report(&mut hops, 10);
        hops.choose(at(11), server(), Preference::Bulk);
        assert!(hops.poll_query(at(12)).is_empty(), "asked a moment ago");
        report(&mut hops, 16);
    }

    #[test]
    fn a_hop_reports_what_its_own_flows_have_measured() {
        let hops = informed();
        let other = Prefix::of(IpAddr::from([203, 0, 113, 1]));
        let report = hops.report(at(1), &[other, Prefix::of(server())], 0.25);
        assert_eq!(report, Report { load: 0.25, rtts_ms: vec![None, Some(60.0)] });
    }

    #[test]
    fn a_change_of_hops_clears_the_choices() {
        let mut hops = informed();
        hops.set_down(hop(1), true);
        let mut other = Table::clone(&table(UP).unwrap());
        other.nodes.swap(0, 1);
        assert!(hops.handle_table(at(1), Some(Arc::new(other))));
        assert!(!hops.is_usable(hop(1)), "still down");
        assert_eq!(hops.addresses().collect::<Vec<_>>(), [hop(2), hop(1)]);
        assert_eq!(hops.choose(at(1), server(), Preference::FirstByte), None, "unknown again");
    }
}

//! Metrics of a proxy: the name, the help and the value of each.

use viaduct_proto::placement::status::AutoStatus;
use viaduct_proto::tunnel::stats::TunnelStats;

use super::hop_stats::CONNECT_BOUNDS;
use super::next_hops::HopStatus;
use super::snapshot::ProxyStatus;
use super::stats::{PolicyStats, ProxyStats};
use crate::metrics::{Exposition, Kind, Labels};
use crate::tunnel::stats::TunnelCounters;

type Counter = (&'static str, &'static str, fn(&ProxyStats) -> u64);

const COUNTERS: &[Counter] = &[
    ("viaduct_proxy_accepted_total", "Clients' connections that were accepted.", |c| c.accepted),
    ("viaduct_proxy_opened_total", "Flows that had both ends connected.", |c| c.opened),
    ("viaduct_proxy_finished_total", "Flows that ended in order.", |c| c.finished),
    ("viaduct_proxy_reset_total", "Flows that ended by a reset.", |c| c.reset),
    ("viaduct_proxy_idle_total", "Flows that were ended as idle.", |c| c.idle),
    ("viaduct_proxy_early_started_total", "Early connections begun.", |c| c.early.started),
    ("viaduct_proxy_early_matched_total", "Early connections taken over.", |c| c.early.matched),
    ("viaduct_proxy_early_expired_total", "Early connections that expired.", |c| c.early.expired),
    ("viaduct_proxy_early_refused_total", "Early connections refused.", |c| c.early.refused),
    ("viaduct_proxy_early_bounded_total", "SYNs beyond max-early.", |c| c.early.bounded),
];

const GAUGES: &[Counter] = &[
    ("viaduct_proxy_open_flows", "Flows that are open.", |c| c.open),
    ("viaduct_proxy_early_waiting", "Early connections that wait for their client.", |c| c.waiting),
];

/// Page of all metrics in the format of Prometheus.
pub fn encode(status: &ProxyStatus) -> String {
    let (mut page, counters) = (Exposition::default(), &status.counters);
    let own: Labels<'_> = &[("proxy", &status.proxy)];
    for (kind, families) in [(Kind::Counter, COUNTERS), (Kind::Gauge, GAUGES)] {
        for (name, help, value) in families {
            page.family(name, kind, help);
            page.sample(own, value(counters));
        }
    }
    let help = "Times that interception rules were restored after their removal.";
    page.family("viaduct_proxy_interception_restored_total", Kind::Counter, help);
    page.sample(own, status.restored);
    let help = "1 while interception rules are missing: connections bypass the proxy.";
    page.family("viaduct_proxy_interception_missing", Kind::Gauge, help);
    page.sample(own, u8::from(status.missing));
    bytes_and_refusals(&mut page, own, counters);
    connects(&mut page, own, counters);
    next_hops(&mut page, own, &status.next_hops);
    status.auto.iter().for_each(|of| auto(&mut page, own, of));
    policies(&mut page, own, counters);
    tunnels(&mut page, own, counters);
    status.access_log.iter().for_each(|log| log.expose(&mut page));
    page.finish()
}

fn bytes_and_refusals(page: &mut Exposition, own: Labels<'_>, counters: &ProxyStats) {
    page.family("viaduct_proxy_bytes_total", Kind::Counter, "Bytes of flows.");
    for (direction, bytes) in ["out", "back"].iter().zip(counters.bytes) {
        page.sample(&[own, &[("direction", direction)]].concat(), bytes);
    }
    page.family(
        "viaduct_proxy_refused_total",
        Kind::Counter,
        "Clients that were refused, and why.",
    );
    for (why, count) in counters.refused.by_reason() {
        page.sample(&[own, &[("reason", why)]].concat(), count);
    }
}

type HopCounter = (&'static str, Kind, &'static str, fn(&HopStatus) -> u64);

const NEXT_HOPS: &[HopCounter] = &[
    ("viaduct_proxy_next_hop_up", Kind::Gauge, "0 while a checked next hop is down.", |hop| {
        u64::from(!hop.is_down)
    }),
    ("viaduct_proxy_next_hop_probes_total", Kind::Counter, "Probes of a next hop.", |h| h.probes),
    ("viaduct_proxy_next_hop_failures_total", Kind::Counter, "Failed probes.", |h| h.failures),
    ("viaduct_proxy_next_hop_falls_total", Kind::Counter, "Times that it went down.", |h| h.falls),
];

fn next_hops(page: &mut Exposition, own: Labels<'_>, hops: &[HopStatus]) {
    for (name, kind, help, value) in NEXT_HOPS.iter().filter(|_| !hops.is_empty()) {
        page.family(name, *kind, help);
        for hop in hops {
            page.sample(&[own, &[("hop", &hop.hop.to_string())]].concat(), value(hop));
        }
    }
}

type AutoCounter = (&'static str, Kind, &'static str, fn(&AutoStatus) -> u64);

const AUTO: &[AutoCounter] = &[
    ("viaduct_proxy_auto_measured", Kind::Gauge, "0 while the overlay does not answer.", |of| {
        u64::from(of.is_measured)
    }),
    ("viaduct_proxy_auto_networks", Kind::Gauge, "Networks of servers remembered.", |of| {
        of.networks
    }),
    ("viaduct_proxy_auto_switches_total", Kind::Counter, "Changes to better hops.", |of| {
        of.switches
    }),
];

fn auto(page: &mut Exposition, own: Labels<'_>, status: &AutoStatus) {
    for (name, kind, help, value) in AUTO {
        page.family(name, *kind, help);
        page.sample(own, value(status));
    }
    let help = "Flows by the number of hops chosen for them.";
    page.family("viaduct_proxy_auto_flows_total", Kind::Counter, help);
    for (hops, flows) in ["0", "1", "2"].iter().zip(status.flows) {
        page.sample(&[own, &[("hops", hops)]].concat(), flows);
    }
    page.family("viaduct_proxy_auto_hop_load", Kind::Gauge, "Load that a hop has reported.");
    for hop in &status.hops {
        page.sample(&[own, &[("hop", &hop.at.to_string())]].concat(), hop.load);
    }
}

type PolicyCounter = (&'static str, Kind, &'static str, fn(&PolicyStats) -> u64);

const POLICIES: &[PolicyCounter] = &[
    ("viaduct_policy_open_flows", Kind::Gauge, "Flows that are open.", |p| p.open),
    ("viaduct_policy_opened_total", Kind::Counter, "Flows that were connected.", |p| p.opened),
    ("viaduct_policy_denied_total", Kind::Counter, "Flows that the policy refused.", |p| p.denied),
];

fn policies(page: &mut Exposition, own: Labels<'_>, counters: &ProxyStats) {
    if counters.policies.is_empty() {
        return;
    }
    for (name, kind, help, value) in POLICIES {
        page.family(name, *kind, help);
        for policy in &counters.policies {
            page.sample(&[own, &[("policy", &policy.policy)]].concat(), value(policy));
        }
    }
    page.family("viaduct_policy_bytes_total", Kind::Counter, "Bytes of flows.");
    for policy in &counters.policies {
        for (direction, bytes) in ["out", "back"].iter().zip(policy.bytes) {
            let labels = [("policy", &policy.policy[..]), ("direction", direction)];
            page.sample(&[own, &labels].concat(), bytes);
        }
    }
}

type TunnelCounter = (&'static str, Kind, &'static str, fn(&TunnelStats) -> u64);

const TUNNELS: &[TunnelCounter] = &[
    ("viaduct_tunnel_links", Kind::Gauge, "Links that are up.", |t| t.links),
    ("viaduct_tunnel_streams", Kind::Gauge, "Streams that are open.", |t| t.open),
    ("viaduct_tunnel_active_streams", Kind::Gauge, "Streams with bytes in flight.", |t| t.active),
    ("viaduct_tunnel_opened_total", Kind::Counter, "Streams opened here.", |t| t.opened),
    ("viaduct_tunnel_accepted_total", Kind::Counter, "Streams opened by the peer.", |t| t.accepted),
    ("viaduct_tunnel_reset_total", Kind::Counter, "Streams that were reset.", |t| t.reset),
    ("viaduct_tunnel_sent_bytes_total", Kind::Counter, "Bytes sent.", |t| t.sent),
    ("viaduct_tunnel_received_bytes_total", Kind::Counter, "Bytes received.", |t| t.received),
    ("viaduct_tunnel_tokens", Kind::Gauge, "Tokens that the peer has granted.", |t| t.tokens),
    ("viaduct_tunnel_tokens_left", Kind::Gauge, "Tokens granted and unspent.", |t| t.tokens_left),
    ("viaduct_tunnel_room_bytes", Kind::Gauge, "Receive window granted to the peer.", |t| t.window),
    ("viaduct_tunnel_held_bytes", Kind::Gauge, "Receive window in use.", |t| t.held),
];

/// Labels of a tunnel: its peer, and its name if it has one.
fn of(tunnel: &TunnelCounters) -> Vec<(&str, &str)> {
    let name = Some(("tunnel", &tunnel.name[..])).filter(|(_, name)| !name.is_empty());
    name.into_iter().chain([("peer", &tunnel.peer[..])]).collect()
}

/// Counters of all tunnels with the same labels together: a peer may be dialled and dial here, or
/// have several tunnels without names.
fn by_labels(tunnels: &[TunnelCounters]) -> Vec<TunnelCounters> {
    let mut all: Vec<TunnelCounters> = Vec::new();
    for tunnel in tunnels {
        match all.iter_mut().find(|of| (&of.name, &of.peer) == (&tunnel.name, &tunnel.peer)) {
            Some(same) => same.merge(tunnel),
            None => all.push(tunnel.clone()),
        }
    }
    all
}

fn tunnels(page: &mut Exposition, own: Labels<'_>, counters: &ProxyStats) {
    if let Some(dropped) = counters.strangers_dropped {
        let help = "Unauthenticated links dropped to make room for others.";
        page.family("viaduct_tunnel_strangers_dropped_total", Kind::Counter, help);
        page.sample(own, dropped);
    }
    if counters.tunnels.is_empty() {
        return;
    }
    let all = by_labels(&counters.tunnels);
    for (name, kind, help, value) in TUNNELS {
        page.family(name, *kind, help);
        for tunnel in &all {
            page.sample(&[own, &of(tunnel)].concat(), value(&tunnel.all));
        }
    }
    page.family("viaduct_tunnel_denied_total", Kind::Counter, "Streams that the far end denied.");
    for tunnel in &all {
        page.sample(&[own, &of(tunnel)].concat(), tunnel.denied);
    }
    let help = "1 while a tunnel that is dialled has no link up.";
    page.family("viaduct_tunnel_down", Kind::Gauge, help);
    for tunnel in &all {
        page.sample(&[own, &of(tunnel)].concat(), u8::from(tunnel.down.is_some()));
    }
    page.family("viaduct_tunnel_rtt_seconds", Kind::Gauge, "Round trip of each link.");
    for tunnel in &all {
        for (n, link) in tunnel.links.iter().enumerate() {
            let Some(rtt) = link.rtt else { continue };
            let link: Labels<'_> = &[("link", &n.to_string())];
            page.sample(&[own, &of(tunnel), link].concat(), rtt.as_secs_f64());
        }
    }
    page.family("viaduct_tunnel_queueing_seconds", Kind::Gauge, "Mean wait of bytes to be sent.");
    for tunnel in &all {
        let mean = tunnel.all.delay.mean_micros() as f64 / 1e6;
        page.sample(&[own, &of(tunnel)].concat(), mean);
    }
}

fn connects(page: &mut Exposition, own: Labels<'_>, counters: &ProxyStats) {
    let bounds: Vec<f64> = CONNECT_BOUNDS.iter().map(|&micros| micros as f64 / 1e6).collect();
    let help = "Time until the next hop, or the server, answered.";
    page.family("viaduct_proxy_connect_seconds", Kind::Histogram, help);
    for hop in &counters.hops {
        let by = hop.name();
        let labels = [own, &[("hop", &by)]].concat();
        page.histogram(&labels, &bounds, &hop.connected, hop.micros as f64 / 1e6);
    }
    let help = "Outbound connections that failed.";
    page.family("viaduct_proxy_connect_failed_total", Kind::Counter, help);
    for hop in &counters.hops {
        page.sample(&[own, &[("hop", &hop.name())]].concat(), hop.failed);
    }
    let help = "0 while the hop is down: its last connections, at least three, have all failed.";
    page.family("viaduct_proxy_hop_up", Kind::Gauge, help);
    for hop in counters.hops.iter().filter(|hop| hop.addr().is_some()) {
        let up = u8::from(hop.down().is_none());
        page.sample(&[own, &[("hop", &hop.name())]].concat(), up);
    }
}

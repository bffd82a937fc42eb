//! Subjects of a proxy or a master: its flows, its outbounds, and its tunnels with their links.

use viaduct_proto::history::{Reading, Subject};
use viaduct_proto::tunnel::stats::LinkStats;

use super::{Details, Sample, count, megabytes};
use crate::engine::hop_stats::{CONNECT_BOUNDS, Hop};
use crate::engine::snapshot::ProxyStatus;
use crate::engine::stats::{PolicyStats, ProxyStats};
use crate::tunnel::settings::title;
use crate::tunnel::stats::TunnelCounters;

/// Sample of a proxy.
pub(super) fn sample(status: &ProxyStatus) -> Sample {
    // A master has no listeners for clients: its flows are those of wrapped programs.
    let is_master = status.listen.is_empty() && status.tunnel_listen.is_none();
    let kind = if is_master { "master" } else { "proxy" };
    Sample {
        kind,
        title: format!("{kind} {}", status.proxy),
        clock: Some(status.uptime),
        troubles: troubles(status),
        subjects: subjects(status),
    }
}

/// Problems of a proxy.
pub(super) fn troubles(status: &ProxyStatus) -> Vec<String> {
    let hangs = status.hangs.then(|| "an event loop does not answer".to_owned());
    let missing = "rules are missing in nftables or ip rule: connections are not intercepted";
    let missing = status.missing.then(|| missing.to_owned());
    let tunnels = status.counters.tunnels.iter().filter_map(TunnelCounters::trouble);
    hangs.into_iter().chain(missing).chain(tunnels).collect()
}

/// Subjects of a proxy.
pub(super) fn subjects(status: &ProxyStatus) -> Vec<(Subject, Details)> {
    let counters = &status.counters;
    let mut subjects = vec![flows(status)];
    subjects.extend(counters.hops.iter().map(outbound));
    subjects.extend(counters.policies.iter().map(policy));
    for counters in &counters.tunnels {
        let name = title(&counters.name);
        subjects.push(tunnel(&name, counters));
        let links = counters.links.iter().enumerate();
        subjects.extend(links.map(|(n, stats)| link(format!("{name}, link {}", n + 1), stats)));
    }
    subjects
}

fn flows(status: &ProxyStatus) -> (Subject, Details) {
    let ProxyStats { early, refused, bytes, .. } = &status.counters;
    let counters = &status.counters;
    let refused: u64 = refused.by_reason().iter().map(|(_, count)| count).sum();
    let readings = vec![
        ("open", count(counters.open)),
        ("waiting", count(counters.waiting)),
        ("opened", Reading::per_second(counters.opened)),
        ("finished", Reading::per_second(counters.finished)),
        ("reset", Reading::per_second(counters.reset)),
        ("idle", Reading::per_second(counters.idle)),
        ("refused", Reading::per_second(refused)),
        ("rate_out", Reading::megabits(bytes[0])),
        ("rate_back", Reading::megabits(bytes[1])),
        ("early_started", Reading::per_second(early.started)),
        ("early_matched", Reading::per_second(early.matched)),
        ("early_expired", Reading::per_second(early.expired)),
        ("early_refused", Reading::per_second(early.refused)),
    ];
    let listen: Vec<_> = status.listen.iter().map(ToString::to_string).collect();
    let mut facts = vec![
        ("version", status.version.clone()),
        ("listens at", listen.join(", ")),
        ("to", status.to.clone()),
        ("flow limit", status.most.to_string()),
    ];
    facts.retain(|(_, text)| !text.is_empty());
    let subject = Subject { kind: "flows", name: status.proxy.clone(), readings };
    (subject, Details { facts, ..Details::default() })
}

fn outbound(hop: &Hop) -> (Subject, Details) {
    let connected = hop.connected.iter().sum();
    let quantile = |q| Reading::Quantile {
        counts: hop.connected.into(),
        bounds: &CONNECT_BOUNDS,
        q,
        scale: 1e-3,
    };
    let readings = vec![
        ("connected", Reading::per_second(connected)),
        ("failed", Reading::per_second(hop.failed)),
        ("connect_mean", Reading::mean_millis(hop.micros, connected)),
        ("connect_p50", quantile(0.5)),
        ("connect_p99", quantile(0.99)),
    ];
    let reason = hop.down();
    let state = reason.as_ref().map(|_| "down".to_owned());
    let subject = Subject { kind: "outbound", name: hop.name(), readings };
    (subject, Details { state, reason, ..Details::default() })
}

fn policy(stats: &PolicyStats) -> (Subject, Details) {
    let readings = vec![
        ("open", count(stats.open)),
        ("opened", Reading::per_second(stats.opened)),
        ("denied", Reading::per_second(stats.denied)),
        ("rate_out", Reading::megabits(stats.bytes[0])),
        ("rate_back", Reading::megabits(stats.bytes[1])),
    ];
    (Subject { kind: "policy", name: stats.policy.clone(), readings }, Details::default())
}

fn tunnel(name: &str, counters: &TunnelCounters) -> (Subject, Details) {
    let all = &counters.all;
    let readings = vec![
        ("rate_out", Reading::megabits(all.sent)),
        ("rate_in", Reading::megabits(all.received)),
        ("queue", Reading::mean_millis(all.delay.sum_micros, all.delay.samples)),
        ("open", count(all.open)),
        ("active", count(all.active)),
        ("links", count(all.links)),
        ("tokens_left", megabytes(all.tokens_left)),
        ("held", megabytes(all.held)),
    ];
    let reason = counters.down.clone();
    let state = reason.as_ref().map(|_| "down".to_owned());
    let denied = counters.denied_last.as_ref();
    let denied = denied.map(|last| format!("{} streams, the last to {last}", counters.denied));
    let mut facts = vec![("peer", counters.peer.clone())];
    facts.extend(denied.map(|text| ("denied by the far end", text)));
    let subject = Subject { kind: "tunnel", name: name.to_owned(), readings };
    (subject, Details { state, reason, facts })
}

fn link(name: String, stats: &LinkStats) -> (Subject, Details) {
    let millis = |time: Option<std::time::Duration>| {
        Reading::Gauge(time.map(|time| time.as_secs_f64() * 1e3))
    };
    let readings = vec![
        ("rtt", millis(stats.rtt)),
        ("rtt_min", millis(stats.shortest_rtt)),
        ("rate_out", Reading::megabits(stats.sent)),
        ("rate_in", Reading::megabits(stats.received)),
        ("open", count(stats.open)),
    ];
    let state = (!stats.up).then(|| "not up".to_owned());
    (Subject { kind: "link", name, readings }, Details { state, ..Details::default() })
}

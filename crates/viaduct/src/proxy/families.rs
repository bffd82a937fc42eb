//! Which metrics a proxy has: one line each.

use super::snapshot::ProxyStatus;
use super::stats::{CONNECT_BOUNDS, ProxyStats};
use crate::metrics::{Exposition, Kind, Labels};

type Counter = (&'static str, &'static str, fn(&ProxyStats) -> u64);

const COUNTERS: &[Counter] = &[
    ("viaduct_proxy_accepted_total", "Clients' connections that were accepted.", |c| c.accepted),
    ("viaduct_proxy_opened_total", "Flows whose both ends were there.", |c| c.opened),
    ("viaduct_proxy_finished_total", "Flows that ended as their ends wanted.", |c| c.finished),
    ("viaduct_proxy_reset_total", "Flows that ended by a reset.", |c| c.reset),
    ("viaduct_proxy_idle_total", "Flows that were ended as idle.", |c| c.idle),
    ("viaduct_proxy_early_started_total", "SYNs that started a connection.", |c| c.early.started),
    ("viaduct_proxy_early_matched_total", "Of them, taken over by a client.", |c| c.early.matched),
    ("viaduct_proxy_early_expired_total", "Of them, given up: no client came.", |c| {
        c.early.expired
    }),
    ("viaduct_proxy_early_refused_total", "Of them, whose server said no before.", |c| {
        c.early.refused
    }),
    ("viaduct_proxy_early_bounded_total", "SYNs that found the table full.", |c| c.early.bounded),
];

const GAUGES: &[Counter] = &[
    ("viaduct_proxy_open_flows", "Flows that are open.", |c| c.open),
    ("viaduct_proxy_early_waiting", "Early connections that wait for their client.", |c| c.waiting),
];

/// All of them, as Prometheus reads them.
pub fn encode(status: &ProxyStatus) -> String {
    let (mut page, counters) = (Exposition::default(), &status.counters);
    let own: Labels<'_> = &[("proxy", &status.proxy)];
    for (kind, families) in [(Kind::Counter, COUNTERS), (Kind::Gauge, GAUGES)] {
        for (name, help, value) in families {
            page.family(name, kind, help);
            page.sample(own, value(counters));
        }
    }
    bytes_and_refusals(&mut page, own, counters);
    connects(&mut page, own, counters);
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
        page.sample(&[own, &[("why", why)]].concat(), count);
    }
}

fn connects(page: &mut Exposition, own: Labels<'_>, counters: &ProxyStats) {
    let bounds: Vec<f64> = CONNECT_BOUNDS.iter().map(|&micros| micros as f64 / 1e6).collect();
    let help = "Time until the next hop, or the server, answered.";
    page.family("viaduct_proxy_connect_seconds", Kind::Histogram, help);
    for hop in &counters.hops {
        let name = hop.name();
        let labels = [own, &[("hop", &name)]].concat();
        page.histogram(&labels, &bounds, &hop.connected, hop.micros as f64 / 1e6);
    }
    let help = "Connections onwards that did not come about.";
    page.family("viaduct_proxy_connect_failed_total", Kind::Counter, help);
    for hop in &counters.hops {
        page.sample(&[own, &[("hop", &hop.name())]].concat(), hop.failed);
    }
}

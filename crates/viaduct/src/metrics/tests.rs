//! The dashboard and the alerts in `dist/` use only metrics and labels that are exported.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use viaduct_proto::health::State;
use viaduct_proto::overlay::{NodeEntry, PathQuality, Policy, Stats, Table};
use viaduct_proto::placement::status::{AutoHop, AutoStatus};
use viaduct_proto::repair::SliceCount;
use viaduct_proto::repair::stats::PeerStats;
use viaduct_proto::tunnel::stats::LinkStats;

use super::{Page, PageCache};
use crate::access_log::AccessLogStats;
use crate::engine::next_hops::HopStatus;
use crate::engine::outbound::OutboundSpec;
use crate::engine::snapshot::ProxyStatus;
use crate::gateway::status::{PeerStatus, Status};
use crate::hop_agent::status::AgentStatus;
use crate::serve::status::{ServeStatus, TricklesStatus};
use crate::spray::status::{ReplicaStatus, SprayStatus};
use crate::tunnel::stats::TunnelCounters;
use crate::{engine, gateway, hop_agent, overlay, spray};

const RULES: &str = include_str!("../../../../dist/prometheus/viaduct.rules.yml");
const DASHBOARD: &str = include_str!("../../../../dist/grafana/viaduct.json");
/// Functions and operators that expressions may use.
const PROMQL: [&str; 10] = [
    "and",
    "histogram_quantile",
    "increase",
    "label_values",
    "or",
    "rate",
    "sum",
    "unless",
    "by",
    "on",
];

/// Names of metrics, each with its labels.
type Metrics = BTreeMap<String, BTreeSet<String>>;

fn gateway_page() -> String {
    let slices = Some(SliceCount::default());
    let peer = PeerStatus { name: "b".to_owned(), slices, ..PeerStatus::default() };
    let mut status = Status {
        kept_below: vec![Some(1_400)],
        max_overhead: vec![Some(0.3)],
        peers: vec![peer],
        ..Status::default()
    };
    status.counters.peers = vec![("b".to_owned(), PeerStats::default())];
    gateway::metrics::encode(&status)
}

fn proxy_page() -> String {
    let mut status = ProxyStatus::default();
    let link = LinkStats { rtt: Some(Duration::ZERO), ..LinkStats::default() };
    let tunnel =
        TunnelCounters { name: "asia".to_owned(), links: vec![link], ..TunnelCounters::default() };
    status.counters.tunnels = vec![tunnel];
    status.counters.strangers_dropped = Some(0);
    let hop = OutboundSpec::Hop(([10, 0, 0, 1], 7_000).into());
    status.counters.hop(&hop).failed(viaduct_proto::time::Instant::ZERO, "refused");
    status.access_log = Some(AccessLogStats::default());
    status.next_hops = vec![HopStatus::of(([10, 0, 0, 1], 7_000).into(), true)];
    let at = ([10, 0, 0, 1], 7_000).into();
    let hop = AutoHop { name: "b".to_owned(), at, rtt_ms: None, load: 0.0 };
    status.auto = Some(AutoStatus { hops: vec![hop], ..AutoStatus::default() });
    engine::metrics::encode(&status)
}

fn server_page() -> String {
    let refused = vec![("stale".to_owned(), 0)];
    let trickles = Some(TricklesStatus { refused, ..TricklesStatus::default() });
    ServeStatus { trickles, ..ServeStatus::default() }.exposition()
}

fn overlay_page() -> String {
    let node = NodeEntry {
        name: "b".to_owned(),
        socks: None,
        hop: None,
        serves: Vec::new(),
        path: PathQuality { up: Some(true), rtt_ms: 1.0, loss: 0.0 },
        others: Vec::new(),
        routes: Vec::new(),
    };
    overlay::metrics::encode(&Table {
        overlay: "a".to_owned(),
        policy: Policy::Latency,
        version: 0,
        serves: Vec::new(),
        nodes: vec![node],
        states: vec![State::Up],
        stats: Stats::default(),
    })
}

fn spray_page() -> String {
    let replicas = vec![ReplicaStatus::default()];
    spray::metrics::encode(&SprayStatus { replicas, ..SprayStatus::default() })
}

/// All metrics that the services export. `up` is Prometheus' own.
fn exported() -> Metrics {
    let mut metrics = Metrics::from([("up".to_owned(), BTreeSet::new())]);
    let pages = [
        gateway_page(),
        proxy_page(),
        server_page(),
        overlay_page(),
        spray_page(),
        hop_agent::metrics::encode(&AgentStatus::default()),
        super::process::encode(),
    ];
    for page in &pages {
        for line in page.lines().filter(|line| !line.starts_with('#')) {
            let series = line.rsplit_once(' ').unwrap().0;
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let pairs = labels.strip_suffix('}').unwrap().split(',');
            let names = pairs.filter_map(|pair| Some(pair.split_once('=')?.0.to_owned()));
            metrics.entry(name.to_owned()).or_default().extend(names);
        }
        let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        for family in families.filter_map(|line| line.split_once(' ')) {
            let (name, kind) = family;
            let name = if kind == "histogram" { name.to_owned() + "_count" } else { name.into() };
            assert!(metrics.contains_key(&name), "{name} has no sample in these statuses");
        }
    }
    metrics
}

/// Words and punctuation of an expression; strings are left out.
fn tokens(expr: &str) -> Vec<String> {
    let (mut tokens, mut rest) = (Vec::new(), expr);
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_alphanumeric() || "_:$.".contains(c);
        let length = match first {
            '"' => 2 + rest[1..].find('"').expect("a string ends"),
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        if first != '"' && !first.is_whitespace() {
            tokens.push(token.to_owned());
        }
    }
    tokens
}

/// Checks the metrics and labels of an expression. Returns the labels that its result may have.
fn check(expr: &str, metrics: &Metrics) -> Result<BTreeSet<String>, String> {
    let tokens = tokens(expr);
    let mut all: BTreeSet<String> = ["job", "instance"].map(str::to_owned).into();
    let named = tokens.iter().filter_map(|token| metrics.get(token));
    all.extend(named.flatten().cloned());
    let (mut labels, mut within) = (None, "");
    for (at, token) in tokens.iter().enumerate() {
        let next = tokens.get(at + 1).map_or("", String::as_str);
        let is_name = token.starts_with(|c: char| c.is_alphabetic() || c == '_');
        match (token.as_str(), within) {
            ("{", _) => within = "{",
            ("(", _) if at > 0 && matches!(tokens[at - 1].as_str(), "by" | "on") => {
                within = "(";
            }
            ("}", "{") | (")", "(") => within = "",
            (label, "{") if is_name => {
                let known: &BTreeSet<String> = labels.ok_or("labels of nothing")?;
                if !known.contains(label) && !matches!(label, "job" | "instance") {
                    return Err(format!("no label {label}: {expr}"));
                }
            }
            (label, "(") if is_name && !all.contains(label) => {
                return Err(format!("no label {label}: {expr}"));
            }
            (name, "") if is_name && !PROMQL.contains(&name) => {
                // The second argument of label_values is a label.
                let is_label = tokens[0] == "label_values" && next == ")" && all.contains(name);
                match metrics.get(name) {
                    Some(known) => labels = Some(known),
                    None if is_label => {}
                    None => return Err(format!("no metric {name}: {expr}")),
                }
            }
            _ => {}
        }
    }
    Ok(all)
}

/// Names that follow `before`, each up to the first character that no name has.
fn names_after<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    let parts = text.split(before).skip(1);
    parts
        .map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap())
        .collect()
}

#[test]
fn a_wrong_metric_or_label_is_found() {
    let metrics = exported();
    let wrong = [
        ("rate(viaduct_sent_packet_total[5m])", "no metric viaduct_sent_packet_total"),
        ("sent_packets_total > 1", "no metric sent_packets_total"),
        ("viaduct_session_up{proxy=\"a\"} == 0", "no label proxy"),
        ("sum by (hop) (viaduct_session_up)", "no label hop"),
        ("rate(viaduct_recovery_latency_seconds[5m])", "no metric viaduct_recovery_latency"),
    ];
    for (expr, error) in wrong {
        assert!(check(expr, &metrics).unwrap_err().contains(error), "{expr}");
    }
    let right =
        "sum by (le, peer) (rate(viaduct_recovery_latency_seconds_bucket{peer=~\"$p\"}[5m]))";
    assert!(check(right, &metrics).unwrap().contains("peer"));
    let of_agents = check("rate(viaduct_agent_failures_total[5m])", &metrics).unwrap();
    assert!(of_agents.contains("agent"), "{of_agents:?}");
}

#[test]
fn the_alerts_use_metrics_and_labels_that_exist() {
    let metrics = exported();
    let alerts: Vec<&str> = RULES.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 20, "{}", alerts.len());
    for alert in alerts {
        let expr = alert.split_once("expr: ").unwrap().1;
        let expr = match expr.strip_prefix(">-\n") {
            Some(folded) => folded.split_once("\n        for:").unwrap().0,
            None => expr.lines().next().unwrap(),
        };
        let labels = check(expr, &metrics).unwrap();
        for label in names_after(alert, "$labels.") {
            assert!(labels.contains(label), "no label {label}: {alert}");
        }
        assert!(["critical", "warning"].contains(&names_after(alert, "severity: ")[0]), "{alert}");
        assert!(alert.contains("summary: ") && alert.contains("description: "), "{alert}");
    }
}

#[test]
fn the_dashboard_uses_metrics_labels_and_variables_that_exist() {
    let metrics = exported();
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let list = |value: &Value| value.as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let variables = list(&dashboard["templating"]["list"]);
    assert_eq!(
        (&variables[0]["name"], &variables[0]["type"]),
        (&"datasource".into(), &"datasource".into())
    );
    let mut known: BTreeSet<_> = variables.iter().map(|variable| text(&variable["name"])).collect();
    known.insert("__rate_interval".to_owned());
    for variable in &variables[1..] {
        check(&text(&variable["query"]["query"]), &metrics).unwrap();
    }
    let (mut ids, mut plots) = (BTreeSet::new(), 0);
    for panel in list(&dashboard["panels"]) {
        assert!(ids.insert(panel["id"].as_u64().unwrap()), "two panels with one id: {panel}");
        let (x, wide) = (&panel["gridPos"]["x"], &panel["gridPos"]["w"]);
        assert!(x.as_u64().unwrap() + wide.as_u64().unwrap() <= 24, "{panel}");
        if panel["type"] == "row" {
            continue;
        }
        plots += 1;
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
        assert!(!text(&panel["title"]).is_empty() && !text(&panel["description"]).is_empty());
        let targets = list(&panel["targets"]);
        assert!(!targets.is_empty(), "{panel}");
        let refs: BTreeSet<_> = targets.iter().map(|target| text(&target["refId"])).collect();
        assert_eq!(refs.len(), targets.len(), "{panel}");
        for target in targets {
            let (expr, legend) = (text(&target["expr"]), text(&target["legendFormat"]));
            let labels = check(&expr, &metrics).unwrap();
            for label in names_after(&legend, "{{") {
                assert!(labels.contains(label), "no label {label}: {target}");
            }
            for variable in names_after(&expr, "$") {
                assert!(known.contains(variable), "no variable {variable}: {target}");
            }
        }
    }
    assert!(plots > 30, "{plots}");
}

#[tokio::test]
async fn a_page_that_takes_long_is_used_again_for_a_while() {
    let (mut pages, renders) = (PageCache::default(), Cell::new(0));
    let render = async || {
        renders.set(renders.get() + 1);
        thread::sleep(Duration::from_millis(50));
        Page { counters: renders.get().to_string(), trouble: None }
    };
    for _ in 0..100 {
        assert_eq!(pages.get(render()).await.counters, "1");
    }
    while pages.get(render()).await.counters == "1" {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(renders.get(), 2);
}

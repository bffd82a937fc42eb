use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use viaduct_proto::repair::stats::PeerStats;

use super::super::status::Status;
use super::{encode, page};
use crate::metrics::Metrics;

fn status() -> Status {
    let mut stats = PeerStats { up: true, ..PeerStats::default() };
    stats.sender.packets = 1_000;
    stats.receiver.recovered = 12;
    stats.receiver.link.covered = 1_000;
    stats.receiver.link.lost = 20;
    stats.receiver.link.bursts[0] = 10;
    stats.receiver.link.bursts[11] = 1;
    stats.receiver.record_latency(Duration::from_millis(3));
    stats.receiver.record_latency(Duration::from_secs(9));
    let mut status = Status { kept_below: vec![Some(1_400), None], ..Status::default() };
    status.counters.peers = vec![("b".to_owned(), stats), ("c".to_owned(), PeerStats::default())];
    status
}

/// Sample: its name, its labels as written, its value.
type Sample = (String, String, f64);

/// Parses the text format, and panics on any deviation from its specification.
fn parse(text: &str) -> BTreeMap<String, (String, Vec<Sample>)> {
    let mut families: BTreeMap<String, (String, Vec<Sample>)> = BTreeMap::new();
    let (mut helped, mut current) = (None, None);
    let mut series = HashSet::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, words) = help.split_once(' ').unwrap();
            assert!(!words.is_empty());
            helped = Some(name.to_owned());
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(helped.as_deref(), Some(name), "HELP must come before TYPE");
            assert!(matches!(kind, "counter" | "gauge" | "histogram"), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            let twice = families.insert(name.to_owned(), (kind.to_owned(), vec![]));
            assert!(twice.is_none(), "the samples of {name} must be together");
            current = Some(name.to_owned());
        } else {
            let (key, value) = line.rsplit_once(' ').unwrap();
            assert!(series.insert(key.to_owned()), "{key} twice");
            let (name, labels) = key.split_once('{').unwrap_or((key, "}"));
            let labels = labels.strip_suffix('}').unwrap();
            check_labels(labels);
            let family = current.as_deref().unwrap();
            let (kind, samples) = families.get_mut(family).unwrap();
            let suffix = name.strip_prefix(family).unwrap();
            let fits = match kind.as_str() {
                "histogram" => matches!(suffix, "_bucket" | "_sum" | "_count"),
                _ => suffix.is_empty(),
            };
            assert!(fits && is_name(name), "{line}");
            samples.push((name.to_owned(), labels.to_owned(), value.parse().unwrap()));
        }
    }
    families
}

fn is_name(name: &str) -> bool {
    !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn check_labels(labels: &str) {
    for pair in labels.split(',').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap();
        let value = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')).unwrap();
        assert!(is_name(name) && !value.contains(['"', '\\']), "{pair}");
    }
}

fn value(families: &BTreeMap<String, (String, Vec<Sample>)>, series: &str) -> f64 {
    let samples = families.values().flat_map(|(_, samples)| samples);
    let named = |(name, labels, _): &&Sample| format!("{name}{{{labels}}}") == series;
    samples.into_iter().find(named).unwrap_or_else(|| panic!("no {series}")).2
}

#[test]
fn the_page_is_what_prometheus_reads() {
    let families = parse(&encode(&status()));
    for (name, value_of) in [
        ("viaduct_sent_packets_total{peer=\"b\"}", 1_000.0),
        ("viaduct_recovered_packets_total{peer=\"b\"}", 12.0),
        ("viaduct_session_up{peer=\"b\"}", 1.0),
        ("viaduct_session_up{peer=\"c\"}", 0.0),
        ("viaduct_link_loss_ratio{peer=\"b\",direction=\"in\"}", 0.02),
        ("viaduct_kept_below_bytes{peer=\"b\"}", 1_400.0),
        ("viaduct_loss_burst_length_bucket{peer=\"b\",direction=\"in\",le=\"1024\"}", 10.0),
        ("viaduct_loss_burst_length_bucket{peer=\"b\",direction=\"in\",le=\"+Inf\"}", 11.0),
        ("viaduct_recovery_latency_seconds_bucket{peer=\"b\",le=\"0.002\"}", 0.0),
        ("viaduct_recovery_latency_seconds_bucket{peer=\"b\",le=\"0.005\"}", 1.0),
        ("viaduct_recovery_latency_seconds_count{peer=\"b\"}", 2.0),
    ] {
        assert_eq!(value(&families, name), value_of, "{name}");
    }
    assert!(families.keys().all(|name| name.starts_with("viaduct_")));
}

#[test]
fn buckets_never_fall_and_end_in_the_count() {
    for (kind, samples) in parse(&encode(&status())).values() {
        if kind != "histogram" {
            continue;
        }
        let mut last = 0.0;
        for (name, labels, value) in samples {
            if name.ends_with("_bucket") {
                assert!(*value >= last, "{name}{{{labels}}}");
                last = if labels.contains("+Inf") { 0.0 } else { *value };
            }
            if name.ends_with("_count") {
                let infinite = format!("{labels},le=\"+Inf\"");
                let total = samples.iter().find(|(_, l, _)| *l == infinite).unwrap().2;
                assert_eq!(total, *value);
            }
        }
    }
}

/// Sends `request` to a server with `status`, and returns the complete response.
async fn ask(request: &[u8], status: Status) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (server, _) = listener.accept().await.unwrap();
    Metrics::default().answer(server, page(&status));
    // The server may close before it has read a rejected request.
    let _ = client.write_all(request).await;
    let mut response = Vec::new();
    let _ = client.read_to_end(&mut response).await;
    String::from_utf8(response).unwrap()
}

#[tokio::test]
async fn requests_are_answered_by_path() {
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").into_bytes();
    let page = ask(&get("/metrics"), status()).await;
    let (head, body) = page.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("version=0.0.4"), "{head}");
    assert!(!parse(body).is_empty());
    assert!(ask(&get("/healthz"), status()).await.starts_with("HTTP/1.1 200 "));
    let hung = || Status { age: 3.0, ..status() };
    assert!(ask(&get("/healthz"), hung()).await.starts_with("HTTP/1.1 503 "));
    assert!(ask(&get("/metrics"), hung()).await.contains("\nviaduct_trouble 1\n"));
    assert!(ask(&get("/"), status()).await.starts_with("HTTP/1.1 404 "));
    let post = b"POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
    assert!(ask(post, status()).await.starts_with("HTTP/1.1 405 "));
}

#[tokio::test]
async fn long_requests_are_refused() {
    let long = format!("GET /metrics HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(100_000));
    let answer = ask(long.as_bytes(), status()).await;
    assert!(!answer.contains(" 200 "), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_disconnected() {
    assert!(!ask(b"GET /metr", status()).await.contains(" 200 "));
}

//! Subjects of a gateway: itself, its peers, and the flows of split mode.

use viaduct_proto::history::{Reading, Subject};
use viaduct_proto::repair::stats::{LATENCY_BOUNDS, LossReport, PeerStats};

use super::{Details, Readings, Sample, gauge, megabytes, proxy};
use crate::gateway::status::{LinkStatus, PeerStatus, Status};
use crate::status::numbers;

/// Series of each code of `viaduct_proto::repair::shadow::TRIED`.
const WOULD: [&str; 4] = ["would_auto", "would_layered", "would_reed_solomon", "would_window"];

/// Sample of a gateway.
pub(super) fn sample(status: &Status) -> Sample {
    let mut troubles = status.all_troubles();
    let mut subjects = vec![site(status)];
    subjects.extend(status.peers.iter().map(peer));
    if let Some(split) = &status.split {
        subjects.extend(proxy::subjects(split));
        troubles.extend(proxy::troubles(split));
    }
    Sample {
        kind: "gateway",
        title: format!("gateway {}", status.site),
        // Rates are computed with the time of the counters, which are older than the answer.
        clock: Some(status.uptime - status.age),
        troubles,
        subjects,
    }
}

fn site(status: &Status) -> (Subject, Details) {
    let (shell, counters) = (&status.counters.shell, &status.counters);
    let missed = shell.tap_drops_out + shell.tap_late_out + shell.tap_drops_in;
    let held = counters.memory + 2 * status.tap_memory;
    let readings = vec![
        ("memory", megabytes(held as u64)),
        ("missed", Reading::per_second(missed)),
        ("injected", Reading::per_second(shell.injected)),
        ("unsent", Reading::per_second(shell.send_failed)),
        ("wan_drops", Reading::per_second(shell.wan_drops)),
    ];
    let facts = vec![
        ("version", status.version.clone()),
        ("wan", format!("{} (MTU {})", status.wan, status.wan_mtu)),
        ("memory limit", format!("{} MB", status.memory_limit / 1_000_000)),
    ];
    let subject = Subject { kind: "site", name: status.site.clone(), readings };
    (subject, Details { facts, ..Details::default() })
}

fn peer(peer: &PeerStatus) -> (Subject, Details) {
    let stats = &peer.counters;
    // Losses are counted a second after they occurred, but this gateway's recoveries immediately.
    let mut readings = loss("in", &stats.receiver.link, stats.receiver.recovered);
    readings.extend(loss("out", &stats.reported, stats.reported.recovered));
    readings.extend(causes(stats, peer.link.as_ref()));
    readings.extend(traffic(stats));
    readings.extend(delays(stats));
    readings.extend(code(peer.link.as_ref()));
    let mut facts = vec![("code", peer.code.clone())];
    let optional = [
        ("code of the peer", peer.peer_code.clone()),
        ("endpoint", peer.endpoint.clone()),
        ("transport", transport(peer)),
        ("version of the peer", peer.version.clone()),
        ("last handshake", peer.last_handshake.map(|age| format!("{age:.0} s ago"))),
        ("longest packet", peer.kept_below.map(|length| format!("{length} bytes"))),
        ("regime", peer.link.as_ref().map(|link| link.regime.clone())),
    ];
    facts.extend(optional.into_iter().filter_map(|(label, text)| Some((label, text?))));
    let trials = peer.link.iter().flat_map(|link| &link.trials);
    facts.extend(trials.map(|trial| ("would have", numbers::trial(trial))));
    let state = (peer.state != "up").then(|| peer.state.clone());
    let subject = Subject { kind: "peer", name: peer.name.clone(), readings };
    (subject, Details { state, reason: peer.reason.clone(), facts })
}

/// Transport of datagrams to the peer, with the reason. `None` if the gateway does not report it.
fn transport(peer: &PeerStatus) -> Option<String> {
    let transport = match &peer.transport[..] {
        "" => return None,
        "udp" => "UDP",
        "fake-tcp" => "fake TCP",
        "tls" => "none; split connections by TLS",
        other => other,
    };
    Some(format!("{transport}: {}", peer.transport_reason))
}

/// Loss of a direction.
fn loss(direction: &str, link: &LossReport, recovered: u64) -> Readings {
    let [lost, residual, recoveries] = match direction {
        "in" => ["lost_in", "residual_in", "recovered_in"],
        _ => ["lost_out", "residual_out", "recovered_out"],
    };
    let left = Reading::Share {
        part: link.lost,
        except: link.recovered,
        whole: link.covered,
        scale: 100.0,
    };
    vec![
        (lost, Reading::percent(link.lost, link.covered)),
        (residual, left),
        (recoveries, Reading::per_second(recovered)),
    ]
}

/// Causes of the losses, as the gateways tell them apart.
fn causes(stats: &PeerStats, link: Option<&LinkStatus>) -> Readings {
    let (congested, seen) = (stats.receiver.congested, &stats.receiver.link);
    let random = |link: &LossReport, congested: u64| Reading::Share {
        part: link.lost,
        except: congested,
        whole: link.covered,
        scale: 100.0,
    };
    let [random_out, congestion_out] = match link {
        Some(link) => [
            random(&stats.reported, link.congested),
            Reading::percent(link.congested, link.packets),
        ],
        None => [Reading::Gauge(None), Reading::Gauge(None)],
    };
    vec![
        ("random_in", random(seen, congested)),
        ("congestion_in", Reading::percent(congested, seen.covered)),
        ("random_out", random_out),
        ("congestion_out", congestion_out),
    ]
}

fn traffic(stats: &PeerStats) -> Readings {
    vec![
        ("rate_out", Reading::megabits(stats.sender.bytes)),
        ("rate_in", Reading::megabits(stats.receiver.bytes)),
        ("rate_repairs", Reading::megabits(stats.sender.repair_bytes)),
        ("overhead", Reading::percent(stats.sender.repair_bytes, stats.sender.bytes)),
    ]
}

fn delays(stats: &PeerStats) -> Readings {
    let receiver = &stats.receiver;
    let p99 = Reading::Quantile {
        counts: receiver.latency.into(),
        bounds: &LATENCY_BOUNDS,
        q: 0.99,
        scale: 1e-3,
    };
    let mean = Reading::mean_millis(receiver.latency_sum, receiver.latency.iter().sum());
    vec![("delay_mean", mean), ("delay_p99", p99)]
}

/// State of a code that adapts or observes.
fn code(link: Option<&LinkStatus>) -> Readings {
    let state = |value: fn(&LinkStatus) -> Option<f64>| Reading::Gauge(link.and_then(value));
    let mut readings = vec![
        ("chosen", state(|link| Some(100.0 * link.overhead))),
        ("rtt", state(|link| link.rtt_ms)),
        ("wait", state(|link| Some(link.wait_ms))),
    ];
    let trials = link.map_or(&[][..], |link| &link.trials);
    for (n, series) in WOULD.into_iter().enumerate() {
        // Without a loss there is nothing to recover.
        let trial = trials.get(n).filter(|trial| trial.lost > 0);
        let share = trial.map(|trial| 100.0 * trial.recovered);
        readings.push((series, share.map_or(Reading::Gauge(None), gauge)));
    }
    readings
}

#[cfg(test)]
mod tests {
    use viaduct_proto::repair::shadow::TRIED;

    use super::*;

    #[test]
    fn the_transport_of_a_peer_is_a_fact_with_its_reason() {
        let texts = [
            ("udp", "as configured", "UDP: as configured"),
            ("fake-tcp", "UDP is throttled", "fake TCP: UDP is throttled"),
            ("tls", "as configured", "none; split connections by TLS: as configured"),
        ];
        for (transport, why, text) in texts {
            let status = PeerStatus {
                transport: transport.to_owned(),
                transport_reason: why.to_owned(),
                ..PeerStatus::default()
            };
            let (_, details) = peer(&status);
            assert!(details.facts.contains(&("transport", text.to_owned())), "{details:?}");
        }
        let (_, unreported) = peer(&PeerStatus::default());
        assert!(unreported.facts.iter().all(|(label, _)| *label != "transport"));
    }

    #[test]
    fn random_losses_exclude_drops_of_full_queues_in_both_directions() {
        let report = |lost| LossReport { covered: 1_000, lost, ..LossReport::default() };
        let mut stats = PeerStats { reported: report(50), ..PeerStats::default() };
        (stats.receiver.link, stats.receiver.congested) = (report(30), 10);
        let link = LinkStatus { congested: 20, packets: 1_100, ..LinkStatus::default() };
        let share = |part, except| Reading::Share { part, except, whole: 1_000, scale: 100.0 };
        let found = causes(&stats, Some(&link));
        assert!(found.contains(&("random_in", share(30, 10))), "{found:?}");
        assert!(found.contains(&("random_out", share(50, 20))), "{found:?}");
        let unreported = causes(&stats, None);
        assert!(unreported.contains(&("random_out", Reading::Gauge(None))), "{unreported:?}");
    }

    #[test]
    fn each_code_that_is_tried_has_its_series() {
        let named: Vec<_> = TRIED.iter().map(|code| code.replace('-', "_")).collect();
        let series: Vec<_> = WOULD.iter().map(|name| &name["would_".len()..]).collect();
        assert_eq!(named, series);
    }
}

//! Metrics of a gateway: the name, the help and the value of each.

use viaduct_proto::repair::stats::{LATENCY_BOUNDS, LOSS_BUCKETS, LossReport, PeerStats};

use super::status::{PathStatus, Status};
use crate::metrics::{Exposition, Kind, Labels, Page};

type PeerCounter = (&'static str, &'static str, fn(&PeerStats) -> u64);
/// Writes the samples of one direction of one peer's link.
type Emit<'a> = dyn Fn(&mut Exposition, Labels<'_>, &LossReport) + 'a;
type SiteCounter = (&'static str, &'static str, fn(&Status) -> u64);

const PEER_COUNTERS: &[PeerCounter] = &[
    ("viaduct_sent_packets_total", "Data packets on their way to the peer's site.", |p| {
        p.sender.packets
    }),
    (
        "viaduct_sent_bytes_total",
        "Bytes of data packets seen on their way to the peer's site.",
        |p| p.sender.bytes,
    ),
    ("viaduct_protected_packets_total", "Packets that were encoded.", |p| p.sender.protected),
    (
        "viaduct_unprotected_packets_total",
        "Packets not encoded: no session, too long, or missed by the tap.",
        |p| p.sender.unprotected,
    ),
    ("viaduct_repairs_sent_total", "Repairs sent.", |p| p.sender.repairs),
    (
        "viaduct_repairs_sent_bytes_total",
        "Bytes of repairs, names and copies sent, headers included.",
        |p| p.sender.repair_bytes,
    ),
    ("viaduct_repairs_flushed_total", "Repairs sent early because traffic paused.", |p| {
        p.sender.flushed
    }),
    ("viaduct_received_packets_total", "Data packets that arrived from the peer's site.", |p| {
        p.receiver.packets
    }),
    (
        "viaduct_received_bytes_total",
        "Bytes of data packets that arrived from the peer's site.",
        |p| p.receiver.bytes,
    ),
    ("viaduct_repairs_received_total", "Repairs decrypted and parsed.", |p| p.receiver.repairs),
    ("viaduct_repairs_useless_total", "Repairs of no use: most covered no missing packet.", |p| {
        p.receiver.useless
    }),
    ("viaduct_recovered_packets_total", "Packets recovered and injected.", |p| {
        p.receiver.recovered
    }),
    (
        "viaduct_unrecoverable_packets_total",
        "Lost packets not recovered in time, or recovered but withheld.",
        |p| p.receiver.unrecoverable,
    ),
    (
        "viaduct_uncovered_packets_total",
        "Packets of the peer whose names did not arrive in time: unknown whether they were lost.",
        |p| p.receiver.uncovered,
    ),
    (
        "viaduct_late_packets_total",
        "Packets counted as missing that arrived late by themselves.",
        |p| p.receiver.late,
    ),
    ("viaduct_garbled_recoveries_total", "Recoveries that failed their check.", |p| {
        p.receiver.garbled
    }),
    ("viaduct_foreign_recoveries_total", "Recoveries between addresses of other sites.", |p| {
        p.receiver.foreign
    }),
    (
        "viaduct_altered_packets_total",
        "SYNs whose MSS the path lowered, and recoveries of such SYNs, which are not injected.",
        |p| p.receiver.altered,
    ),
    (
        "viaduct_withheld_recoveries_total",
        "Recovered SYNs not injected: the path may lower their MSS.",
        |p| p.receiver.withheld,
    ),
    ("viaduct_repairs_answered_total", "Repairs sent that the peer asked for.", |p| {
        p.sender.answered
    }),
    ("viaduct_manifests_sent_total", "Datagrams sent with names only.", |p| p.sender.manifests),
    ("viaduct_copies_sent_total", "Copies of packets sent.", |p| p.sender.copies),
    ("viaduct_copies_received_total", "Copies of packets received.", |p| p.receiver.copies),
    ("viaduct_copies_useless_total", "Copies of packets that had arrived.", |p| {
        p.receiver.useless_copies
    }),
    (
        "viaduct_unrepaired_packets_total",
        "Packets left out of repairs: by class, or because their loss does not slow their sender.",
        |p| p.sender.left_alone,
    ),
    ("viaduct_unnamed_acks_total", "Acknowledgements without data, not protected.", |p| {
        p.sender.acks
    }),
    ("viaduct_asked_packets_total", "Packets that the peer was asked for.", |p| p.receiver.asked),
    ("viaduct_random_bursts_total", "Bursts of packets lost by chance.", |p| p.receiver.random),
    (
        "viaduct_congested_packets_total",
        "Packets lost by congestion: by a full queue or a rising load.",
        |p| p.receiver.congested,
    ),
    (
        "viaduct_marked_recoveries_total",
        "Packets dropped by a full queue that were recovered and injected with the ECN mark CE.",
        |p| p.receiver.marked,
    ),
    (
        "viaduct_congested_recoveries_total",
        "Packets dropped by a full queue, recovered but not injected, so that senders slow down.",
        |p| p.receiver.left_lost,
    ),
    (
        "viaduct_renewed_recoveries_total",
        "Recoveries with a new TCP timestamp: their hosts would refuse the old one.",
        |p| p.receiver.renewed,
    ),
    (
        "viaduct_malformed_repairs_total",
        "Malformed or unknown sections, and repairs that the decoder refused.",
        |p| p.receiver.malformed,
    ),
    ("viaduct_handshakes_total", "Handshakes completed, re-keying included.", |p| {
        p.session.handshakes
    }),
    ("viaduct_handshakes_limited_total", "Handshakes rejected: too many at once.", |p| {
        p.session.limited
    }),
    ("viaduct_forged_datagrams_total", "Datagrams that did not authenticate.", |p| {
        p.session.forged
    }),
    (
        "viaduct_replayed_datagrams_total",
        "Datagrams seen before, or older than the replay window.",
        |p| p.session.replayed,
    ),
    ("viaduct_unknown_datagrams_total", "Datagrams for no session of ours.", |p| p.session.unknown),
];

const SITE_COUNTERS: &[SiteCounter] = &[
    ("viaduct_tap_truncated_total", "Copies longer than the tap keeps.", |s| {
        s.counters.shell.truncated
    }),
    ("viaduct_tap_unfinished_total", "Copies whose checksum was still to be filled in.", |s| {
        s.counters.shell.unfinished
    }),
    ("viaduct_datagrams_sent_total", "Datagrams sent to peers.", |s| s.counters.shell.datagrams),
    ("viaduct_datagrams_failed_total", "Datagrams that the kernel would not take.", |s| {
        s.counters.shell.send_failed
    }),
    (
        "viaduct_datagrams_too_long_total",
        "Datagrams longer than the path's MTU, which the kernel would not take.",
        |s| s.counters.shell.send_too_long,
    ),
    ("viaduct_injected_packets_total", "Recovered packets handed to the kernel.", |s| {
        s.counters.shell.injected
    }),
    (
        "viaduct_inject_failed_packets_total",
        "Recovered packets that the kernel would not take.",
        |s| s.counters.shell.inject_failed,
    ),
    ("viaduct_stray_datagrams_total", "Datagrams that no peer can have sent.", |s| {
        s.counters.plane.stray
    }),
    (
        "viaduct_ignored_packets_total",
        "Tapped packets that were not between two configured sites.",
        |s| s.counters.plane.ignored,
    ),
    ("viaduct_wan_falls_total", "Times that the WAN interface went down.", |s| {
        s.counters.shell.wan_falls
    }),
    ("viaduct_wan_drops_total", "Packets that the WAN interface's own queue has dropped.", |s| {
        s.counters.shell.wan_drops
    }),
    ("viaduct_fake_tcp_opened_total", "Connections of fake TCP that were opened.", |s| {
        s.counters.fake_tcp.opened
    }),
    ("viaduct_fake_tcp_accepted_total", "Connections of fake TCP that were accepted.", |s| {
        s.counters.fake_tcp.accepted
    }),
    (
        "viaduct_fake_tcp_syns_total",
        "SYNs that fake TCP has received, from gateways and others.",
        |s| s.counters.fake_tcp.syns,
    ),
    ("viaduct_fake_tcp_resets_total", "Resets and FINs to fake TCP, which are ignored.", |s| {
        s.counters.fake_tcp.resets
    }),
    ("viaduct_fake_tcp_refused_total", "Malformed packets of fake TCP.", |s| {
        s.counters.fake_tcp.refused
    }),
    ("viaduct_cache_queries_total", "Queries of the packet cache.", |s| s.cache.queries),
    ("viaduct_cache_resent_packets_total", "Packets sent again from the cache.", |s| {
        s.cache.resent
    }),
];

/// Metrics and health of a gateway.
pub fn page(status: &Status) -> Page {
    let troubles = status.all_troubles();
    let split = status.split.as_ref().map(crate::engine::metrics::encode).unwrap_or_default();
    Page {
        counters: encode(status) + &split,
        trouble: (!troubles.is_empty()).then(|| troubles.join("\n")),
    }
}

/// Renders all metrics.
pub fn encode(status: &Status) -> String {
    let mut page = Exposition::default();
    for (name, help, value) in SITE_COUNTERS {
        page.family(name, Kind::Counter, help);
        page.sample(&[], value(status));
    }
    site(status, &mut page);
    for (name, help, value) in PEER_COUNTERS {
        page.family(name, Kind::Counter, help);
        for (peer, stats) in &status.counters.peers {
            page.sample(&[("peer", peer)], value(stats));
        }
    }
    sessions(status, &mut page);
    links(status, &mut page);
    latency(status, &mut page);
    page.finish()
}

/// Adds the metrics that have labels of their own, and the gauges.
fn site(status: &Status, page: &mut Exposition) {
    page.family("viaduct_build_info", Kind::Gauge, "Always 1; the version is a label.");
    page.sample(&[("version", &status.version), ("site", &status.site)], 1);
    page.family("viaduct_uptime_seconds", Kind::Gauge, "Time since the gateway started.");
    page.sample(&[], status.uptime);
    page.family("viaduct_memory_bytes", Kind::Gauge, "Memory held for packets and taps.");
    page.sample(&[], status.counters.memory + 2 * status.tap_memory);
    page.family(
        "viaduct_memory_limit_bytes",
        Kind::Gauge,
        "Limit of the memory for packets and taps.",
    );
    page.sample(&[], status.memory_limit);
    page.family(
        "viaduct_trouble",
        Kind::Gauge,
        "1 while something is wrong with the gateway or a peer.",
    );
    page.sample(&[], u8::from(!status.all_troubles().is_empty()));
    page.family(
        "viaduct_peer_trouble",
        Kind::Gauge,
        "1 while a peer is not `up`; its reason is in the status.",
    );
    for peer in &status.peers {
        page.sample(&[("peer", &peer.name)], u8::from(peer.reason.is_some()));
    }
    page.family("viaduct_workers", Kind::Gauge, "Packet threads that work.");
    page.sample(&[], status.workers - status.workers_dead);
    page.family("viaduct_lanes", Kind::Gauge, "Lanes of a peer, by their state.");
    for peer in &status.peers {
        let up = peer.lanes.saturating_sub(peer.lanes_down);
        page.sample(&[("peer", &peer.name), ("state", "up")], up);
        page.sample(&[("peer", &peer.name), ("state", "down")], peer.lanes_down);
    }
    page.family(
        "viaduct_slices",
        Kind::Gauge,
        "Slices that a peer in a rack owns. out: of its site, whose packets are encoded for this \
         peer; in: of this site, whose packets this peer encodes.",
    );
    for (peer, slices) in status.peers.iter().filter_map(|peer| Some((peer, peer.slices?))) {
        page.sample(&[("peer", &peer.name), ("direction", "out")], slices.to);
        page.sample(&[("peer", &peer.name), ("direction", "in")], slices.from);
    }
    paths(status, page);
    let shell = &status.counters.shell;
    page.family("viaduct_tap_drops_total", Kind::Counter, "Packets dropped by a full tap.");
    page.sample(&[("direction", "out")], shell.tap_drops_out);
    page.sample(&[("direction", "in")], shell.tap_drops_in);
    page.family(
        "viaduct_tap_late_total",
        Kind::Counter,
        "Outgoing packets whose copies were read too late to be protected.",
    );
    page.sample(&[], shell.tap_late_out);
    let cache = &status.cache;
    page.family("viaduct_cache_refused_total", Kind::Counter, "Queries that were not looked up.");
    page.sample(&[("reason", "stranger")], cache.strangers);
    page.sample(&[("reason", "malformed")], cache.malformed);
    page.sample(&[("reason", "limited")], cache.limited);
}

/// Adds the metrics of the paths to peers that have several.
fn paths(status: &Status, page: &mut Exposition) {
    if status.peers.iter().all(|peer| peer.paths.is_empty()) {
        return;
    }
    let mut each = |name, kind, help, emit: &dyn Fn(&mut Exposition, &str, &PathStatus)| {
        page.family(name, kind, help);
        for peer in &status.peers {
            peer.paths.iter().for_each(|path| emit(page, &peer.name, path));
        }
    };
    let (count, gauge) = (Kind::Counter, Kind::Gauge);
    let help = "1 if a path carries datagrams both ways.";
    each("viaduct_path_up", gauge, help, &|page, peer, path| {
        page.sample(&[("peer", peer), ("wan", &path.wan)], u8::from(path.up));
    });
    let help = "Round-trip time of a path.";
    each("viaduct_path_rtt_seconds", gauge, help, &|page, peer, path| {
        if let Some(rtt) = path.rtt_ms {
            page.sample(&[("peer", peer), ("wan", &path.wan)], rtt / 1e3);
        }
    });
    let help = "Packets of a path whose fate is known.";
    each("viaduct_path_packets_total", count, help, &|page, peer, path| {
        let labels = |direction| [("peer", peer), ("wan", &path.wan[..]), ("direction", direction)];
        page.sample(&labels("in"), path.received.0);
        page.sample(&labels("out"), path.reported.0);
    });
    let help = "Packets that a path has lost.";
    each("viaduct_path_lost_packets_total", count, help, &|page, peer, path| {
        let labels = |direction| [("peer", peer), ("wan", &path.wan[..]), ("direction", direction)];
        page.sample(&labels("in"), path.received.1);
        page.sample(&labels("out"), path.reported.1);
    });
}

fn sessions(status: &Status, page: &mut Exposition) {
    page.family("viaduct_session_up", Kind::Gauge, "1 if repairs can be exchanged.");
    for (peer, stats) in &status.counters.peers {
        page.sample(&[("peer", peer)], u8::from(stats.up));
    }
    let help = "max_overhead: maximum repairs per packet, where the code adapts to the losses.";
    page.family("viaduct_max_overhead_ratio", Kind::Gauge, help);
    for ((peer, _), most) in status.counters.peers.iter().zip(&status.max_overhead) {
        if let Some(most) = most {
            page.sample(&[("peer", peer)], most);
        }
    }
    page.family("viaduct_transport", Kind::Gauge, "Always 1; the transport is a label.");
    for peer in &status.peers {
        page.sample(&[("peer", &peer.name), ("transport", &peer.transport)], 1);
    }
    page.family("viaduct_kept_below_bytes", Kind::Gauge, "Route MTU, where it had to be lowered.");
    for ((peer, _), kept) in status.counters.peers.iter().zip(&status.kept_below) {
        if let Some(bytes) = kept {
            page.sample(&[("peer", peer)], bytes);
        }
    }
}

/// Adds the metrics of each peer's link: of incoming packets as seen here, and of outgoing packets
/// as reported by the peer.
fn links(status: &Status, page: &mut Exposition) {
    let mut each = |name, kind, help, emit: &Emit<'_>| {
        page.family(name, kind, help);
        for (peer, stats) in &status.counters.peers {
            emit(page, &[("peer", peer), ("direction", "in")], &stats.receiver.link);
            emit(page, &[("peer", peer), ("direction", "out")], &stats.reported);
        }
    };
    let (count, gauge) = (Kind::Counter, Kind::Gauge);
    each(
        "viaduct_link_packets_total",
        count,
        "Packets whose fate is known.",
        &|page, labels, l| {
            page.sample(labels, l.covered);
        },
    );
    each(
        "viaduct_link_lost_packets_total",
        count,
        "Packets that the link lost.",
        &|page, labels, l| {
            page.sample(labels, l.lost);
        },
    );
    each(
        "viaduct_link_recovered_packets_total",
        count,
        "Lost packets that were recovered.",
        &|page, labels, l| {
            page.sample(labels, l.recovered);
        },
    );
    each(
        "viaduct_link_loss_ratio",
        gauge,
        "Lost packets / known packets, since the start.",
        &|page, labels, l| {
            page.sample(
                labels,
                if l.covered == 0 { 0.0 } else { l.lost as f64 / l.covered as f64 },
            );
        },
    );
    let bounds: Vec<f64> = (0..LOSS_BUCKETS - 1).map(|i| f64::from(1u32 << i)).collect();
    each(
        "viaduct_loss_burst_length",
        Kind::Histogram,
        "Packets lost in a row.",
        &|page, labels, l| {
            page.histogram(labels, &bounds, &l.bursts, l.lost as f64);
        },
    );
}

fn latency(status: &Status, page: &mut Exposition) {
    let bounds: Vec<f64> = LATENCY_BOUNDS.iter().map(|&micros| micros as f64 / 1e6).collect();
    let help = "Time from the expected arrival of a randomly lost packet to its recovery.";
    page.family("viaduct_recovery_latency_seconds", Kind::Histogram, help);
    for (peer, stats) in &status.counters.peers {
        let (counts, sum) = (&stats.receiver.latency, stats.receiver.latency_sum as f64 / 1e6);
        page.histogram(&[("peer", peer)], &bounds, counts, sum);
    }
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;

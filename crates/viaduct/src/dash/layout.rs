//! Plots of each kind of subject (a peer, a policy, a tunnel, ...): titles, units, and the series
//! that each plot shows. The page draws what this table lists.

use serde::Serialize;

use super::board::event;

/// Kind of subject.
#[derive(Debug, Serialize)]
pub(super) struct Kind {
    /// Name.
    pub kind: &'static str,
    /// Title of a list of such subjects.
    title: &'static str,
    /// Series whose latest values are in the list.
    headline: &'static [&'static str],
    plots: &'static [Plot],
}

/// Plot with one unit.
#[derive(Debug, Serialize)]
pub(super) struct Plot {
    title: &'static str,
    unit: &'static str,
    /// Name and label of each series.
    pub series: &'static [(&'static str, &'static str)],
}

/// Creates a plot: title, unit, series.
const fn plot(
    title: &'static str,
    unit: &'static str,
    series: &'static [(&'static str, &'static str)],
) -> Plot {
    Plot { title, unit, series }
}

/// All kinds; the page lists them in this order.
pub(super) const KINDS: &[Kind] = &[
    Kind {
        kind: "peer",
        title: "Peers",
        headline: &["rate_out", "rate_in", "lost_in", "residual_in"],
        plots: &[
            plot(
                "Loss from the peer",
                "%",
                &[
                    ("lost_in", "lost"),
                    ("random_in", "by chance"),
                    ("congestion_in", "by full queues"),
                    ("residual_in", "left after recovery"),
                ],
            ),
            plot(
                "Loss to the peer",
                "%",
                &[
                    ("lost_out", "lost"),
                    ("random_out", "by chance"),
                    ("congestion_out", "by full queues"),
                    ("residual_out", "left after recovery"),
                ],
            ),
            plot(
                "Recovered",
                "packets/s",
                &[("recovered_in", "here"), ("recovered_out", "at the peer")],
            ),
            plot(
                "Throughput",
                "Mb/s",
                &[("rate_out", "out"), ("rate_in", "in"), ("rate_repairs", "repairs out")],
            ),
            plot(
                "Overhead",
                "%",
                &[("overhead", "repair bytes per data byte"), ("chosen", "repairs per packet")],
            ),
            plot("Recovery delay", "ms", &[("delay_mean", "mean"), ("delay_p99", "99 %")]),
            plot("Path", "ms", &[("rtt", "round trip"), ("wait", "time a flow can wait")]),
            plot(
                "Would have been recovered, since the start",
                "%",
                &[
                    ("would_auto", "auto"),
                    ("would_layered", "layered"),
                    ("would_reed_solomon", "reed-solomon"),
                    ("would_window", "window"),
                ],
            ),
        ],
    },
    Kind {
        kind: "site",
        title: "Gateway",
        headline: &["memory", "missed"],
        plots: &[
            plot("Memory of packets", "MB", &[("memory", "held")]),
            plot(
                "Packets",
                "packets/s",
                &[
                    ("missed", "missed by taps"),
                    ("injected", "injected"),
                    ("unsent", "datagrams refused by the kernel"),
                    ("wan_drops", "dropped by the WAN interface"),
                ],
            ),
        ],
    },
    Kind {
        kind: "flows",
        title: "Flows",
        headline: &["open", "opened", "rate_out", "rate_back"],
        plots: &[
            plot("Open", "flows", &[("open", "flows"), ("waiting", "early, without client")]),
            plot(
                "Flows",
                "flows/s",
                &[
                    ("opened", "opened"),
                    ("finished", "finished"),
                    ("reset", "reset"),
                    ("idle", "idle too long"),
                    ("refused", "refused"),
                ],
            ),
            plot("Throughput", "Mb/s", &[("rate_out", "to servers"), ("rate_back", "back")]),
            plot(
                "Early connections",
                "SYNs/s",
                &[
                    ("early_started", "started"),
                    ("early_matched", "matched"),
                    ("early_expired", "expired"),
                    ("early_refused", "refused"),
                ],
            ),
        ],
    },
    Kind {
        kind: "outbound",
        title: "Outbounds",
        headline: &["connected", "connect_p50", "failed"],
        plots: &[
            plot(
                "Connect time",
                "ms",
                &[("connect_mean", "mean"), ("connect_p50", "50 %"), ("connect_p99", "99 %")],
            ),
            plot("Connects", "connects/s", &[("connected", "established"), ("failed", "failed")]),
        ],
    },
    Kind {
        kind: "policy",
        title: "Policies",
        headline: &["open", "rate_out", "rate_back", "denied"],
        plots: &[
            plot("Throughput", "Mb/s", &[("rate_out", "to servers"), ("rate_back", "back")]),
            plot("Flows", "flows", &[("open", "open")]),
            plot("Flows begun", "flows/s", &[("opened", "opened"), ("denied", "denied")]),
        ],
    },
    Kind {
        kind: "tunnel",
        title: "Tunnels",
        headline: &["links", "open", "rate_out", "rate_in", "queue"],
        plots: &[
            plot("Throughput", "Mb/s", &[("rate_out", "out"), ("rate_in", "in")]),
            plot("Queueing delay", "ms", &[("queue", "mean")]),
            plot("Streams", "streams", &[("open", "open"), ("active", "with bytes in flight")]),
            plot("Links", "links", &[("links", "up")]),
            plot("Windows", "MB", &[("tokens_left", "may be sent"), ("held", "receive, in use")]),
        ],
    },
    Kind {
        kind: "link",
        title: "Links of tunnels",
        headline: &["rtt", "rate_out", "rate_in"],
        plots: &[
            plot("Round trip", "ms", &[("rtt", "smoothed"), ("rtt_min", "shortest")]),
            plot("Throughput", "Mb/s", &[("rate_out", "out"), ("rate_in", "in")]),
            plot("Streams", "streams", &[("open", "open")]),
        ],
    },
    Kind {
        kind: "tcp",
        title: "TCP",
        headline: &["requests", "open"],
        plots: &[
            plot("Requests", "requests/s", &[("requests", "requests")]),
            plot("Open", "connections", &[("open", "connections")]),
            plot(
                "Connections",
                "connections/s",
                &[
                    ("connections", "accepted"),
                    ("crowded", "over their source's limit"),
                    ("slow", "ended as too slow"),
                ],
            ),
        ],
    },
    Kind {
        kind: "trickles",
        title: "Trickles",
        headline: &["answered", "rate_out", "refused"],
        plots: &[
            plot("Requests", "requests/s", &[("answered", "answered"), ("refused", "refused")]),
            plot("Throughput", "Mb/s", &[("rate_out", "out")]),
            plot("Packets", "packets/s", &[("packets", "out"), ("messages", "in")]),
            plot(
                "Recovery",
                "events/s",
                &[
                    ("recoveries", "losses"),
                    ("timeouts", "timeouts"),
                    ("resumed", "resumed after a silence"),
                    ("moved", "from another address"),
                    ("renewed", "after a rotation of secrets"),
                ],
            ),
            plot("Connections", "connections/s", &[("opened", "opened")]),
        ],
    },
    Kind {
        kind: "node",
        title: "Nodes of the overlay",
        headline: &["rtt", "lost"],
        plots: &[
            plot("Round trip", "ms", &[("rtt", "direct path")]),
            plot("Loss of the last 100 probes", "%", &[("lost", "direct path")]),
        ],
    },
    Kind {
        kind: "hops",
        title: "Hops",
        headline: &["running", "started", "failed"],
        plots: &[
            plot("Hops", "hops", &[("running", "with a process"), ("defined", "defined")]),
            plot("Processes", "processes/s", &[("started", "started"), ("failed", "failed")]),
        ],
    },
    Kind {
        kind: "replica",
        title: "Replicas of a service",
        headline: &["packets", "rate", "share"],
        plots: &[
            plot("Packets", "packets/s", &[("packets", "from clients")]),
            plot("Throughput", "Mb/s", &[("rate", "from clients")]),
            plot("Share of the packets", "%", &[("share", "share")]),
            plot("Checks", "probes/s", &[("failures", "failed")]),
        ],
    },
];

/// Position of a kind in [`KINDS`]; unknown kinds come last.
pub(super) fn rank(kind: &str) -> usize {
    KINDS.iter().position(|of| of.kind == kind).unwrap_or(KINDS.len())
}

/// Series whose latest values the list of subjects of this kind shows.
pub(super) fn headline(kind: &str) -> &'static [&'static str] {
    KINDS.iter().find(|of| of.kind == kind).map_or(&[], |of| of.headline)
}

/// Names of all series of a kind.
#[cfg(test)]
pub(super) fn series(kind: &str) -> Vec<&'static str> {
    let kind = KINDS.iter().find(|of| of.kind == kind).expect("a kind of the layout");
    kind.plots.iter().flat_map(|plot| plot.series).map(|(name, _)| *name).collect()
}

/// Event with the layout, the first of each stream.
pub(super) fn layout_event() -> String {
    #[derive(Serialize)]
    struct Layout {
        version: &'static str,
        kinds: &'static [Kind],
    }
    // A browser that loses its connection tries again after two seconds.
    "retry: 2000\n".to_owned()
        + &event("layout", &Layout { version: env!("CARGO_PKG_VERSION"), kinds: KINDS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_headline_is_plotted_and_each_series_once() {
        for kind in KINDS {
            let mut names = series(kind.kind);
            assert!(kind.headline.iter().all(|name| names.contains(name)), "{}", kind.kind);
            let count = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), count, "{}", kind.kind);
        }
        assert!(headline("unknown").is_empty() && rank("peer") < rank("unknown"));
    }
}

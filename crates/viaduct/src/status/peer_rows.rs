//! Rows of one peer in the text page of a gateway.

use std::fmt::{self, Display, Formatter};

use viaduct_proto::repair::stats::{LATENCY_BOUNDS, PeerStats};

use super::colours::{Colours, row};
use super::numbers::{self, bytes, lengths, micros, percent, quantile, thousands};
use crate::gateway::status::{LinkStatus, PathStatus, PeerStatus, Status};

/// Maximum length of a bar of the burst histogram, in characters.
const BAR: u64 = 30;

/// State of one peer as text.
pub(super) struct PeerRows<'a> {
    name: &'a str,
    /// Encoding of packets to the peer; empty if it is not known yet.
    code: &'a str,
    /// Maximum length of packets to the peer, if it is lowered so that repairs fit.
    kept_below: Option<usize>,
    /// `None` if the gateway does not report the state.
    status: Option<&'a PeerStatus>,
    stats: &'a PeerStats,
    /// Earlier counters, and the seconds since then.
    before: Option<(&'a PeerStats, f64)>,
    colours: Colours,
}

impl<'a> PeerRows<'a> {
    /// Creates the rows of peer `at` of `status`; with rates, if an earlier status is given.
    pub(super) fn new(
        status: &'a Status,
        before: Option<&'a Status>,
        at: usize,
        colours: Colours,
    ) -> Self {
        let (name, stats) = &status.counters.peers[at];
        let before = before.and_then(|before| {
            let (_, old) = before.counters.peers.iter().find(|(of, _)| of == name)?;
            Some((old, status.uptime - before.uptime))
        });
        PeerRows {
            name,
            code: status.codes.get(at).map_or("", String::as_str),
            kept_below: status.kept_below.get(at).copied().flatten(),
            status: status.peers.get(at),
            stats,
            before,
            colours,
        }
    }
}

impl Display for PeerRows<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let name = self.colours.bold(format!("peer {}", self.name));
        writeln!(f, "\n{name}  {}  {}", self.state(), self.code)?;
        if let Some(peer) = self.status {
            self.connection(f, peer)?;
        }
        self.altered(f)?;
        self.now(f)?;
        self.sent(f)?;
        self.received(f)?;
        self.bursts(f)?;
        self.latency(f)?;
        self.refused(f)
    }
}

impl PeerRows<'_> {
    /// State of the peer, with its reason.
    fn state(&self) -> String {
        match self.status.map(|peer| (&peer.state[..], &peer.reason)) {
            Some((state, Some(reason))) => self.colours.paint(31, format!("{state}: {reason}")),
            // A peer that is reached by TLS alone is up without a session.
            Some(("up", None)) => self.colours.green("up"),
            _ if self.stats.up => self.colours.green("up"),
            _ => self.colours.paint(31, "down"),
        }
    }

    /// Prints the transport, lanes and paths of datagrams to the peer, and the state of the link.
    fn connection(&self, f: &mut Formatter<'_>, peer: &PeerStatus) -> fmt::Result {
        let PeerStatus { transport, transport_reason: why, lanes, lanes_down, .. } = peer;
        match &transport[..] {
            // Gateways of earlier versions do not report the transport.
            "" => {}
            "tls" => {
                let what = "none, repairs are off; split connections by a tunnel over TLS";
                row(f, "datagrams", format!("{what}: {why}"))?;
            }
            _ => row(f, "datagrams", format!("by {transport}: {why}"))?,
        }
        if *lanes >= 2 {
            row(f, "lanes", format!("{lanes}, down {}", self.colours.alarm(*lanes_down as u64)))?;
        }
        if let Some(slices) = peer.slices {
            row(f, "slices", format!("{} to the peer, {} from it", slices.to, slices.from))?;
        }
        for path in &peer.paths {
            row(f, "path", self.path(path))?;
        }
        if let Some(link) = &peer.link {
            print_link(f, link)?;
        }
        let Some(lowered) = peer.lowered_mss.into_iter().flatten().min() else { return Ok(()) };
        let what = format!(
            "the path lowers the MSS of SYNs to {lowered}: {} arrived this way, and are not lost",
            thousands(self.stats.receiver.altered)
        );
        row(f, "path", what)
    }

    /// State of one of several paths.
    fn path(&self, path: &PathStatus) -> String {
        let state = match path.up {
            true => self.colours.green("up"),
            false => self.colours.paint(31, "down"),
        };
        let loss = |(known, lost)| format!("{} ({})", thousands(lost), percent(lost, known));
        format!(
            "{} {state}: round trip {}; sent {}, lost {} out, {} in; repairs by {}",
            path.wan,
            round_trip(path.rtt_ms),
            thousands(path.sent),
            loss(path.reported),
            loss(path.received),
            path.repairs_by,
        )
    }

    fn altered(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let altered = match self.kept_below {
            Some(most) => format!(
                "route MTU {most} and TCP's MSS lowered, so that repairs fit; nothing else is \
                    altered"
            ),
            None => "no packet is altered".to_owned(),
        };
        row(f, "packets", altered)
    }

    /// Prints the rates since the previous page.
    fn now(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some((old, seconds)) = self.before else { return Ok(()) };
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let (out, old_out) = (&self.stats.sender, &old.sender);
        let (into, old_in) = (&self.stats.receiver, &old.receiver);
        let flow = |packets: f64, bytes: f64| {
            format!("{} packets/s {:.1} Mb/s", thousands(packets as u64), bytes * 8.0 / 1e6)
        };
        let lost = into.link.lost.saturating_sub(old_in.link.lost);
        let covered = into.link.covered.saturating_sub(old_in.link.covered);
        let what = format!(
            "out {}, repairs {:.1} Mb/s | in {}, lost {}, recovered {:.0}/s",
            flow(rate(out.packets, old_out.packets), rate(out.bytes, old_out.bytes)),
            rate(out.repair_bytes, old_out.repair_bytes) * 8.0 / 1e6,
            flow(rate(into.packets, old_in.packets), rate(into.bytes, old_in.bytes)),
            percent(lost, covered),
            rate(into.recovered, old_in.recovered),
        );
        row(f, "now", self.colours.bold(what))
    }

    fn sent(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let sent = &self.stats.sender;
        let what = format!(
            "{} packets, {}; protected {} ({}), unprotected {}",
            thousands(sent.packets),
            bytes(sent.bytes),
            thousands(sent.protected),
            percent(sent.protected, sent.packets),
            self.colours.alarm(sent.unprotected),
        );
        row(f, "sent", what)?;
        let what = format!(
            "{}, {}; overhead {}; {} fired early by the idle timer",
            thousands(sent.repairs),
            bytes(sent.repair_bytes),
            percent(sent.repair_bytes, sent.bytes),
            thousands(sent.flushed),
        );
        row(f, "repairs", what)?;
        let reported = &self.stats.reported;
        let what = format!(
            "lost {} ({}), recovered {}, as reported by the peer",
            thousands(reported.lost),
            percent(reported.lost, reported.covered),
            thousands(reported.recovered),
        );
        row(f, "link out", what)
    }

    fn received(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let got = &self.stats.receiver;
        let what = format!(
            "{} packets, {}; repairs {}, useless {}",
            thousands(got.packets),
            bytes(got.bytes),
            thousands(got.repairs),
            percent(got.useless, got.repairs),
        );
        row(f, "received", what)?;
        let what = format!(
            "lost {} ({}), recovered {}, unrecoverable {}, uncovered {}, late {}",
            thousands(got.link.lost),
            percent(got.link.lost, got.link.covered),
            self.colours.green(thousands(got.link.recovered)),
            self.colours.alarm(got.unrecoverable),
            thousands(got.uncovered),
            thousands(got.late),
        );
        row(f, "link in", what)
    }

    fn bursts(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bursts = &self.stats.receiver.link.bursts;
        let most = bursts.iter().copied().max().unwrap_or(0);
        let Some(last) = bursts.iter().rposition(|&count| count > 0) else { return Ok(()) };
        for (bucket, &count) in bursts[..=last].iter().enumerate() {
            // The length is rounded up, so that every count above zero gets a visible bar.
            let bar = "▇".repeat((count * BAR).div_ceil(most) as usize);
            let name = if bucket == 0 { "bursts of" } else { "" };
            row(f, name, format!("{:>9}  {bar} {}", lengths(bucket), thousands(count)))?;
        }
        Ok(())
    }

    fn latency(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let histogram = &self.stats.receiver.latency;
        let count: u64 = histogram.iter().sum();
        if count == 0 {
            return row(f, "latency", "nothing recovered yet");
        }
        let mean = self.stats.receiver.latency_sum as f64 / count as f64;
        let what = format!(
            "of recoveries: p50 {}, p99 {}, mean {}",
            quantile(histogram, &LATENCY_BOUNDS, 0.50),
            quantile(histogram, &LATENCY_BOUNDS, 0.99),
            micros(mean),
        );
        row(f, "latency", what)
    }

    fn refused(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (session, receiver) = (&self.stats.session, &self.stats.receiver);
        let what = format!(
            "forged {}, replayed {}, unknown {}, malformed {}, garbled {}, foreign {}",
            self.colours.alarm(session.forged),
            self.colours.alarm(session.replayed),
            thousands(session.unknown),
            self.colours.alarm(receiver.malformed),
            self.colours.alarm(receiver.garbled),
            self.colours.alarm(receiver.foreign),
        );
        row(f, "refused", what)
    }
}

/// Formats a round-trip time in milliseconds.
fn round_trip(millis: Option<f64>) -> String {
    millis.map_or("not known yet".to_owned(), |rtt| format!("{rtt:.1} ms"))
}

/// Prints the repairs that are chosen for a link, its losses, and results of other codes.
fn print_link(f: &mut Formatter<'_>, link: &LinkStatus) -> fmt::Result {
    let what = format!(
        "{}; {:.1} repairs for 100 packets, round trip {}, flows wait {:.0} ms",
        link.regime,
        100.0 * link.overhead,
        round_trip(link.rtt_ms),
        link.wait_ms,
    );
    row(f, "auto", what)?;
    let what = format!(
        "of {} packets out: {} bursts lost by chance, {} seen by flows; {} packets by full queues",
        thousands(link.packets),
        thousands(link.bursts),
        thousands(link.visible),
        thousands(link.congested),
    );
    row(f, "losses", what)?;
    link.trials.iter().try_for_each(|trial| row(f, "would have", numbers::trial(trial)))
}

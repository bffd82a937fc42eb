//! Text page of a gateway.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use viaduct_proto::repair::stats::{LATENCY_BOUNDS, LossReport, PeerStats};

use super::colours::{Colours, row};
use super::numbers::{self, bytes, lengths, micros, percent, quantile, thousands};
use super::proxy_page::ProxyPage;
use crate::gateway::status::{PathStatus, PeerStatus, Status};

/// Maximum length of a bar of the burst histogram, in characters.
const BAR: u64 = 30;

/// State of a gateway as text.
#[derive(Debug)]
pub struct GatewayPage<'a> {
    status: &'a Status,
    before: Option<&'a Status>,
    colours: Colours,
}

impl<'a> GatewayPage<'a> {
    /// Creates a page from `status`; with rates, if an earlier status is given.
    pub fn new(status: &'a Status, before: Option<&'a Status>, colours: Colours) -> Self {
        // A restarted gateway counts from zero again.
        let before = before.filter(|before| before.uptime < status.uptime);
        GatewayPage { status, before, colours }
    }
}

impl Display for GatewayPage<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let status = self.status;
        let up = humantime::format_duration(Duration::from_secs(status.uptime as u64));
        let name = self.colours.bold(format!("site {}", status.site));
        let wan = format!("wan {} (MTU {})", status.wan, status.wan_mtu);
        writeln!(f, "{name}  {wan}  up {up}  viaduct {}", status.version)?;
        if let Some(hang) = status.hang() {
            writeln!(f, "{}", self.colours.paint(31, hang))?;
        }
        for trouble in status.trouble.iter().chain(&status.dead_workers()) {
            writeln!(f, "{}", self.colours.paint(31, trouble))?;
        }
        self.machine(f)?;
        (0..status.counters.peers.len())
            .try_for_each(|at| write!(f, "{}", PeerRows { of: self, at }))?;
        let Some(split) = &status.split else { return Ok(()) };
        let before = self.before.and_then(|before| before.split.as_ref());
        write!(f, "\n{}", ProxyPage::new(split, before, self.colours))
    }
}

/// Rows of one peer.
struct PeerRows<'a> {
    of: &'a GatewayPage<'a>,
    /// Index of the peer.
    at: usize,
}

impl Display for PeerRows<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let PeerRows { of, at } = *self;
        let (name, stats) = &of.status.counters.peers[at];
        let code = of.status.codes.get(at).map_or("", String::as_str);
        of.head(f, name, code, stats, at)?;
        of.now(f, name, stats)?;
        of.sent(f, stats)?;
        of.received(f, stats)?;
        of.bursts(f, &stats.receiver.link)?;
        of.latency(f, stats)?;
        of.refused(f, stats)
    }
}

impl GatewayPage<'_> {
    fn machine(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (status, shell) = (self.status, &self.status.counters.shell);
        let held = status.counters.memory + 2 * status.tap_memory;
        row(
            f,
            "memory",
            format!("{} of {}", bytes(held as u64), bytes(status.memory_limit as u64)),
        )?;
        if status.workers > 1 {
            row(f, "workers", status.workers)?;
        }
        let drops = format!(
            "missed {} out, {} in; truncated {}, without checksum {}",
            self.colours.alarm(shell.tap_drops_out + shell.tap_late_out),
            self.colours.alarm(shell.tap_drops_in),
            self.colours.alarm(shell.truncated),
            self.colours.alarm(shell.unfinished),
        );
        row(f, "taps", drops)?;
        let failed = shell.send_failed + shell.inject_failed + status.counters.plane.stray;
        if failed > 0 {
            let what = format!(
                "{} datagrams not sent ({} too long), {} recoveries not taken by the kernel, \
                 {} stray datagrams",
                thousands(shell.send_failed),
                thousands(shell.send_too_long),
                thousands(shell.inject_failed),
                thousands(status.counters.plane.stray),
            );
            row(f, "failed", what)?;
        }
        let cache = &status.cache;
        if *cache != Default::default() {
            let refused = cache.strangers + cache.malformed + cache.limited;
            let (queries, resent) = (thousands(cache.queries), thousands(cache.resent));
            row(
                f,
                "cache",
                format!("{queries} queries, {resent} packets sent again, {refused} refused"),
            )?;
        }
        Ok(())
    }

    fn head(
        &self,
        f: &mut Formatter<'_>,
        name: &str,
        code: &str,
        stats: &PeerStats,
        at: usize,
    ) -> fmt::Result {
        let peer = self.status.peers.get(at);
        let up = self.state(peer, stats);
        writeln!(f, "\n{}  {up}  {code}", self.colours.bold(format!("peer {name}")))?;
        if let Some(PeerStatus { transport, transport_reason: why, .. }) = peer {
            match &transport[..] {
                "fake-tcp" => row(f, "datagrams", format!("by {transport}: {why}"))?,
                "tls" => {
                    let what = "none, repairs are off; split connections by a tunnel over TLS";
                    row(f, "datagrams", format!("{what}: {why}"))?;
                }
                _ => {}
            }
        }
        if let Some(PeerStatus { lanes: lanes @ 2.., lanes_down, .. }) = peer {
            row(f, "lanes", format!("{lanes}, down {}", self.colours.alarm(*lanes_down as u64)))?;
        }
        if let Some(slices) = peer.and_then(|peer| peer.slices) {
            row(f, "slices", format!("{} to the peer, {} from it", slices.to, slices.from))?;
        }
        for path in peer.into_iter().flat_map(|peer| &peer.paths) {
            row(f, "path", self.path(path))?;
        }
        if let Some(link) = peer.and_then(|peer| peer.link.as_ref()) {
            let rtt = link.rtt_ms.map_or("not known yet".to_owned(), |rtt| format!("{rtt:.1} ms"));
            let what = format!(
                "{}; {:.1} repairs for 100 packets, round trip {rtt}, flows wait {:.0} ms",
                link.regime,
                100.0 * link.overhead,
                link.wait_ms,
            );
            row(f, "auto", what)?;
            let what = format!(
                "of {} packets out: {} bursts lost by chance, {} seen by flows; {} packets by \
                    full queues",
                thousands(link.packets),
                thousands(link.bursts),
                thousands(link.visible),
                thousands(link.congested),
            );
            row(f, "losses", what)?;
            for trial in &link.trials {
                row(f, "would have", numbers::trial(trial))?;
            }
        }
        if let Some(lowered) = peer.and_then(|peer| peer.lowered_mss.into_iter().flatten().min()) {
            let what = format!(
                "the path lowers the MSS of SYNs to {lowered}: {} arrived so, and are not lost",
                thousands(stats.receiver.altered)
            );
            row(f, "path", what)?;
        }
        let altered = match self.status.kept_below.get(at).copied().flatten() {
            Some(most) => format!(
                "route MTU {most} and TCP's MSS lowered, so that repairs fit; nothing else is \
                    altered"
            ),
            None => "no packet is altered".to_owned(),
        };
        row(f, "packets", altered)
    }

    /// State of one of several paths.
    fn path(&self, path: &PathStatus) -> String {
        let state = match path.up {
            true => self.colours.green("up"),
            false => self.colours.paint(31, "down"),
        };
        let rtt = path.rtt_ms.map_or("not known yet".to_owned(), |rtt| format!("{rtt:.1} ms"));
        let loss = |(known, lost)| format!("{} ({})", thousands(lost), percent(lost, known));
        format!(
            "{} {state}: round trip {rtt}; sent {}, lost {} out, {} in; repairs by {}",
            path.wan,
            thousands(path.sent),
            loss(path.reported),
            loss(path.received),
            path.repairs_by,
        )
    }

    /// State of a peer, with its reason.
    fn state(&self, peer: Option<&PeerStatus>, stats: &PeerStats) -> String {
        match peer.map(|peer| (&peer.state[..], &peer.reason)) {
            Some((state, Some(reason))) => self.colours.paint(31, format!("{state}: {reason}")),
            // Without datagrams there is no session.
            Some(("up", None)) => self.colours.green("up"),
            _ if stats.up => self.colours.green("up"),
            _ => self.colours.paint(31, "down"),
        }
    }

    /// Lines about the gateway itself, for a list of its peers.
    pub fn header(&self) -> String {
        let status = self.status;
        let up = humantime::format_duration(Duration::from_secs(status.uptime as u64));
        let troubles = status.hang().into_iter().chain(status.trouble.clone());
        let troubles = troubles.chain(status.dead_workers());
        let troubles = troubles.map(|trouble| self.colours.paint(31, trouble) + "\n");
        format!(
            "site {}  wan {}  up {up}\n{}",
            status.site,
            status.wan,
            troubles.collect::<String>()
        )
    }

    /// All rows of one peer. Empty if there is no peer of this name.
    pub fn peer(&self, name: &str) -> String {
        let at = self.status.counters.peers.iter().position(|(of, _)| of == name);
        at.map_or(String::new(), |at| PeerRows { of: self, at }.to_string())
    }

    /// Prints the rates since the previous page.
    fn now(&self, f: &mut Formatter<'_>, name: &str, stats: &PeerStats) -> fmt::Result {
        let Some(before) = self.before else { return Ok(()) };
        let Some((_, old)) = before.counters.peers.iter().find(|(n, _)| n == name) else {
            return Ok(());
        };
        let seconds = self.status.uptime - before.uptime;
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let (out, old_out) = (&stats.sender, &old.sender);
        let (into, old_in) = (&stats.receiver, &old.receiver);
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

    fn sent(&self, f: &mut Formatter<'_>, stats: &PeerStats) -> fmt::Result {
        let sent = &stats.sender;
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
        let reported = &stats.reported;
        let what = format!(
            "lost {} ({}), recovered {}, as reported by the peer",
            thousands(reported.lost),
            percent(reported.lost, reported.covered),
            thousands(reported.recovered),
        );
        row(f, "link out", what)
    }

    fn received(&self, f: &mut Formatter<'_>, stats: &PeerStats) -> fmt::Result {
        let got = &stats.receiver;
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

    fn bursts(&self, f: &mut Formatter<'_>, link: &LossReport) -> fmt::Result {
        let most = link.bursts.iter().copied().max().unwrap_or(0);
        let Some(last) = link.bursts.iter().rposition(|&count| count > 0) else { return Ok(()) };
        for (bucket, &count) in link.bursts[..=last].iter().enumerate() {
            // The length is rounded up, so that every count above zero gets a visible bar.
            let bar = "▇".repeat((count * BAR).div_ceil(most) as usize);
            let name = if bucket == 0 { "bursts of" } else { "" };
            row(f, name, format!("{:>9}  {bar} {}", lengths(bucket), thousands(count)))?;
        }
        Ok(())
    }

    fn latency(&self, f: &mut Formatter<'_>, stats: &PeerStats) -> fmt::Result {
        let histogram = &stats.receiver.latency;
        let count: u64 = histogram.iter().sum();
        if count == 0 {
            return row(f, "latency", "nothing recovered yet");
        }
        let mean = stats.receiver.latency_sum as f64 / count as f64;
        let what = format!(
            "of recoveries: p50 {}, p99 {}, mean {}",
            quantile(histogram, &LATENCY_BOUNDS, 0.50),
            quantile(histogram, &LATENCY_BOUNDS, 0.99),
            micros(mean),
        );
        row(f, "latency", what)
    }

    fn refused(&self, f: &mut Formatter<'_>, stats: &PeerStats) -> fmt::Result {
        let what = format!(
            "forged {}, replayed {}, unknown {}, malformed {}, garbled {}, foreign {}",
            self.colours.alarm(stats.session.forged),
            self.colours.alarm(stats.session.replayed),
            thousands(stats.session.unknown),
            self.colours.alarm(stats.receiver.malformed),
            self.colours.alarm(stats.receiver.garbled),
            self.colours.alarm(stats.receiver.foreign),
        );
        row(f, "refused", what)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status() -> Status {
        let mut stats = PeerStats { up: true, ..PeerStats::default() };
        stats.sender.packets = 1_234_567;
        stats.sender.bytes = 1_000_000;
        stats.sender.protected = 1_234_000;
        stats.sender.unprotected = 567;
        stats.sender.repair_bytes = 375_000;
        stats.receiver.link.covered = 1_000;
        stats.receiver.link.lost = 10;
        stats.receiver.link.bursts[0] = 6;
        stats.receiver.link.bursts[2] = 1;
        stats.receiver.latency[3] = 99;
        stats.receiver.latency[12] = 1;
        let mut status = Status {
            site: "a".to_owned(),
            codes: vec!["layers (8,3)".to_owned()],
            kept_below: vec![Some(1_380)],
            uptime: 61.0,
            ..Status::default()
        };
        status.counters.peers = vec![("b".to_owned(), stats)];
        status
    }

    #[test]
    fn the_page_shows_the_counters_and_is_plain_without_colours() {
        let page = GatewayPage::new(&status(), None, Colours(false)).to_string();
        for part in [
            "site a",
            "up 1m 1s",
            "peer b  up  layers (8,3)",
            "route MTU 1380",
            "1,234,567 packets",
            "protected 1,234,000 (99.95 %), unprotected 567",
            "overhead 37.50 %",
            "lost 10 (1.00 %)",
            "      3-4  ▇▇▇▇▇ 1",
            "p50 3.5 ms, p99 5.0 ms",
            "forged 0",
        ] {
            assert!(page.contains(part), "{part:?} in\n{page}");
        }
        assert!(!page.contains('\x1b'));
        assert!(
            GatewayPage::new(&status(), None, Colours(true))
                .to_string()
                .contains("\x1b[32mup\x1b[0m")
        );
    }

    #[test]
    fn rates_are_of_the_time_between_and_never_across_a_restart() {
        let (before, mut now) = (status(), status());
        now.uptime += 2.0;
        now.counters.peers[0].1.sender.packets += 2_000;
        now.counters.peers[0].1.sender.bytes += 2_500_000;
        let page = GatewayPage::new(&now, Some(&before), Colours(false)).to_string();
        assert!(page.contains("out 1,000 packets/s 10.0 Mb/s"), "{page}");
        let restarted = GatewayPage::new(&before, Some(&now), Colours(false)).to_string();
        assert!(!restarted.contains("packets/s"));
    }

    #[test]
    fn a_peer_that_is_reached_by_tls_alone_is_up_without_a_session() {
        let mut status = status();
        status.counters.peers[0].1.up = false;
        let text = |text: &str| text.to_owned();
        status.peers = vec![PeerStatus {
            name: text("b"),
            state: text("up"),
            transport: text("tls"),
            transport_reason: text("as configured"),
            ..PeerStatus::default()
        }];
        let page = GatewayPage::new(&status, None, Colours(false)).to_string();
        assert!(page.contains("peer b  up  layers"), "{page}");
        let none = "none, repairs are off; split connections by a tunnel over TLS: as configured";
        assert!(page.contains(none), "{page}");
    }

    #[test]
    fn a_peer_without_a_code_yet_is_shown() {
        let status = Status { codes: vec![], kept_below: vec![], ..status() };
        assert!(GatewayPage::new(&status, None, Colours(false)).to_string().contains("peer b"));
    }
}

//! Text page of a gateway.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::colours::{Colours, row};
use super::numbers::{bytes, thousands};
use super::peer_rows::PeerRows;
use super::proxy_page::ProxyPage;
use crate::gateway::status::Status;

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
        (0..status.counters.peers.len()).try_for_each(|at| write!(f, "{}", self.peer_rows(at)))?;
        let Some(split) = &status.split else { return Ok(()) };
        let before = self.before.and_then(|before| before.split.as_ref());
        write!(f, "\n{}", ProxyPage::new(split, before, self.colours))
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
        at.map_or(String::new(), |at| self.peer_rows(at).to_string())
    }

    fn peer_rows(&self, at: usize) -> PeerRows<'_> {
        PeerRows::new(self.status, self.before, at, self.colours)
    }
}

#[cfg(test)]
mod tests {
    use viaduct_proto::repair::stats::PeerStats;

    use super::*;
    use crate::gateway::status::PeerStatus;

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
    fn rates_cover_the_time_between_two_statuses_and_no_restart() {
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
    fn each_transport_has_its_reason() {
        let mut status = status();
        for (transport, why) in [("udp", "as configured"), ("fake-tcp", "UDP is not answered")] {
            status.peers = vec![PeerStatus {
                transport: transport.to_owned(),
                transport_reason: why.to_owned(),
                ..PeerStatus::default()
            }];
            let page = GatewayPage::new(&status, None, Colours(false)).to_string();
            assert!(page.contains(&format!("datagrams by {transport}: {why}\n")), "{page}");
        }
    }

    #[test]
    fn a_peer_without_a_code_yet_is_shown() {
        let status = Status { codes: vec![], kept_below: vec![], ..status() };
        assert!(GatewayPage::new(&status, None, Colours(false)).to_string().contains("peer b"));
    }
}

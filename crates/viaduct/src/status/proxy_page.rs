//! Text page of a proxy.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use viaduct_proto::placement::score::Preference;

use super::colours::{Colours, row};
use super::numbers::{bytes, micros, percent, quantile, thousands};
use crate::engine::hop_stats::CONNECT_BOUNDS;
use crate::engine::snapshot::ProxyStatus;
use crate::engine::stats::PolicyStats;
use crate::tunnel::settings::title;
use crate::tunnel::stats::TunnelCounters;

/// State of a proxy as text.
#[derive(Debug)]
pub struct ProxyPage<'a> {
    status: &'a ProxyStatus,
    before: Option<&'a ProxyStatus>,
    colours: Colours,
}

impl<'a> ProxyPage<'a> {
    /// Creates a page from `status`; with rates, if an earlier status is given.
    pub fn new(status: &'a ProxyStatus, before: Option<&'a ProxyStatus>, colours: Colours) -> Self {
        // A restarted proxy counts from zero again, and counters of a proxy that hangs are old.
        let hangs = |before: &ProxyStatus| before.hangs || status.hangs;
        let before = before.filter(|before| before.uptime < status.uptime && !hangs(before));
        ProxyPage { status, before, colours }
    }
}

impl Display for ProxyPage<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let status = self.status;
        let up = humantime::format_duration(Duration::from_secs(status.uptime as u64));
        let links = status.tunnel_listen.map(|at| format!("links at {at}"));
        let listen = status.listen.iter().map(ToString::to_string).chain(links);
        let listen = listen.collect::<Vec<_>>().join(", ");
        // A master has no listeners for clients: its programs join it.
        let (what, way) = match status.is_master() {
            true => ("master", String::new()),
            false => ("proxy", format!("  {listen} to {}", status.to)),
        };
        let name = self.colours.bold(format!("{what} {}", status.proxy));
        writeln!(f, "{name}{way}  up {up}  viaduct {}", status.version)?;
        if status.hangs {
            return writeln!(f, "{}", self.colours.paint(31, "its loop does not answer"));
        }
        self.rules(f)?;
        self.flows(f)?;
        self.now(f)?;
        self.early(f)?;
        self.hops(f)?;
        self.next_hops(f)?;
        self.auto(f)?;
        self.policies(f)?;
        self.handlers(f)?;
        status.counters.tunnels.iter().try_for_each(|tunnel| self.tunnel(f, tunnel))
    }
}

impl ProxyPage<'_> {
    /// Prints the state of the interception rules, if any were removed.
    fn rules(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.status.missing {
            let what = "missing in nftables or ip rule: connections are not intercepted";
            row(f, "rules", self.colours.paint(31, what))?;
        }
        match self.status.restored {
            0 => Ok(()),
            times => row(f, "rules", format!("removed and restored {} times", thousands(times))),
        }
    }

    fn flows(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (status, counters) = (self.status, &self.status.counters);
        let what = format!(
            "{} open of {}; {} opened, {} finished, {} reset, {} idle too long",
            thousands(counters.open),
            thousands(status.most),
            thousands(counters.opened),
            thousands(counters.finished),
            thousands(counters.reset),
            thousands(counters.idle),
        );
        row(f, "flows", what)?;
        let [out, back] = counters.bytes;
        row(f, "bytes", format!("{} out, {} back", bytes(out), bytes(back)))?;
        let reasons = counters.refused.by_reason();
        let refused: Vec<_> = reasons
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(why, count)| format!("{} {}", thousands(*count), why.replace('_', " ")))
            .collect();
        match refused.is_empty() {
            true => Ok(()),
            false => row(f, "refused", self.colours.paint(31, refused.join(", "))),
        }
    }

    /// Prints the rates since the previous page.
    fn now(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(before) = self.before else { return Ok(()) };
        let seconds = self.status.uptime - before.uptime;
        let (new, old) = (&self.status.counters, &before.counters);
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let what = format!(
            "{} flows/s; {:.1} Mb/s out, {:.1} Mb/s back",
            thousands(rate(new.opened, old.opened) as u64),
            rate(new.bytes[0], old.bytes[0]) * 8.0 / 1e6,
            rate(new.bytes[1], old.bytes[1]) * 8.0 / 1e6,
        );
        row(f, "now", self.colours.bold(what))
    }

    fn early(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (early, waiting) = (&self.status.counters.early, self.status.counters.waiting);
        if early.started + early.bounded == 0 {
            return Ok(());
        }
        let what = format!(
            "{} started by a SYN, {} matched ({}), {} expired, {} waiting; {} over the limit",
            thousands(early.started),
            thousands(early.matched),
            percent(early.matched, early.started),
            thousands(early.expired),
            thousands(waiting),
            self.colours.alarm(early.bounded),
        );
        row(f, "early", what)
    }

    fn hops(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for hop in &self.status.counters.hops {
            let time = |q| quantile(&hop.connected, &CONNECT_BOUNDS, q);
            let what = format!(
                "{}: {} connected within {} (half), {} (99 %); {} failed",
                hop.name(),
                thousands(hop.connected.iter().sum()),
                time(0.5),
                time(0.99),
                self.colours.alarm(hop.failed),
            );
            row(f, "onwards", what)?;
            if let Some(down) = hop.down() {
                row(f, "", self.colours.paint(31, format!("down: {down}")))?;
            }
        }
        Ok(())
    }

    /// Prints the states of the next hops that are checked.
    fn next_hops(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for hop in &self.status.next_hops {
            let state = match hop.is_down {
                true => self.colours.paint(31, hop.state.to_string()),
                false => self.colours.green(hop.state.to_string()),
            };
            let what = format!(
                "{}: {state}; {} of {} probes failed, {} times down",
                hop.hop,
                thousands(hop.failures),
                thousands(hop.probes),
                thousands(hop.falls),
            );
            row(f, "next hop", what)?;
        }
        Ok(())
    }

    /// Prints the hops, and which of them are chosen for each network of servers, the most recently
    /// used network first; `--json` has more networks.
    fn auto(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const CHOICES: usize = 16;
        let Some(auto) = &self.status.auto else { return Ok(()) };
        let [none, one, two] = auto.flows.map(thousands);
        let mut what = format!("{none} flows without a hop, {one} by one, {two} by two");
        if !auto.is_measured {
            let why = "the overlay does not answer, flows go directly";
            what += &format!("; {}", self.colours.paint(31, why));
        }
        row(f, "auto", what)?;
        for hop in &auto.hops {
            let rtt = hop.rtt_ms.map_or("not reached".to_owned(), |ms| format!("{ms:.1} ms"));
            let load = 100.0 * hop.load;
            row(f, "", format!("{} at {}: {rtt}, load {load:.1} %", hop.name, hop.at))?;
        }
        for choice in auto.choices.iter().take(CHOICES) {
            let by = match choice.hops.is_empty() {
                true => "directly".to_owned(),
                false => format!("by {}", choice.hops.join(", ")),
            };
            let preference = match choice.preference {
                Preference::FirstByte => "",
                Preference::Bulk => " (bulk)",
            };
            row(f, "", format!("{}{preference}: {by}; {}", choice.network, choice.why))?;
        }
        match (auto.networks as usize).saturating_sub(CHOICES) {
            0 => Ok(()),
            more => row(f, "", format!("and {} more networks (--json)", thousands(more as u64))),
        }
    }

    fn policies(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for PolicyStats { policy, open, opened, denied, bytes: moved } in
            &self.status.counters.policies
        {
            let what = format!(
                "{policy}: {} open, {} opened, {} denied; {} out, {} back",
                thousands(*open),
                thousands(*opened),
                thousands(*denied),
                bytes(moved[0]),
                bytes(moved[1]),
            );
            row(f, "policy", what)?;
        }
        Ok(())
    }

    /// Prints the text of each handler. Long texts are cut; `--json` has all of them.
    fn handlers(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const LINES: usize = 8;
        for (name, text) in &self.status.handlers {
            for (n, line) in text.lines().take(LINES).enumerate() {
                row(f, if n == 0 { name } else { "" }, line.to_owned())?;
            }
            let more = text.lines().count().saturating_sub(LINES);
            if more > 0 {
                row(f, "", format!("and {more} more lines (--json)"))?;
            }
        }
        Ok(())
    }

    fn tunnel(&self, f: &mut Formatter<'_>, tunnel: &TunnelCounters) -> fmt::Result {
        let all = &tunnel.all;
        let up = match (&tunnel.down, all.links) {
            (Some(why), _) => self.colours.paint(31, format!("down: {why}")),
            (None, 0) => self.colours.paint(31, "down"),
            _ => self.colours.green("up"),
        };
        let title = format!("{} to {}", title(&tunnel.name), tunnel.peer);
        writeln!(f, "\n{}  {up}", self.colours.bold(title))?;
        let what = format!(
            "{} open, {} with bytes in flight; {} opened here, {} there, {} reset",
            thousands(all.open),
            thousands(all.active),
            thousands(all.opened),
            thousands(all.accepted),
            thousands(all.reset),
        );
        row(f, "streams", what)?;
        if let Some(last) = &tunnel.denied_last {
            let what = format!(
                "{} streams to servers that are not in the far end's allow-to; the last to {last}",
                thousands(tunnel.denied),
            );
            row(f, "denied", self.colours.paint(31, what))?;
        }
        let what = format!(
            "{} of {} left to send; {} of {} filled here",
            bytes(all.tokens_left),
            bytes(all.tokens),
            bytes(all.held),
            bytes(all.window),
        );
        row(f, "buffers", what)?;
        let (mean, most) = (all.delay.mean_micros() as f64, all.delay.most_micros as f64);
        row(f, "queue", format!("{} on average, {} at most", micros(mean), micros(most)))?;
        for link in &tunnel.links {
            let rtt = link.rtt.map_or("-".to_owned(), |rtt| micros(rtt.as_micros() as f64));
            let what = format!(
                "{} streams; round trip {rtt}; {} sent, {} received",
                thousands(link.open),
                bytes(link.sent),
                bytes(link.received),
            );
            row(f, "link", what)?;
        }
        Ok(())
    }
}

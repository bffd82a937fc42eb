//! Text page of a file server.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::colours::{Colours, row};
use super::numbers::{bytes, thousands};
use crate::access_log::AccessLogStats;
use crate::serve::status::{ReplicasStatus, ServeStatus, TcpStatus, TricklesStatus};

/// State of a file server as text.
#[derive(Debug)]
pub struct ServePage<'a> {
    pub(super) status: &'a ServeStatus,
    pub(super) colours: Colours,
}

impl ServePage<'_> {
    fn trickles(&self, f: &mut Formatter<'_>, seen: &TricklesStatus) -> fmt::Result {
        let TricklesStatus { opened, answered, packets, .. } = *seen;
        let answered = format!(
            "{} opened; {} requests answered by {} packets, {}",
            thousands(opened),
            thousands(answered),
            thousands(packets),
            bytes(seen.bytes)
        );
        row(f, "trickles", answered)?;
        if seen.handshakes > 0 {
            let (handshakes, requests) = (thousands(seen.handshakes), thousands(seen.decrypted));
            row(f, "encrypted", format!("{handshakes} handshakes, {requests} requests"))?;
        }
        let recovered = format!(
            "{} losses reported, {} timeouts, {} resumed, {} moved, {} renewed",
            thousands(seen.recoveries),
            thousands(seen.timeouts),
            thousands(seen.resumed),
            thousands(seen.moved),
            thousands(seen.renewed)
        );
        row(f, "recovery", recovered)?;
        let refused: u64 = seen.refused.iter().map(|(_, count)| count).sum();
        let named = seen.refused.iter().filter(|(_, count)| *count > 0);
        let named: Vec<_> = named.map(|(why, count)| format!("{count} {why}")).collect();
        let text = format!("{} requests {}", self.colours.alarm(refused), named.join(", "));
        row(f, "refused", text.trim_end())?;
        let window = format!(
            "{} reach back {:.0} s; {} parts were full early",
            bytes(seen.replay_bytes),
            seen.replay_seconds,
            thousands(seen.replay_turned_early)
        );
        row(f, "replay window", window)
    }
}

impl Display for ServePage<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let status = self.status;
        let up = humantime::format_duration(Duration::from_secs(status.uptime as u64));
        let (name, version) = (&status.name, &status.version);
        let title = self.colours.bold(format!("serving {}", status.serving));
        writeln!(f, "{title}  ({name}, version {version}, up {up})")?;
        let tcp = format!(
            "{} connections, {} now; {} requests",
            thousands(status.tcp.connections),
            thousands(status.tcp.open),
            thousands(status.tcp.requests)
        );
        row(f, "tcp", tcp)?;
        let TcpStatus { crowded, slow, page_bytes, pages_refused, .. } = status.tcp;
        let limited = format!(
            "{} connections beyond their source's limit, {} ended as too slow, {} pages refused",
            self.colours.alarm(crowded),
            self.colours.alarm(slow),
            self.colours.alarm(pages_refused)
        );
        row(f, "limits", limited)?;
        row(f, "pages", format!("{} in memory", bytes(page_bytes)))?;
        if let Some(AccessLogStats { written, lost }) = status.access_log {
            let (written, lost) = (thousands(written), self.colours.alarm(lost));
            row(f, "access log", format!("{written} lines written, {lost} lost"))?;
        }
        if let Some(ReplicasStatus { source, fault }) = &status.replicas {
            row(f, "secrets", source)?;
            fault.iter().try_for_each(|why| row(f, "", self.colours.paint(31, why)))?;
        }
        status.trickles.iter().try_for_each(|seen| self.trickles(f, seen))
    }
}

//! The page that people read of a server of files.

use std::fmt::{self, Display, Formatter};

use super::page::{Ink, row};
use super::words::{bytes, thousands};
use crate::serve::status::{ServeStatus, TricklesStatus};

/// What a server says, for people.
#[derive(Debug)]
pub struct ServePage<'a> {
    status: &'a ServeStatus,
    ink: Ink,
}

impl<'a> ServePage<'a> {
    /// Of `status`.
    pub fn new(status: &'a ServeStatus, ink: Ink) -> Self {
        ServePage { status, ink }
    }

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
        let mended = format!(
            "{} losses reported, {} timeouts, {} resumed, {} moved",
            thousands(seen.recoveries),
            thousands(seen.timeouts),
            thousands(seen.resumed),
            thousands(seen.moved)
        );
        row(f, "mended", mended)?;
        let refused: u64 = seen.refused.iter().map(|(_, count)| count).sum();
        let named = seen.refused.iter().filter(|(_, count)| *count > 0);
        let named: Vec<_> = named.map(|(why, count)| format!("{count} {why}")).collect();
        let text = format!("{} requests {}", self.ink.alarm(refused), named.join(", "));
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
        writeln!(f, "{}", self.ink.bold(format!("serving {}", status.serving)))?;
        let tcp = format!(
            "{} connections, {} now; {} requests",
            thousands(status.tcp.connections),
            thousands(status.tcp.open),
            thousands(status.tcp.requests)
        );
        row(f, "tcp", tcp)?;
        status.trickles.iter().try_for_each(|seen| self.trickles(f, seen))
    }
}

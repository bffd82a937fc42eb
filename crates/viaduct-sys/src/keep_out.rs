//! Rules that keep marked packets from this machine's own TCP, which would answer them by resets.
//!
//! ```text
//!   arrives ─▶ tap (sees all) ─▶ [ prerouting, raw: marked, to us? drop ] ─▶ conntrack ─▶ TCP
//!   leaves  ─▶ [ output, raw: marked? untracked ] ─▶ the wire
//! ```
//!
//! Everything unmarked passes, so plain TCP lives on the same port; and what only passes this machine,
//! on its way to others, is not touched. What we send is not tracked: conntrack, which never sees the
//! answers, would take the second packet for invalid.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::filter::TcpMark;
use crate::table::Table;

/// What is kept out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeepOut {
    /// Names the table: letters, digits and `_`, at most 32 of them.
    pub instance: String,
    /// The mark of what arrives.
    pub mark: TcpMark,
    /// Where it arrives: ports at addresses, of which `0.0.0.0` and `[::]` are all of their family; none means
    /// everywhere. A journal of a version that had only ports has none; to put back what it says the name is enough.
    #[serde(default)]
    pub at: Vec<SocketAddr>,
    /// The last byte of the mark of what we send, to leave it untracked; none where this machine itself
    /// translates the addresses of what it sends.
    pub untracked: Option<u8>,
}

impl Table for KeepOut {
    fn instance(&self) -> &str {
        &self.instance
    }

    fn chains(&self) -> Vec<(&'static str, usize)> {
        vec![("arriving", 1), ("leaving", usize::from(self.untracked.is_some()))]
    }

    fn contents(&self) -> String {
        let arriving = self.matches(self.mark.byte);
        let arriving =
            self.places("dport", "daddr", &format!("{arriving} fib daddr type local drop"));
        let leaving = self.untracked.map(|byte| format!("{} notrack", self.matches(byte)));
        let leaving = leaving.map_or(String::new(), |rule| self.places("sport", "saddr", &rule));
        format!(
            "chain arriving {{
             type filter hook prerouting priority raw; policy accept;
             {arriving}
             }}
             chain leaving {{
             type filter hook output priority raw; policy accept;
             {leaving}
             }}"
        )
    }
}

impl KeepOut {
    /// `rule` for each place, a line each.
    fn places(&self, port: &str, address: &str, rule: &str) -> String {
        let place = |at: &SocketAddr| {
            let (version, family) = if at.is_ipv4() { ("ipv4", "ip") } else { ("ipv6", "ip6") };
            let whom = match at.ip() {
                any if any.is_unspecified() => format!("meta nfproto {version}"),
                ip => format!("{family} {address} {ip}"),
            };
            format!("{whom} tcp {port} {} {rule}", at.port())
        };
        match self.at.iter().map(place).collect::<Vec<_>>() {
            places if places.is_empty() => rule.to_owned(),
            places => places.join("\n"),
        }
    }

    /// The option's ExID and the byte behind it.
    fn matches(&self, byte: u8) -> String {
        let (kind, exid) = (self.mark.word >> 24, self.mark.word & 0xffff);
        format!("tcp option @{kind},16,16 {exid:#x} tcp option @{kind},32,8 {byte:#x}")
    }
}

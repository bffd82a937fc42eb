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
    /// The destination ports; none means all.
    pub ports: Vec<u16>,
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
        let to = ports("dport", &self.ports);
        let arriving = self.matches(self.mark.byte);
        let leaving = self.untracked.map_or(String::new(), |byte| {
            format!("{}{} notrack", ports("sport", &self.ports), self.matches(byte))
        });
        format!(
            "chain arriving {{
             type filter hook prerouting priority raw; policy accept;
             {to}{arriving} fib daddr type local drop
             }}
             chain leaving {{
             type filter hook output priority raw; policy accept;
             {leaving}
             }}"
        )
    }
}

impl KeepOut {
    /// The option's ExID and the byte behind it.
    fn matches(&self, byte: u8) -> String {
        let (kind, exid) = (self.mark.word >> 24, self.mark.word & 0xffff);
        format!("tcp option @{kind},16,16 {exid:#x} tcp option @{kind},32,8 {byte:#x}")
    }
}

fn ports(which: &str, ports: &[u16]) -> String {
    let all: Vec<String> = ports.iter().map(u16::to_string).collect();
    if all.is_empty() { String::new() } else { format!("tcp {which} {{ {} }} ", all.join(", ")) }
}

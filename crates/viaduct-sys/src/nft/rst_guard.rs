//! RST guard: rules that hide packets with a certain TCP option, the option mark, from this
//! machine's own TCP, which would answer them with resets.
//!
//! ```text
//!   arrives ─▶ tap (sees all) ─▶ [ prerouting, raw: marked, to us? drop ] ─▶ conntrack ─▶ TCP
//!   leaves  ─▶ [ output, raw: marked? untracked ] ─▶ the wire
//! ```
//!
//! Unmarked packets pass, so plain TCP works on the same port. Forwarded packets are not affected.
//! Packets that we send are not tracked: as conntrack never sees the answers, it would classify the
//! second packet as invalid.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::capture::filter::OptionMark;
use crate::nft::table::Table;

/// Packets to hide from the kernel's TCP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RstGuard {
    /// Instance name, part of the table's name: letters, digits and `_`, at most 32 of them.
    pub instance: String,
    /// Option mark of incoming packets.
    pub mark: OptionMark,
    /// Local addresses and ports; `0.0.0.0` and `[::]` mean all addresses of their family; empty
    /// means all addresses and ports. Also empty in a record of an older version, which had only
    /// ports: such a record only serves to remove the table, which needs no addresses.
    #[serde(default)]
    pub at: Vec<SocketAddr>,
    /// Last byte of the mark of our own packets, which conntrack does not track. `None` if they
    /// must be tracked, because this machine itself translates their addresses (NAT).
    pub untracked: Option<u8>,
}

impl Table for RstGuard {
    fn instance(&self) -> &str {
        &self.instance
    }

    fn chains(&self) -> Vec<(&'static str, usize)> {
        let rules = self.at.len().max(1);
        vec![("arriving", rules), ("leaving", rules * usize::from(self.untracked.is_some()))]
    }

    fn contents(&self) -> String {
        let arriving = self.matches(self.mark.byte);
        let arriving =
            self.per_address("dport", "daddr", &format!("{arriving} fib daddr type local drop"));
        let leaving = self.untracked.map(|byte| format!("{} notrack", self.matches(byte)));
        let leaving =
            leaving.map_or(String::new(), |rule| self.per_address("sport", "saddr", &rule));
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

impl RstGuard {
    /// Builds `rule` for each address and port, one per line.
    fn per_address(&self, port: &str, address: &str, rule: &str) -> String {
        let place = |at: &SocketAddr| {
            let (version, family) = if at.is_ipv4() { ("ipv4", "ip") } else { ("ipv6", "ip6") };
            let destination = match at.ip() {
                any if any.is_unspecified() => format!("meta nfproto {version}"),
                ip => format!("{family} {address} {ip}"),
            };
            format!("{destination} tcp {port} {} {rule}", at.port())
        };
        match self.at.iter().map(place).collect::<Vec<_>>() {
            places if places.is_empty() => rule.to_owned(),
            places => places.join("\n"),
        }
    }

    /// Builds the match of the option's ExID and of the byte after it.
    fn matches(&self, byte: u8) -> String {
        let (kind, exid) = (self.mark.word >> 24, self.mark.word & 0xffff);
        format!("tcp option @{kind},16,16 {exid:#x} tcp option @{kind},32,8 {byte:#x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;

    #[test]
    fn rules_for_any_number_of_addresses_are_recognised() {
        let check = || {
            for at in [&[][..], &["0.0.0.0:80"], &["10.0.0.1:80", "[::]:443"]] {
                let at: Vec<SocketAddr> = at.iter().map(|at| at.parse().unwrap()).collect();
                for untracked in [None, Some(7)] {
                    let mark = OptionMark { word: 0xfd00_5445, byte: 1 };
                    let instance = "guard".to_owned();
                    let guard = RstGuard { instance, mark, at: at.clone(), untracked };
                    guard.apply().unwrap();
                    assert!(guard.is_installed().unwrap(), "{guard:?}");
                }
            }
        };
        Netns::new().unwrap().enter(check).unwrap();
    }
}

//! The TCP segment size between the sites, lowered in the SYNs that this machine forwards, so that
//! connections leave a repair its room from their first segment on.
//!
//! ```text
//!   host --SYN, MSS 1460--> [ forward: table inet viaduct_<instance> ] --SYN, MSS 1360--> wan
//! ```
//!
//! One nftables table is ours, made and deleted in one transaction. It only ever lowers an MSS,
//! and touches no other packet.

use std::fmt::Write as _;
use std::io;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::netlink;
use crate::tool::{self, ToolError};

/// Bytes of a segment that are not its payload: the IP and TCP headers without options.
const HEADERS_V4: u32 = 40;
const HEADERS_V6: u32 = 60;
/// Rules of a clamp: each family, each way.
const RULES: usize = 4;

/// What to clamp.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MssClamp {
    /// Names the table: letters, digits and `_`, at most 32 of them.
    pub instance: String,
    /// The WAN interface.
    pub interface: String,
    /// Prefixes of the peer sites.
    pub peers: Vec<(IpAddr, u8)>,
    /// Longest packet that a segment may become, bytes; the MSS is 40 less, 60 for IPv6.
    pub max_packet: u32,
}

/// Why it cannot be clamped.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// `nft` failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A name that cannot be written into a rule.
    #[error("{what} {name:?}: {expected}")]
    Name {
        /// What it names.
        what: &'static str,
        /// The name.
        name: String,
        /// What would be right.
        expected: &'static str,
    },
    /// The kernel does not say which rules it has.
    #[error("cannot ask for the rules of nftables")]
    Ask(#[source] io::Error),
    /// A packet size that leaves TCP no payload.
    #[error("packets of at most {0} bytes: 576 to 65535 is expected")]
    MaxPacket(u32),
}

impl MssClamp {
    /// Sees that all of it can be written into rules.
    ///
    /// # Errors
    /// A name or a size that cannot.
    pub fn check(&self) -> Result<(), NftError> {
        check_instance(&self.instance)?;
        let odd = |c: char| c.is_whitespace() || c.is_control() || c == '"' || c == '*' || c == '/';
        let (what, expected) = ("interface", "the name of a network interface is expected");
        if self.interface.contains(odd) || !(1..16).contains(&self.interface.len()) {
            return Err(NftError::Name { what, name: self.interface.clone(), expected });
        }
        if !(576..=65535).contains(&self.max_packet) {
            return Err(NftError::MaxPacket(self.max_packet));
        }
        Ok(())
    }

    /// Puts the table in place; one of the same name is replaced, in one transaction.
    ///
    /// # Errors
    /// As [`MssClamp::check`], or `nft` refuses.
    pub fn apply(&self) -> Result<(), NftError> {
        self.check()?;
        tool::run("nft", &["-f", "-"], &self.script())?;
        Ok(())
    }

    /// Deletes the table, if there is one.
    ///
    /// # Errors
    /// `nft` refuses.
    pub fn undo(&self) -> Result<(), NftError> {
        self.check()?;
        tool::run("nft", &["-f", "-"], &deletion(&self.instance))?;
        Ok(())
    }

    /// Whether all of it is in place.
    ///
    /// # Errors
    /// The kernel does not say.
    pub fn is_there(&self) -> Result<bool, NftError> {
        Ok(count_rules(&self.table(), "forward")? == RULES)
    }

    /// The table's name, without its family `inet`.
    pub fn table(&self) -> String {
        format!("viaduct_{}", self.instance)
    }

    fn script(&self) -> String {
        let mut script = deletion(&self.instance);
        let mut line = |text: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(script, "{text}");
        };
        let (v4, v6): (Vec<_>, Vec<_>) = self.peers.iter().partition(|(ip, _)| ip.is_ipv4());
        line(&format!("table inet {} {{", self.table()));
        line(&set("peers4", "ipv4_addr", &v4));
        line(&set("peers6", "ipv6_addr", &v6));
        line("chain forward {\ntype filter hook forward priority mangle; policy accept;");
        for (family, set, headers) in [("ip", "peers4", HEADERS_V4), ("ip6", "peers6", HEADERS_V6)]
        {
            let mss = self.max_packet - headers;
            for (way, end) in [("oifname", "daddr"), ("iifname", "saddr")] {
                line(&format!(
                    "{way} \"{}\" {family} {end} @{set} tcp flags & (syn | rst) == syn \
                     tcp option maxseg size > {mss} tcp option maxseg size set {mss}",
                    self.interface
                ));
            }
        }
        line("}\n}");
        script
    }
}

/// Whether `instance` can name a table.
pub(crate) fn check_instance(instance: &str) -> Result<(), NftError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (what, expected) = ("instance", "letters, digits and _ are expected, 1 to 32 of them");
    if !instance.chars().all(plain) || !(1..=32).contains(&instance.len()) {
        return Err(NftError::Name { what, name: instance.to_owned(), expected });
    }
    Ok(())
}

/// Deletes the table of `instance`. Adding it first makes that right whether it was there or not.
pub(crate) fn deletion(instance: &str) -> String {
    format!("add table inet viaduct_{instance}\ndelete table inet viaduct_{instance}\n")
}

/// How many rules `chain` of `table` has; none if there is no such chain. Sets, which may be long, are
/// not looked at.
pub(crate) fn count_rules(table: &str, chain: &str) -> Result<usize, NftError> {
    netlink::count_rules(table, chain).map_err(NftError::Ask)
}

/// A set of prefixes.
pub(crate) fn set(name: &str, kind: &str, prefixes: &[(IpAddr, u8)]) -> String {
    let elements: Vec<String> =
        prefixes.iter().map(|(ip, length)| format!("{ip}/{length}")).collect();
    let elements = match elements.is_empty() {
        true => String::new(),
        false => format!(" elements = {{ {} }};", elements.join(", ")),
    };
    format!("set {name} {{ type {kind}; flags interval; auto-merge;{elements} }}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_change_the_script_are_refused() {
        let good = MssClamp {
            instance: "berlin_1".into(),
            interface: "eth0.7".into(),
            peers: Vec::new(),
            max_packet: 1400,
        };
        assert!(good.check().is_ok());
        for instance in ["", "a b", "a;flush ruleset", "ä"] {
            assert!(MssClamp { instance: instance.into(), ..good.clone() }.check().is_err());
        }
        for interface in ["", "a\"b", "wan*", "sixteen-letters-"] {
            assert!(MssClamp { interface: interface.into(), ..good.clone() }.check().is_err());
        }
        assert!(MssClamp { max_packet: 59, ..good }.check().is_err());
    }
}

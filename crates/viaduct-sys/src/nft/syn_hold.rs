//! Rules that make the kernel hold SYNs ([`crate::nft::nfqueue`]) until the server has answered a
//! proxy's connect.
//!
//! ```text
//!   SYN ─▶ [ table inet viaduct_<instance>: queue ] ─▶ [ marked by the verdict? ] ─▶
//!            no reader: passes                          reset, or unreachable
//! ```
//!
//! On the forwarding path these rules precede those of [`crate::nft::intercept`]; if the proxy
//! itself is the destination, they follow the firewall's.

use serde::{Deserialize, Serialize};

use crate::nft::intercept::{SKIP_LOCAL, SYN, Selector, matches};
use crate::nft::nfqueue;
use crate::nft::table::{NftError, Table};

/// Mark of a SYN that is answered with a reset, as if by a server that refuses the connection.
pub const REFUSED: u32 = 0x7665_0001;
/// Mark of a SYN that is answered with an ICMP error, as if by a router without a route.
pub const UNREACHABLE: u32 = 0x7665_0002;

/// Path of the SYNs to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SynPath {
    /// SYNs that are forwarded.
    #[serde(rename = "passing")]
    Forwarded,
    /// SYNs to this machine.
    #[serde(rename = "here")]
    Local,
}

/// SYNs to hold, and their queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SynHold {
    /// Instance name, part of the table's name: letters, digits and `_`, at most 32 of them.
    pub instance: String,
    /// Queue number.
    pub queue: u16,
    /// Forwarded SYNs, or those to this machine.
    pub whose: SynPath,
    /// Source and destination prefixes.
    pub ways: Vec<Selector>,
    /// Destination ports; empty means all.
    pub ports: Vec<u16>,
}

impl Table for SynHold {
    fn instance(&self) -> &str {
        &self.instance
    }

    fn chains(&self) -> Vec<(&'static str, usize)> {
        let (_, ways) = matches(&self.ways, &self.ports);
        vec![("hold", 1), ("syns", usize::from(self.is_forwarded()) + ways.len()), ("answers", 2)]
    }

    fn contents(&self) -> String {
        self.contents_with(&format!("queue num {} bypass", self.queue))
    }

    /// Installs the table. On kernels that have only iptables' NFQUEUE target, the rule is added by
    /// netlink, because the program `nft` has no syntax for it.
    fn apply(&self) -> Result<(), NftError> {
        self.check()?;
        let Err(refused) = self.install(&self.contents()) else { return Ok(()) };
        self.install(&self.contents_with(""))?;
        nfqueue::xtables_rule(&self.table(), "hold", self.queue).map_err(|_| {
            // The error of `nft` is clearer.
            let _ = self.undo();
            refused.into()
        })
    }
}

impl SynHold {
    fn is_forwarded(&self) -> bool {
        self.whose == SynPath::Forwarded
    }

    /// Builds the table's contents, with `queue` as the rule that sends packets to the queue.
    fn contents_with(&self, queue: &str) -> String {
        let (hook, first, second) = match self.whose {
            SynPath::Forwarded => ("prerouting", "mangle - 10", "mangle - 9"),
            SynPath::Local => ("input", "filter + 10", "filter + 11"),
        };
        let (sets, rules) = matches(&self.ways, &self.ports);
        let chain = |name: &str, priority: &str| {
            format!("chain {name} {{\ntype filter hook {hook} priority {priority}; policy accept;")
        };
        let mut lines = vec![sets, format!("chain hold {{\n{queue}\n}}"), chain("syns", first)];
        lines.extend(self.is_forwarded().then(|| SKIP_LOCAL.to_owned()));
        lines.extend(rules.iter().map(|(_, way)| format!("{way}{SYN} goto hold")));
        lines.extend(["}".to_owned(), chain("answers", second)]);
        lines.push(format!("meta mark {REFUSED:#x} meta l4proto tcp reject with tcp reset"));
        lines.push(format!(
            "meta mark {UNREACHABLE:#x} meta l4proto tcp reject with icmpx type \
                host-unreachable\n}}"
        ));
        lines.join("\n")
    }
}

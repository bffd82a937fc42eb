//! Rules that make the kernel hold SYNs until a proxy has asked the server
//! ([`crate::nfqueue`]).
//!
//! ```text
//!   SYN ─▶ firewall ─▶ [ table inet viaduct_<instance>: queue ] ─▶ [ what the verdict marked ] ─▶
//!                        no reader: passes                          reset, or unreachable
//! ```
//!
//! On the forwarding path these rules precede those of [`crate::intercept`]; at a proxy that is
//! the destination, they follow the firewall's.

use serde::{Deserialize, Serialize};

use crate::intercept::{NOT_OWN, SYN, Way, matches};
use crate::nfqueue;
use crate::table::{NftError, Table};

/// Mark of a SYN that is answered by a reset, as by a server that refuses.
pub const REFUSED: u32 = 0x7665_0001;
/// Mark of a SYN that is answered by an ICMP error, as by a router without a route.
pub const UNREACHABLE: u32 = 0x7665_0002;

/// SYNs to hold, by their destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// SYNs that are forwarded.
    Passing,
    /// SYNs to this machine.
    Here,
}

/// SYNs to hold, and their queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Instance, which names the table: letters, digits and `_`, at most 32 of them.
    pub instance: String,
    /// Queue number.
    pub queue: u16,
    /// Forwarded SYNs, or those to this machine.
    pub whose: Where,
    /// Source and destination prefixes.
    pub ways: Vec<Way>,
    /// Destination ports; empty means all.
    pub ports: Vec<u16>,
}

impl Table for Hold {
    fn instance(&self) -> &str {
        &self.instance
    }

    fn chains(&self) -> Vec<(&'static str, usize)> {
        let (_, ways) = matches(&self.ways, &self.ports);
        vec![("hold", 1), ("syns", usize::from(self.is_passing()) + ways.len()), ("answers", 2)]
    }

    fn contents(&self) -> String {
        self.leading(&format!("queue num {} bypass", self.queue))
    }

    /// Some kernels have iptables' queue only, which nftables may borrow but `nft` cannot write.
    fn apply(&self) -> Result<(), NftError> {
        self.check()?;
        let Err(refused) = self.put(&self.contents()) else { return Ok(()) };
        self.put(&self.leading(""))?;
        nfqueue::borrowed_rule(&self.table(), "hold", self.queue).map_err(|_| {
            // The error of `nft` is clearer to the reader.
            let _ = self.undo();
            refused.into()
        })
    }
}

impl Hold {
    fn is_passing(&self) -> bool {
        self.whose == Where::Passing
    }

    /// Builds the table's contents, with `queue` as the rule that leads to the queue.
    fn leading(&self, queue: &str) -> String {
        let (hook, first, second) = match self.whose {
            Where::Passing => ("prerouting", "mangle - 10", "mangle - 9"),
            Where::Here => ("input", "filter + 10", "filter + 11"),
        };
        let (sets, rules) = matches(&self.ways, &self.ports);
        let chain = |name: &str, priority: &str| {
            format!("chain {name} {{\ntype filter hook {hook} priority {priority}; policy accept;")
        };
        let mut lines = vec![sets, format!("chain hold {{\n{queue}\n}}"), chain("syns", first)];
        lines.extend(self.is_passing().then(|| NOT_OWN.to_owned()));
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

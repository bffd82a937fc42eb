//! Rules that have the kernel hold SYNs until a proxy has asked the server ([`crate::nfqueue`]).
//!
//! ```text
//!   SYN ─▶ firewall ─▶ [ table inet viaduct_<instance>: queue ] ─▶ [ what the verdict marked ] ─▶
//!                        nobody reads: passes                       reset, or unreachable
//! ```
//!
//! On the path they stand before the rules of [`crate::intercept`]; at a proxy that is spoken to,
//! behind the firewall's.

use serde::{Deserialize, Serialize};

use crate::intercept::{NOT_OWN, SYN, Way, matches};
use crate::nfqueue;
use crate::table::{NftError, Table};

/// The mark of a SYN that is answered as a server does that refuses.
pub const REFUSED: u32 = 0x7665_0001;
/// The mark of a SYN that is answered as a router does that knows no way.
pub const UNREACHABLE: u32 = 0x7665_0002;

/// Whose SYNs are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// Those that pass this machine.
    Passing,
    /// Those to this machine.
    Here,
}

/// SYNs to be held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// Names the table: letters, digits and `_`, at most 32 of them.
    pub instance: String,
    /// The queue that they wait in.
    pub queue: u16,
    /// Whose.
    pub whose: Where,
    /// Where they come from and go.
    pub ways: Vec<Way>,
    /// Their destination ports; none means all.
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
            // The reader knows `nft`'s words better.
            let _ = self.undo();
            refused.into()
        })
    }
}

impl Hold {
    fn is_passing(&self) -> bool {
        self.whose == Where::Passing
    }

    /// With `queue` as the rule that leads to the queue.
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

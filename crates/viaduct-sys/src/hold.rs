//! Rules that have the kernel hold SYNs until a proxy has asked the server ([`crate::nfqueue`]).
//!
//! ```text
//!   SYN ─▶ firewall ─▶ [ table inet viaduct_<instance>: queue ] ─▶ [ what the verdict marked ] ─▶
//!                        nobody reads: passes                       reset, or unreachable
//! ```
//!
//! On the path they stand before the rules of [`crate::intercept`]; at a proxy that is spoken to,
//! behind the firewall's.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use crate::intercept::{SYN, Way, matches};
use crate::nft::{NftError, check_instance, count_rules, deletion};
use crate::{nfqueue, tool};

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

impl Hold {
    /// Sees that all of it can be written into rules.
    ///
    /// # Errors
    /// A name that cannot.
    pub fn check(&self) -> Result<(), NftError> {
        check_instance(&self.instance)
    }

    /// Puts the rules in place; ours that are there already are replaced.
    ///
    /// # Errors
    /// `nft` refuses, or the kernel has no NFQUEUE.
    pub fn apply(&self) -> Result<(), NftError> {
        self.check()?;
        let own = self.script(&format!("queue num {} bypass", self.queue));
        let Err(refused) = tool::run("nft", &["-f", "-"], &own) else { return Ok(()) };
        // Some kernels have iptables' queue only, which nftables may borrow but `nft` cannot write.
        tool::run("nft", &["-f", "-"], &self.script(""))?;
        let table = format!("viaduct_{}", self.instance);
        nfqueue::borrowed_rule(&table, "hold", self.queue).map_err(|_| {
            // The reader knows `nft`'s words better.
            let _ = self.undo();
            refused
        })?;
        Ok(())
    }

    /// Takes them away, if they are there.
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
        let (_, ways) = matches(&self.ways, &self.ports);
        let table = format!("viaduct_{}", self.instance);
        let all = [("hold", 1), ("syns", ways.len()), ("answers", 2)];
        all.iter().try_fold(true, |so_far, (chain, rules)| {
            Ok(so_far && count_rules(&table, chain)? == *rules)
        })
    }

    /// With `queue` as the rule that leads to the queue.
    fn script(&self, queue: &str) -> String {
        let mut script = deletion(&self.instance);
        let mut line = |text: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(script, "{text}");
        };
        let (hook, first, second) = match self.whose {
            Where::Passing => ("prerouting", "mangle - 10", "mangle - 9"),
            Where::Here => ("input", "filter + 10", "filter + 11"),
        };
        line(&format!("table inet viaduct_{} {{", self.instance));
        let (sets, rules) = matches(&self.ways, &self.ports);
        line(&sets);
        line(&format!("chain hold {{\n{queue}\n}}"));
        let chain = |name: &str, priority: &str| {
            format!("chain {name} {{\ntype filter hook {hook} priority {priority}; policy accept;")
        };
        line(&chain("syns", first));
        for (_, way) in rules {
            line(&format!("{way}{SYN} goto hold"));
        }
        line("}");
        line(&chain("answers", second));
        line(&format!("meta mark {REFUSED:#x} meta l4proto tcp reject with tcp reset"));
        line(&format!(
            "meta mark {UNREACHABLE:#x} meta l4proto tcp reject with icmpx type host-unreachable"
        ));
        line("}\n}");
        script
    }
}

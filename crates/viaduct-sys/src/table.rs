//! Tables of nftables that are ours: whatever their rules, they are put in place, taken away and looked for
//! alike, each in one transaction.
//!
//! | of | what for |
//! |---|---|
//! | [`crate::nft::MssClamp`] | the segment size between sites |
//! | [`crate::intercept::Intercept`] | connections that are handed to a proxy |
//! | [`crate::hold::Hold`] | SYNs that wait |
//! | [`crate::keep_out::KeepOut`] | packets that are not the kernel's TCP's |

use std::io;
use std::net::IpAddr;

use crate::netlink;
use crate::tool::{self, ToolError};

/// Why a table cannot be.
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

/// One of ours, of the family `inet`.
pub trait Table {
    /// What names it: letters, digits and `_`, at most 32 of them.
    fn instance(&self) -> &str;

    /// What stands in it: `nft`'s words between the braces.
    fn contents(&self) -> String;

    /// How many rules its chains have when all of it is in place.
    fn chains(&self) -> Vec<(&'static str, usize)>;

    /// Its name.
    fn table(&self) -> String {
        format!("viaduct_{}", self.instance())
    }

    /// Sees that all of it can be written into rules.
    ///
    /// # Errors
    /// A name that cannot.
    fn check(&self) -> Result<(), NftError> {
        check_instance(self.instance())
    }

    /// Puts it in place; one of the same name is replaced.
    ///
    /// # Errors
    /// As [`Table::check`], or `nft` refuses.
    fn apply(&self) -> Result<(), NftError> {
        self.check()?;
        Ok(self.put(&self.contents())?)
    }

    /// Takes it away, if it is there.
    ///
    /// # Errors
    /// `nft` refuses.
    fn undo(&self) -> Result<(), NftError> {
        self.check()?;
        Ok(self.delete()?)
    }

    /// Whether all of it is in place.
    ///
    /// # Errors
    /// The kernel does not say.
    fn is_there(&self) -> Result<bool, NftError> {
        self.has_chains()
    }

    /// Whether its chains have their rules.
    ///
    /// # Errors
    /// The kernel does not say.
    fn has_chains(&self) -> Result<bool, NftError> {
        // Sets, which may be long, are not looked at.
        let count = |chain| netlink::count_rules(&self.table(), chain).map_err(NftError::Ask);
        self.chains()
            .iter()
            .try_fold(true, |so_far, (chain, rules)| Ok(so_far && count(chain)? == *rules))
    }

    /// Takes the table alone away, if it is there.
    ///
    /// # Errors
    /// `nft` refuses.
    fn delete(&self) -> Result<(), ToolError> {
        nft(&deletion(&self.table()))
    }

    /// Puts the table alone in place, with these contents.
    ///
    /// # Errors
    /// `nft` refuses.
    fn put(&self, contents: &str) -> Result<(), ToolError> {
        let table = self.table();
        nft(&format!("{}table inet {table} {{\n{contents}\n}}\n", deletion(&table)))
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

/// Has `nft` do all of `script`, or nothing.
pub(crate) fn nft(script: &str) -> Result<(), ToolError> {
    tool::run("nft", &["-f", "-"], script).map(drop)
}

/// Adding it first makes that right whether it was there or not.
fn deletion(table: &str) -> String {
    format!("add table inet {table}\ndelete table inet {table}\n")
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

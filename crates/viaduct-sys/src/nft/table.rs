//! Our nftables tables. The same code creates, deletes and checks all of them; creation and
//! deletion are one transaction each.
//!
//! | implementation | purpose |
//! |---|---|
//! | [`crate::nft::mss_clamp::MssClamp`] | lowers the MSS between sites |
//! | [`crate::nft::intercept::Intercept`] | redirects connections to a proxy |
//! | [`crate::nft::syn_hold::SynHold`] | holds SYNs until a verdict |
//! | [`crate::nft::rst_guard::RstGuard`] | hides packets from the kernel's TCP |
//! | [`crate::nft::path_rules::PathRules`] | selects the path of forwarded packets |
//! | [`crate::nft::spray::Spray`] | distributes a service's packets over replicas |

use std::io;
use std::net::IpAddr;

use crate::process::tool::{self, ToolError};
use crate::route::netlink::{self, Message, NLM_F_DUMP};

/// Errors of installing and removing a table.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// `nft` failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// A name cannot be written into a rule.
    #[error("{what} {name:?}: {expected}")]
    Name {
        /// Kind of name.
        what: &'static str,
        /// Name.
        name: String,
        /// Expected form.
        expected: &'static str,
    },
    /// The rules cannot be listed.
    #[error("cannot list the rules of nftables")]
    Ask(#[source] io::Error),
    /// The kernel refuses the rules or routes of marked packets.
    #[error("cannot read or change the policy routing of marked packets")]
    Policy(#[source] io::Error),
    /// The packet size is out of range.
    #[error("a maximum packet size of {0} bytes: 576 to 65535 is expected")]
    MaxPacket(u32),
}

/// Address family of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4 and IPv6.
    Inet,
    /// Packets of network devices, before routing.
    Netdev,
}

impl Family {
    /// Name in `nft`'s syntax.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Family::Inet => "inet",
            Family::Netdev => "netdev",
        }
    }

    /// The kernel's number (`NFPROTO_`).
    fn number(self) -> u8 {
        match self {
            Family::Inet => 1,
            Family::Netdev => 5,
        }
    }
}

/// Operations that all our nftables tables have.
pub trait Table {
    /// Instance name, part of the table's name: letters, digits and `_`, at most 32 of them.
    fn instance(&self) -> &str;

    /// Contents of the table: `nft`'s syntax between the braces.
    fn contents(&self) -> String;

    /// Chains of the complete table, with their numbers of rules.
    fn chains(&self) -> Vec<(&'static str, usize)>;

    /// Address family of the table.
    fn family(&self) -> Family {
        Family::Inet
    }

    /// Name of the table.
    fn table(&self) -> String {
        format!("viaduct_{}", self.instance())
    }

    /// Checks that all names can be written into rules.
    fn check(&self) -> Result<(), NftError> {
        check_instance(self.instance())
    }

    /// Installs the table, and replaces any table of the same name. Errors: those of
    /// [`Table::check`], or `nft` fails.
    fn apply(&self) -> Result<(), NftError> {
        self.check()?;
        Ok(self.install(&self.contents())?)
    }

    /// Removes the table, if it exists. Errors: `nft` fails.
    fn undo(&self) -> Result<(), NftError> {
        self.check()?;
        Ok(self.delete()?)
    }

    /// Returns whether the table is complete. Errors: the rules cannot be listed.
    fn is_installed(&self) -> Result<bool, NftError> {
        self.has_chains()
    }

    /// Returns whether the table's chains have all their rules. Errors: the rules cannot be listed.
    fn has_chains(&self) -> Result<bool, NftError> {
        // Sets, which may be long, are not compared.
        let count = |chain| count_rules(self.family(), &self.table(), chain).map_err(NftError::Ask);
        self.chains()
            .iter()
            .try_fold(true, |so_far, (chain, rules)| Ok(so_far && count(chain)? == *rules))
    }

    /// Removes only the nftables table, if it exists, and not the routes that belong to it. Errors:
    /// `nft` fails.
    fn delete(&self) -> Result<(), ToolError> {
        nft(&deletion(self.family(), &self.table()))
    }

    /// Installs only the nftables table, with these contents. Errors: `nft` fails.
    fn install(&self, contents: &str) -> Result<(), ToolError> {
        let (family, table) = (self.family(), self.table());
        let deletion = deletion(family, &table);
        nft(&format!("{deletion}table {} {table} {{\n{contents}\n}}\n", family.name()))
    }
}

/// Checks that `instance` can name a table.
pub(crate) fn check_instance(instance: &str) -> Result<(), NftError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (what, expected) = ("instance", "letters, digits and _ are expected, 1 to 32 of them");
    if !instance.chars().all(plain) || !(1..=32).contains(&instance.len()) {
        return Err(NftError::Name { what, name: instance.to_owned(), expected });
    }
    Ok(())
}

/// Checks that `interface` can be written into a rule.
pub(crate) fn check_interface(interface: &str) -> Result<(), NftError> {
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '"' || c == '*' || c == '/';
    let (what, expected) = ("interface", "the name of a network interface is expected");
    if interface.contains(odd) || !(1..16).contains(&interface.len()) {
        return Err(NftError::Name { what, name: interface.to_owned(), expected });
    }
    Ok(())
}

/// Runs `script` in `nft`, as one transaction.
pub(crate) fn nft(script: &str) -> Result<(), ToolError> {
    tool::run("nft", &["-f", "-"], script).map(drop)
}

/// Returns the number of rules in `chain` of the nftables table `table`; 0 if there is no such
/// chain. Errors: the kernel has no nftables.
fn count_rules(family: Family, table: &str, chain: &str) -> io::Result<usize> {
    const NFTABLES: u16 = 10;
    const NEW_RULE: u16 = 6;
    const GET_RULE: u16 = 7;
    let question = Message::new(NFTABLES, GET_RULE, NLM_F_DUMP, family.number(), 0)
        .with(1, format!("{table}\0").as_bytes())
        .with(2, format!("{chain}\0").as_bytes());
    let mut rules = 0;
    let accepted = netlink::exchange(netlink::socket()?, &question.bytes(), |kind, _| {
        rules += usize::from(kind == NFTABLES << 8 | NEW_RULE);
    })?;
    match accepted {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(0),
        accepted => accepted.map(|()| rules),
    }
}

/// Builds the commands that delete a table. The commands first add the table, so that a missing
/// table is not an error.
fn deletion(family: Family, table: &str) -> String {
    let family = family.name();
    format!("add table {family} {table}\ndelete table {family} {table}\n")
}

pub(crate) fn set(name: &str, kind: &str, prefixes: &[(IpAddr, u8)]) -> String {
    let elements: Vec<String> =
        prefixes.iter().map(|(ip, length)| format!("{ip}/{length}")).collect();
    let elements = match elements.is_empty() {
        true => String::new(),
        false => format!(" elements = {{ {} }};", elements.join(", ")),
    };
    format!("set {name} {{ type {kind}; flags interval; auto-merge;{elements} }}")
}

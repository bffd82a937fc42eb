//! TCP connections through this machine, handed to a proxy on it instead of being forwarded
//! (TPROXY).
//!
//! ```text
//!   SYN to 10.2.0.9:80 ──▶ [ prerouting: table inet viaduct_<instance> ] ── mark ──▶ ip rule
//!                             tproxy to :7000                                          │
//!   listener on port 7000, whose accepted socket is 10.2.0.9:80 ◀── local ── table ◀──┘
//! ```
//!
//! Connections to addresses of this machine end here and do not pass: they are left alone whatever the prefixes, and so
//! are the machine's own services and the firewall rules about them.
//!
//! Only connections whose SYN was seen are handed over: those that were there before pass on as they
//! did. Their SYNs are remembered for some seconds ([`REMEMBERED`]), because a handshake that the
//! kernel does without memory (SYN cookies, in a flood) shows no socket until it is done.
//!
//! A proxy that lets its flows end has new connections pass by at once ([`Intercept::passed_by`]): SYNs
//! are handed over no more, and what belongs to those that were is.
//!
//! Where nobody listens on the port any more the kernel finds no socket and forwards the packets as
//! if the rule were not there: new connections pass a dead proxy by.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::table::{NftError, Table, nft, set};
use crate::tool;

/// Families as nft names them, their addresses, and whether it is IPv4.
const FAMILIES: [(&str, &str, bool); 2] = [("ip", "ipv4_addr", true), ("ip6", "ipv6_addr", false)];
/// A SYN that begins a connection.
pub(crate) const SYN: &str = "tcp flags & (fin | syn | rst | ack) == syn";
/// Leaves packets to addresses of this machine alone, whatever it has when they come: they end here and pass through
/// nothing, and its own listeners and firewall rules are for them.
pub(crate) const NOT_OWN: &str = "fib daddr type local return";
/// Anything else.
const NO_SYN: &str = "tcp flags & (fin | syn | rst | ack) != syn";
/// Marks and routing tables of ours: this, and the port.
pub(crate) const BASE: u32 = 0x7664_0000;

/// An address and a prefix's length.
type Prefix = (IpAddr, u8);

/// How long a SYN is remembered: longer than a handshake takes.
const REMEMBERED: &str = "3s";
/// SYNs that are remembered, at most, in each family: a flood of 43,000 a second.
const MOST_REMEMBERED: usize = 131_072;

/// What to intercept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intercept {
    /// Names the table: letters, digits and `_`, at most 32 of them.
    pub instance: String,
    /// The port that the proxy listens on.
    pub to_port: u16,
    /// Which connections are intercepted.
    pub ways: Vec<Way>,
    /// Their destination ports; none means all.
    pub ports: Vec<u16>,
    /// New connections pass by: only those whose SYN was handed over before still are.
    #[serde(default)]
    pub passed_by: bool,
}

/// Connections from some addresses to others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Way {
    /// Where they come from; none means anywhere.
    pub from: Vec<(IpAddr, u8)>,
    /// Where they go.
    pub to: Vec<(IpAddr, u8)>,
}

impl Intercept {
    /// The same, where new connections pass by.
    pub fn passed_by(&self) -> Intercept {
        Intercept { passed_by: true, ..self.clone() }
    }

    /// Does so with rules that are in place: what they remember stays.
    ///
    /// # Errors
    /// `nft` refuses: the rules are not in place, say.
    pub fn pass_by(&self) -> Result<(), NftError> {
        self.check()?;
        let chain = format!("inet {} prerouting", self.table());
        let mut script = format!("flush chain {chain}\n");
        for rule in self.passed_by().rules() {
            // Writing to a string cannot fail.
            let _ = writeln!(script, "add rule {chain} {rule}");
        }
        Ok(nft(&script)?)
    }

    fn mark(&self) -> String {
        format!("{:#x}", BASE | u32::from(self.to_port))
    }

    /// The routing table's number.
    fn routes(&self) -> String {
        (BASE | u32::from(self.to_port)).to_string()
    }

    /// The rules, in order.
    fn rules(&self) -> Vec<String> {
        let mark = self.mark();
        // Packets of connections that are ours already, with whatever address.
        let ours = format!("meta l4proto tcp socket transparent 1 meta mark set {mark} accept");
        let mut rules = vec![ours, NOT_OWN.to_owned()];
        for (family, matches) in matches(&self.ways, &self.ports).1 {
            // All of it: a client may have the same port to another server, from before.
            let tuple = format!("{family} saddr . tcp sport . {family} daddr . tcp dport");
            let over = format!("tproxy {family} to :{} meta mark set {mark} accept", self.to_port);
            if self.passed_by {
                // A SYN that comes once more goes where its repetitions will.
                rules.push(format!("{matches}{NO_SYN} {tuple} @{family}_begun {over}"));
                continue;
            }
            // By itself: where no more can be remembered, a SYN is handed over all the same.
            rules.push(format!("{matches}{SYN} add @{family}_begun {{ {tuple} }}"));
            rules.push(format!("{matches}{SYN} {over}"));
            rules.push(format!("{matches}{tuple} @{family}_begun {over}"));
        }
        rules
    }
}

impl Table for Intercept {
    fn instance(&self) -> &str {
        &self.instance
    }

    fn chains(&self) -> Vec<(&'static str, usize)> {
        vec![("prerouting", self.rules().len())]
    }

    fn contents(&self) -> String {
        let sets = FAMILIES.map(|(family, kind, _)| {
            format!(
                "set {family}_begun {{ type {kind} . inet_service . {kind} . inet_service; \
                 flags dynamic,timeout; size {MOST_REMEMBERED}; timeout {REMEMBERED}; }}"
            )
        });
        let chain =
            "chain prerouting {\ntype filter hook prerouting priority mangle; policy accept;";
        let (ways, rules) = (matches(&self.ways, &self.ports).0, self.rules().join("\n"));
        format!("{}\n{ways}\n{chain}\n{rules}\n}}", sets.join("\n"))
    }

    /// Rules, and routes.
    fn apply(&self) -> Result<(), NftError> {
        self.check()?;
        for family in ["-4", "-6"] {
            let (mark, table) = (self.mark(), self.routes());
            let any = if family == "-4" { "0.0.0.0/0" } else { "::/0" };
            // What is there already stays: flows may depend on it.
            if ip(&[family, "rule", "list", "fwmark", &mark])?.trim().is_empty() {
                ip(&[family, "rule", "add", "fwmark", &mark, "lookup", &table, "priority", "118"])?;
            }
            ip(&[family, "route", "replace", "local", any, "dev", "lo", "table", &table])?;
        }
        // Last: what it marks finds its way already.
        Ok(self.put(&self.contents())?)
    }

    fn undo(&self) -> Result<(), NftError> {
        self.check()?;
        self.delete()?;
        for family in ["-4", "-6"] {
            // What is not there cannot be deleted, and need not be.
            let (mark, table) = (self.mark(), self.routes());
            let _ = ip(&[family, "rule", "del", "fwmark", &mark, "lookup", &table]);
            let _ = ip(&[family, "route", "flush", "table", &table]);
        }
        Ok(())
    }

    fn is_there(&self) -> Result<bool, NftError> {
        if !self.has_chains()? {
            return Ok(false);
        }
        let (mark, table) = (self.mark(), self.routes());
        let shows = |arguments: &[&str]| ip(arguments).is_ok_and(|text| !text.trim().is_empty());
        Ok(["-4", "-6"].iter().all(|family| {
            shows(&[family, "rule", "list", "fwmark", &mark])
                // One that does not exist is an error.
                && shows(&[family, "route", "list", "table", &table])
        }))
    }
}

/// The sets of addresses of `ways`, and for each way and family the family and what picks its
/// packets to `ports`, all if there are none.
pub(crate) fn matches(ways: &[Way], ports: &[u16]) -> (String, Vec<(&'static str, String)>) {
    let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
    let ports = match ports.is_empty() {
        true => String::new(),
        false => format!("tcp dport {{ {} }} ", ports.join(", ")),
    };
    let (mut sets, mut rules) = (Vec::new(), Vec::new());
    for (n, way) in ways.iter().enumerate() {
        for (family, kind, v4) in FAMILIES {
            let of = |all: &[Prefix]| -> Vec<Prefix> {
                all.iter().filter(|(ip, _)| ip.is_ipv4() == v4).copied().collect()
            };
            let (from, to) = (of(&way.from), of(&way.to));
            // Prefixes of the other family alone let none of this one through.
            if to.is_empty() || from.is_empty() && !way.from.is_empty() {
                continue;
            }
            sets.push(set(&format!("{family}_to{n}"), kind, &to));
            let mut matches = format!("{family} daddr @{family}_to{n} ");
            if !from.is_empty() {
                sets.push(set(&format!("{family}_from{n}"), kind, &from));
                matches += &format!("{family} saddr @{family}_from{n} ");
            }
            rules.push((family, matches + &ports));
        }
    }
    (sets.join("\n"), rules)
}

fn ip(arguments: &[&str]) -> Result<String, NftError> {
    Ok(tool::run("ip", arguments, "")?)
}

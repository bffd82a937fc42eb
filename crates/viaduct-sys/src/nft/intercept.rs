//! Interception (TPROXY): forwarded TCP connections are redirected to a proxy on this machine.
//!
//! ```text
//!   SYN to 10.2.0.9:80 ──▶ [ prerouting: table inet viaduct_<instance> ] ── mark ──▶ ip rule
//!                             tproxy to :7000                                          │
//!   listener on port 7000, whose accepted socket is 10.2.0.9:80 ◀── local ── table ◀──┘
//! ```
//!
//! Connections to addresses of this machine are not intercepted, even if a prefix contains the
//! addresses: the machine's own services and the firewall rules about them are not affected.
//!
//! Only connections whose SYN was seen are redirected; older ones are still forwarded. SYNs are
//! remembered for some seconds ([`REMEMBERED`]), because with SYN cookies (in a flood) there is no
//! socket until the handshake completes.
//!
//! While a proxy drains its flows, new connections bypass it ([`Intercept::passed_by`]): SYNs are
//! no longer redirected, but packets of the proxy's existing connections still are.
//!
//! Without a listener on the port, the kernel finds no socket and forwards the packets as if
//! the rule did not exist: new connections bypass a dead proxy.

use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use crate::nft::policy::Policy;
use crate::nft::table::{NftError, Table, nft, set};
use crate::route::interface;
use crate::route::rtnetlink;

/// Address families: nft's name, nft's address type, and whether it is IPv4.
const FAMILIES: [(&str, &str, bool); 2] = [("ip", "ipv4_addr", true), ("ip6", "ipv6_addr", false)];
/// Match of a SYN that opens a connection.
pub(crate) const SYN: &str = "tcp flags & (fin | syn | rst | ack) == syn";
/// Rule that skips packets to this machine's addresses, for its own listeners and firewall rules.
pub(crate) const SKIP_LOCAL: &str = "fib daddr type local return";
/// Match of any TCP packet that does not match [`SYN`].
const NOT_SYN: &str = "tcp flags & (fin | syn | rst | ack) != syn";
/// The unspecified address of each family; we have rules and routes for both.
const ANY: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
/// Base of our marks and routing table numbers; the port is added.
pub(crate) const BASE: u32 = 0x7664_0000;

/// A prefix: address and length.
type Prefix = (IpAddr, u8);

/// Lifetime of a remembered SYN, longer than a handshake takes.
const REMEMBERED: &str = "3s";
/// Max SYNs remembered per family, enough for a flood of 43,000 per second.
const MAX_REMEMBERED: usize = 131_072;

/// Connections to intercept, and the proxy's port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intercept {
    /// Instance name, part of the table's name: letters, digits and `_`, at most 32 of them.
    pub instance: String,
    /// Port that the proxy listens on.
    pub to_port: u16,
    /// Source and destination prefixes of the connections.
    pub ways: Vec<Selector>,
    /// Destination ports; empty means all.
    pub ports: Vec<u16>,
    /// True if new connections bypass the proxy, which keeps only its existing connections.
    #[serde(default)]
    pub passed_by: bool,
}

/// Selector of connections by source and destination prefixes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selector {
    /// Source prefixes; empty means any.
    pub from: Vec<(IpAddr, u8)>,
    /// Destination prefixes.
    pub to: Vec<(IpAddr, u8)>,
}

impl Intercept {
    /// Returns the same interception, but with new connections bypassing the proxy.
    pub fn passed_by(&self) -> Intercept {
        Intercept { passed_by: true, ..self.clone() }
    }

    /// Changes the installed rules so that new connections bypass the proxy. Remembered SYNs stay.
    /// Errors: `nft` fails, for example because the rules are not installed.
    pub fn pass_by(&self) -> Result<(), NftError> {
        self.check()?;
        let chain = format!("inet {} selection", self.table());
        let mut script = format!("flush chain {chain}\n");
        for rule in self.passed_by().selection() {
            // Writing to a string cannot fail.
            let _ = writeln!(script, "add rule {chain} {rule}");
        }
        Ok(nft(&script)?)
    }

    /// Returns the mark of the packets, which is also the number of their routing table.
    fn mark(&self) -> u32 {
        BASE | u32::from(self.to_port)
    }

    fn policy(&self) -> Result<Policy, NftError> {
        Policy::open(self.mark()).map_err(NftError::Policy)
    }

    /// Makes every address local in the table of marked packets.
    fn apply_policy(&self) -> io::Result<()> {
        let (policy, loopback) = (Policy::open(self.mark())?, interface::index("lo")?);
        ANY.into_iter().try_for_each(|any| {
            policy.add_rule(any)?;
            policy.put_route(&rtnetlink::local_route((any, 0), loopback, self.mark()))
        })
    }

    /// Returns the rules for all packets, in order. The second rule matches packets whose
    /// connection has a transparent socket on this machine. It would also match a packet for
    /// another host whose destination port is the proxy's, because the kernel finds the proxy's
    /// listener for it. The first rule prevents this: a listener is bound to the wildcard address.
    fn rules(&self) -> [String; 3] {
        [
            "meta l4proto tcp socket wildcard 1 goto selection".to_owned(),
            // Matches packets of connections that already have a transparent socket on this
            // machine.
            format!(
                "meta l4proto tcp socket transparent 1 meta mark set {:#x} accept",
                self.mark()
            ),
            "goto selection".to_owned(),
        ]
    }

    /// Returns the rules that select the connections to redirect, in order.
    fn selection(&self) -> Vec<String> {
        let mark = format!("{:#x}", self.mark());
        let mut rules = vec![SKIP_LOCAL.to_owned()];
        for (family, matches) in matches(&self.ways, &self.ports).1 {
            // The full tuple is compared, as a client may use the same port for an older connection
            // to another server.
            let tuple = format!("{family} saddr . tcp sport . {family} daddr . tcp dport");
            let over = format!("tproxy {family} to :{} meta mark set {mark} accept", self.to_port);
            if self.passed_by {
                // Only packets other than SYNs match. A SYN may have been remembered and then
                // forwarded, because there was no listener; when it is retransmitted, it must be
                // forwarded, too.
                rules.push(format!("{matches}{NOT_SYN} {tuple} @{family}_begun {over}"));
                continue;
            }
            // A separate rule, so that a SYN is redirected even if the set is full. `update` renews
            // the timeout when a SYN is retransmitted.
            rules.push(format!("{matches}{SYN} update @{family}_begun {{ {tuple} }}"));
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
        vec![("prerouting", self.rules().len()), ("selection", self.selection().len())]
    }

    fn contents(&self) -> String {
        let sets = FAMILIES.map(|(family, kind, _)| {
            format!(
                "set {family}_begun {{ type {kind} . inet_service . {kind} . inet_service; \
                 flags dynamic,timeout; size {MAX_REMEMBERED}; timeout {REMEMBERED}; }}"
            )
        });
        let chain =
            "chain prerouting {\ntype filter hook prerouting priority mangle; policy accept;";
        let (ways, rules) = (matches(&self.ways, &self.ports).0, self.rules().join("\n"));
        let selection = self.selection().join("\n");
        format!(
            "{}\n{ways}\nchain selection {{\n{selection}\n}}\n{chain}\n{rules}\n}}",
            sets.join("\n")
        )
    }

    /// Installs the rules and the routes.
    fn apply(&self) -> Result<(), NftError> {
        self.check()?;
        self.apply_policy().map_err(NftError::Policy)?;
        // Installed last, so that marked packets have a route from the start.
        Ok(self.install(&self.contents())?)
    }

    fn undo(&self) -> Result<(), NftError> {
        self.check()?;
        self.delete()?;
        let policy = self.policy()?;
        ANY.into_iter().for_each(|any| policy.undo(any));
        Ok(())
    }

    fn is_installed(&self) -> Result<bool, NftError> {
        if !self.has_chains()? {
            return Ok(false);
        }
        let policy = self.policy()?;
        Ok(ANY.into_iter().all(|any| policy.is_installed(any)))
    }
}

/// Returns the definitions of the address sets of `ways`, and an entry for each selector and
/// address family: the family, and the expression for the selector's packets whose destination port
/// is one of `ports` (any port if empty).
pub(crate) fn matches(ways: &[Selector], ports: &[u16]) -> (String, Vec<(&'static str, String)>) {
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
            // If all source prefixes are of the other family, no packet of this family matches.
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

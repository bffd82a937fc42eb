//! Spray: rules that distribute packets to a service's addresses over its replicas.
//!
//! ```text
//!                       ┌─ Trickles ───────▶ packets: numgen, slot of packet n ─────┐
//!   eth0 ─▶ [ ingress ] ┤                                                           ├─▶ r0, r1, …
//!      to the addresses └─ other TCP ──────▶ connections: jhash of address, port ───┘     │
//!      and ports                                                                         ▼
//!                                         fwd: to the replica's link-layer address, unaltered
//! ```
//!
//! The packets keep their addresses (direct routing): a replica has the service's address itself,
//! and answers the client directly. The rules are at the devices' ingress hook, before routing, so
//! this machine may own the address (as with VRRP), need not forward, and has no connection state.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::capture::filter::OptionMark;
use crate::nft::table::{Family, NftError, Table, check_instance, check_interface, nft};
use crate::process::tool;

/// Seed of the hashes of connections: the same on all machines, so that a machine that takes over
/// the address sends each connection to the same replica.
const SEED: u32 = 0x7664_7370;
/// Address families: name in expressions, chains of packets and of connections, ICMP errors.
const FAMILIES: [(&str, [&str; 2], &str); 2] = [
    ("ip", ["packets4", "connections4"], "icmp type destination-unreachable"),
    (
        "ip6",
        ["packets6", "connections6"],
        "icmpv6 type { destination-unreachable, packet-too-big }",
    ),
];

/// Distribution of a service's packets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spray {
    /// Instance name, part of the table's name: letters, digits and `_`, at most 32 of them.
    pub instance: String,
    /// Devices at which packets to the service arrive.
    pub interfaces: Vec<String>,
    /// Addresses of the service.
    pub addresses: Vec<IpAddr>,
    /// Ports of the service; not empty.
    pub ports: Vec<u16>,
    /// Mark of packets that any replica can answer.
    pub mark: OptionMark,
    /// Next hops to each replica: one for each address family in which it can be reached.
    pub replicas: Vec<Vec<Hop>>,
    /// Index of the replica of each slot: a list for IPv4, and one for IPv6. Every replica in a
    /// list has a next hop of the list's family. If a list is empty, the family's packets pass.
    pub slots: [Vec<usize>; 2],
}

/// Next hop of packets to a replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hop {
    /// Address of the neighbour.
    pub address: IpAddr,
    /// Device of the link.
    pub device: String,
    /// Index of the device, which the kernel resolves when the rules are installed: a device that
    /// is created again has another one, and needs new rules.
    #[serde(default)]
    pub index: u32,
}

/// Packets sent to a replica since the table was installed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Packets.
    pub packets: u64,
    /// Bytes, including IP headers.
    pub bytes: u64,
}

impl Table for Spray {
    fn instance(&self) -> &str {
        &self.instance
    }

    fn family(&self) -> Family {
        Family::Netdev
    }

    /// Checks the instance and the names of devices.
    fn check(&self) -> Result<(), NftError> {
        check_instance(&self.instance)?;
        let hops = self.replicas.iter().flatten().map(|hop| &hop.device);
        self.interfaces.iter().chain(hops).try_for_each(|device| check_interface(device))
    }

    fn chains(&self) -> Vec<(&'static str, usize)> {
        let mut chains = vec![("arriving", self.arriving().len())];
        chains.extend(self.slot_chains().iter().map(|(chain, rules)| (*chain, rules.len())));
        chains
    }

    fn contents(&self) -> String {
        let mut lines = Vec::new();
        for (n, hops) in self.replicas.iter().enumerate() {
            lines.push(format!("counter r{n} {{ }}"));
            let forward = hops.iter().map(|Hop { address, device, .. }| {
                let family = if address.is_ipv4() { "ip" } else { "ip6" };
                format!("meta protocol {family} fwd {family} to {address} device \"{device}\"")
            });
            let rules = std::iter::once(format!("counter name r{n}")).chain(forward);
            lines.push(chain(&format!("r{n}"), rules));
        }
        for (name, rules) in self.slot_chains() {
            lines.push(chain(name, rules.into_iter()));
        }
        let devices: Vec<_> = self.interfaces.iter().map(|name| format!("\"{name}\"")).collect();
        let hook = format!(
            "type filter hook ingress devices = {{ {} }} priority 0; policy accept;",
            devices.join(", ")
        );
        lines.push(chain("arriving", std::iter::once(hook).chain(self.arriving())));
        lines.join("\n")
    }
}

impl Spray {
    /// Replaces this distribution, which is installed, with `new` of the same instance.
    pub(crate) fn replace_by(&self, new: &Spray) -> Result<(), NftError> {
        let same = Spray { slots: self.slots.clone(), ..new.clone() };
        if *self != same {
            return new.apply();
        }
        let mut script = String::new();
        for (chain, rules) in new.slot_chains() {
            let chain = format!("netdev {} {chain}", self.table());
            script += &format!("flush chain {chain}\n");
            rules.iter().for_each(|rule| script += &format!("add rule {chain} {rule}\n"));
        }
        Ok(nft(&script)?)
    }

    /// Returns the counters of the replicas. Errors: `nft` fails, for example because the table
    /// was deleted.
    pub fn sent(&self) -> Result<Vec<Sent>, NftError> {
        let table = self.table();
        let listed = tool::run("nft", &["-j", "list", "counters", "table", "netdev", &table], "")?;
        let all: BTreeMap<String, Sent> = read_counters(&listed);
        let sent = |n: usize| all.get(&format!("r{n}")).copied().unwrap_or_default();
        Ok((0..self.replicas.len()).map(sent).collect())
    }

    /// Returns the rules that select the service's packets, in order.
    fn arriving(&self) -> Vec<String> {
        let ports: Vec<_> = self.ports.iter().map(u16::to_string).collect();
        let (ports, mark) = (format!("{{ {} }}", ports.join(", ")), self.matches_mark());
        let of_address = |address: &IpAddr| {
            let (family, [packets, connections], errors) = FAMILIES[usize::from(address.is_ipv6())];
            let to = format!("{family} daddr {address}");
            [
                format!("{to} tcp dport {ports} {mark} goto {packets}"),
                format!("{to} tcp dport {ports} goto {connections}"),
                format!("{to} udp dport {ports} goto {packets}"),
                // Each replica must learn the path MTU, so the replicas receive the ICMP errors in
                // turn.
                format!("{to} {errors} goto {packets}"),
            ]
        };
        self.addresses.iter().flat_map(of_address).collect()
    }

    /// Returns the chains that select a slot, with their rules.
    fn slot_chains(&self) -> Vec<(&'static str, Vec<String>)> {
        type Family = (&'static str, [&'static str; 2], &'static str);
        let of_family = |((family, chains, _), slots): (Family, &Vec<usize>)| {
            let count = slots.len();
            let goto = |(n, replica): (usize, &usize)| format!("{n} : goto r{replica}");
            let slots = slots.iter().enumerate().map(goto).collect::<Vec<_>>().join(", ");
            let hash = format!("jhash {family} saddr . tcp sport mod {count} seed {SEED:#x}");
            let by = [format!("numgen inc mod {count}"), hash];
            let rules = by.map(|by| match count {
                0 => Vec::new(),
                _ => vec![format!("{by} vmap {{ {slots} }}")],
            });
            chains.into_iter().zip(rules)
        };
        FAMILIES.into_iter().zip(&self.slots).flat_map(of_family).collect()
    }

    /// Returns the match of the option's ExID and of the byte after it.
    fn matches_mark(&self) -> String {
        let (kind, exid) = (self.mark.word >> 24, self.mark.word & 0xffff);
        let byte = self.mark.byte;
        format!("tcp option @{kind},16,16 {exid:#x} tcp option @{kind},32,8 {byte:#x}")
    }
}

fn chain(name: &str, rules: impl Iterator<Item = String>) -> String {
    let rules: Vec<_> = rules.collect();
    format!("chain {name} {{\n{}\n}}", rules.join("\n"))
}

/// Reads the named counters in `nft`'s JSON.
fn read_counters(listed: &str) -> BTreeMap<String, Sent> {
    let listed: Value = serde_json::from_str(listed).unwrap_or_default();
    let entries = listed["nftables"].as_array().cloned().unwrap_or_default();
    let counter = |entry: &Value| {
        let counter = entry.get("counter")?;
        let number = |key: &str| counter.get(key)?.as_u64();
        let sent = Sent { packets: number("packets")?, bytes: number("bytes")? };
        Some((counter.get("name")?.as_str()?.to_owned(), sent))
    };
    entries.iter().filter_map(counter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;

    fn hop(address: &str) -> Hop {
        Hop { address: address.parse().unwrap(), device: "lo".to_owned(), index: 1 }
    }

    fn spray(slots4: &[usize]) -> Spray {
        Spray {
            instance: "spray_www".to_owned(),
            interfaces: vec!["lo".to_owned()],
            addresses: ["192.0.2.80", "2001:db8::80"].map(|ip| ip.parse().unwrap()).to_vec(),
            ports: vec![80, 443],
            mark: OptionMark { word: 0xfd0c_5674, byte: 0x10 },
            replicas: vec![vec![hop("10.0.0.2"), hop("fd00::2")], vec![hop("10.0.0.3")]],
            slots: [slots4.to_vec(), vec![0; 4]],
        }
    }

    #[test]
    fn rules_are_installed_changed_read_and_removed() {
        let test = || {
            tool::run("ip", &["link", "set", "lo", "up"], "").unwrap();
            let first = spray(&[0, 1, 0, 1]);
            assert!(!first.is_installed().unwrap());
            first.apply().unwrap();
            assert!(first.is_installed().unwrap());
            assert_eq!(first.sent().unwrap(), [Sent::default(); 2]);
            let second = spray(&[0; 4]);
            first.replace_by(&second).unwrap();
            assert!(second.is_installed().unwrap());
            let none = spray(&[]);
            second.replace_by(&none).unwrap();
            assert!(none.is_installed().unwrap() && !second.is_installed().unwrap());
            let other = Spray { ports: vec![8080], ..spray(&[1]) };
            none.replace_by(&other).unwrap();
            let listed = tool::run("nft", &["list", "ruleset"], "").unwrap();
            assert!(listed.contains("tcp dport 8080") && !listed.contains("443"), "{listed}");
            other.undo().unwrap();
            assert_eq!(tool::run("nft", &["list", "ruleset"], "").unwrap(), "");
            assert!(other.sent().is_err());
        };
        Netns::new().unwrap().enter(test).unwrap();
    }

    #[test]
    fn names_that_would_change_the_script_are_refused() {
        assert!(spray(&[0]).check().is_ok());
        let bad = Spray { interfaces: vec!["eth0\"".to_owned()], ..spray(&[0]) };
        assert!(bad.check().is_err() && bad.apply().is_err());
    }
}

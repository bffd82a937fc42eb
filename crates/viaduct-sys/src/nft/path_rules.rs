//! Several paths to other sites: forwarded packets are marked with the path that they are to take.
//! Each mark selects a routing table with that path's interface.
//!
//! ```text
//!   host ──▶ [ prerouting: table inet viaduct_<instance> ] ── mark n ──▶ ip rule ──▶ table n
//!              class? preferred path : first path                        default via … dev wan1
//! ```
//!
//! Packets that already have a mark keep it: rules of the operator take precedence. If a mark's
//! table has no route, for example while the interface is down, packets with the mark take the main
//! table's route.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteScope, RouteType,
};
use serde::{Deserialize, Serialize};

use crate::nft::policy::Policy;
use crate::nft::table::{NftError, Table, check_instance, check_interface, set};
use crate::route::interface::{self, Interface};
use crate::route::mtu::PROTOCOL;
use crate::route::rtnetlink;

/// Base of our marks and routing table numbers; a hash of the instance and the path are added. No
/// other mark of ours begins with 0x7666.
const BASE: u32 = 0x7666_0000;
/// Bits of the path in a mark.
const PATH_BITS: u32 = 4;
/// Max number of paths.
const MAX_PATHS: usize = 8;
/// Address families: nft's name, nft's address type, and the unspecified address.
const FAMILIES: [(&str, &str, IpAddr); 2] = [
    ("ip", "ipv4_addr", IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
    ("ip6", "ipv6_addr", IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
];

/// A prefix: address and length.
type Prefix = (IpAddr, u8);

/// Paths of a site, and the packets that take each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRules {
    /// Instance name, part of the table's name: letters, digits and `_`, at most 32 of them.
    pub instance: String,
    /// Prefixes of the site's hosts.
    pub local: Vec<Prefix>,
    /// Paths; at most 8.
    pub paths: Vec<PathRoute>,
    /// Choices in order; the first that matches a packet decides.
    pub choices: Vec<PathChoice>,
}

/// Route of a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathRoute {
    /// Interface.
    pub interface: String,
    /// Next hops, one for each address family; empty on a point-to-point link.
    pub via: Vec<IpAddr>,
}

/// Packets that take a path: all conditions must hold. An empty list, except `to`, matches every
/// packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathChoice {
    /// Destination prefixes; if empty, no packet matches.
    pub to: Vec<Prefix>,
    /// Differentiated services code points.
    pub dscp: Vec<u8>,
    /// Prefixes, matched against the addresses of either end.
    pub prefixes: Vec<Prefix>,
    /// Ranges of ports of either end, TCP or UDP.
    pub ports: Vec<(u16, u16)>,
    /// Protocol numbers.
    pub protocols: Vec<u8>,
    /// Index of the path.
    pub path: usize,
}

impl PathRules {
    /// Returns the mark of packets that take a path. The mark is also the number of the path's
    /// routing table.
    pub fn mark(&self, path: usize) -> u32 {
        let fold = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        let hash = self.instance.bytes().fold(0x811c_9dc5, fold);
        BASE | ((hash >> 20) << PATH_BITS) | (path as u32 + 1)
    }

    /// Replaces these rules, which are installed, with `new` of the same instance. Errors: those of
    /// [`Table::apply`].
    pub(crate) fn replace_by(&self, new: &PathRules) -> Result<(), NftError> {
        let uses = |rules: &PathRules| FAMILIES.map(|(.., any)| rules.uses(any));
        if self.paths != new.paths || uses(self) != uses(new) {
            return new.apply();
        }
        new.check()?;
        Ok(new.install(&new.contents())?)
    }

    /// Returns the sets and rules of a choice for a family, in nft's syntax; none if nothing
    /// can match.
    fn choice(&self, n: usize, family: usize) -> (Vec<String>, Vec<String>) {
        let choice = &self.choices[n];
        let (name, kind, any) = FAMILIES[family];
        let has_route = self.paths.get(choice.path).is_some_and(|path| path.has(any));
        let of = |all: &[Prefix]| -> Vec<Prefix> {
            all.iter().filter(|(ip, _)| ip.is_ipv4() == any.is_ipv4()).copied().collect()
        };
        let (to, ends) = (of(&choice.to), of(&choice.prefixes));
        let is_other_family = ends.is_empty() && !choice.prefixes.is_empty();
        if to.is_empty() || is_other_family || !has_route {
            return (Vec::new(), Vec::new());
        }
        let mut sets = vec![set(&format!("{name}_to{n}"), kind, &to)];
        let mut matches = format!("{name} saddr @{name}_local {name} daddr @{name}_to{n} ");
        let list =
            |numbers: &[u8]| numbers.iter().map(u8::to_string).collect::<Vec<_>>().join(", ");
        if !choice.dscp.is_empty() {
            matches += &format!("{name} dscp {{ {} }} ", list(&choice.dscp));
        }
        if !choice.protocols.is_empty() {
            matches += &format!("meta l4proto {{ {} }} ", list(&choice.protocols));
        }
        let mut by_address = vec![String::new()];
        if !ends.is_empty() {
            sets.push(set(&format!("{name}_of{n}"), kind, &ends));
            by_address =
                ["saddr", "daddr"].map(|end| format!("{name} {end} @{name}_of{n} ")).into();
        }
        let mut by_port = vec![String::new()];
        if !choice.ports.is_empty() {
            sets.push(port_set(&format!("{name}_ports{n}"), &choice.ports));
            let ports = |end| format!("meta l4proto {{ 6, 17 }} th {end} @{name}_ports{n} ");
            by_port = ["sport", "dport"].map(ports).into();
        }
        let mark = format!("meta mark set {:#x} return", self.mark(choice.path));
        let rule = |address: &String, port: &String| format!("{matches}{address}{port}{mark}");
        let rules = by_address.iter().flat_map(|of| by_port.iter().map(move |port| rule(of, port)));
        (sets, rules.collect())
    }

    fn all_choices(&self) -> impl Iterator<Item = (Vec<String>, Vec<String>)> {
        let families = (0..self.choices.len()).flat_map(|n| [(n, 0), (n, 1)]);
        families.map(|(n, family)| self.choice(n, family))
    }

    fn rules(&self) -> Vec<String> {
        let rules = self.all_choices().flat_map(|(_, rules)| rules);
        std::iter::once("meta mark != 0 return".to_owned()).chain(rules).collect()
    }

    fn policies(&self) -> Result<Vec<PathPolicy<'_>>, NftError> {
        let families = |route: &PathRoute| {
            let families = FAMILIES.iter().map(|(.., any)| *any);
            families.filter(|any| route.has(*any) && self.uses(*any)).collect()
        };
        let paths = self.paths.iter().enumerate().map(|(n, route)| {
            PathPolicy::open(families(route), route, self.mark(n)).map_err(NftError::Policy)
        });
        paths.collect()
    }

    /// Returns whether hosts of both sites have addresses of the family of `any`. Only such a
    /// family gets policy routing, as the kernel may lack the other family.
    fn uses(&self, any: IpAddr) -> bool {
        let has = |all: &[Prefix]| all.iter().any(|(ip, _)| ip.is_ipv4() == any.is_ipv4());
        has(&self.local) && self.choices.iter().any(|choice| has(&choice.to))
    }
}

impl Table for PathRules {
    fn instance(&self) -> &str {
        &self.instance
    }

    /// Checks the instance, the interfaces, the number of paths, and the path of each choice.
    fn check(&self) -> Result<(), NftError> {
        check_instance(&self.instance)?;
        let (what, expected) = ("path", "one of at most 8 paths is expected");
        let wrong = |path: usize| NftError::Name { what, name: path.to_string(), expected };
        if self.paths.len() > MAX_PATHS {
            return Err(wrong(self.paths.len()));
        }
        let unknown = self.choices.iter().find(|choice| choice.path >= self.paths.len());
        unknown.map_or(Ok(()), |choice| Err(wrong(choice.path)))?;
        self.paths.iter().try_for_each(|path| check_interface(&path.interface))
    }

    fn chains(&self) -> Vec<(&'static str, usize)> {
        vec![("prerouting", self.rules().len())]
    }

    fn contents(&self) -> String {
        let local = FAMILIES.iter().map(|(name, kind, any)| {
            let own = self.local.iter().filter(|(ip, _)| ip.is_ipv4() == any.is_ipv4());
            set(&format!("{name}_local"), kind, &own.copied().collect::<Vec<_>>())
        });
        let sets = local.chain(self.all_choices().flat_map(|(sets, _)| sets));
        let chain =
            "chain prerouting {\ntype filter hook prerouting priority mangle; policy accept;";
        let rules = self.rules();
        let lines: Vec<_> = sets.chain([chain.to_owned()]).chain(rules).collect();
        format!("{}\n}}", lines.join("\n"))
    }

    /// Installs the routes and the rules.
    fn apply(&self) -> Result<(), NftError> {
        self.check()?;
        // If the kernel refuses the route of one path, the routes of the others are still
        // installed.
        let routes: Vec<_> = self.policies()?.iter().map(PathPolicy::apply).collect();
        // Installed last, so that marked packets have a route from the start.
        self.install(&self.contents())?;
        routes.into_iter().collect::<io::Result<()>>().map_err(NftError::Policy)
    }

    fn undo(&self) -> Result<(), NftError> {
        self.check()?;
        self.delete()?;
        self.policies()?.iter().for_each(PathPolicy::undo);
        Ok(())
    }

    fn is_installed(&self) -> Result<bool, NftError> {
        Ok(self.has_chains()? && self.policies()?.iter().all(PathPolicy::is_installed))
    }
}

impl PathRoute {
    /// Returns whether the path has a route for the family of `any`.
    fn has(&self, any: IpAddr) -> bool {
        self.via.is_empty() || self.via.iter().any(|ip| ip.is_ipv4() == any.is_ipv4())
    }
}

/// Policy routing of one path: the only route of its table is through the path's interface.
struct PathPolicy<'a> {
    /// Unspecified addresses of the families for which the path has a route.
    families: Vec<IpAddr>,
    route: &'a PathRoute,
    policy: Policy,
}

impl PathPolicy<'_> {
    fn open(families: Vec<IpAddr>, route: &PathRoute, mark: u32) -> io::Result<PathPolicy<'_>> {
        Ok(PathPolicy { families, route, policy: Policy::open(mark)? })
    }

    fn apply(&self) -> io::Result<()> {
        let of_family = |any| {
            self.policy.add_rule(any)?;
            // The kernel accepts no route through an interface that is down.
            match self.is_up() {
                true => self.policy.put_route(&self.default_route(any)?),
                false => Ok(()),
            }
        };
        let done: Vec<io::Result<()>> = self.families.iter().copied().map(of_family).collect();
        done.into_iter().collect()
    }

    fn undo(&self) {
        // Earlier rules may have had a family that these rules do not have.
        FAMILIES.iter().for_each(|(.., any)| self.policy.undo(*any));
    }

    fn is_installed(&self) -> bool {
        !self.is_up() || self.families.iter().all(|any| self.policy.is_installed(*any))
    }

    fn is_up(&self) -> bool {
        Interface::new(&self.route.interface).is_ok_and(|of| of.is_up().unwrap_or(false))
    }

    fn default_route(&self, any: IpAddr) -> io::Result<RouteMessage> {
        let next_hop = self.route.via.iter().find(|ip| ip.is_ipv4() == any.is_ipv4());
        let is_direct = next_hop.is_none() && any.is_ipv4();
        let header = RouteHeader {
            protocol: PROTOCOL.into(),
            scope: if is_direct { RouteScope::Link } else { RouteScope::Universe },
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        let mut route = rtnetlink::route(header, (any, 0));
        route.attributes.extend(next_hop.map(|ip| RouteAttribute::Gateway((*ip).into())));
        let index = interface::index(&self.route.interface)?;
        route
            .attributes
            .extend([RouteAttribute::Oif(index), RouteAttribute::Table(self.policy.mark())]);
        Ok(route)
    }
}

fn port_set(name: &str, ports: &[(u16, u16)]) -> String {
    let ranges: Vec<_> = ports.iter().map(|(first, last)| format!("{first}-{last}")).collect();
    format!(
        "set {name} {{ type inet_service; flags interval; auto-merge; elements = {{ {} }}; }}",
        ranges.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use crate::process::tool;

    fn prefix(text: &str) -> Prefix {
        let (ip, length) = text.split_once('/').unwrap();
        (ip.parse().unwrap(), length.parse().unwrap())
    }

    fn rules(default: usize) -> PathRules {
        let to = ["10.2.0.0/16", "fd00:2::/48"].map(prefix).to_vec();
        let via = ["192.0.2.2", "2001:db8::2"].map(|ip| ip.parse().unwrap()).to_vec();
        let voice = PathChoice {
            to: to.clone(),
            dscp: vec![46],
            prefixes: vec![prefix("10.2.9.0/24"), prefix("10.2.0.0/16")],
            ports: vec![(5_060, 5_060), (5_000, 6_000)],
            protocols: vec![17],
            path: 1,
        };
        PathRules {
            instance: "paths_rome".to_owned(),
            local: ["10.1.0.0/16", "fd00:1::/48"].map(prefix).to_vec(),
            paths: vec![
                PathRoute { interface: "wan0".to_owned(), via },
                PathRoute { interface: "wan1".to_owned(), via: Vec::new() },
            ],
            choices: vec![voice, PathChoice { to, path: default, ..PathChoice::default() }],
        }
    }

    /// Returns the route of a packet with the mark of `path`.
    fn taken(rules: &PathRules, path: usize, to: &str) -> String {
        let mark = rules.mark(path).to_string();
        tool::run("ip", &["route", "get", to, "mark", &mark], "").unwrap()
    }

    #[test]
    fn paths_are_installed_changed_and_removed() {
        let test = || {
            let ip =
                |line: &str| tool::run("ip", &line.split(' ').collect::<Vec<_>>(), "").unwrap();
            ip("link add wan0 type veth peer name far0");
            ip("link add wan1 type veth peer name far1");
            ip("addr add 192.0.2.1/30 dev wan0");
            ip("addr add 2001:db8::1/64 dev wan0 nodad");
            ["wan0", "far0", "wan1", "far1"].iter().for_each(|of| {
                ip(&format!("link set {of} up"));
            });
            let first = rules(0);
            assert!(!first.is_installed().unwrap());
            first.apply().unwrap();
            assert!(first.is_installed().unwrap());
            assert_ne!(first.mark(0), first.mark(1));
            assert!(taken(&first, 0, "10.2.0.1").contains("via 192.0.2.2 dev wan0"));
            assert!(taken(&first, 1, "10.2.0.1").contains("dev wan1"));
            assert!(taken(&first, 0, "fd00:2::1").contains("via 2001:db8::2 dev wan0"));
            // The first choice has only IPv4 prefixes, so it matches no IPv6 packet. Source or
            // destination address, and source or destination port, make four rules.
            assert_eq!(first.chains(), [("prerouting", 1 + 4 + 2)]);
            let second = rules(1);
            first.replace_by(&second).unwrap();
            let listed = tool::run("nft", &["list", "ruleset"], "").unwrap();
            assert!(
                second.is_installed().unwrap()
                    && !listed.contains(&format!("{:08x}", first.mark(0)))
            );
            // The kernel drops the routes of an interface that goes down.
            ip("link set wan0 down");
            assert!(second.is_installed().unwrap());
            ip("link set wan0 up");
            ip("addr add 2001:db8::1/64 dev wan0 nodad");
            assert!(!second.is_installed().unwrap());
            second.apply().unwrap();
            assert!(second.is_installed().unwrap());
            second.undo().unwrap();
            assert_eq!(tool::run("nft", &["list", "ruleset"], "").unwrap(), "");
            assert!(
                !ip("rule").contains("118:") && !ip("route show table all").contains("default")
            );
        };
        Netns::new().unwrap().enter(test).unwrap();
    }

    #[test]
    fn names_and_paths_that_cannot_be_in_a_rule_are_refused() {
        assert!(rules(0).check().is_ok() && rules(2).check().is_err());
        let mut bad = rules(0);
        bad.paths[0].interface = "wan0\"".to_owned();
        assert!(bad.check().is_err() && bad.apply().is_err());
        assert!(PathRules { instance: "a b".to_owned(), ..rules(0) }.check().is_err());
    }
}

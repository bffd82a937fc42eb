//! Policies: which flows may pass, through which hop and which handlers, and how fast. The first
//! policy that matches a flow decides.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::Arc;

use ipnet::IpNet;
use viaduct_proto::units::rate_text;
use viaduct_sys::socket::tcp::LongHaul;

use super::chain_io::Factories;
use super::next_hops::{AutoHops, HopHealth};
use super::outbound::{HopSignalling, OutboundSpec};
use super::trickles::PacketFormats;

/// Description, for errors, of the handlers that several event loops cannot run.
pub const SHARING: &str = "handlers whose flows share or gather connections";

/// Decision about a flow.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Name of its policy, for counters; `None` if there are no policies.
    pub policy: Option<Arc<str>>,
    /// True if the flow is refused.
    pub deny: bool,
    /// Outbound route.
    pub by: OutboundSpec,
    /// Form in which the next hop gets the flow's addresses; `None` means the form set for the
    /// engine.
    pub tell: Option<HopSignalling>,
    /// Handlers that the flow passes, if any.
    pub handlers: Option<Factories>,
    /// True if this proxy is the accepting side of the same handlers at another host.
    pub accepts: bool,
    /// Rate limit in each direction, which the kernel enforces, in bits per second, if any.
    pub rate: Option<u64>,
}

/// A policy: which flows it matches, and the decision about them. An empty list matches everything.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Clients' addresses.
    pub from: Vec<IpNet>,
    /// Servers' addresses.
    pub to: Vec<IpNet>,
    /// Servers' ports.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Decision about flows that match.
    pub plan: Arc<Plan>,
}

/// Connections that cross a long link, and their socket settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Far {
    /// Addresses across the link; an empty list means all.
    pub prefixes: Vec<IpNet>,
    /// Socket settings.
    pub haul: LongHaul,
}

impl Far {
    /// Socket settings of a connection to or from `peer`, if it crosses the link.
    pub fn haul(&self, peer: IpAddr) -> Option<&LongHaul> {
        let crosses = self.prefixes.is_empty() || holds(&self.prefixes, peer);
        (crosses && self.haul != LongHaul::default()).then_some(&self.haul)
    }
}

/// All policies, in order, and the decision about flows that none of them matches.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    /// The policies.
    pub list: Vec<Policy>,
    /// Decision about all other flows.
    pub otherwise: Arc<Plan>,
    /// Socket settings of connections across a long link.
    pub far: Far,
    /// Outbounds that take the place of direct connections.
    pub detours: Vec<Detour>,
    /// States of the next hops that are checked. A running proxy keeps these states when it gets
    /// new policies.
    pub health: Arc<HopHealth>,
    /// Choice of hops by measurements. A running proxy also keeps this state when it gets new
    /// policies.
    pub auto: Arc<AutoHops>,
}

/// Outbound that takes the place of direct connections to some addresses.
#[derive(Clone, Debug)]
pub struct Detour {
    /// Addresses.
    pub to: Vec<IpNet>,
    /// Outbound.
    pub by: OutboundSpec,
}

impl Policies {
    /// Policies of an engine whose flows all use the outbound `by` and pass `handlers`.
    pub fn uniform(by: OutboundSpec, handlers: Factories) -> Policies {
        let handlers = Some(handlers).filter(|list| !list.is_empty());
        let otherwise = Plan { by, handlers, ..Plan::default() };
        Policies { otherwise: otherwise.into(), ..Policies::default() }
    }

    /// State of the handlers of the default plan: the name of each, and some lines of text.
    pub fn state(&self) -> Vec<(String, String)> {
        let factories = self.otherwise.handlers.iter().flat_map(|list| list.iter());
        let state = factories.map(|factory| Some((factory.name().to_owned(), factory.state()?)));
        state.flatten().collect()
    }

    /// Decision about a flow of `client` to `to`.
    pub fn plan(&self, client: IpAddr, to: SocketAddr) -> &Arc<Plan> {
        let found = self.list.iter().find(|policy| policy.fits(client, to));
        found.map_or(&self.otherwise, |policy| &policy.plan)
    }

    /// Decision about a flow of `client` to a server whose port is known, but not its address.
    /// `None` if the decision depends on the address.
    pub fn plan_unseen(&self, client: IpAddr, port: u16) -> Option<&Arc<Plan>> {
        let found = self.list.iter().find(|policy| policy.may_fit(client, port));
        match found {
            None => Some(&self.otherwise),
            Some(policy) => policy.to.is_empty().then_some(&policy.plan),
        }
    }

    /// Forms in which next hops get the addresses of flows; `None` means the form set for the
    /// engine.
    pub fn tells(&self) -> impl Iterator<Item = Option<HopSignalling>> {
        self.plans().filter(|plan| !plan.by.hops().is_empty()).map(|plan| plan.tell)
    }

    /// Returns whether some flows come from the same handlers at another host.
    pub fn accept(&self) -> bool {
        self.plans().any(|plan| plan.accepts)
    }

    /// Returns whether some flows share connections, or are joined by further inbound connections.
    /// With several event loops, such a flow and its connection could be in different loops.
    pub fn share(&self) -> bool {
        self.plans().any(|plan| {
            let mut handlers = plan.handlers.iter().flat_map(|all| all.iter());
            handlers.any(|of| of.shares() || plan.accepts && of.gathers())
        })
    }

    /// Packet formats of the flows that leave over Trickles.
    pub fn trickles(&self) -> impl Iterator<Item = PacketFormats> {
        self.plans()
            .filter(|plan| !plan.deny)
            .filter_map(|plan| plan.by.trickles())
            .map(|by| by.formats)
    }

    /// Policies that never apply, each with the earlier policy that matches all its flows; both as
    /// numbers from 1.
    pub fn shadowed(&self) -> impl Iterator<Item = (usize, usize)> {
        self.list.iter().enumerate().filter_map(|(n, policy)| {
            let earlier = self.list[..n].iter().position(|earlier| earlier.covers(policy))?;
            Some((n + 1, earlier + 1))
        })
    }

    /// Outbounds that plans and detours name.
    pub fn outbounds(&self) -> impl Iterator<Item = &OutboundSpec> {
        self.plans().map(|plan| &plan.by).chain(self.detours.iter().map(|detour| &detour.by))
    }

    /// Outbound that takes the place of a direct connection to `to`, if there is one.
    pub fn detour(&self, to: IpAddr) -> Option<&OutboundSpec> {
        self.detours.iter().find(|detour| holds(&detour.to, to)).map(|detour| &detour.by)
    }

    fn plans(&self) -> impl Iterator<Item = &Plan> {
        self.list.iter().map(|policy| &*policy.plan).chain([&*self.otherwise])
    }
}

impl Policy {
    fn fits(&self, client: IpAddr, to: SocketAddr) -> bool {
        self.may_fit(client, to.port()) && (self.to.is_empty() || holds(&self.to, to.ip()))
    }

    /// Returns whether this policy matches all flows that `other` matches.
    fn covers(&self, other: &Policy) -> bool {
        let nets = |ours: &[IpNet], theirs: &[IpNet]| match (ours, theirs) {
            ([], _) => true,
            (ours, []) => holds_all(ours),
            (ours, theirs) => theirs.iter().all(|net| ours.iter().any(|own| own.contains(net))),
        };
        let within = |range: &RangeInclusive<u16>| {
            let holds = |own: &RangeInclusive<u16>| {
                own.contains(range.start()) && own.contains(range.end())
            };
            self.ports.iter().any(holds)
        };
        let ports = match (&self.ports[..], &other.ports[..]) {
            ([], _) => true,
            (_, []) => within(&(1..=u16::MAX)),
            (_, theirs) => theirs.iter().all(within),
        };
        nets(&self.from, &other.from) && nets(&self.to, &other.to) && ports
    }

    /// Returns whether this policy matches flows of `client` to some server at `port`.
    fn may_fit(&self, client: IpAddr, port: u16) -> bool {
        (self.from.is_empty() || holds(&self.from, client))
            && (self.ports.is_empty() || self.ports.iter().any(|range| range.contains(&port)))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |nets: &[IpNet]| match nets {
            [] => "any".to_owned(),
            nets => nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        write!(f, "from {} to {}", list(&self.from), list(&self.to))?;
        for range in &self.ports {
            match range.start() == range.end() {
                true => write!(f, " port {}", range.start())?,
                false => write!(f, " port {}-{}", range.start(), range.end())?,
            }
        }
        write!(f, ": {}", self.plan)
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.deny {
            return f.write_str("denied");
        }
        match &self.by {
            OutboundSpec::Direct => f.write_str("straight on")?,
            OutboundSpec::Hop(at) => write!(f, "by {at}")?,
            OutboundSpec::Hops(list) => write!(f, "by {list}")?,
            OutboundSpec::Auto(auto) => write!(f, "by {auto}")?,
            by @ OutboundSpec::Tunnel(_) => write!(f, "through the {by}")?,
            by @ OutboundSpec::Trickles(_) => write!(f, "by {by}")?,
        }
        for handler in self.handlers.iter().flat_map(|all| all.iter()) {
            write!(f, " +{}", handler.name())?;
            match handler.rates() {
                [None, None] => {}
                [Some(out), Some(back)] if out == back => write!(f, " ({} bit/s)", rate_text(out))?,
                rates => {
                    let text = rates.map(|rate| rate.map_or("any".to_owned(), rate_text));
                    write!(f, " (out {}, in {} bit/s)", text[0], text[1])?;
                }
            }
        }
        if self.accepts {
            f.write_str(" (accepting side)")?;
        }
        self.rate.map_or(Ok(()), |bits| write!(f, ", at most {} bit/s", rate_text(bits)))
    }
}

/// Returns whether one of `prefixes` contains `ip`.
pub fn holds(prefixes: &[IpNet], ip: IpAddr) -> bool {
    prefixes.iter().any(|net| net.contains(&ip.to_canonical()))
}

/// Returns whether `prefixes` contain every address of both families.
pub fn holds_all(prefixes: &[IpNet]) -> bool {
    let whole = |v4: bool| prefixes.iter().any(|n| n.prefix_len() == 0 && n.addr().is_ipv4() == v4);
    whole(true) && whole(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_policy_that_fits_decides() {
        let with = |plan: Plan, policy| Policy { plan: plan.into(), ..policy };
        let deny = |policy| with(Plan { deny: true, ..Plan::default() }, policy);
        let by = OutboundSpec::Hop("198.51.100.7:7000".parse().unwrap());
        let hop = by.hop();
        let far = vec!["10.2.0.0/16".parse().unwrap()];
        let policies = Policies {
            list: vec![
                deny(Policy { ports: vec![25..=25], ..Policy::default() }),
                with(Plan { by, ..Plan::default() }, Policy { to: far, ..Policy::default() }),
                deny(Policy { from: vec!["10.1.7.0/24".parse().unwrap()], ..Policy::default() }),
            ],
            otherwise: Plan { rate: Some(9), ..Plan::default() }.into(),
            ..Policies::default()
        };
        let plan = |client: &str, to: &str| {
            let plan = policies.plan(client.parse().unwrap(), to.parse().unwrap());
            (plan.deny, plan.by.hop(), plan.rate)
        };
        assert_eq!(plan("10.1.7.1", "10.2.0.1:25"), (true, None, None));
        assert_eq!(plan("10.1.7.1", "10.2.0.1:80"), (false, hop, None));
        assert_eq!(plan("::ffff:10.1.7.1", "10.3.0.1:80"), (true, None, None));
        assert_eq!(plan("10.1.8.1", "10.3.0.1:80"), (false, None, Some(9)));
        let unseen = |client: &str, port| {
            policies.plan_unseen(client.parse().unwrap(), port).map(|plan| plan.deny)
        };
        assert_eq!(unseen("10.1.8.1", 25), Some(true), "the port decides");
        assert_eq!(unseen("10.1.8.1", 80), None, "it depends on the address");
    }

    #[test]
    fn a_policy_that_an_earlier_one_covers_never_decides() {
        let policy = |from: &[&str], to: &[&str], ports: &[RangeInclusive<u16>]| {
            let nets = |list: &[&str]| list.iter().map(|net| net.parse().unwrap()).collect();
            Policy { from: nets(from), to: nets(to), ports: ports.to_vec(), ..Policy::default() }
        };
        let list = vec![
            policy(&[], &["10.2.0.0/16"], &[80..=80, 8000..=8100]),
            policy(&["10.1.0.0/16"], &["10.2.7.0/24"], &[8080..=8090]), // shadowed
            policy(&[], &["10.2.7.0/24"], &[]),
            policy(&[], &["10.0.0.0/8"], &[80..=80]),
            policy(&[], &["0.0.0.0/0", "::/0"], &[25..=25]),
            policy(&["fd00::/8"], &[], &[25..=25]), // shadowed
            policy(&[], &["10.2.7.0/25", "10.2.7.128/25"], &[22..=22]), // shadowed
        ];
        let policies = Policies { list, ..Policies::default() };
        assert_eq!(policies.shadowed().collect::<Vec<_>>(), [(2, 1), (6, 5), (7, 3)]);
    }

    #[test]
    fn only_both_complete_families_are_all_addresses() {
        let all = |list: &[&str]| {
            holds_all(&list.iter().map(|net| net.parse().unwrap()).collect::<Vec<_>>())
        };
        assert!(all(&["10.0.0.0/8", "::/0", "0.0.0.0/0"]));
        assert!(!all(&["0.0.0.0/0", "fd00::/8"]) && !all(&["::/0"]) && !all(&[]));
    }
}

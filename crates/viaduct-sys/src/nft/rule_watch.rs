//! Notification when rules are deleted: by a firewall's reload, a network manager or an
//! administrator.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::nft::intercept::BASE;
use crate::route::netlink;
use crate::route::rtnetlink::{self, RouteEvents, changed_route};

/// Notifications of nftables' changes: netfilter's group `NFNLGRP_NFTABLES`.
const NFT_GROUP: u32 = 1 << 6;
/// Deletions of tables, chains and rules: `NFT_MSG_DELTABLE`, `DELCHAIN`, `DELRULE`.
const NFT_GONE: [u16; 3] = [10 << 8 | 2, 10 << 8 | 5, 10 << 8 | 8];
/// Notifications of routes and policy rules of both families: `RTNLGRP_IPV4_ROUTE`,
/// `IPV4_RULE`, `IPV6_ROUTE`, `IPV6_RULE`.
const ROUTE_GROUPS: u32 = 1 << 6 | 1 << 7 | 1 << 10 | 1 << 18;

/// Receiver of notifications of deleted rules, with two netlink sockets that can be polled. A
/// notification may be about a rule of another program.
#[derive(Debug)]
pub struct RuleWatch {
    nft: OwnedFd,
    route: RouteEvents,
}

impl RuleWatch {
    /// Listens in the calling thread's network namespace, from now on. Errors: no descriptor is
    /// left, or the kernel has no nftables.
    pub fn new() -> io::Result<RuleWatch> {
        Ok(RuleWatch {
            nft: netlink::open(libc::NETLINK_NETFILTER, NFT_GROUP)?,
            route: RouteEvents::of(ROUTE_GROUPS)?,
        })
    }

    /// Returns the sockets to poll.
    pub fn sockets(&self) -> [BorrowedFd<'_>; 2] {
        [self.nft.as_fd(), self.route.as_fd()]
    }

    /// Returns whether a rule or route that may be a proxy's was deleted since the last call.
    pub fn has_deletions(&self) -> bool {
        let nft = netlink::any_event(&self.nft, |kind, _| NFT_GONE.contains(&kind));
        let in_table = |route| rtnetlink::table(&route) & 0xffff_0000 == BASE;
        let route = self.route.any(|kind, body| match kind {
            libc::RTM_DELRULE => true,
            libc::RTM_DELROUTE => changed_route(kind, body).is_some_and(in_table),
            _ => false,
        });
        nft || route
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Netns;
    use crate::nft::intercept::{Intercept, Selector};
    use crate::nft::table::Table as _;
    use crate::process::tool;

    #[test]
    fn deleted_rules_are_reported_and_are_missing_until_they_are_reinstalled() {
        let changes = || {
            let run = |line: &str| {
                let words: Vec<_> = line.split(' ').collect();
                tool::run(words[0], &words[1..], "").unwrap();
            };
            run("ip link set lo up");
            let to = ["10.2.0.0", "fd02::"].map(|ip| (ip.parse().unwrap(), 16)).to_vec();
            let ways = vec![Selector { from: Vec::new(), to }];
            let intercept = Intercept {
                instance: "proxy_7000".into(),
                to_port: 7000,
                ways,
                ports: vec![],
                passed_by: false,
            };
            intercept.apply().unwrap();
            assert!(intercept.is_installed().unwrap());
            let watch = RuleWatch::new().unwrap();
            let mut seen = Vec::new();
            for line in [
                "nft add table inet other",
                "ip route add 10.9.0.0/16 dev lo",
                "ip route del 10.9.0.0/16 dev lo",
            ] {
                run(line);
                seen.push((watch.has_deletions(), intercept.is_installed().unwrap()));
            }
            assert_eq!(seen, [(false, true); 3]);
            for line in [
                "ip -4 rule del priority 118",
                "ip -6 rule del priority 118",
                "ip -4 route flush table 1986272088",
                "nft flush chain inet viaduct_proxy_7000 prerouting",
                "nft flush chain inet viaduct_proxy_7000 selection",
                "nft flush ruleset",
            ] {
                run(line);
                assert!(watch.has_deletions() && !intercept.is_installed().unwrap(), "{line}");
                intercept.apply().unwrap();
                assert!(intercept.is_installed().unwrap(), "{line}");
                watch.has_deletions();
            }
            assert!(!watch.has_deletions());
        };
        Netns::new().unwrap().enter(changes).unwrap();
    }
}

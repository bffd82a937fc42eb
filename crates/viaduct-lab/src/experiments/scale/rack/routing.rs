//! Routers of the two sites, and the daemons that announce a rack's slices to them (BGP, BFD).
//!
//! ```text
//!   member: table 118 ─▶ bird ─ BGP, MED = metric ─▶ bird of a router ─▶ its routes
//!                          └──────── BFD ────────────┘
//! ```

use std::collections::BTreeMap;

use crate::experiments::prelude::*;
use crate::topology::Racks;
use crate::topology::programs::Bird;

/// Interval of BFD; a neighbour is down after three intervals without a packet.
pub(super) const BFD_INTERVAL: Duration = Duration::from_millis(100);

/// Time limit for all routes to be present.
const ROUTES_TIMEOUT: Duration = Duration::from_secs(30);

/// Routers of a site: the inner one towards its hosts, and the outer one towards the other site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Router {
    Inner,
    Outer,
}

impl Router {
    pub(super) const ALL: [Router; 2] = [Router::Inner, Router::Outer];

    /// Returns the first two digits of the second byte of the networks between this router and the
    /// members; the number of the site is the third digit.
    fn network(self) -> u8 {
        match self {
            Router::Inner => 10,
            Router::Outer => 11,
        }
    }

    /// Returns the site, 0 or 1, whose slices the members of `site` announce to this router.
    fn announced(self, site: usize) -> usize {
        match self {
            Router::Inner => 1 - site,
            Router::Outer => site,
        }
    }
}

/// Running daemons of all routers and members.
#[derive(Debug)]
pub(super) struct Routing {
    _routers: Vec<Bird>,
    members: [Vec<Option<Bird>>; 2],
}

impl Routing {
    /// Starts the daemons of the routers and of all members.
    pub(super) fn start(world: &Racks) -> Result<Routing> {
        let mut routing = Routing { _routers: Vec::new(), members: [Vec::new(), Vec::new()] };
        for (site, of) in world.sites.iter().enumerate() {
            for (router, node) in Router::ALL.into_iter().zip([&of.inner, &of.outer]) {
                let text = router_text(site, router, of.members.len());
                routing._routers.push(Bird::start(node, &text)?);
            }
            for (n, node) in of.members.iter().enumerate() {
                routing.members[site].push(Some(Bird::start(node, &member_text(site, n))?));
            }
        }
        Ok(routing)
    }

    /// Stops the daemon of a member.
    pub(super) fn kill(&mut self, site: usize, member: usize) {
        self.members[site][member] = None;
    }

    /// Starts the daemon of a member again.
    pub(super) fn restart(&mut self, world: &Racks, site: usize, member: usize) -> Result<()> {
        let node = &world.sites[site].members[member];
        self.members[site][member] = Some(Bird::start(node, &member_text(site, member))?);
        Ok(())
    }
}

/// Member to which each router sends each slice. The key is the site, whether the router is the
/// inner one, and the slice.
pub(super) type Owners = BTreeMap<(usize, bool, String), usize>;

/// Reads the routes of all routers.
pub(super) fn owners(world: &Racks) -> Result<Owners> {
    let mut owners = Owners::new();
    for (site, of) in world.sites.iter().enumerate() {
        for (router, node) in Router::ALL.into_iter().zip([&of.inner, &of.outer]) {
            let listed = node.run("ip", &["-4", "route", "show", "proto", "bird"])?;
            for line in listed.lines() {
                let words: Vec<&str> = line.split_whitespace().collect();
                // 10.2.16.0/20 via 10.101.3.2 dev m3 ...
                let via = words.get(2).and_then(|via| via.split('.').nth(2)?.parse::<usize>().ok());
                if let (Some(slice), Some(member)) = (words.first(), via) {
                    let key = (site, router == Router::Inner, (*slice).to_owned());
                    owners.insert(key, member - 1);
                }
            }
        }
    }
    Ok(owners)
}

/// Waits until the routes of all routers satisfy a condition, and returns them.
pub(super) fn wait_for(
    world: &Racks,
    what: &str,
    fits: impl Fn(&Owners) -> bool,
) -> Result<Owners> {
    let deadline = Instant::now() + ROUTES_TIMEOUT;
    loop {
        stop::check()?;
        let owners = owners(world)?;
        if fits(&owners) {
            return Ok(owners);
        }
        ensure!(
            Instant::now() < deadline,
            "the routers are expected to have {what}, and have {owners:?}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the config that all daemons share. Reconnections are fast, so that runs are short.
fn common(id: &str) -> String {
    let interval = BFD_INTERVAL.as_millis();
    format!(
        "router id {id};\nlog stderr {{ warning, error, fatal }};\n\
         protocol device {{ scan time 1; }}\n\
         protocol bfd {{ interface \"*\" {{ interval {interval} ms; multiplier 3; }}; }}\n\
         template bgp rack {{ bfd on; connect delay time 1; connect retry time 1; \
         error wait time 1, 2; hold time 30; }}\n"
    )
}

fn router_text(site: usize, router: Router, members: usize) -> String {
    let (network, number) = (router.network(), site + 1);
    let neighbour = |n: usize| {
        format!(
            "protocol bgp m{n} from rack {{ local 10.{network}{number}.{n}.1 as 6510{number}; \
             neighbor 10.{network}{number}.{n}.2 as 6500{number}; \
             ipv4 {{ import all; export none; }}; }}\n"
        )
    };
    let neighbours: String = (1..=members).map(neighbour).collect();
    let kernel = "protocol kernel { ipv4 { import none; export all; }; }\n";
    common(&format!("10.{network}{number}.0.1")) + kernel + &neighbours
}

fn member_text(site: usize, member: usize) -> String {
    let (number, n) = (site + 1, member + 1);
    let mut text = common(&format!("10.10{number}.{n}.2"));
    text += "ipv4 table slices;\n\
             protocol kernel { kernel table 118; learn; scan time 1; \
             ipv4 { table slices; import all; export none; }; }\n";
    for router in Router::ALL {
        let (network, of) = (router.network(), router.announced(site) + 1);
        text += &format!(
            "protocol bgp {router:?} from rack {{ \
             local 10.{network}{number}.{n}.2 as 6500{number}; \
             neighbor 10.{network}{number}.{n}.1 as 6510{number}; \
             ipv4 {{ table slices; import none; export filter {{ \
             if net !~ [ 10.{of}.0.0/16+ ] then reject; bgp_med = krt_metric; accept; }}; }}; }}\n"
        );
    }
    text
}

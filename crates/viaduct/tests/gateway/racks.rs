//! Two sites with racks of two gateways. The test takes the place of the routing daemons: it copies
//! the routes that the gateways announce to the routers.

use std::collections::{BTreeMap, BTreeSet};
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use viaduct_lab::binary::use_binary;
use viaduct_lab::load::{SliceDatagram, SliceStream, missing_share};
use viaduct_lab::racks::{RackGateways, peer_name};
use viaduct_lab::topology::{Journal, Node, Racks};
use viaduct_proto::rack::DEAD_AFTER;
use viaduct_proto::repair::SliceCount;

use super::eventually;

/// Maximum share of lost packets with repairs. The link loses 2 %.
const LOSS: f64 = 0.005;
/// Datagrams a second.
const RATE: f64 = 1_600.0;

/// Metric of each slice, as announced by a member.
fn announced(member: &Node) -> BTreeMap<String, u32> {
    // Without any route, the table does not exist.
    let listed = member.run("ip", &["route", "show", "table", "118"]).unwrap_or_default();
    let route = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let metric = words.iter().position(|word| *word == "metric")?;
        assert!(line.contains("proto 118"), "{line}");
        Some((words[0].to_owned(), words[metric + 1].parse().ok()?))
    };
    listed.lines().filter_map(route).collect()
}

/// Member of `site` that owns each slice, as the routers see it.
fn owners(world: &Racks, site: usize) -> BTreeMap<String, usize> {
    let mut owners: BTreeMap<String, (u32, usize)> = BTreeMap::new();
    for (n, member) in world.sites[site].members.iter().enumerate() {
        for (slice, metric) in announced(member) {
            let owner = owners.entry(slice).or_insert((metric, n));
            *owner = (*owner).min((metric, n));
        }
    }
    owners.into_iter().map(|(slice, (_, owner))| (slice, owner)).collect()
}

/// Pairs of members, one of site A and one of site B, that own the same slice of site B.
fn pairs(world: &Racks) -> BTreeSet<(usize, usize)> {
    let (from, to) = (owners(world, 0), owners(world, 1));
    let slices = to.iter().filter(|(slice, _)| slice.starts_with("10.2."));
    slices.map(|(slice, to)| (from[slice], *to)).collect()
}

/// Copies the announced routes to the routers of both sites.
fn route(world: &Racks) {
    for (site, of) in world.sites.iter().enumerate() {
        for (slice, owner) in owners(world, site) {
            let is_own = slice.starts_with(&format!("10.{}.", site + 1));
            let (router, network) = if is_own { (&of.outer, 11) } else { (&of.inner, 10) };
            let via = format!("10.{network}{}.{}.2", site + 1, owner + 1);
            router.run("ip", &["route", "replace", &slice, "via", &via]).unwrap();
        }
    }
}

/// Both racks, with sessions between all members, and routes.
fn racks() -> (Racks, RackGateways) {
    use_binary(env!("CARGO_BIN_EXE_viaduct"));
    let link = "rate=100M,delay=5ms,loss=2%".parse().unwrap();
    let world = Racks::build(2, &link, 1, &Journal::new()).unwrap();
    let mut gateways = RackGateways::prepare(&world, "").unwrap();
    gateways.start().unwrap();
    for site in [0, 1] {
        for (n, member) in world.sites[site].members.iter().enumerate() {
            let gateway = &gateways.sites[site][n];
            eventually(gateway, "its routes", || announced(member).len() == 32);
        }
    }
    route(&world);
    (world, gateways)
}

/// Sends a stream for two seconds. Returns the share of datagrams that are missing.
fn loss(world: &Racks) -> f64 {
    let stream = SliceStream::start(world, 0, RATE).unwrap();
    thread::sleep(Duration::from_secs(2));
    missing_share(&stream.finish().unwrap())
}

/// Slices of the members of site A, as a gateway of site B sees them.
fn slices(gateways: &RackGateways) -> [SliceCount; 2] {
    let status = gateways.sites[1][0].status().unwrap();
    [0, 1].map(|n| {
        let peer = status.peers.iter().find(|peer| peer.name == peer_name(0, n));
        peer.unwrap().slices.unwrap()
    })
}

#[test]
fn a_member_that_is_killed_loses_its_slices_to_the_other_and_gets_them_back() {
    let (world, mut gateways) = racks();
    // The gateways learn the losses of the link.
    loss(&world);
    let lost = loss(&world);
    assert!(lost < LOSS, "{lost}");
    for (sender, receiver) in pairs(&world) {
        let status = gateways.sites[1][receiver].status().unwrap();
        let stats = status.counters_of(&peer_name(0, sender));
        assert!(stats.receiver.recovered > 0, "from {sender} to {receiver}");
        assert_eq!((stats.session.forged, stats.receiver.garbled), (0, 0));
    }
    let (before, shares) = (owners(&world, 0), slices(&gateways));
    assert_eq!((shares[0].to + shares[1].to, shares[0].from + shares[1].from), (16, 16));

    let stream = SliceStream::start(&world, 0, RATE).unwrap();
    thread::sleep(Duration::from_millis(500));
    let killed_at = Instant::now();
    gateways.sites[0][0].kill().unwrap();
    let member = &world.sites[0].members[0];
    eventually(&gateways.sites[0][1], "no routes of the killed member", || {
        announced(member).is_empty()
    });
    let after = owners(&world, 0);
    assert!(before.iter().all(|(slice, owner)| *owner == 0 || after[slice] == *owner));
    assert!(after.values().all(|owner| *owner == 1));
    route(&world);
    // The other member claims each slice with the first packet of the slice that it receives.
    let until = Instant::now() + Duration::from_millis(100);
    thread::sleep(DEAD_AFTER + Duration::from_secs(1));
    let sent = stream.finish().unwrap();
    let twice = sent.iter().filter(|datagram| datagram.copies > 1).count();
    assert!(twice < 10, "{twice}");
    let (gap, rest): (Vec<SliceDatagram>, Vec<_>) = sent
        .into_iter()
        .partition(|datagram| datagram.sent_at >= killed_at && datagram.sent_at < until);
    assert!(missing_share(&rest) < LOSS, "{}", missing_share(&rest));
    assert!(missing_share(&gap) < 0.05, "unprotected only: {}", missing_share(&gap));
    assert_eq!((slices(&gateways)[0], slices(&gateways)[1].to), (SliceCount::default(), 16));

    gateways.sites[0][0].start().unwrap();
    gateways.wait_until_up().unwrap();
    eventually(&gateways.sites[0][0], "its routes", || announced(member).len() == 32);
    assert_eq!(owners(&world, 0), before);
    route(&world);
    eventually(&gateways.sites[1][0], "its slices", || slices(&gateways) == shares);
    let lost = loss(&world);
    assert!(lost < LOSS, "{lost}");
}

#[test]
fn a_member_is_drained_by_a_reload() {
    let (world, gateways) = racks();
    gateways.drain(0, "a2").unwrap();
    for gateway in &gateways.sites[0] {
        gateway.signal(Signal::HUP).unwrap();
    }
    let is_drained = || slices(&gateways)[1] == SliceCount::default();
    eventually(&gateways.sites[1][0], "the drain", is_drained);
    let own = || owners(&world, 0).values().all(|owner| *owner == 0);
    eventually(&gateways.sites[0][0], "routes by the other", own);
    route(&world);
    loss(&world);
    let lost = loss(&world);
    assert!(lost < LOSS, "{lost}");
    let status = gateways.sites[1][0].status().unwrap();
    assert!(status.counters_of(&peer_name(0, 1)).up, "a drained member keeps its sessions");
}

#[test]
fn packets_that_are_routed_into_the_tun_are_reported() {
    let (world, gateways) = racks();
    let (gateway, member) = (&gateways.sites[0][0], &world.sites[0].members[0]);
    assert_eq!(gateway.status().unwrap().trouble, None);
    // A routing daemon copies a slice's route into the main table.
    let routes = member.run("ip", &["route", "show", "table", "118"]).unwrap();
    let tun = routes.split_whitespace().skip_while(|word| *word != "dev").nth(1).unwrap();
    member.run("ip", &["route", "add", "203.0.113.0/24", "dev", tun]).unwrap();
    let send = || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        // Without a reader the TUN takes some hundred packets, and drops the others.
        (0..2_000).for_each(|_| drop(socket.send_to(&[0; 100], "203.0.113.1:9")));
    };
    member.netns().enter(send).unwrap();
    let trouble = || gateway.status().unwrap().trouble.unwrap_or_default();
    let expected = format!("packets are routed into {tun} and lost");
    eventually(gateway, "the report", || trouble().contains(&expected));
    assert!(gateway.log().contains("`ip route get ADDRESS` names the route"));
}

//! Paths with an MTU below Ethernet's 1,500 bytes, down to the 1,280 that IPv6 guarantees, with and
//! without encryption.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::encrypted::identity;
use super::{counted, curl, done, url};
use crate::common::random;
use crate::world::World;

const LINK: &str = "rate=50M,delay=5ms,queue=300kB";
const NARROW: &str = "link set wan0 mtu 1280";

/// Routers that drop packets longer than 1,280 bytes silently.
const SILENT: &str = "
    table inet fw {
        chain forward {
            type filter hook forward priority 0;
            meta l4proto { icmp, icmpv6 } drop
            meta length > 1280 drop
        }
    }";

/// A path as on many subscriber lines: an MTU of 1,480 bytes, not reported by ICMP, and a clamped
/// MSS in SYNs.
const CLAMPED: &str = "
    table inet fw {
        chain forward {
            type filter hook forward priority 0;
            meta l4proto { icmp, icmpv6 } drop
            meta nfproto ipv4 tcp flags & syn == syn tcp option maxseg size set 1440
            meta nfproto ipv6 tcp flags & syn == syn tcp option maxseg size set 1420
            meta length > 1480 drop
        }
    }";

/// Fetches a file from each of these addresses with each of these options, and checks that no fetch
/// takes longer than `most`.
fn fetch_all(world: &World, ips: &[IpAddr], whats: &[&str], most: Duration) {
    let big = random(300_000);
    world.file("big.bin", &big);
    let key = identity(world, "identity");
    let file = world.dir.join("identity");
    let words = ["--identity", file.to_str().unwrap()];
    let _server = world.serve_with("auto", &words, || world.connect_plain().is_ok());
    let mut fetched = 0;
    for &ip in ips {
        for what in whats {
            let by = format!("+trickles:{}", what.replace("KEY", &key));
            let start = Instant::now();
            let got = done(curl(world, &[&by], &[&url(ip, "big.bin")])).stdout;
            println!("{ip} {what}: {:?}", start.elapsed());
            assert!(got == big, "{ip} {what}: {} bytes", got.len());
            assert!(start.elapsed() < most, "{ip} {what}: {:?}", start.elapsed());
            fetched += big.len() as u64;
        }
    }
    let (bytes, tcp) = counted(world);
    assert!(bytes >= fetched && tcp == 0, "{bytes} of {fetched}, {tcp} requests by TCP");
}

#[test]
fn a_smaller_path_mtu_is_learnt_from_icmp() {
    let Some(world) = World::new("narrow", LINK) else { return };
    for gateway in [world.net.gateway_a(), world.net.gateway_b()] {
        gateway.ip(&[NARROW.to_owned()]).unwrap();
    }
    let whats = ["way=tcp", "way=udp", "way=tcp,key=KEY", "way=udp,key=KEY"];
    fetch_all(&world, &[world.v4(), world.v6()], &whats, Duration::from_secs(2));
}

#[test]
fn the_mtu_of_the_clients_interface_is_known_without_a_loss() {
    let Some(world) = World::new("narrow-own", LINK) else { return };
    world.net.a1().ip(&["link set eth0 mtu 1280".to_owned()]).unwrap();
    // Longer packets are dropped silently.
    world.net.gateway_a().run("nft", &[SILENT]).unwrap();
    let whats = ["way=tcp", "way=udp,key=KEY"];
    fetch_all(&world, &[world.v4(), world.v6()], &whats, Duration::from_secs(2));
}

#[test]
fn answers_fit_a_return_path_of_a_smaller_mtu() {
    let Some(world) = World::new("narrow-back", LINK) else { return };
    // An MTU below the client's own lower limit. It is not reported to the client. Packets in TCP's
    // format ignore it.
    let narrow = "ip route replace $(ip route show default) mtu lock 900";
    world.net.b1().run("sh", &["-c", narrow]).unwrap();
    let whats = ["way=udp", "way=udp,key=KEY"];
    fetch_all(&world, &[world.v4()], &whats, Duration::from_secs(3));
}

#[test]
fn a_clamped_mss_limits_packets() {
    let Some(world) = World::new("narrow-clamped", LINK) else { return };
    world.net.gateway_a().run("nft", &[CLAMPED]).unwrap();
    fetch_all(&world, &[world.v4(), world.v6()], &["way=tcp"], Duration::from_secs(1));
}

#[test]
fn shorter_packets_are_tried_on_an_mtu_black_hole() {
    let Some(world) = World::new("narrow-silent", LINK) else { return };
    world.net.gateway_a().run("nft", &[SILENT]).unwrap();
    fetch_all(&world, &[world.v6()], &["way=udp"], Duration::from_secs(6));
}

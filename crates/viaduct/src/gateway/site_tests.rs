use std::path::PathBuf;
use std::time::Duration;

use viaduct_proto::fec::Code;
use viaduct_proto::fec::layered::Parameters;
use viaduct_proto::keys::SecretKey;
use viaduct_proto::repair::lanes::LaneCount;
use viaduct_proto::repair::{PathsConfig, RepairPath};

use super::*;

fn site(codes: &[Option<Code>]) -> Site {
    let peer = |(n, code): (usize, &Option<Code>)| Peer {
        name: format!("p{n}"),
        key: SecretKey::from_bytes([n as u8 + 1; 32]).public(),
        endpoint: None,
        endpoint_name: None,
        paths: None,
        transport: TransportChoice::Auto,
        tls_endpoint: None,
        server_name: None,
        prefixes: vec![format!("10.{}.0.0/16", n + 1).parse().unwrap()],
        rate: None,
        split: false,
        coding: code.clone().map(Coding::Fixed),
        lower_mtu: false,
        flush_after: Duration::from_millis(8),
        rekey_after: Duration::from_secs(120),
        member: None,
    };
    let config = Config {
        name: "a".to_owned(),
        secret: SecretKey::from_bytes([200; 32]),
        prefixes: vec!["10.0.0.0/16".parse().unwrap()],
        wan: "wan0".to_owned(),
        listen: ([192, 0, 2, 1], 7400).into(),
        wans: Vec::new(),
        path_classes: Vec::new(),
        tls_listen: None,
        host_mtu: None,
        workers: 1,
        lanes: LaneCount::ONE,
        memory: 48 << 20,
        run_dir: PathBuf::from("/run/viaduct"),
        metrics: None,
        cache: None,
        split: Default::default(),
        policies: Vec::new(),
        peers: codes.iter().enumerate().map(peer).collect(),
        rack: None,
        warnings: Vec::new(),
    };
    Site { config, wan_mtu: 1500, fake_tcp: Vec::new(), is_serving: false }
}

fn layered(longest: u16) -> Option<Code> {
    let interleaves = vec![1, 19, longest];
    Some(Code::Layered(Parameters { r: 8, interleaves, delay_xors: false }))
}

#[test]
fn the_hosts_mtu_does_not_limit_the_gateways_own_connections() {
    let mut site = site(&[layered(41), layered(41)]);
    site.config.host_mtu = Some(1200);
    site.config.peers[1].split = true;
    let [whole, split] = [0, 1].map(|at| site.longest(&site.config.peers[at]));
    assert_eq!((whole, split), (1200, 1500));
}

#[test]
fn an_mtu_of_the_hosts_above_that_of_the_wan_changes_nothing() {
    let mut site = site(&[layered(41), None]);
    site.config.host_mtu = Some(9000);
    let clamps = site.config.peers.iter().map(|peer| site.clamp(peer));
    assert_eq!(clamps.collect::<Vec<_>>(), [None, None]);
}

#[test]
fn memory_is_shared_in_proportion_to_the_codes_needs() {
    let site = site(&[layered(41), layered(82), None]);
    let shares = site.shares();
    assert!(shares[1] > shares[0] * 3 / 2 && shares[2] < shares[0] / 2, "{shares:?}");
    assert!(shares.iter().sum::<usize>() <= site.packet_memory());
    assert!(shares.iter().zip(site.needs()).all(|(share, need)| *share >= need), "{shares:?}");
    assert_eq!(site.too_little_memory(), None);
}

#[test]
fn a_warning_reports_too_many_peers_for_the_memory() {
    let many = |count: usize| site(&vec![layered(41); count]);
    assert_eq!(many(30).too_little_memory(), None);
    let said = many(43).too_little_memory().unwrap();
    let at_once = many(43).peers_at_once();
    assert!((30..43).contains(&at_once), "{at_once}");
    assert!(said.contains(&format!("48 MiB are enough for {at_once} of 43 peers")), "{said}");
    let mut enough = many(43);
    let asked = said.split(". ").nth(1).unwrap().split(" MiB").next().unwrap();
    enough.config.memory = asked.parse::<usize>().unwrap() << 20;
    assert_eq!(enough.too_little_memory(), None, "the memory that the warning names is enough");
}

#[test]
fn the_memory_that_the_warning_names_is_enough_for_all_taps() {
    const NO_CODE: Option<Code> = None;
    for (workers, rate) in [(1, 100_000_000), (64, 100_000_000), (4, 10_000_000_000)] {
        let mut site = site(&[NO_CODE; 10]);
        site.config.workers = workers;
        for peer in &mut site.config.peers {
            (peer.coding, peer.rate) = (Some(Coding::Observe), Some(rate));
        }
        let said = site.too_little_memory().unwrap();
        let asked = said.split(". ").nth(1).unwrap().split(" MiB").next().unwrap();
        site.config.memory = asked.parse::<usize>().unwrap() << 20;
        assert_eq!(site.too_little_memory(), None, "{workers} workers");
    }
}

#[test]
fn each_of_two_paths_needs_memory() {
    let single = site(&[layered(41)]);
    let mut two = site(&[layered(41)]);
    let endpoints = [([192, 0, 2, 2], 7400).into(), ([198, 51, 100, 2], 7400).into()];
    two.config.peers[0].paths = Some(PathsConfig { endpoints, repairs: RepairPath::Auto });
    assert_eq!(two.needs()[0], 2 * single.needs()[0]);
}

#[test]
fn rates_determine_the_memory_that_is_needed() {
    let with_rate = |count: usize, rate: u64| {
        let mut site = site(&vec![None; count]);
        for peer in &mut site.config.peers {
            (peer.coding, peer.rate) = (Some(Coding::Observe), Some(rate));
        }
        site
    };
    let enough = with_rate(100, 7_000_000);
    assert_eq!((enough.too_little_memory(), enough.peers_at_once()), (None, 100));
    assert!(enough.memory_bound().contains("0.3 s of 716 Mb/s"), "{}", enough.memory_bound());
    let said = with_rate(100, 14_000_000).too_little_memory().unwrap();
    assert!(said.contains("enough for 51 of 100 peers"), "{said}");
    let mut unequal = with_rate(4, 1_000_000);
    unequal.config.peers[2].rate = Some(3_000_000);
    let shares = unequal.shares();
    assert!(shares[2] >= 2 * shares[0], "{shares:?}");
}

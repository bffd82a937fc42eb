//! DNS queries and their answers, and the assignment and eviction of fake IPs.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use super::wire::{A, AAAA, PTR, Query, Reply};
use super::*;
use crate::flow::Address;

/// A query as resolvers send it.
fn question(name: &str, kind: u16) -> Vec<u8> {
    let mut packet = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.').filter(|label| !label.is_empty()) {
        packet.push(label.len() as u8);
        packet.extend(label.bytes());
    }
    packet.extend([0, (kind >> 8) as u8, kind as u8, 0, 1]);
    packet
}

fn code(answer: &[u8]) -> u8 {
    answer[3] & 0xf
}

/// Address in an answer with one record: its last bytes.
fn address(answer: &[u8]) -> IpAddr {
    let n = answer.len();
    match answer[n - 5] == 4 && answer[n - 6] == 0 {
        true => IpAddr::from(<[u8; 4]>::try_from(&answer[n - 4..]).unwrap()),
        false => IpAddr::from(<[u8; 16]>::try_from(&answer[n - 16..]).unwrap()),
    }
}

#[test]
fn a_name_has_one_fake_ip_of_each_family_and_is_found_by_it() {
    let mut pool = FakeIpPool::new(FakeIpPrefix::default());
    let first = pool.answer(&question("mars.Example", A)).unwrap();
    assert_eq!(first[..12], [0x12, 0x34, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
    assert_eq!(address(&first).to_string(), "198.18.0.1");
    let v6 = address(&pool.answer(&question("MARS.example", AAAA)).unwrap());
    assert_eq!(v6.to_string(), "fd76:6961:6475:6374::1");
    let other = address(&pool.answer(&question("venus.example", A)).unwrap());
    assert_eq!(other.to_string(), "198.18.0.2");
    for ip in [address(&first), v6] {
        let destination = pool.destination(SocketAddr::new(ip, 443));
        assert_eq!(destination, Some(Address::Name("mars.example".to_owned(), 443)));
    }
    let elsewhere: SocketAddr = "192.0.2.1:80".parse().unwrap();
    assert_eq!(pool.destination(elsewhere), Some(Address::Ip(elsewhere)));
    for never in ["198.18.0.9:1", "198.18.0.0:1", "[fd76:6961:6475:6374::9]:1"] {
        assert_eq!(pool.destination(never.parse().unwrap()), None, "{never}");
    }
    let back = pool.answer(&question("1.0.18.198.in-addr.arpa", PTR)).unwrap();
    assert!(back.windows(13).any(|at| at == b"\x04mars\x07example"));
    let digits: String = v6_digits(v6);
    let back = pool.answer(&question(&digits, PTR)).unwrap();
    assert!(back.windows(13).any(|at| at == b"\x04mars\x07example"));
}

fn v6_digits(ip: IpAddr) -> String {
    let IpAddr::V6(ip) = ip else { panic!("{ip}") };
    let digits = format!("{:032x}", ip.to_bits());
    let reversed: Vec<String> = digits.chars().rev().map(String::from).collect();
    reversed.join(".") + ".ip6.arpa"
}

#[test]
fn only_host_names_have_an_address_and_localhost_is_this_machine() {
    let mut pool = FakeIpPool::new(FakeIpPrefix::default());
    let mut answer = |name: &str, kind| pool.answer(&question(name, kind)).unwrap();
    assert_eq!(address(&answer("localhost", A)).to_string(), "127.0.0.1");
    assert_eq!(address(&answer("db.localhost", AAAA)).to_string(), "::1");
    for (name, kind) in [("a b.example", A), ("192.0.2.1", A), ("1.2.0.192.in-addr.arpa", PTR)] {
        assert_eq!((code(&answer(name, kind)), answer(name, kind)[7]), (3, 0), "{name}");
    }
    // MX, TXT, SRV, HTTPS.
    for kind in [15, 16, 33, 65] {
        let answer = answer("mars.example", kind);
        assert_eq!((code(&answer), answer[7]), (0, 0), "{kind}");
    }
}

#[test]
fn the_least_recently_used_name_is_evicted_when_the_pool_is_full() {
    let mut pool = FakeIpPool::new("10.9.8.0/24".parse().unwrap());
    let first = pool.fake_ip("first", true);
    let second = pool.fake_ip("second", true);
    for n in 0..252 {
        pool.fake_ip(&format!("n{n}"), true);
    }
    assert_eq!(pool.name_of(first).as_deref(), Some("first"), "used more recently");
    assert_eq!(pool.fake_ip("one more", true), second);
    assert_eq!(pool.name_of(second).as_deref(), Some("one more"));
    assert_ne!(pool.fake_ip("second", true), second);
    assert!(
        "10.9.8.0/25".parse::<FakeIpPrefix>().is_err()
            && "10.9.8.1/24".parse::<FakeIpPrefix>().is_err()
    );
}

proptest! {
    #[test]
    fn an_answer_has_the_id_of_its_query(packet in proptest::collection::vec(any::<u8>(), 0..300)) {
        let mut pool = FakeIpPool::new(FakeIpPrefix::default());
        if let Some(answer) = pool.answer(&packet) {
            prop_assert_eq!(&answer[..2], &packet[..2]);
            prop_assert!(answer[2] & 0x80 != 0 && answer.len() < 600);
        }
    }

    #[test]
    fn a_cut_query_is_rejected(name in "[a-z]{1,9}(\\.[a-z0-9-]{1,20}){0,5}", cut in 0usize..200) {
        let packet = question(&name, A);
        let query = Query::parse(&packet).unwrap();
        prop_assert_eq!(query.name.as_deref(), Some(&name[..]));
        prop_assert!(query.answer(&Reply::NoName).starts_with(&packet[..2]));
        prop_assert!(Query::parse(&packet[..cut % packet.len()]).is_none());
    }
}

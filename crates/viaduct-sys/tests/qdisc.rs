//! Drops of an interface's queueing discipline, on a real veth pair.

mod common;

use std::net::UdpSocket;
use std::time::Duration;

use common::{Host, is_root, pair, sh};
use viaduct_sys::route::qdisc::{QdiscDrops, has_ingress};

/// Replaces the left end's queueing discipline.
fn replace(host: &Host, by: &'static str) {
    host.run(move || sh(&format!("tc qdisc replace dev va root {by}")));
}

/// Sends datagrams of 1,000 bytes to the right end.
fn send(host: &Host, count: usize) {
    host.run(move || {
        let socket = UdpSocket::bind("10.9.0.1:0").expect("bind");
        for _ in 0..count {
            let _ = socket.send_to(&[1; 1_000], "10.9.0.2:9");
        }
    });
}

#[test]
fn drops_are_counted_once_and_a_new_discipline_starts_at_zero() {
    if !is_root() {
        return;
    }
    let (left, _right) = pair();
    let mut queue = left.run(|| QdiscDrops::of("va").expect("the interface exists"));
    send(&left, 100);
    assert_eq!(queue.take_drops(), 0, "drops without a queue");
    replace(&left, "tbf rate 1mbit burst 3k limit 10k");
    assert_eq!(queue.take_drops(), 0);
    send(&left, 100);
    // Some datagrams fit into the queue, and some are sent meanwhile.
    let dropped = queue.take_drops();
    assert!((60..=95).contains(&dropped), "{dropped}");
    assert_eq!(queue.take_drops(), 0);
    replace(&left, "pfifo limit 1000");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(queue.take_drops(), 0);
    send(&left, 100);
    assert_eq!(queue.take_drops(), 0, "drops although the queue has room");
    left.run(|| assert!(QdiscDrops::of("none").is_err()));
}

#[test]
fn a_discipline_for_received_packets_is_detected() {
    if !is_root() {
        return;
    }
    let (left, _right) = pair();
    let is = |name: &'static str| left.run(move || has_ingress(name).ok());
    assert_eq!((is("va"), is("none")), (Some(false), None));
    replace(&left, "pfifo limit 1000");
    assert_eq!(is("va"), Some(false));
    left.run(|| sh("tc qdisc add dev va clsact"));
    assert_eq!((is("va"), is("lo")), (Some(true), Some(false)));
}

//! Limits on the CPU time that attackers can consume, and the effects of dropped secrets.

use super::{Client, START, answers, entropy, identity, replica, way_back};
use crate::time::Duration;
use crate::trickles::crypt::{OPENING, ServerCrypt};

#[test]
fn handshakes_are_bounded_and_established_clients_continue() {
    let (mut replica, mut client) = (replica(true), Client::new(&identity()));
    let mut ready = Client::new(&identity());
    for _ in 0..3 {
        for request in ready.requests() {
            let event = replica.accept(ready.now, way_back(), &request).unwrap();
            answers(&mut replica, event).iter().for_each(|answer| ready.take(answer));
        }
    }
    let opening = client.requests().remove(0);
    let taken = (0..2_000).filter(|_| replica.accept(START, way_back(), &opening).is_ok()).count();
    assert!((100..=201).contains(&taken), "{taken}");
    assert!(replica.crypt().unwrap().stats().busy >= 1_799);
    let request = ready.requests().remove(0);
    assert!(replica.accept(ready.now, way_back(), &request).is_ok());
    let later = START + Duration::from_secs(1);
    assert!(replica.accept(later, way_back(), &opening).is_ok());
}

#[test]
fn the_threads_of_a_server_share_the_limit_of_handshakes() {
    let mut client = Client::new(&identity());
    let opening = client.requests().remove(0);
    let taken = |threads: u32| {
        let crypt = ServerCrypt::new(identity(), true, entropy(1)).of_threads(threads);
        let mut replica = replica(true).with_crypt(crypt);
        (0..300).filter(|_| replica.accept(START, way_back(), &opening).is_ok()).count()
    };
    assert_eq!([1, 4, 64].map(taken), [201, 51, 4]);
}

#[test]
fn packets_too_short_for_an_opening_take_no_time_from_openings() {
    let (mut replica, mut client) = (replica(true), Client::new(&identity()));
    let opening = client.requests().remove(0);
    let kind = opening[0];
    for length in (1..OPENING).cycle().take(5_000) {
        let garbage = [&[kind][..], &vec![0x55; length - 1]].concat();
        assert!(replica.accept(START, way_back(), &garbage).is_err());
    }
    let stats = replica.crypt().unwrap().stats();
    assert_eq!((stats.busy, stats.altered), (0, 5_000));
    assert!(replica.accept(START, way_back(), &opening).is_ok());
}

/// Only the key exchange distinguishes an opening from garbage of the same length. So while such
/// garbage arrives, it delays new connections, but not established ones.
#[test]
fn garbage_of_an_openings_length_delays_only_new_connections_and_only_while_it_arrives() {
    let (mut replica, mut client) = (replica(true), Client::new(&identity()));
    let mut ready = Client::new(&identity());
    for request in ready.requests() {
        let event = replica.accept(ready.now, way_back(), &request).unwrap();
        answers(&mut replica, event).iter().for_each(|answer| ready.take(answer));
    }
    let opening = client.requests().remove(0);
    let mut garbage = opening.clone();
    garbage[1..].fill(0x55);
    for _ in 0..1_000 {
        assert!(replica.accept(START, way_back(), &garbage).is_err());
    }
    assert!(replica.accept(START, way_back(), &opening).is_err());
    let request = ready.requests().remove(0);
    assert!(
        replica.accept(ready.now, way_back(), &request).is_ok(),
        "the established client continues"
    );
    let later = START + Duration::from_millis(1);
    assert!(replica.accept(later, way_back(), &opening).is_ok());
}

#[test]
fn an_event_whose_key_is_gone_is_counted_and_not_answered() {
    let (mut replica, mut client) = (replica(true), Client::new(&identity()));
    for request in client.requests() {
        let event = replica.accept(client.now, way_back(), &request).unwrap();
        answers(&mut replica, event).iter().for_each(|answer| client.take(answer));
    }
    // The client's key was derived from secret 1, and the answer is sealed with secret 2.
    replica.server_mut().ring_mut().rotate(2, &[2; 32], 2);
    let request = client.requests().remove(0);
    let event = replica.accept(client.now, way_back(), &request).unwrap();
    replica.server_mut().ring_mut().rotate(3, &[3; 32], 2);
    assert!(answers(&mut replica, event).is_empty());
    assert_eq!(replica.stats().outlived, 1);
}

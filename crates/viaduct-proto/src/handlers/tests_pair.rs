//! Two ends that are joined: what one application writes the other reads, whatever the chain.

use proptest::prelude::*;

use super::testing::{LIMIT, Net};
use crate::flow::Failure;
use crate::time::Duration;

/// Bytes of one write, at most.
const PIECE: usize = 3_000;

#[derive(Clone, Debug)]
enum Step {
    Write(usize, usize),
    Takes(usize, bool),
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..2_usize, 0..PIECE).prop_map(|(host, count)| Step::Write(host, count)),
        1 => (0..2_usize, any::<bool>()).prop_map(|(host, takes)| Step::Takes(host, takes)),
        3 => (0..100_u64).prop_map(Step::Wait),
    ]
}

fn chain() -> impl Strategy<Value = Vec<&'static str>> {
    const HANDLERS: &[&str] = &["count", "shape:rate=1M", "latency:delay=3ms", "crypt:key=1.key"];
    prop::collection::vec(prop::sample::select(HANDLERS), 0..5)
}

fn long() -> Duration {
    Duration::from_secs(600)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn bytes_arrive_once_and_in_order_and_each_direction_ends_by_itself(
        chain in chain(),
        cut in 1..5_000_usize,
        first in 0..2_usize,
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let mut net = Net::new(&chain, &chain);
        net.cut = cut;
        net.connect();
        net.wait(Duration::from_secs(1));
        prop_assert_eq!(net.end(0).answer, Some(Ok(())), "{:?}", net.said);
        for step in steps {
            match step {
                Step::Write(host, count) if net.end(host).chain.may_write() => net.write(host, count),
                Step::Write(..) => {}
                Step::Takes(host, takes) => net.end(host).takes = takes,
                Step::Wait(millis) => net.wait(Duration::from_millis(millis)),
            }
            for host in [0, 1] {
                let held = net.end(host).chain.incoming().len();
                prop_assert!(held <= LIMIT + 64 * 1024 + 2 * PIECE, "{} bytes", held);
            }
        }
        (net.end(0).takes, net.end(1).takes) = (true, true);
        net.shutdown(first);
        net.wait(long());
        prop_assert_eq!((net.end(first).finished, net.end(1 - first).finished), (0, 1));
        net.write(1 - first, 100);
        net.shutdown(1 - first);
        net.wait(long());
        net.assert_whole();
        prop_assert_eq!((net.end(0).finished, net.end(1).finished), (1, 1));
        net.close(0);
        net.close(1);
        net.wait(long());
        prop_assert!(net.end(0).failed.is_empty() && net.end(1).failed.is_empty());
        prop_assert!(net.connections.iter().all(|c| c.seats == [None; 2]), "all is closed");
    }
}

/// Writes both ways, and waits.
fn exchange(net: &mut Net) {
    net.wait(Duration::from_secs(1));
    net.write(0, 1_000);
    net.write(1, 2_000);
    net.wait(Duration::from_secs(1));
    net.assert_whole();
}

fn refused(client: &str, server: &str) -> (Net, Vec<String>) {
    let mut net = Net::new(&[client], &[server]);
    net.connect();
    net.wait(Duration::from_secs(60));
    assert!(net.ends[1].iter().all(|end| !end.is_there), "the program hears nothing of it");
    let said = net.said.clone();
    (net, said)
}

fn refused_by_plain(client: &str) -> (Net, Vec<String>) {
    let mut net = Net::new(&[client], &[]);
    net.connect();
    net.ends[1][0].takes = false;
    net.wait(Duration::from_secs(60));
    let said = net.said.clone();
    (net, said)
}

#[test]
fn crypt_knows_its_peers() {
    let key = |n| crate::keys::SecretKey::from_bytes([n; 32]).public();
    let (one, two, three) = (key(1), key(2), key(3));
    let client = format!("crypt:key=1.key,peer={three}+{two}");
    let mut net = Net::new(&[&client], &[&format!("crypt:key=2.key,peer={one}")]);
    net.connect();
    exchange(&mut net);
    // The connecting end does not know the other.
    let (mut net, said) = refused("crypt:key=1.key", "crypt:key=2.key");
    assert_eq!(net.end(0).answer, Some(Err(Failure::Denied)));
    assert_eq!(said[0], format!("crypt: the key {two} is none of the peers'"));
    assert!(said[1].contains("without our key"), "{said:?}");
    // The accepting end does not know the other.
    let (mut net, said) = refused(&format!("crypt:key=1.key,peer={two}"), "crypt:key=2.key");
    assert_eq!(said[0], format!("crypt: the key {one} is none of the peers'"));
    assert_eq!(net.end(0).failed, [Failure::Reset]);
    // It has no crypt, and says nothing.
    let (mut net, said) = refused_by_plain("crypt:key=1.key");
    assert_eq!(net.end(0).answer, Some(Err(Failure::TimedOut)));
    assert!(said[0].contains("does not answer"), "{said:?}");
}

#[test]
fn crypt_refuses_changed_bytes_and_gives_none_of_them_on() {
    let mut net = Net::joined(&["crypt:key=1.key"]);
    exchange(&mut net);
    for nth in [0, 1, 2, 50, 517] {
        let mut net = Net::joined(&["crypt:key=1.key"]);
        exchange(&mut net);
        net.write(0, 500);
        assert!(net.flip(0, nth, 3));
        net.write(0, 500);
        net.wait(Duration::from_secs(1));
        assert_eq!(net.end(1).read.got, 1_000, "nothing of it is delivered");
        if nth > 1 {
            assert_eq!(net.end(1).failed, [Failure::Reset]);
            assert!(net.said[0].contains("cannot have sent"), "{:?}", net.said);
        }
    }
}

#[test]
fn crypt_tells_a_cut_from_an_end() {
    let mut net = Net::joined(&["crypt:key=1.key"]);
    exchange(&mut net);
    let (now, seat) = (net.now, net.connections[0].seats[1].unwrap());
    net.end(1).chain.finished(now, seat.2);
    net.settle();
    assert_eq!((net.end(1).failed.clone(), net.end(1).finished), (vec![Failure::Reset], 0));
    assert!(net.said[0].contains("the flow was cut"), "{:?}", net.said);
}

#[test]
fn crypt_refuses_a_connection_that_is_played_again() {
    let mut net = Net::joined(&["crypt:key=1.key"]);
    exchange(&mut net);
    let heard = net.heard[0].clone();
    let mut again = Net::new(&[], &["crypt:key=1.key"]);
    again.connect();
    again.wait(Duration::from_secs(1));
    let now = again.now;
    assert!(again.ends[0][0].chain.write(now, heard.into()));
    again.wait(Duration::from_secs(1));
    assert!(again.ends[1].iter().all(|end| !end.is_there));
    assert!(again.said[0].contains("cannot have sent"), "{:?}", again.said);
}

use super::super::testing::{Net, factories, shell};
use super::exchange;
use crate::flow::Failure;
use crate::time::Duration;

fn refused(client: &str, server: &str) -> (Net, Vec<String>) {
    let mut net = Net::new(&[client], &[server]);
    net.connect();
    net.wait(Duration::from_secs(60));
    assert!(net.ends[1].iter().all(|end| !end.is_there), "the program is not notified");
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
fn crypt_authenticates_its_peers() {
    let key = |n| crate::keys::SecretKey::from_bytes([n; 32]).public();
    let (one, two, three) = (key(1), key(2), key(3));
    let client = format!("crypt:key=1.key,peer={three}+{two}");
    let mut net = Net::new(&[&client], &[&format!("crypt:key=2.key,peer={one}")]);
    net.connect();
    exchange(&mut net);
    // The connecting end does not accept the other's key.
    let (mut net, said) = refused("crypt:key=1.key", "crypt:key=2.key");
    assert_eq!(net.end(0).answer, Some(Err(Failure::Denied)));
    assert_eq!(said[0], format!("crypt: the key {two} is not that of any peer"));
    assert!(said[1].contains("do not include our key"), "{said:?}");
    // The accepting end does not accept the other's key.
    let (mut net, said) = refused(&format!("crypt:key=1.key,peer={two}"), "crypt:key=2.key");
    assert_eq!(
        said[0],
        format!("crypt: 192.0.2.1:40000 is refused: the key {one} is not that of any peer")
    );
    assert_eq!(net.end(0).failed, [Failure::Reset]);
    // The other end has no crypt, and sends nothing.
    let (mut net, said) = refused_by_plain("crypt:key=1.key");
    assert_eq!(net.end(0).answer, Some(Err(Failure::TimedOut)));
    assert!(said[0].contains("did not complete the handshake"), "{said:?}");
}

#[test]
fn crypt_refuses_changed_bytes_and_delivers_none() {
    let mut net = Net::joined(&["crypt:key=1.key"]);
    exchange(&mut net);
    for nth in [0, 1, 2, 50, 517] {
        let mut net = Net::joined(&["crypt:key=1.key"]);
        exchange(&mut net);
        net.write(0, 500);
        assert!(net.flip(0, nth, 3));
        net.write(0, 500);
        net.wait(Duration::from_secs(1));
        assert_eq!(net.end(1).read.got, 1_000, "none of the changed data is delivered");
        if nth > 1 {
            assert_eq!(net.end(1).failed, [Failure::Reset]);
            assert!(net.said[0].contains("fails authentication"), "{:?}", net.said);
        }
    }
}

#[test]
fn crypt_distinguishes_a_cut_from_an_end() {
    let mut net = Net::joined(&["crypt:key=1.key"]);
    exchange(&mut net);
    let (now, seat) = (net.now, net.connections[0].seats[1].unwrap());
    net.end(1).chain.finished(now, seat.2);
    net.settle();
    assert_eq!((net.end(1).failed.clone(), net.end(1).finished), (vec![Failure::Reset], 0));
    assert!(net.said[0].contains("the flow was cut"), "{:?}", net.said);
}

#[test]
fn crypt_refuses_a_replayed_connection() {
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
    assert!(again.said[0].contains("fails authentication"), "{:?}", again.said);
}

#[test]
fn crypt_is_bound_to_the_negotiation_before_it() {
    let bound = |words: &[u8]| {
        let chain = factories(&["crypt:key=1.key"], &shell());
        let factory = chain[0].bound(words).expect("its handshake can be bound");
        std::sync::Arc::from([factory])
    };
    let mut net = Net::of(bound(b"both say this"), bound(b"both say this"));
    net.connect();
    exchange(&mut net);
    // An attacker on the path has altered the agreement at one end.
    let mut net = Net::of(bound(b"one says this"), bound(b"and one that"));
    net.connect();
    net.wait(Duration::from_secs(60));
    assert!(net.ends[1].iter().all(|end| !end.is_there));
    assert_eq!(net.end(0).answer, Some(Err(Failure::Denied)));
    assert!(net.said[0].contains("fails authentication"), "{:?}", net.said);
}

#[test]
fn data_of_a_flow_closed_before_the_connection_arrives() {
    let mut net = Net::new(&["crypt:key=1.key"], &["crypt:key=1.key"]);
    net.connect();
    net.write(0, 3_000);
    net.close(0);
    net.wait(Duration::from_secs(1));
    assert_eq!((net.end(1).read.got, net.end(1).finished), (3_000, 1), "{:?}", net.said);
}

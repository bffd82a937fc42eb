//! Flows through `congestion`, in chains.

use super::*;
use crate::flow::{BottomId, Chain, Measure};

const TO: &str = "192.0.2.1:80";

fn at(millis: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(millis)
}

/// Chain with a connected flow and the handler that `factory` makes. Chains of one factory share
/// its estimates.
fn flow(factory: &Arc<dyn Factory>) -> (Chain, BottomId) {
    let mut chain = Chain::new([factory.clone()].into(), 1 << 20, at(0));
    let bottom = chain.bottom().unwrap();
    let address = |text: &str| Address::Ip(text.parse().unwrap());
    chain.connect(at(0), address(TO));
    chain.set_names(bottom, address("192.0.2.9:1"), address(TO));
    measure(&mut chain, bottom, 0, 0);
    chain.connected(at(0), bottom, Ok(()));
    (chain, bottom)
}

fn measure(chain: &mut Chain, bottom: BottomId, held: u64, acked: u64) {
    let rtt = Duration::from_millis(40);
    let of = Measure { held, acked, rtt, shortest: rtt, segment: 1448, ..Measure::default() };
    chain.set_measure(bottom, of);
}

fn congestion() -> Arc<dyn Factory> {
    build(&mut Arguments::default()).unwrap()
}

#[test]
fn data_beyond_the_window_waits_for_an_acknowledgement() {
    let factory = congestion();
    let (mut chain, bottom) = flow(&factory);
    assert!(chain.write(at(1), vec![7; 50_000].into()));
    assert_eq!(chain.outgoing(bottom).len(), 14_480, "ten segments");
    // The kernel holds the bytes; none is acknowledged.
    chain.sent(at(1), bottom, 14_480);
    measure(&mut chain, bottom, 14_480, 0);
    chain.handle_timeout(at(11));
    assert_eq!(chain.outgoing(bottom).len(), 0);
    measure(&mut chain, bottom, 0, 14_480);
    let due = chain.poll_timeout().expect("a timer is set");
    chain.handle_timeout(due.max(at(41)));
    assert_eq!(chain.outgoing(bottom).len(), 28_960, "twice as many");
}

#[test]
fn flows_to_one_destination_share_an_estimate_and_leave_it() {
    let factory = congestion();
    let (mut one, first) = flow(&factory);
    let (mut other, second) = flow(&factory);
    assert!(one.write(at(1), vec![1; 50_000].into()));
    assert!(other.write(at(1), vec![2; 50_000].into()));
    let (one_has, other_has) = (one.outgoing(first).len(), other.outgoing(second).len());
    // The first flow took the whole window before the other wrote. The other may send only the
    // minimum (`FLOOR`, two segments) until bytes are acknowledged.
    assert_eq!((one_has, other_has), (14_480, 2_896));
    let state = factory.state().unwrap();
    assert!(state.starts_with("192.0.2.1: 2 flows share"), "{state}");
    one.sent(at(1), first, 14_480);
    measure(&mut one, first, 0, 14_480);
    one.handle_timeout(at(41));
    other.sent(at(41), second, 2_896);
    measure(&mut other, second, 2_896, 0);
    other.handle_timeout(at(42));
    let (one_has, other_has) = (one.outgoing(first).len(), other.outgoing(second).len());
    // Each flow may have half of the window, which has doubled. The other flow already has part of
    // its half in flight.
    assert_eq!((one_has, other_has), (14_480, 14_480 - 2_896));
    drop((one, other));
    assert!(factory.state().unwrap().starts_with("192.0.2.1: 0 flows share"));
}

#[test]
fn all_data_of_an_unmeasured_flow_passes_in_order() {
    let factory = congestion();
    let mut chain = Chain::new([factory].into(), 1 << 20, at(0));
    let bottom = chain.bottom().unwrap();
    chain.connect(at(0), Address::Name("far".to_owned(), 80));
    chain.connected(at(0), bottom, Ok(()));
    assert!(chain.write(at(1), vec![7; 200_000].into()));
    chain.shutdown(at(1), Half::Write);
    assert_eq!(chain.outgoing(bottom).len(), 200_000);
    assert_eq!(chain.poll_timeout(), None);
}
